//! Trials in which the process that takes the place of a dead rank is killed itself, at any moment
//! from its start until it is in the new epoch with the others.
//!
//! The first death comes by the rank's own hand after some steps, so that no trial is over before.
//! The others wait for its successor; how long they have to, past trials tell, and the second death
//! is drawn from that time. Only what came in it counts: the successor died of the kill, and no
//! survivor was in an epoch with it.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::Rank;
use shmccl::error::{DeviceName, Error, ExitCause};
use shmccl::launch::{JobOutcome, Launch, Observer, OutputLine};
use support::{Random, is_running};

use crate::kill::device::{is_device, pid, saying};
use crate::kill::returning::be_brought_back;
use crate::kill::series::Series;
use crate::kill::statistics::percentiles;
use crate::kill::{doze, long, now, this_test};

/// How many trials there may be for each death that is to be shown.
const TRIALS_PER_DEATH: usize = 16;

/// From the start of a process until it is back, in the first trial.
const FIRST_GUESS_NS: u64 = 4_000_000;

/// Of how many trials before the middle one tells how long that takes.
const REMEMBERED: usize = 15;

#[test]
fn whoever_is_killed_on_its_way_back_is_started_once_more_and_taken_back() {
    if is_device() {
        return be_brought_back();
    }
    let test = "restarting::whoever_is_killed_on_its_way_back_is_started_once_more_and_taken_back";
    let wanted = if long() { 300 } else { 8 };
    let what = format!("until {wanted} have died on their way back");
    let Some(mut series) = Series::begin(test, &what) else { return };
    let mut tally = Tally::default();
    for _ in 0..wanted * TRIALS_PER_DEATH {
        let usual_ns = tally.usual_ns();
        let draw = |random: &mut Random| RestartingTrial::draw(test, random, usual_ns);
        series.trial(draw, |trial| trial.run(&mut tally));
        if tally.deaths == wanted {
            break;
        }
    }
    println!("{tally}");
    assert_eq!(tally.deaths, wanted, "too few have died on their way back");
}

/// What came of the trials.
#[derive(Debug, Default)]
struct Tally {
    /// Successors that were killed on their way back, and how many of these before they could say
    /// that they had begun.
    deaths: usize,
    unheard: usize,
    /// Trials in which the second kill came when the successor was back.
    late: usize,
    /// From the start of those that came back until they said so.
    returns: Vec<u64>,
}

impl Tally {
    fn usual_ns(&self) -> u64 {
        let mut last = self.returns[self.returns.len().saturating_sub(REMEMBERED)..].to_vec();
        last.sort_unstable();
        last.get(last.len() / 2).copied().unwrap_or(FIRST_GUESS_NS)
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { deaths, unheard, late, returns } = self;
        let [p50, p99, max] = percentiles(&mut returns.clone());
        writeln!(
            f,
            "{deaths} were killed on their way back ({unheard} before their first word), {late} later"
        )?;
        write!(f, "started again to back {:5} times: p50 {p50} p99 {p99} max {max}", returns.len())
    }
}

/// Who dies twice, and how long after the start of the second process.
#[derive(Debug)]
struct RestartingTrial {
    test: &'static str,
    n_ranks: u32,
    victim: u32,
    delay_us: u64,
}

impl RestartingTrial {
    fn draw(test: &'static str, random: &mut Random, usual_ns: u64) -> Self {
        let n_ranks = 2 + u32::try_from(random.below(3)).unwrap();
        let victim = u32::try_from(random.below(n_ranks.into())).unwrap();
        Self { test, n_ranks, victim, delay_us: random.below(usual_ns) / 1000 }
    }

    fn run(&self, tally: &mut Tally) {
        let launch = Launch::new(self.n_ranks).unwrap().program(this_test(self.test)).heap_len(8 << 20);
        let launch = launch.timeout(Duration::from_secs(10)).grace(Duration::from_secs(3));
        let launch = launch.env("RETURN_VICTIM", self.victim.to_string()).restart(2);
        let mut watcher = Watcher::new(self.delay_us);
        let outcome = launch.capture_output(true).supervise(&mut watcher);
        self.judge(&outcome, watcher, tally);
    }

