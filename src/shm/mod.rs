//! Shared memory and the system calls around it: the only unsafe code.

pub mod kernel;
pub mod life;

pub use kernel::HostKernel;
pub use life::LifeLock;
