//! shmccl: shared-memory collective communication between the processes of one host.
#![deny(unsafe_code)]

pub mod error;
#[cfg(not(loom))]
pub mod heap;
pub mod rank;
pub mod shm;
pub mod sync;

pub use error::{Error, Result};
pub use rank::Rank;
