//! shmccl: shared-memory collective communication between the processes of one host.
#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod bootstrap;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod comm;
pub mod error;
#[cfg(not(loom))]
pub mod heap;
#[cfg(not(loom))]
pub mod launch;
pub mod rank;
pub mod shm;
pub mod sync;

#[cfg(not(loom))]
pub use comm::Communicator;
pub use error::{Error, Result};
pub use rank::Rank;
#[doc(no_inline)]
pub use shmccl_proxy as proxy;
