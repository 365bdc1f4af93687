//! Signals that the starter has ignored or blocked.

use nix::sys::signal::Signal;
use support::Surroundings;

use crate::job::{Started, end_of, job, shmccl};

#[test]
fn a_job_ends_where_nobody_is_told_of_the_end_of_children() {
    let run = &mut shmccl(&["run", "-n", "2", "-q", "--", "true"]);
    assert_eq!(end_of(Surroundings::plain().ignoring(Signal::SIGCHLD).around(run)), (0, String::new()));
}

#[test]
fn signals_that_the_starter_has_blocked_end_a_job_all_the_same() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut waits = job(&["-n", "2", "-q"], "wait");
        let surroundings = Surroundings::plain().blocking(signal);
        let started = Started::new(surroundings.around(&mut waits), 2);
        started.signal(signal);
        assert_eq!(started.end().0, 128 + signal as i32);
    }
}
