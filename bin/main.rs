//! The command `shmccl`.

fn main() {}
