//! Coordinators that die while devices work, and others that take their place.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use support::long;

use crate::pool::{Pool, entries};

#[test]
fn no_group_fails_when_the_coordinator_is_killed_and_the_next_one_takes_over() {
    let mut pool = Pool::start("restarts", 3);
    pool.ctl("init 3").line();
    let mut ranks = pool.devices();
    ranks.sort_unstable();
    let kills = if long() { 200 } else { 4 };
    let mut in_progress = 0;
    for kill in 1..=kills {
        let count = if kill % 2 == 0 { 1_000_000 } else { 1 + (kill * 7919) % 300_000 };
        for (rank, device) in (1..).zip(&ranks) {
            let element = f64::from(kill + rank).to_ne_bytes();
            pool.ctl_with(&format!("put-h2d {device} {:#x}", 0x1000 * rank), &element).line();
        }
        // One that is stopped cannot say any more that it is through: what is in progress now still is when the coordinator is killed. That
        // is certain where it is stopped before the call, and chance after it.
        let stopped = (kill % 2 == 0).then(|| ranks[kill as usize / 2 % 3]);
        let is_before = kill % 4 == 0;
        stopped.into_iter().filter(|_| is_before).for_each(|device| signal(device, Signal::SIGSTOP));
        pool.ctl(&format!("call 1 all_reduce -d float64 -n {count} --send 0x1000,0x2000,0x3000")).line();
        for _ in 0..(kill * 37) % 500 {
            std::thread::yield_now();
        }
        if let Some(device) = stopped {
            signal(device, Signal::SIGSTOP);
            let status = pool.ctl("status 1").line();
            let is_in_progress = status.contains(": in progress");
            assert!(is_in_progress || !is_before, "kill {kill}: {status}");
            in_progress += u32::from(is_in_progress);
        }
        pool.kill_coordinator();
        stopped.into_iter().for_each(|device| signal(device, Signal::SIGCONT));
        assert!(pool.ctl("status 1").error().contains("start one with `shmccl coordinator`"));
        pool.start_coordinator();
        let status = pool.ctl("status 1 --wait").line();
        let succeeded = format!("group {kill} succeeded");
        assert!(status.contains("ready, epoch 1") && status.ends_with(&succeeded), "kill {kill}: {status}");
        let result = pool.ctl(&format!("get-d2h {} 0x2000 8", ranks[1])).stdout;
        assert_eq!(result, f64::from(3 * kill + 6).to_ne_bytes(), "kill {kill}");
    }
    pool.ctl("finalize 1").line();
    assert_eq!(pool.ctl("devices").line().matches("free").count(), 3);
    println!("{kills} coordinators killed, at least {in_progress} in the middle of a group; no group failed");
    assert!(in_progress >= kills / 4, "{in_progress} of {kills} were killed in the middle of a group");
}

#[test]
fn a_second_coordinator_is_refused_and_a_device_needs_one_to_begin_with() {
    let pool = Pool::start("second", 0);
    let run = |pool: &Pool, word: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_shmccl"));
        let output =
            command.env("XDG_RUNTIME_DIR", &pool.parent).env("NO_COLOR", "1").arg(word).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&pool, "coordinator").contains("a coordinator is running already at"));
    let empty = Pool::empty("empty");
    assert!(run(&empty, "device").contains("start one with `shmccl coordinator`"));
    assert_eq!(entries(&empty.parent.join("shmccl")), 0);
    for (variable, value) in [("SHMCCL_FAULTS", "nonsense"), ("SHMCCL_CHECKSUMS", "maybe")] {
        let output = pool.command().arg("device").env(variable, value).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(variable), "{stderr}");
    }
}

pub(crate) fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(process).unwrap()), signal).unwrap();
}

#[test]
fn a_coordinator_that_takes_nobody_is_waited_for_no_longer_than_was_said() {
    let mut pool = Pool::start("backlog", 0);
    let coordinator = pool.coordinator().id();
    signal(coordinator, Signal::SIGSTOP);
    let address = UnixAddr::new(&pool.socket()).unwrap();
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    // Who hangs up stays in the backlog until it is looked at.
    let full = loop {
        let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        if let Err(errno) = connect(stream.as_raw_fd(), &address) {
            break errno;
        }
    };
    assert_eq!(full, Errno::EAGAIN);
    let refused = pool.ctl("--timeout 200ms status");
    assert!(refused.error().contains("connecting with the coordinator timed out"), "{}", refused.stderr);
    signal(coordinator, Signal::SIGCONT);
    assert_eq!(pool.ctl("status").line(), "");
}

#[test]
fn a_device_does_not_wait_for_a_coordinator_that_does_not_greet() {
    let mut pool = Pool::start("no-greeting", 1);
    pool.kill_coordinator();
    std::fs::remove_file(pool.socket()).unwrap();
    let listener = UnixListener::bind(pool.socket()).unwrap();
    let (mut knocking, _) = listener.accept().unwrap();
    knocking.read_exact(&mut [0; 10]).unwrap();
    let began = Instant::now();
    assert_eq!(pool.interrupt(), [Some(0)]);
    assert!(began.elapsed() < Duration::from_secs(20), "it has waited for the greeting, half a minute");
}

#[test]
fn a_call_for_a_group_that_is_gone_with_its_coordinator_is_not_executed_alone() {
    let mut pool = Pool::start("open", 2);
    pool.ctl("init 2").line();
    let group = pool.ctl("group start 1").line();
    let call = format!("call 1 all_reduce -n 4 --send 0x1000 --group {group}");
    let queued = format!(
        "communicator 1: call 1 of group {group}, which is open; `shmccl ctl group end 1` executes it"
    );
    assert_eq!(pool.ctl(&call).line(), queued);
    pool.kill_coordinator();
    pool.start_coordinator();
    pool.ctl_until("devices", |table| table.matches("communicator 1").count() == 2);
    for late in [&call, &format!("group end 1 --group {group}"), &format!("group cancel 1 --group {group}")] {
        let refused = pool.ctl(late);
        assert!(refused.error().contains(&format!("has no open group {group}: ")), "{}", refused.stderr);
    }
    assert!(pool.ctl("group cancel 1").error().contains("has no group to end"));
    assert!(!pool.ctl("status 1").line().contains("group"), "nothing was executed");
    // Whoever has it open may be gone: it is not in the way for ever.
    pool.ctl("group start 1").line();
    assert!(pool.ctl("finalize 1").error().contains("end or cancel it first"));
    assert_eq!(pool.ctl("group cancel 1").line(), "");
    assert_eq!(pool.ctl("finalize 1").line(), "");
}
