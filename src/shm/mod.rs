//! Shared memory and the few system calls that no safe wrapper covers.

pub(crate) mod system;
