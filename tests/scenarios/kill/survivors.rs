//! Trials in which survivors go on without those who are killed, and compute.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::bootstrap::ProxyMode;
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::{Rank, Result};
use support::{Random, is_running};

use crate::fault_program::Scratch;
use crate::kill::device::saying;
use crate::kill::statistics::{Promise, percentiles};
use crate::kill::work::{DIRECTORY, KINDS};
use crate::kill::{MODES, doze, now, this_test};

/// Of whom else dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    Nobody,
    /// The next rank, so many microseconds after the first.
    After(u64),
    /// The next rank, so many microseconds after a survivor has said for the first time what the
    /// word stands for: `lost` as it is told of the first death, so that the second comes while
    /// they shrink, and `on` as it is in the new epoch.
    Said(&'static str, u64),
}

/// Who is killed, when, in which operation.
#[derive(Debug)]
pub(crate) struct SurvivorsTrial {
    n_ranks: u32,
    kind: &'static str,
    mode: &'static str,
    victims: Vec<u32>,
    /// After the start of the operations.
    delay_us: u64,
    second: Second,
}

impl SurvivorsTrial {
    pub(crate) fn draw(number: u64, random: &mut Random) -> Self {
        let kind = KINDS[usize::try_from(number % KINDS.len() as u64).unwrap()];
        let mode = MODES[usize::try_from(number / KINDS.len() as u64 % 3).unwrap()];
        let n_ranks = 2 + u32::try_from(random.below(7)).unwrap();
        // 13 has no divisor in common with the numbers of kinds and modes: all combinations come up
        // in turn.
        let second = match number % 13 {
            _ if n_ranks == 2 => Second::Nobody,
            0 => Second::After(random.below(300)),
            1 => Second::After(random.below(12_000)),
            2 => Second::Said("on", random.below(2000)),
            3..6 => Second::Said("lost", random.below(4000)),
            _ => Second::Nobody,
        };
        let first = u32::try_from(random.below(n_ranks.into())).unwrap();
        let n_victims = if second == Second::Nobody { 1 } else { 2 };
        let victims = (0..n_victims).map(|index| (first + index) % n_ranks).collect();
        let delay_us = random.below(4000);
        Self { n_ranks, kind, mode, victims, delay_us, second }
    }

    pub(crate) fn run(&self) -> Report {
        let test = this_test("survivors_of_killed_ranks_agree_on_who_is_lost_and_compute_on");
        let mode = if self.mode == "service" { ProxyMode::Process } else { ProxyMode::Thread };
        let launch = Launch::new(self.n_ranks).unwrap().program(test.clone()).service(test).proxy(mode);
        let launch = launch.heap_len(32 << 20).timeout(Duration::from_secs(10)).capture_output(true);
        let launch = launch.keep_going(true).env("SURVIVE_KIND", self.kind).env("SURVIVE_MODE", self.mode);
        let scratch = Scratch::new("survivors");
        let launch = launch.env(DIRECTORY, scratch.path());
        let mut watcher = Watcher::new(self);
        let lost = launch.supervise(&mut watcher).map(|outcome| outcome.lost);
        let Watcher { killer, pids, histories, output, said, .. } = watcher;
        // Who waits for a word that nobody has said waits no longer.
        drop(said);
        let killed = killer.map(|killer| killer.join().unwrap()).unwrap_or_default();
        Report { lost, pids, killed, histories, output }
    }

