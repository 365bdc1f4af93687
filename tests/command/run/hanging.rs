//! Ranks that hang without dying, under `shmccl run`.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use regex::Regex;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error};

use crate::run::{Started, job, run, told};

/// Stops rank 1 so many times, each time as soon as it is in the job; the others bring it back.
pub(crate) fn stop(mut comm: Box<Communicator>, times: u64) -> shmccl::Result<Box<Communicator>> {
    let (tell, told) = mpsc::channel();
    comm.on_recovery(move |recovery| _ = tell.send(recovery.sequence));
    let mut returns = 0;
    loop {
        returns = told.try_iter().last().unwrap_or(returns);
        if comm.rank().get() == 1 && returns < times {
            raise(Signal::SIGSTOP).unwrap();
        }
        match comm.barrier() {
            Err(Error::PeerLost { rank }) if rank.get() == 1 && comm.rank() != rank => {
                *comm = comm.recover(returns + 1)?;
            }
            ended => return ended.map(|()| comm),
        }
    }
}

/// Like [`stop`], but once, and all stay for some periods of half a second then.
pub(crate) fn stop_and_stay(comm: Box<Communicator>) -> shmccl::Result<Box<Communicator>> {
    let mut comm = stop(comm, 1)?;
    let began = Instant::now();
    loop {
        let mut stays = [u32::from(began.elapsed() < Duration::from_secs(2))];
        comm.all_reduce_in_place(&mut stays, &ReduceOp::Max)?;
        if stays == [0] {
            return Ok(comm);
        }
    }
}

/// Of these lines those in which rank 1 is told to have hung, with the number of milliseconds
/// replaced.
fn hung_lines(stderr: &str) -> Vec<String> {
    let digits = Regex::new("for [0-9]+ ms").unwrap();
    let lines = stderr.lines().filter(|line| line.contains("rank 1") && line.contains("heartbeat"));
    lines.map(|line| digits.replace(line, "for N ms").into_owned()).collect()
}

#[test]
fn a_rank_that_hangs_is_named_and_killed_where_that_is_asked_for() {
    let (code, stderr) = told(
        &job(&["-n", "2", "-q", "--hung-after", "20/30", "--heartbeat", "100ms"], "stop 1").output().unwrap(),
    );
    let remedy =
        "see what has stopped it (--spare-hung leaves it to a debugger), or allow more (--hung-after)";
    let lines = [
        "rank 1 has given no heartbeat for N ms: it is killed".to_owned(),
        format!("error: rank 1 hung: no heartbeat for N ms; {remedy}"),
    ];
    assert_eq!((code, hung_lines(&stderr)), (1, lines.to_vec()), "{stderr}");
}

#[test]
fn a_rank_that_hangs_again_and_again_is_started_again_each_time() {
    let flags = ["-n", "3", "-q", "--hung-after", "20/30", "--heartbeat", "100ms", "--restart", "2"];
    let (code, stderr) = told(&job(&flags, "stop 2").output().unwrap());
    let killed = "rank 1 has given no heartbeat for N ms: it is killed";
    let again =
        |left: u32| format!("rank 1 hung: no heartbeat for N ms; started again ({left} more times at most)");
    assert_eq!(
        (code, hung_lines(&stderr)),
        (0, vec![killed.to_owned(), again(1), killed.to_owned(), again(0)]),
        "{stderr}"
    );
}

/// A rank that is back within a period, so that no look falls between.
#[test]
fn a_rank_that_was_started_again_does_not_answer_for_the_misses_of_its_predecessor() {
    let flags = ["-n", "2", "-q", "--hung-after", "4/12", "--heartbeat", "500ms", "--restart", "3"];
    let (code, stderr) = told(&job(&flags, "stop-and-stay 0").output().unwrap());
    assert_eq!((code, hung_lines(&stderr).len()), (0, 2), "{stderr}");
}

#[test]
fn a_service_process_that_hangs_is_found_as_well() {
    let flags = ["-n", "2", "-q", "--proxy", "process", "--hung-after", "20/30", "--heartbeat", "100ms"];
    let started = Started::new(job(&flags, "wait"), 2);
    kill(service_of(started.launcher.id()), Signal::SIGSTOP).unwrap();
    let (code, stderr) = started.end();
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("error: the proxy service hung: no heartbeat for"), "{stderr}");
}

fn service_of(launcher: u32) -> Pid {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
    let is_service = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().contains("proxy-service")
    };
    Pid::from_raw(children.split_whitespace().find(is_service).unwrap().parse().unwrap())
}

#[test]
fn flags_for_ranks_that_hang_are_checked() {
    for (flags, wrong) in [
        (&["--heartbeat", "1s"][..], "--hung-after"),
        (&["--spare-hung"], "--hung-after"),
        (&["--hung-after", "5"], "MISSES/LOOKS"),
        (&["--hung-after", "6/5"], "MISSES/LOOKS"),
        (&["--hung-after", "1/65"], "MISSES/LOOKS"),
        (&["--hung-after", "1/2", "--heartbeat", "10us"], "'--heartbeat <TIME>': expected at least 1ms"),
    ] {
        let (code, stderr) = told(&run(&[&["-n", "2"], flags, &["--", "true"]].concat()));
        assert!(code == 2 && stderr.contains(wrong) && stderr.lines().count() == 1, "{flags:?}: {stderr}");
    }
}
