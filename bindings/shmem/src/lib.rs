//! OpenSHMEM over shmccl: the library behind `shmem.h`.
//!
//! `include/shmem.h` is generated from [`table`], and so are the exported functions: each under its
//! own name and under that with a `p` in front, for profilers. Programs link
//! `libshmccl_shmem.so` or `libshmccl_shmem.a`, and run under `shmccl run`.
//!
//! # Rules
//! - Every rank's heap is mapped by all: an operation is a copy or an atomic in memory, and done
//!   when it returns.
//! - What cannot go on ends the program with one line, as OpenSHMEM has no errors to return.
//! - Pointers are the program's word.
//!
//! Tried by `shmem_header` and `shmem_programs`.

#![allow(clippy::too_many_arguments, reason = "arguments are those of the header")]

#[cfg(not(target_arch = "x86_64"))]
compile_error!("long doubles are those of x86-64");

pub mod table;

mod active_sets;
mod allocations;
mod atomics;
mod collectives;
mod contexts;
mod control;
mod fail;
mod futex;
mod leaving;
mod long_double;
mod memory;
mod numbers;
mod reduce;
mod rma;
mod setup;
mod signals;
mod statics;
mod sync;
mod teams;
mod wait;
mod waits;
mod words;
mod world;

/// The exported functions.
#[allow(
    non_snake_case,
    clippy::unused_unit,
    unused_unsafe,
    reason = "made from the table, with the names and arguments of the header"
)]
mod functions {
    use std::ffi::{c_char, c_int, c_long, c_void};

    use crate::contexts::{Ctx, SessionConfig};
    use crate::numbers::{Complex, LongDouble};
    use crate::reduce::{And, Max, Min, Or, Plus, Times, Xor};
    use crate::teams::{Team, TeamConfig};

    include!(concat!(env!("OUT_DIR"), "/functions.rs"));
}