    /// Checks that the survivors were told the same, and the right thing, and got the right sums.
    pub(crate) fn judge(&self, report: &Report, times: &mut Times) {
        let context = || format!("{self:?}: {:?}\n{}", report.lost, String::from_utf8_lossy(&report.output));
        let lost = report.lost.as_ref().unwrap_or_else(|_| panic!("{}", context()));
        let died = |rank: &u32| {
            let device = DeviceName::Rank(Rank::new(*rank, self.n_ranks).unwrap());
            lost.contains(&(device, ExitCause::Signal(9)))
        };
        let (killed, late): (Vec<_>, Vec<_>) = self.victims.iter().partition(|victim| died(victim));
        assert_eq!(lost.len(), killed.len(), "nobody else is lost: {}", context());
        assert!(late.iter().all(|victim| report.histories[victim].done), "{}", context());
        let histories =
            || (0..self.n_ranks).filter(|rank| !died(rank)).map(|rank| (rank, &report.histories[&rank]));
        let longest = histories().map(|(_, history)| &history.epochs).max_by_key(|epochs| epochs.len());
        let longest = longest.unwrap_or_else(|| panic!("nobody survived: {}", context()));
        // With a second death the clock starts anew.
        let last = report.killed[killed.len() - 1];
        for (rank, history) in histories() {
            assert!(history.done, "{}", context());
            assert!(history.is_part_of(rank, longest), "the same for all: {}", context());
            assert!(killed.contains(&history.told.expect("a loss").0), "{}", context());
            times.told.note(self.n_ranks, history.told.unwrap().1.saturating_sub(report.killed[0]));
            // All was computed before a kill that came after the work.
            history
                .computed
                .checked_sub(last)
                .into_iter()
                .for_each(|ns| times.computed.note(self.n_ranks, ns));
        }
        times.count(killed.len(), report);
        let has_gone_home = |rank| report.histories[rank].epochs.len() < longest.len();
        let mut gone = longest.iter().flat_map(|(lost, _)| lost);
        assert!(gone.all(|rank| self.victims.contains(rank) || has_gone_home(rank)), "{}", context());
        assert!(!report.pids.values().any(|pid| is_running(*pid)), "{}", context());
    }
}

/// What came of a trial.
#[derive(Debug)]
pub(crate) struct Report {
    lost: Result<Vec<(DeviceName, ExitCause)>>,
    pids: BTreeMap<u32, Pid>,
    /// When, in order.
    killed: Vec<u64>,
    histories: BTreeMap<u32, History>,
    output: Vec<u8>,
}

/// What one rank has lived through.
#[derive(Debug, Default)]
struct History {
    /// Whose loss it was told first, and when.
    told: Option<(u32, u64)>,
    /// Of each new epoch: who was lost before, by their first numbers, and the bits of the sum
    /// there, if it came to that.
    epochs: Vec<(Vec<u32>, String)>,
    /// When it was in the first of them.
    on: Option<u64>,
    /// When the last sum was there.
    computed: u64,
    done: bool,
}

impl History {
    /// Whether `rank` has lived through the same as whoever has seen all epochs there were, as long
    /// as it was there.
    ///
    /// A death in the last barrier is told to those who wait there, and not to those who come last
    /// and find all others arrived: these go home, and those go on without them. In the same way
    /// some may have a sum that others were about to get.
    fn is_part_of(&self, rank: u32, longest: &[(Vec<u32>, String)]) -> bool {
        let (shared, later) = longest.split_at(self.epochs.len());
        let are_alike = self.epochs.iter().zip(shared).all(|((lost, sum), (theirs, their_sum))| {
            lost == theirs && (sum == their_sum || sum.is_empty() || their_sum.is_empty())
        });
        are_alike && later.first().is_none_or(|(lost, _)| lost.contains(&rank))
    }
}

struct Watcher<'t> {
    trial: &'t SurvivorsTrial,
    killer: Option<JoinHandle<Vec<u64>>>,
    pids: BTreeMap<u32, Pid>,
    histories: BTreeMap<u32, History>,
    output: Vec<u8>,
    /// Passes on to the killer what survivors say.
    said: mpsc::Sender<&'static str>,
    heard: Option<mpsc::Receiver<&'static str>>,
}

impl Observer for Watcher<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        let text = String::from_utf8_lossy(line.text);
        let (Some(said), DeviceName::Rank(rank)) = (saying(&text), line.device) else { return };
        let history = self.histories.entry(rank.get()).or_default();
        match said[..] {
            ["up", pid] => {
                self.pids.insert(rank.get(), Pid::from_raw(pid.parse().unwrap()));
                if self.pids.len() == self.trial.n_ranks as usize {
                    self.strike();
                }
            }
            ["lost", who, at] if history.told.is_none() => {
                history.told = Some((who.parse().unwrap(), at.parse().unwrap()));
                let _ = self.said.send("lost");
            }
            ["on", lost, at] => {
                history.on.get_or_insert(at.parse().unwrap());
                let lost = lost
                    .split(',')
                    .filter(|rank| !rank.is_empty())
                    .map(|rank| rank.parse().unwrap())
                    .collect();
                history.epochs.push((lost, String::new()));
                let _ = self.said.send("on");
            }
            ["sum", bits, at] => {
                history.epochs.last_mut().unwrap().1 = bits.to_owned();
                history.computed = at.parse().unwrap();
            }
            ["done"] => history.done = true,
            _ => {}
        }
    }
}

