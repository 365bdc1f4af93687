//! The program `shmccl`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    shmccl_cli::main()
}
