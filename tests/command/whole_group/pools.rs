//! `kill -9` of a coordinator with all its devices.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::Random;

use crate::{MARK, Scratch, await_all_children, marked, names_in};

/// A pool is killed while it starts or when it is up. It leaves nothing, be it that its janitor is
/// a moment later, and is not in the way of the next pool, which may come before that, and leaves
/// nothing, either.
pub(crate) fn kill_and_start_again(scratch: &Scratch, number: u64, random: &mut Random) {
    let (mark, devices) = (format!("shmccl-pool-{}-{number}", std::process::id()), random.below(3) + 1);
    let mut pool = start(scratch, &mark, devices);
    let mut lines = BufReader::new(pool.stderr.take().unwrap()).lines();
    // The first line is the coordinator's own.
    for _ in 0..random.below(2) * (1 + random.below(devices + 1)) {
        lines.next().unwrap().unwrap();
    }
    std::thread::park_timeout(Duration::from_micros(random.below(20_000)));
    signal_group(&pool, Signal::SIGKILL);
    pool.wait().unwrap();
    drop(lines);
    let directory = scratch.0.join("shmccl");
    if random.below(2) == 0 {
        // The janitor becomes a child of this process, as devices do.
        await_all_children();
        assert_eq!(marked(&mark), [], "left of pool {number}");
        let left = if directory.exists() { names_in(&directory, "") } else { Vec::new() };
        assert_eq!(left, [""; 0], "left in the runtime directory by pool {number}");
    }

    let mut next = start(scratch, &mark, 1);
    let mut lines = BufReader::new(next.stderr.take().unwrap()).lines().map(Result::unwrap);
    for expected in ["coordinator listens at ", "device "] {
        let line = lines.next().unwrap();
        assert!(line.starts_with(expected), "after pool {number}: {line}");
    }
    kill(Pid::from_raw(next.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(next.wait().unwrap().code(), Some(0), "after pool {number}");
    await_all_children();
    assert_eq!(names_in(&directory, ""), [""; 0], "left in the runtime directory after pool {number}");
    std::fs::remove_dir(directory).unwrap();
    assert_eq!(scratch.entries(), [""; 0]);
}

fn command(scratch: &Scratch, mark: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command.env(MARK, mark).env("XDG_RUNTIME_DIR", &scratch.0).env("TMPDIR", &scratch.0).stdin(Stdio::null());
    command
}

fn start(scratch: &Scratch, mark: &str, devices: u64) -> Child {
    let mut command = command(scratch, mark);
    command.args(["coordinator", "--memory", "1M", "-n", &devices.to_string()]);
    command.stderr(Stdio::piped()).process_group(0).spawn().unwrap()
}

fn signal_group(pool: &Child, signal: Signal) {
    kill(Pid::from_raw(-pool.id().cast_signed()), signal).unwrap();
}
