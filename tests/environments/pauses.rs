//! Jobs that are paused as a whole for longer than their timeout: stopped by a signal here, frozen
//! with their container or suspended with their machine elsewhere.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use shmccl::bootstrap::Options;
use shmccl::{Communicator, UniqueId};

use crate::job::{Started, alone, job, say, sum};
use crate::scratch;

/// How long ranks wait for each other.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How long everything is paused.
const PAUSE: Duration = Duration::from_millis(2300);

/// How long those that wait have to find out that it is late.
const WAKING: Duration = Duration::from_millis(100);

const SIGN: &str = "SHMCCL_TEST_SIGN";

/// Stops all processes that have said who they are, and has them go on later.
fn pause(started: &Started) {
    let tell = |signal| started.pids.iter().for_each(|pid| kill(*pid, signal).unwrap());
    tell(Signal::SIGSTOP);
    pass(PAUSE);
    tell(Signal::SIGCONT);
    pass(WAKING);
}

fn pass(time: Duration) {
    let began = Instant::now();
    while let Some(left) = time.checked_sub(began.elapsed()) {
        std::thread::park_timeout(left);
    }
}

fn sign(name: &str) -> PathBuf {
    scratch(name).join("go on")
}

/// Waits until the test says that all go on.
fn await_sign() {
    let sign = std::env::var_os(SIGN).unwrap();
    while !Path::new(&sign).exists() {
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_job_that_was_paused_for_longer_than_its_timeout_goes_on() {
    let sign = sign("paused");
    let mut job = job(&["-n", "2", "-q", "--timeout", "2s"], "held");
    let started = Started::new(job.env(SIGN, &sign), 2);
    pause(&started);
    std::fs::write(&sign, "").unwrap();
    let (code, stderr, stdout) = started.end();
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.matches("sum 3").count(), 2, "{stdout}");
}

/// Has rank 1 come late to a barrier.
pub(crate) fn held(mut comm: Communicator) -> shmccl::Result<()> {
    comm.barrier()?;
    say(format_args!("pid {}", std::process::id()));
    if comm.rank().get() == 1 {
        await_sign();
    }
    comm.barrier()?;
    sum(&mut comm)?;
    comm.finalize()
}

#[test]
fn a_meeting_that_was_paused_for_longer_than_its_timeout_goes_on() {
    let mut first = alone("host");
    let mut started = Started::new(first.stdin(Stdio::null()), 1);
    let id = started.hear("id ");
    // It comes to its own meeting before the pause.
    pass(WAKING);
    pause(&started);
    let (code, stderr, stdout) = Started::new(alone("guest").env(SIGN, id.trim()), 0).end();
    assert_eq!((code, stderr.as_str(), stdout.matches("sum 3").count()), (0, "", 1));
    let (code, stderr, stdout) = started.end();
    assert_eq!((code, stderr.as_str(), stdout.matches("sum 3").count()), (0, "", 1));
}

/// Waits for rank 1 at a meeting that it hosts.
pub(crate) fn host() -> shmccl::Result<()> {
    let id = UniqueId::new()?;
    say(format_args!("pid {}", std::process::id()));
    say(format_args!("id {id}"));
    meet(&id, 0)
}

/// Comes to the meeting as rank 1.
pub(crate) fn guest() -> shmccl::Result<()> {
    meet(&std::env::var(SIGN).unwrap().parse()?, 1)
}

fn meet(id: &UniqueId, rank: u32) -> shmccl::Result<()> {
    let options = Options { heap_len: 4 << 20, timeout: TIMEOUT, ..Options::default() };
    let mut comm = Communicator::init_rank_with(2, id, rank, &options)?;
    sum(&mut comm)?;
    comm.finalize()
}
