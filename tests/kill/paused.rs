//! A rank that is stopped for a while that is too short to take it for hung.

use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{Member, join_job};
use shmccl::error::DeviceName;
use shmccl::launch::{HangRule, Launch, Observer, OutputLine, Program};
use shmccl::observe::Job;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Rank};

use crate::device::{pid, say, saying};
use crate::doze;
use crate::process::wait_until;

/// The time between two looks for a heartbeat. A rank that misses all that are looked back on is silent for 3.2 s.
const PERIOD: Duration = Duration::from_millis(50);

/// For how long it is stopped: several looks miss it.
const PAUSE: Duration = Duration::from_millis(800);

/// How many ranks there are; the last one is stopped.
const N_RANKS: u32 = 3;

/// Runs `test` as a job one of whose ranks is stopped for a while.
pub(crate) fn pause_one(test: Program) {
    let rule = HangRule::new(PERIOD, 64, 64).unwrap();
    let launch = Launch::new(N_RANKS).unwrap().program(test).heap_len(4 << 20).capture_output(true);
    let launch = launch.detect_hangs(rule);
    let (tell, told) = mpsc::channel();
    let job = launch.job_id();
    let pauser = std::thread::spawn(move || {
        let victim: Pid = told.recv().unwrap();
        wait_until("it has beaten", || silence(job).is_some());
        kill(victim, Signal::SIGSTOP).unwrap();
        doze(u64::try_from(PAUSE.as_micros()).unwrap());
        kill(victim, Signal::SIGCONT).unwrap();
    });
    let outcome = launch.supervise(&mut Listener { tell, output: Vec::new() });
    pauser.join().unwrap();
    let outcome = outcome.unwrap();
    assert!(outcome.lost.is_empty(), "{outcome:?}");
}

/// How long the last rank has not beaten.
fn silence(job: u64) -> Option<Duration> {
    let report = Job::newest().into_iter().find(|found| found.id() == job)?.report().ok()?;
    report.ranks.last()?.heartbeat
}

struct Listener {
    tell: mpsc::Sender<Pid>,
    output: Vec<u8>,
}

impl Observer for Listener {
    fn on_loss(&mut self, device: DeviceName) {
        panic!("{device} was lost: {}", String::from_utf8_lossy(&self.output));
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        let text = String::from_utf8_lossy(line.text);
        if let Some(["up", own]) = saying(&text).as_deref() {
            self.tell.send(pid(own)).unwrap();
        }
    }
}

/// The body of a device process: adds up until the last rank, which cannot see itself stopped, has seen time pass without it.
pub(crate) fn be_paused() {
    let Ok(Some(Member::Device(mut comm))) = join_job() else { return };
    let last = Rank::new(N_RANKS - 1, N_RANKS).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == last {
        say(&format!("up {}", std::process::id()));
    }
    let mut before = crate::now();
    loop {
        let now = crate::now();
        let was_stopped = comm.rank() == last && u128::from(now - before) > PAUSE.as_nanos() * 3 / 4;
        before = now;
        let mut sum = [u64::from(was_stopped), 1];
        comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum).unwrap();
        assert_eq!(sum[1], u64::from(N_RANKS));
        if sum[0] > 0 {
            break;
        }
    }
    comm.finalize().unwrap();
}
