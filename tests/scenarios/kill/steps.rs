//! Processes that are killed at each step on their way into an epoch, by number: as ranks that the
//! launcher has started, as members or newcomers of a communicator that grows, as survivors who
//! shrink or recover, as the rank that was started again, or as ranks that meet under a unique id
//! without a launcher.
//!
//! The steps are those that the library notes ([`shmccl::logs`]); who is to die counts them, and
//! kills itself at the one of its number.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::Launch;
use shmccl::{Error, Rank};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::kill::device::say;
use crate::kill::gathering::{self, Gathering};
use crate::kill::halting;
use crate::kill::joining::{self, JoiningTrial, Tally};
use crate::kill::orphaned::{self, orphan_at};
use crate::kill::returning::{self, ReturningTrial, Returns};
use crate::kill::series::Series;
use crate::kill::stepwise::Said;
use crate::kill::{long, this_test};

/// Which step kills, and from when on the process in question counts.
pub(crate) const NUMBER: &str = "STEP_NUMBER";
pub(crate) const FROM: &str = "STEP_FROM";

/// Set where the step stops the process instead, until somebody wakes it.
pub(crate) const STOPS: &str = "STEP_STOPS";

/// Set where the step kills the launcher.
pub(crate) const ORPHANS: &str = "STEP_ORPHANS";

/// More steps than there are on any way.
const MOST: u64 = 200;

/// Counts steps from here on, where this process is told to do so `from` here.
pub(crate) fn count_from(from: &str) {
    if std::env::var(FROM).is_ok_and(|told| told == from) {
        let left = Mutex::new(std::env::var(NUMBER).unwrap().parse().unwrap());
        let act = match [STOPS, ORPHANS].map(|name| std::env::var_os(name).is_some()) {
            [true, _] => Act::Stop,
            [_, true] => Act::Orphan,
            _ => Act::Die,
        };
        // It may be counting already.
        let _ = tracing::subscriber::set_global_default(Counter { left, act });
    }
}

/// Kills this process, that of `rank`, if the variable of this `name` says so.
pub(crate) fn die_as(name: &str, rank: Rank) {
    if std::env::var(name).is_ok_and(|victim| victim == rank.to_string()) {
        let _ = kill(Pid::this(), Signal::SIGKILL);
    }
}

/// Does what it is told to when there are no steps left.
struct Counter {
    left: Mutex<u64>,
    act: Act,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    /// This process does.
    Die,
    /// It is stopped.
    Stop,
    /// The launcher is killed, and it goes on when it has heard of that.
    Orphan,
}

