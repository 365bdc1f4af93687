//! Trials in which survivors go on without those who are killed, and compute.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::bootstrap::ProxyMode;
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::{Rank, Result};

use crate::chance::Random;
use crate::device::saying;
use crate::process::is_running;
use crate::statistics::percentiles;
use crate::{MODES, doze, now, this_test};

/// What ranks do when one of them is killed.
const KINDS: [&str; 8] =
    ["all_reduce", "large all_reduce", "ordinary", "all_to_all", "send_recv", "put", "barrier", "alloc"];

/// Who is killed, when, in which operation.
#[derive(Debug)]
pub(crate) struct SurvivorsTrial {
    n_ranks: u32,
    kind: &'static str,
    mode: &'static str,
    victims: Vec<u32>,
    /// The first after the start of the operations, the others after the first, so that they come while the rest goes on.
    delays_us: Vec<u64>,
}

impl SurvivorsTrial {
    pub(crate) fn draw(number: u64, random: &mut Random) -> Self {
        let kind = KINDS[usize::try_from(number % KINDS.len() as u64).unwrap()];
        let mode = MODES[usize::try_from(number / 8 % 3).unwrap()];
        let n_ranks = 2 + u32::try_from(random.below(7)).unwrap();
        // At least one survives.
        let n_victims = (1 + u32::try_from(random.below(2)).unwrap()).min(n_ranks - 1);
        let first = u32::try_from(random.below(n_ranks.into())).unwrap();
        let victims = (0..n_victims).map(|index| (first + index) % n_ranks).collect();
        let delays_us = vec![random.below(4000), random.below(12_000)];
        Self { n_ranks, kind, mode, victims, delays_us }
    }

    pub(crate) fn run(&self) -> Report {
        let test = this_test("survivors_of_killed_ranks_agree_on_who_is_lost_and_compute_on");
        let mode = if self.mode == "service" { ProxyMode::Process } else { ProxyMode::Thread };
        let launch = Launch::new(self.n_ranks).unwrap().program(test.clone()).service(test).proxy(mode);
        let launch = launch.heap_len(32 << 20).timeout(Duration::from_secs(10)).capture_output(true);
        let launch = launch.keep_going(true).env("SURVIVE_KIND", self.kind).env("SURVIVE_MODE", self.mode);
        let mut watcher = Watcher::new(self);
        let lost = launch.supervise(&mut watcher).map(|outcome| outcome.lost);
        let Watcher { killer, pids, histories, output, .. } = watcher;
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
        let histories: Vec<_> =
            (0..self.n_ranks).filter(|rank| !died(rank)).map(|rank| &report.histories[&rank]).collect();
        // With a second death the clock starts anew.
        let last = report.killed[killed.len() - 1];
        for history in &histories {
            assert!(history.done, "{}", context());
            assert_eq!(history.epochs, histories[0].epochs, "the same for all: {}", context());
            assert!(killed.contains(&history.told.expect("a loss").0), "{}", context());
            times.told.push(history.told.unwrap().1.saturating_sub(report.killed[0]));
            // All was computed before a kill that came after the work.
            times.computed.extend(history.computed.checked_sub(last));
        }
        let gone: Vec<_> = histories[0].epochs.iter().flat_map(|(lost, _)| lost.clone()).collect();
        assert!(gone.iter().all(|rank| self.victims.contains(rank)), "{}", context());
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
    /// Of each new epoch: who was lost before, by their first numbers, and the bits of the sum there, if it came to that.
    epochs: Vec<(Vec<u32>, String)>,
    /// When the last sum was there.
    computed: u64,
    done: bool,
}

struct Watcher<'t> {
    trial: &'t SurvivorsTrial,
    killer: Option<JoinHandle<Vec<u64>>>,
    pids: BTreeMap<u32, Pid>,
    histories: BTreeMap<u32, History>,
    output: Vec<u8>,
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
            }
            ["on", lost] => {
                let lost = lost
                    .split(',')
                    .filter(|rank| !rank.is_empty())
                    .map(|rank| rank.parse().unwrap())
                    .collect();
                history.epochs.push((lost, String::new()));
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
        Self { trial, killer: None, pids, histories, output: Vec::new() }
    }

    /// Kills the victims, one after the other.
    fn strike(&mut self) {
        let victims: Vec<_> = self.trial.victims.iter().map(|victim| self.pids[victim]).collect();
        let delays_us = self.trial.delays_us.clone();
        let strike = move |(pid, delay_us): (Pid, u64)| {
            doze(delay_us);
            let at = now();
            // The others may have been quick, and all be through.
            let _ = kill(pid, Signal::SIGKILL);
            at
        };
        self.killer =
            Some(std::thread::spawn(move || victims.into_iter().zip(delays_us).map(strike).collect()));
    }
}

/// Times of all survivors, in nanoseconds: from the first kill to the error, and from the last one to the sum in the new epoch.
#[derive(Debug, Default)]
pub(crate) struct Times {
    told: Vec<u64>,
    computed: Vec<u64>,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, times) in [("PeerLost", &self.told), ("the next sum", &self.computed)] {
            let [p50, p99, max] = percentiles(&mut times.clone());
            writeln!(f, "killed to {what:12} {:5} times: p50 {p50} p99 {p99} max {max}", times.len())?;
        }
        Ok(())
    }
}
