//! shmccl: shared-memory collective communication between the processes of one host.
#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod bootstrap;
pub mod error;
#[cfg(not(loom))]
pub mod launch;
pub mod rank;
#[cfg(not(loom))]
pub(crate) mod shm;

pub use error::{Error, Result};
pub use rank::Rank;
