//! The command under test, as if nobody had set anything for it.

use std::process::{Command, Stdio};

/// Returns the command at `executable` with an empty input, without the variables that change what
/// it does or prints, and with the built-in tuning table, whatever was measured on this machine.
pub fn plain_command(executable: &str) -> Command {
    let mut command = Command::new(executable);
    command.stdin(Stdio::null());
    for variable in [
        "NO_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "SHMCCL_HEAP",
        "SHMCCL_LOG",
        "SHMCCL_TRACE",
        "SHMCCL_FAULTS",
    ] {
        command.env_remove(variable);
    }
    command.env("SHMCCL_TUNING", "");
    command
}