impl Act {
    fn begin(self) {
        match self {
            Self::Die => _ = kill(Pid::this(), Signal::SIGKILL),
            Self::Stop => _ = kill(Pid::this(), Signal::SIGSTOP),
            Self::Orphan => orphaned::kill_the_launcher(),
        }
    }
}

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == shmccl::logs::MEETING
            || (self.act == Act::Orphan && metadata.target() == shmccl::logs::EPOCH)
    }

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() == shmccl::logs::EPOCH {
            return orphaned::hear(event);
        }
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        // Once: who was woken goes on.
        let is_due = *left == 1;
        *left = left.saturating_sub(1);
        drop(left);
        if is_due {
            self.act.begin();
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

/// Has `kill_at` kill at one step after the other until there are no more, which it says; at some
/// of them, drawn by lot, where there is little time. Returns how many there were.
fn at_each_step(name: &str, series: &mut Series, kill_at: impl FnMut(u64) -> bool) -> u64 {
    at_steps(name, series, 3, kill_at)
}

/// Like [`at_each_step`], but kills at one of `stride` steps where there is little time.
fn at_steps(name: &str, series: &mut Series, stride: u64, mut kill_at: impl FnMut(u64) -> bool) -> u64 {
    let stride = if long() { 1 } else { stride };
    let mut number = 1 + series.below(stride);
    while number < MOST {
        if !series.trial(|_| (name, number), |_| kill_at(number)) {
            return number - 1;
        }
        number += stride;
    }
    panic!("{name} takes more than {MOST} steps");
}

/// Like [`at_each_step`], but with one victim after the other: the ranks of these names.
fn at_each_step_of_each(test: &str, names: [&str; 3], mut kill_at: impl FnMut(u32, u64) -> bool) {
    let Some(mut series) = Series::begin(test, "steps") else { return };
    for (victim, name) in (0..).zip(names) {
        let steps = at_each_step(name, &mut series, |number| kill_at(victim, number));
        println!("{name}: {steps} steps");
        assert!(steps > 10, "{steps}");
    }
}

/// A job of three ranks of `test`, of which `victim` dies at the step of this number `from`
/// somewhere on.
fn launch(test: &str, victim: u32, from: &str, number: u64) -> Launch {
    let launch = Launch::new(3).unwrap().program(this_test(test)).heap_len(8 << 20).capture_output(true);
    let launch = launch.timeout(Duration::from_secs(10)).env("SHMCCL_TUNING", "");
    let launch = launch.grace(Duration::from_secs(10));
    launch.env(FROM, format!("{from} {victim}")).env(NUMBER, number.to_string())
}

fn rank(rank: u32) -> DeviceName {
    DeviceName::Rank(Rank::new(rank, 3).unwrap())
}

/// The body of a device process that joins and leaves again.
fn be_a_joiner() {
    count_from(&format!("join {}", std::env::var("SHMCCL_RANK").unwrap()));
    let done = join_job().and_then(|member| match member {
        Some(JoinedAs::Device(mut comm)) => comm.barrier().and_then(|()| comm.finalize()),
        other => panic!("{other:?}"),
    });
    match done {
        Ok(()) => {}
        Err(Error::PeerLost { rank }) => {
            say(&format!("lost {rank}"));
            std::process::exit(1);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn whoever_is_killed_at_whatever_step_of_starting_all_others_lose_it() {
    if crate::kill::is_device() {
        return be_a_joiner();
    }
    let test = "steps::whoever_is_killed_at_whatever_step_of_starting_all_others_lose_it";
    let Some(mut series) = Series::begin(test, "steps") else { return };
    let steps = at_each_step("a rank", &mut series, |number| {
        let mut said = Said::default();
        let outcome = launch(test, 1, "join", number).supervise(&mut said);
        let context = || format!("step {number}: {outcome:?}\n{}", String::from_utf8_lossy(&said.output));
        match &outcome {
            Ok(_) => return false,
            Err(Error::DeviceFailed { device, cause: ExitCause::Signal(9) }) => assert_eq!(*device, rank(1)),
            Err(_) => panic!("{}", context()),
        }
        let lost = ["rank 0", "rank 2"].map(|by| (by.to_owned(), "1".to_owned()));
        assert_eq!(said.lost, BTreeMap::from(lost), "{}", context());
        true
    });
    assert!(steps > 5, "{steps}");
}

/// The body of a device process that goes on without those who are lost.
fn be_a_shrinking_survivor() {
    let Ok(Some(JoinedAs::Device(comm))) = join_job() else { return };
    let (first, mut comm) = (comm.rank(), *comm);
    while let Err(error) = (0..5).try_for_each(|_| comm.barrier()) {
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        count_from(&format!("shrink {first}"));
        comm = comm.shrink().unwrap().comm;
    }
    // Who dies at its last step is lost to the next epoch, which the others may have left.
    let _ = comm.finalize();
    say("done");
}

#[test]
fn whoever_is_killed_at_whatever_step_of_shrinking_the_others_go_on() {
    if crate::kill::is_device() {
        return be_a_shrinking_survivor();
    }
    let test = "steps::whoever_is_killed_at_whatever_step_of_shrinking_the_others_go_on";
    let Some(mut series) = Series::begin(test, "steps") else { return };
    for victim in [0, 1] {
        let steps = at_each_step("a survivor", &mut series, |number| {
            let launch = launch(test, victim, "shrink", number).keep_going(true);
            let mut said = Said::default();
            let outcome = launch.faults("kill:rank=2,at=3".parse().unwrap()).supervise(&mut said);
            let context = || format!("step {number}: {outcome:?}\n{}", String::from_utf8_lossy(&said.output));
            let Ok(outcome) = &outcome else { panic!("{}", context()) };
            let is_injected = |cause: &ExitCause| matches!(cause, ExitCause::Injected(_));
            let (injected, killed): (Vec<_>, Vec<_>) =
                outcome.lost.iter().partition(|(_, cause)| is_injected(cause));
            assert!(matches!(injected[..], [(device, _)] if device == rank(2)), "{}", context());
            let by_kill = (rank(victim), ExitCause::Signal(9));
            assert!(killed.iter().all(|lost| *lost == by_kill), "{}", context());
            assert_eq!(said.done + outcome.lost.len(), 3, "{}", context());
            !killed.is_empty()
        });
        assert!(steps > 5, "{steps}");
    }
}

#[test]
fn whoever_is_stopped_at_whatever_step_of_shrinking_the_others_go_on_and_it_is_told_when_it_wakes() {
    if crate::kill::is_device() {
        return halting::be_halted_or_not();
    }
    let test = "steps::whoever_is_stopped_at_whatever_step_of_shrinking_the_others_go_on_and_it_is_told_when_it_wakes";
    let Some(mut series) = Series::begin(test, "steps") else { return };
    let drawn = u32::try_from(series.below(2)).unwrap();
    for victim in if long() { 0..2 } else { drawn..drawn + 1 } {
        // Each takes as long as the others wait for it.
        let steps = at_steps("a survivor", &mut series, 6, |number| halting::halt_at(test, victim, number));
        println!("rank {victim}: {steps} steps");
        assert!(steps > 5, "{steps}");
    }
}

#[test]
fn whoever_is_killed_at_whatever_step_of_growing_all_are_together_or_none() {
    if joining::is_newcomer() {
        return joining::be_a_newcomer();
    }
    if crate::kill::is_device() {
        return joining::be_a_growing_member();
    }
    let test = "steps::whoever_is_killed_at_whatever_step_of_growing_all_are_together_or_none";
    let mut tally = Tally::default();
    at_each_step_of_each(test, ["the host", "a member", "a newcomer"], |victim, number| {
        JoiningTrial::at_step(test, victim, number).run(&mut tally)
    });
    println!("{tally}");
}

#[test]
fn whoever_is_killed_at_whatever_step_of_recovering_all_come_together_in_the_end() {
    if crate::kill::is_device() {
        return returning::be_brought_back();
    }
    let test = "steps::whoever_is_killed_at_whatever_step_of_recovering_all_come_together_in_the_end";
    let mut returns = Returns::default();
    at_each_step_of_each(
        test,
        ["the first survivor", "another", "the one that was started again"],
        |victim, number| ReturningTrial::at_step(test, victim, number).run(&mut returns),
    );
    println!("{returns}");
}

#[test]
fn a_launcher_that_is_killed_at_whatever_step_of_going_on_has_ended_the_next_epoch_too() {
    if orphaned::is_of_a_trial() {
        return orphaned::be_of_a_trial();
    }
    let test = "steps::a_launcher_that_is_killed_at_whatever_step_of_going_on_has_ended_the_next_epoch_too";
    let Some(mut series) = Series::begin(test, "steps") else { return };
    let again = "who was started again";
    let survivors = ["shrink", "grow", "recover"].into_iter().flat_map(|way| [(way, "0"), (way, "1")]);
    for (way, victim) in survivors.chain([("recover", again)]) {
        let steps = at_each_step(way, &mut series, |number| orphan_at(test, way, victim, number));
        println!("{way}, {victim}: {steps} steps");
        assert!(steps > 5, "{steps}");
    }
}

#[test]
fn whoever_is_killed_at_whatever_step_of_a_meeting_without_a_launcher_the_others_are_told() {
    if gathering::is_rank() {
        return gathering::be_a_rank();
    }
    let test =
        "steps::whoever_is_killed_at_whatever_step_of_a_meeting_without_a_launcher_the_others_are_told";
    let Some(mut series) = Series::begin(test, "steps") else { return };
    for n_ranks in [2, 3] {
        for (victim, who) in [(0, "the host"), (1, "a guest")] {
            let mut trial = Gathering { test, n_ranks, victim, is_known: false };
            let steps = at_each_step(who, &mut series, |number| trial.kill_at(number));
            println!("{who} of {n_ranks}: {steps} steps");
            assert!(steps > 5 && trial.is_known, "{steps}");
        }
    }
}
