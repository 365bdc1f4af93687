//! The program `shmccl` in the wheel.

use std::process::ExitCode;

fn main() -> ExitCode {
    shmccl_cli::main()
}
