//! An executable that is replaced or removed while its job runs, and a system that starts no more
//! processes.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};

use crate::job::{Started, job};
use crate::scratch;

/// The same command, but of a copy of its program at `path`.
fn copied(command: &Command, path: &Path) -> Command {
    std::fs::copy(command.get_program(), path).unwrap();
    let mut copy = Command::new(path);
    copy.args(command.get_args());
    command.get_envs().for_each(|(name, value)| match value {
        Some(value) => _ = copy.env(name, value),
        None => _ = copy.env_remove(name),
    });
    copy
}

#[test]
fn a_rank_is_started_again_though_the_launchers_executable_was_replaced_or_removed() {
    for is_replaced in [true, false] {
        let path = scratch("replaced").join("shmccl");
        let mut command = copied(&job(&["-n", "2", "-q", "--restart", "1"], "recover"), &path);
        let started = Started::new(&mut command, 2);
        std::fs::remove_file(&path).unwrap();
        if is_replaced {
            std::fs::copy("/bin/false", &path).unwrap();
        }
        kill(started.pids()[1], Signal::SIGKILL).unwrap();
        let (code, stderr, stdout) = started.end();
        assert_eq!(code, 0, "{stderr}");
        assert!(stderr.contains("rank 1 was killed by SIGKILL; started again"), "{stderr}");
        assert_eq!(stdout.matches("back\n").count(), 2, "{stdout}");
    }
}

#[test]
fn a_restart_that_cannot_start_is_a_lost_rank() {
    for (flag, code) in [("--keep-going", 0), ("--grace=300ms", 128 + Signal::SIGKILL as i32)] {
        let mut command = job(&["-n", "2", "-q", "--restart", "1", flag], "recover");
        let started = Started::new(&mut command, 2);
        let limit = ["--pid", &started.pid().to_string(), "--nofile=3:3"];
        assert!(Command::new("prlimit").args(limit).status().unwrap().success());
        kill(started.pids()[1], Signal::SIGKILL).unwrap();
        let (ended, stderr, _) = started.end();
        assert_eq!(ended, code, "{stderr}");
        assert!(stderr.contains("rank 1 cannot be started again: "), "{stderr}");
    }
}
