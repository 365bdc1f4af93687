//! The C ABI of shmccl, in the shape of `nccl.h`.
//!
//! `include/shmccl.h` is generated from this crate and documents every function. Programs link
//! `libshmccl.so` or `libshmccl.a`; adapters that are loaded beside an engine, as the one for
//! PyTorch, get the same functions from a [table](shmcclGetTable).
//!
//! # Rules
//! - No panic crosses the border: `answer::answer` turns it into `shmcclInternalError`.
//! - Handles are numbers in tables (`handles`): a freed or foreign one is told from a living one.
//! - A function takes the lock of a communicator while it calls the engine. Functions that end or
//!   observe an epoch take no lock.
//! - What a null pointer would stand for is an argument error, except where the header says what it
//!   stands for.
//!
//! Tried by its unit tests, `programs`, `header` and `lists`.

#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::too_many_arguments,
    reason = "names and arguments are those of the header, and of nccl.h"
)]

#[cfg(panic = "abort")]
compile_error!("panics have to unwind: build without panic = \"abort\"");

mod arguments;
mod comm_state;
mod handles;
mod operand;
mod types;

// In the order of the header.
mod failure;

mod answer;

mod comm;

mod operations;

mod calls;

mod group;

mod stream;

mod event;

mod memory;

mod statics;

mod signals;

mod window;

mod interrupt;

mod recovery;

mod plans;

mod table;

pub use answer::*;
pub use calls::*;
pub use comm::*;
pub use event::*;
pub use failure::*;
pub use group::*;
pub use interrupt::*;
pub use memory::*;
pub use operations::*;
pub use plans::*;
pub use recovery::*;
pub use signals::*;
pub use statics::*;
pub use stream::*;
pub use table::*;
pub use types::*;
pub use window::*;
