//! An executable that is replaced or removed while its job runs, and a system that starts no more
//! processes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use support::copy_program;

use crate::job::{Started, job, with_environment_of};
use crate::scratch;

/// Returns `command` with a copy of its program at `path` in place of it.
fn copied(command: &Command, path: &Path) -> Command {
    copy_program(command.get_program(), path);
    let mut copy = Command::new(path);
    copy.args(command.get_args());
    with_environment_of(command, copy)
}

#[test]
fn a_rank_is_started_again_though_the_launchers_executable_was_replaced_or_removed() {
    for is_replaced in [true, false] {
        let path = scratch("replaced").join("shmccl");
        let mut command = copied(&job(&["-n", "2", "-q", "--restart", "1"], "recover"), &path);
        let started = Started::new(&mut command, 2);
        std::fs::remove_file(&path).unwrap();
        if is_replaced {
            copy_program("/bin/false", &path);
        }
        kill(started.pids()[1], Signal::SIGKILL).unwrap();
        let (code, stderr, stdout) = started.end();
        assert_eq!(code, 0, "{stderr}");
        assert!(stderr.contains("rank 1 was killed by SIGKILL; started again"), "{stderr}");
        assert_eq!(stdout.matches("back\n").count(), 2, "{stdout}");
    }
}

#[test]
fn a_rank_is_started_again_though_its_program_was_replaced_or_removed() {
    for is_script in [true, false] {
        let program = scratch("program").join("program");
        let plain = job(&["-n", "2", "-q", "--restart", "1"], "recover");
        let mut words: Vec<_> = plain.get_args().map(ToOwned::to_owned).collect();
        let this = words.iter().position(|word| word == "--").unwrap() + 1;
        if is_script {
            let text = format!("#!/bin/sh\nexec {} \"$@\"\n", words[this].to_str().unwrap());
            let draft = program.with_extension("draft");
            std::fs::write(&draft, text).unwrap();
            std::fs::set_permissions(&draft, Permissions::from_mode(0o755)).unwrap();
            copy_program(&draft, &program);
        } else {
            std::fs::hard_link(&words[this], &program).unwrap();
        }
        words[this] = program.clone().into();
        let mut command = Command::new(plain.get_program());
        command.args(words);
        let started = Started::new(&mut with_environment_of(&plain, command), 2);
        std::fs::remove_file(&program).unwrap();
        if is_script {
            copy_program("/bin/false", &program);
        }
        kill(started.pids()[1], Signal::SIGKILL).unwrap();
        let (code, stderr, stdout) = started.end();
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(stdout.matches("back\n").count(), 2, "{stdout}");
    }
}

#[test]
fn a_restart_that_cannot_start_is_a_lost_rank() {
    for (flag, code) in [("--keep-going", 0), ("--grace=300ms", 128 + Signal::SIGKILL as i32)] {
        let mut command = job(&["-n", "2", "-q", "--restart", "1", flag], "recover");
        let started = Started::new(&mut command, 2);
        // Fewer than it has already, and more than it polls.
        let limit = ["--pid", &started.pid().to_string(), "--nofile=8:8"];
        assert!(Command::new("prlimit").args(limit).status().unwrap().success());
        kill(started.pids()[1], Signal::SIGKILL).unwrap();
        let (ended, stderr, _) = started.end();
        assert_eq!(ended, code, "{stderr}");
        assert!(stderr.contains("rank 1 cannot be started again: "), "{stderr}");
    }
}
