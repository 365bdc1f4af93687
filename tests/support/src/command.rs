//! The command under test, as if nobody had set anything for it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::heeding_interrupts;

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
    heeding_interrupts(&mut command);
    command
}

/// Copies a program to where a test executes it, by another process.
///
/// A copy that this process writes is open in each child, too, that another thread starts
/// meanwhile, until that has its own program. As long as somebody may write it, the system refuses
/// to execute it (`ETXTBSY`).
pub fn copy_program(program: impl AsRef<Path>, copy: &Path) {
    let done = Command::new("cp").arg(program.as_ref()).arg(copy).status().unwrap();
    assert!(done.success(), "cp {}: {done}", copy.display());
}
