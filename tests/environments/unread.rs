//! Output that nobody takes: pipes that are full before anything is written to them.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Watchdog, long, wait_until};

use crate::job::shmccl;
use crate::scratch;

/// A pipe that takes nothing more, as its reader has stopped reading.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    assert_eq!(writer.write(b".").unwrap_err().kind(), ErrorKind::WouldBlock);
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

/// Runs a command to its end, and returns its exit code or 128 plus its signal.
fn code_of(command: &mut Command) -> i32 {
    let _watchdog = Watchdog::start("a command that nobody reads", Duration::from_secs(60));
    let status = command.status().unwrap();
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// `shmccl run` of two ranks that run `script`, with a short time of grace.
fn run(script: &str) -> Command {
    let flags = ["run", "-n", "2", "--prefix", "--grace", "200ms", "--"];
    shmccl(&[&flags[..], &["sh", "-c", script]].concat())
}

#[test]
fn a_job_is_interrupted_though_nobody_takes_its_output() {
    let script = "echo hello; echo hello >&2; [ $SHMCCL_RANK = 1 ] && kill -TERM $PPID; exec sleep 1000";
    let ((_reader, stdout), (_other, stderr)) = (full_pipe(), full_pipe());
    assert_eq!(code_of(run(script).stdout(stdout).stderr(Stdio::null())), 128 + Signal::SIGTERM as i32);
    assert_eq!(code_of(run(script).stdout(Stdio::null()).stderr(stderr)), 128 + Signal::SIGTERM as i32);
}

#[test]
fn a_rank_that_fails_ends_the_job_though_nobody_takes_its_output() {
    let script = "echo hello; [ $SHMCCL_RANK = 1 ] && exit 3; exec sleep 1000";
    let (_reader, stdout) = full_pipe();
    let _watchdog = Watchdog::start("a job that nobody reads", Duration::from_secs(60));
    let output = run(script).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("error: rank 1 exited with code 3\n"), "{stderr}");
    assert!(stderr.ends_with("nobody reads the output: its last 30 bytes are lost\n"), "{stderr}");
}

#[test]
fn a_measurement_is_interrupted_and_loses_its_ranks_though_nobody_takes_its_output() {
    let all_reduce = ["perf", "all_reduce", "-b", "8", "-e", "8", "-n", "1000000000", "--heap", "8M"];
    let compare = ["compare", "-b", "8", "-e", "8", "-n", "1000000000", "--json", "/dev/null"];
    let tune = ["tune", "-o", "/dev/null"];
    for words in [&all_reduce[..], &compare, &tune] {
        for lost in [false, true] {
            let _watchdog = Watchdog::start("a measurement that nobody reads", Duration::from_secs(60));
            let ((_reader, stdout), (_other, stderr)) = (full_pipe(), full_pipe());
            let mut command = shmccl(words);
            let mut job = command.stdout(stdout).stderr(stderr).spawn().unwrap();
            let launcher = Pid::from_raw(job.id().cast_signed());
            wait_until("both ranks measure", || have_joined(&children(launcher)));
            let began = Instant::now();
            let (whom, signal) = match lost {
                true => (children(launcher)[1], Signal::SIGKILL),
                false => (launcher, Signal::SIGTERM),
            };
            kill(whom, signal).unwrap();
            let code = if lost { 1 } else { 128 + Signal::SIGTERM as i32 };
            assert_eq!(job.wait().unwrap().code(), Some(code), "{words:?}");
            let took = began.elapsed();
            assert!(!long() || took < Duration::from_millis(1200), "{words:?} {lost}: {took:?}");
        }
    }
}

/// The children of a process, in the order of their start.
fn children(process: Pid) -> Vec<Pid> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    list.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

/// Whether these are two ranks that have a thread for the control socket: they have joined.
fn have_joined(ranks: &[Pid]) -> bool {
    let has_link = |rank: &Pid| {
        let threads = std::fs::read_dir(format!("/proc/{rank}/task")).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|name| name.trim() == "shmccl link")
    };
    ranks.len() == 2 && ranks.iter().all(has_link)
}

#[test]
fn the_output_of_a_job_that_ends_well_waits_for_its_reader() {
    let (mut reader, stdout) = full_pipe();
    let mut command = run("echo hello");
    let mut job = command.stdout(stdout).stderr(Stdio::null()).spawn().unwrap();
    drop(command);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text.trim_start_matches('.').lines().count(), 2);
    assert_eq!(job.wait().unwrap().code(), Some(0));
}

#[test]
fn a_pool_is_interrupted_though_nobody_takes_its_notes() {
    let _watchdog = Watchdog::start("a pool that nobody reads", Duration::from_secs(60));
    let ((_reader, stderr), directory) = (full_pipe(), scratch("pool-unread"));
    let mut command = shmccl(&["coordinator", "-n", "1", "--memory", "8M"]);
    let mut pool = command.env("XDG_RUNTIME_DIR", &directory).stderr(stderr).spawn().unwrap();
    let devices = || shmccl(&["ctl", "devices"]).env("XDG_RUNTIME_DIR", &directory).output().unwrap();
    wait_until("its device has come", || devices().stdout.iter().filter(|byte| **byte == b'\n').count() == 2);
    kill(Pid::from_raw(pool.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(pool.wait().unwrap().code(), Some(0));
}

#[test]
fn a_long_line_is_printed_whole_behind_its_rank() {
    let script = "head -c 300000 /dev/zero | tr '\\0' x; echo; echo short";
    let output = run(script).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lengths: Vec<_> = text.lines().map(|line| line.strip_prefix("[rank ").unwrap().len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, ["0] short".len(), "0] short".len(), 300_003, 300_003]);
}
