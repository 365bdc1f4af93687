//! Measuring: what the tests of `shmccl perf` and `shmccl compare` share.

pub(crate) mod slices;
pub(crate) mod stats;
pub(crate) mod view;