    /// Checks that all have done all steps, and counts what kind of a death the second one was.
    fn judge(&self, outcome: &Result<JobOutcome, Error>, watcher: Watcher, tally: &mut Tally) {
        let Watcher { started, killer, pids, back, done, text, .. } = watcher;
        let context = || format!("{self:?}: {outcome:?}, back {back:?}\n{text}");
        let second = killer.map(|killer| killer.join().unwrap());
        let second = second.unwrap_or_else(|| panic!("nobody was started again: {}", context()));
        assert!(!pids.iter().any(|pid| is_running(*pid)) && !is_running(second), "{}", context());
        let victim = DeviceName::Rank(Rank::new(self.victim, self.n_ranks).unwrap());
        let by_kill = (victim, ExitCause::Signal(Signal::SIGKILL as i32));
        let restarted = match outcome {
            Ok(outcome) => &outcome.restarted,
            // It was killed when all was done, and the others were gone, or are by the time that it
            // is started once more.
            Err(Error::DeviceFailed { device, cause })
                if (*device, *cause) == by_kill && !started.is_empty() =>
            {
                tally.late += 1;
                return;
            }
            Err(_) => panic!("{}", context()),
        };
        assert!(restarted.iter().all(|end| *end == by_kill), "{}", context());
        assert_eq!(restarted.len(), started.len(), "{}", context());
        assert_eq!(done, (0..self.n_ranks).collect(), "{}", context());
        let returns_of = |rank: u32| back.get(&rank).map_or(&[][..], Vec::as_slice);
        let survivors: Vec<_> = (0..self.n_ranks).filter(|rank| *rank != self.victim).collect();
        let epochs = returns_of(survivors[0]).len();
        // Another one was killed in an epoch that not all came to see.
        assert!(survivors.iter().all(|rank| returns_of(*rank).len().abs_diff(epochs) <= 1), "{}", context());
        let last = returns_of(self.victim).last().unwrap_or_else(|| panic!("{}", context()));
        tally.returns.push(last.saturating_sub(*started.last().expect("one was started again")));
        if restarted.len() == 2 && survivors.iter().all(|rank| returns_of(*rank).len() == 1) {
            tally.deaths += 1;
            tally.unheard += usize::from(!pids.contains(&second));
        } else {
            tally.late += 1;
        }
    }
}

/// Follows the ranks, and kills the first process that takes another's place.
struct Watcher {
    delay_us: u64,
    /// When processes were started again.
    started: Vec<u64>,
    killer: Option<JoinHandle<Pid>>,
    /// Of all that have said that they have begun.
    pids: BTreeSet<Pid>,
    /// When each rank said that it was in an epoch with those who were started again.
    back: BTreeMap<u32, Vec<u64>>,
    done: BTreeSet<u32>,
    text: String,
}

impl Watcher {
    fn new(delay_us: u64) -> Self {
        let (started, pids, back) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        Self { delay_us, started, killer: None, pids, back, done: BTreeSet::new(), text: String::new() }
    }
}

impl Observer for Watcher {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_restart(&mut self, _device: DeviceName, _cause: ExitCause, _left: u32) {
        self.started.push(now());
        if self.killer.is_some() {
            return;
        }
        // It has not said a word, and all others have: the job was ready.
        let mut fresh = children().into_iter().filter(|child| !self.pids.contains(child));
        let (Some(successor), None) = (fresh.next(), fresh.next()) else { panic!("not one: {}", self.text) };
        let delay_us = self.delay_us;
        self.killer = Some(std::thread::spawn(move || {
            doze(delay_us);
            // It may have ended by itself.
            let _ = kill(successor, Signal::SIGKILL);
            successor
        }));
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        let DeviceName::Rank(rank) = line.device else { return };
        self.text.push_str(&format!("[{rank}] {text}\n"));
        match saying(&text).as_deref() {
            Some(["start", own]) => _ = self.pids.insert(pid(own)),
            Some(["back", _, _, at]) => self.back.entry(rank.get()).or_default().push(at.parse().unwrap()),
            Some(["done"]) => _ = self.done.insert(rank.get()),
            _ => {}
        }
    }
}

/// The processes that this thread has started.
fn children() -> Vec<Pid> {
    let children = std::fs::read_to_string("/proc/thread-self/children").expect("the kernel lists children");
    children.split_whitespace().map(pid).collect()
}