impl<'t> Watcher<'t> {
    fn new(trial: &'t SurvivorsTrial) -> Self {
        let (pids, histories) = (BTreeMap::new(), BTreeMap::new());
        let (said, heard) = mpsc::channel();
        Self { trial, killer: None, pids, histories, output: Vec::new(), said, heard: Some(heard) }
    }

    /// Kills the victims, one after the other.
    fn strike(&mut self) {
        let victims: Vec<_> = self.trial.victims.iter().map(|victim| self.pids[victim]).collect();
        let (delay_us, second) = (self.trial.delay_us, self.trial.second);
        let heard = self.heard.take().expect("all are up once");
        let hit = |pid, delay_us| {
            doze(delay_us);
            let at = now();
            // The others may have been quick, and all be through.
            let _ = kill(pid, Signal::SIGKILL);
            at
        };
        self.killer = Some(std::thread::spawn(move || {
            let mut killed = vec![hit(victims[0], delay_us)];
            match second {
                Second::Nobody => {}
                Second::After(delay_us) => killed.push(hit(victims[1], delay_us)),
                Second::Said(word, delay_us) => {
                    let is_said = heard.iter().any(|said| said == word);
                    killed.extend(is_said.then(|| hit(victims[1], delay_us)));
                }
            }
            killed
        }));
    }
}

/// What is promised of the time from a kill to the survivors' errors.
const TOLD: Promise = Promise { p99_ms: 50, max_ms: 1000 };

/// And to the sum of those who go on.
const COMPUTED: Promise = Promise { p99_ms: 200, max_ms: 1000 };

/// Times of all survivors, in nanoseconds: from the first kill to the error, and from the last one
/// to the sum in the new epoch.
#[derive(Debug, Default)]
pub(crate) struct Times {
    told: ByRanks,
    computed: ByRanks,
    /// In how many trials two were killed: the second one while the others shrank, and at another
    /// time.
    in_shrink: u32,
    two: u32,
}

impl Times {
    fn count(&mut self, killed: usize, report: &Report) {
        let first = report.histories.values().filter_map(|history| Some(history.told?.1)).min();
        let last = report.histories.values().filter_map(|history| history.on).max();
        let shrinking = first.unwrap_or(u64::MAX)..last.unwrap_or(0);
        if killed == 2 {
            let in_shrink = shrinking.contains(&report.killed[1]);
            *(if in_shrink { &mut self.in_shrink } else { &mut self.two }) += 1;
        }
    }

    /// Whether there were so many second deaths of either kind.
    pub(crate) fn have_shown(&self, wanted: u32) -> bool {
        self.two.min(self.in_shrink) >= wanted
    }

    /// # Panics
    /// Where `strict`, when a survivor was told, or went on, later than the project promises, or
    /// too many were; see [`Promise::hold`].
    pub(crate) fn hold_the_promise(&self, strict: bool) {
        for (times, promise) in [(&self.told, &TOLD), (&self.computed, &COMPUTED)] {
            times
                .0
                .iter()
                .for_each(|(n_ranks, times)| promise.hold(&format!("{n_ranks} ranks"), times, strict));
        }
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, times) in [("PeerLost", &self.told), ("the next sum", &self.computed)] {
            let all = ByRanks(BTreeMap::from([(0, times.0.values().flatten().copied().collect())]));
            for (n_ranks, times) in times.0.iter().chain(&all.0) {
                let [p50, p99, max] = percentiles(&mut times.clone());
                let of = if *n_ranks == 0 { "all".to_owned() } else { format!("{n_ranks} ranks") };
                writeln!(
                    f,
                    "killed to {what:12} {of:7} {:5} times: p50 {p50} p99 {p99} max {max}",
                    times.len()
                )?;
            }
        }
        write!(
            f,
            "two were killed: {} times the second while the others shrank, {} times at another time",
            self.in_shrink, self.two
        )
    }
}

/// Times by the number of ranks of the job.
#[derive(Debug, Default)]
struct ByRanks(BTreeMap<u32, Vec<u64>>);

impl ByRanks {
    fn note(&mut self, n_ranks: u32, ns: u64) {
        self.0.entry(n_ranks).or_default().push(ns);
    }
}
