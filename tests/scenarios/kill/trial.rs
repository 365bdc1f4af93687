//! One job of which one process is killed: who, when, and what the others are told.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::bootstrap::{ProxyMode, SegmentBacking};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::{Error, Rank, Result};
use support::{Random, is_running};

use crate::kill::device::saying;
use crate::kill::statistics::Statistics;
use crate::kill::{MODES, PHASES, doze, now, this_test};

/// What is killed, when, and in which job.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) number: u64,
    pub(crate) n_ranks: u32,
    pub(crate) phase: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) victim: DeviceName,
    pub(crate) named: bool,
    pub(crate) delay_us: u64,
    pub(crate) signal: Signal,
    pub(crate) heap_len: u64,
}

impl Trial {
    pub(crate) fn draw(number: u64, random: &mut Random) -> Self {
        // All combinations come up in turn; the rest is chance.
        let phase = PHASES[usize::try_from(number % 6).unwrap()];
        let mode = MODES[usize::try_from(number / 6 % 3).unwrap()];
        let n_ranks = 2 + u32::try_from(random.below(7)).unwrap();
        let n_processes = u64::from(n_ranks) + u64::from(mode == "service");
        let victim = match Rank::new(u32::try_from(random.below(n_processes)).unwrap(), n_ranks) {
            Ok(rank) => DeviceName::Rank(rank),
            Err(_) => DeviceName::Proxy,
        };
        let longest = match phase {
            "init" => 12_000,
            "teardown" => 1500,
            _ => 4000,
        };
        Self {
            number,
            n_ranks,
            phase,
            mode,
            victim,
            named: random.below(4) == 0,
            delay_us: random.below(longest),
            signal: Signal::SIGKILL,
            heap_len: 2 << 20,
        }
    }

    /// Draws like [`draw`](Self::draw) one that does not end by a kill but by a crash, in a job
    /// that reserves much more than it uses.
    pub(crate) fn draw_crash(number: u64, random: &mut Random) -> Self {
        let signal = [Signal::SIGABRT, Signal::SIGSEGV][usize::try_from(random.below(2)).unwrap()];
        // Named segments have all of their memory from the start.
        Self { signal, heap_len: 256 << 20, named: false, ..Self::draw(number, random) }
    }

    /// What its segments are called, if they have names.
    pub(crate) fn prefix(&self) -> String {
        format!("shmccl-kill-{}-{}", std::process::id(), self.number)
    }

    /// Runs the job of `test`.
    pub(crate) fn run(&self, test: &str) -> Report {
        let test = this_test(test);
        let mode = if self.mode == "service" { ProxyMode::Process } else { ProxyMode::Thread };
        let mut launch = Launch::new(self.n_ranks).unwrap().program(test.clone()).service(test).proxy(mode);
        launch = launch.heap_len(self.heap_len).timeout(Duration::from_secs(10)).capture_output(true);
        launch =
            launch.grace(Duration::from_secs(10)).env("KILL_PHASE", self.phase).env("KILL_MODE", self.mode);
        if self.named {
            launch = launch.backing(SegmentBacking::Named(self.prefix()));
        }
        let mut watcher = Watcher {
            trial: self,
            pids: BTreeMap::new(),
            told: Vec::new(),
            up: 0,
            killer: None,
            output: Vec::new(),
        };
        let result = launch.supervise(&mut watcher).map(drop);
        let Watcher { pids, told, killer, output, .. } = watcher;
        let killed = killer.map(|killer| killer.join().unwrap());
        Report { result, pids, told, killed, output }
    }

    /// Checks who was told what.
    pub(crate) fn judge(&self, report: &Report, statistics: &mut Statistics) {
        let context =
            || format!("{self:?}: {:?}\n{}", report.result, String::from_utf8_lossy(&report.output));
        let killed = report.killed.unwrap_or_else(|| panic!("nobody was killed in {}", context()));
        let may_end_well = self.phase == "teardown";
        match &report.result {
            Err(Error::DeviceFailed { device, cause: ExitCause::Signal(signal) })
                if (*device, *signal) == (self.victim, self.signal as i32) => {}
            Ok(()) if may_end_well => statistics.too_late += 1,
            _ => panic!("{}", context()),
        }
        for rank in (0..self.n_ranks).map(|rank| Rank::new(rank, self.n_ranks).unwrap()) {
            if self.victim == DeviceName::Rank(rank) {
                continue;
            }
            let told: Vec<_> = report.told.iter().filter(|told| told.by == DeviceName::Rank(rank)).collect();
            match told[..] {
                [Told { lost: Some(lost), at, .. }] if *lost == self.victim => {
                    statistics.add(self.phase, self.mode, at.saturating_sub(killed));
                }
                [Told { lost: None, .. }] if may_end_well => {}
                _ => panic!("rank {rank} was told {told:?} in {}", context()),
            }
        }
    }
}

/// What came of a trial.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) result: Result<()>,
    pub(crate) pids: BTreeMap<String, Pid>,
    told: Vec<Told>,
    /// When, on the monotonic clock.
    killed: Option<u64>,
    output: Vec<u8>,
}

/// What a device said at its end.
#[derive(Debug)]
struct Told {
    by: DeviceName,
    lost: Option<DeviceName>,
    at: u64,
}

/// Follows what the devices report, and kills one when the time has come.
struct Watcher<'t> {
    trial: &'t Trial,
    pids: BTreeMap<String, Pid>,
    told: Vec<Told>,
    up: u32,
    killer: Option<JoinHandle<u64>>,
    output: Vec<u8>,
}

impl Observer for Watcher<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        line.write_prefixed(&mut self.output).unwrap();
        let text = String::from_utf8_lossy(line.text);
        match saying(&text).as_deref() {
            Some(["start", pid]) => {
                self.pids.insert(line.device.to_string(), crate::kill::device::pid(pid));
                if self.trial.phase == "init" && line.device == self.trial.victim {
                    self.strike();
                }
            }
            Some(["up", _]) => {
                self.up += 1;
                if self.trial.phase != "init" && self.up == self.trial.n_ranks {
                    self.strike();
                }
            }
            Some(["lost", who, at]) => {
                let lost = match who.parse() {
                    Ok(rank) => DeviceName::Rank(Rank::new(rank, self.trial.n_ranks).unwrap()),
                    Err(_) => DeviceName::Proxy,
                };
                self.told.push(Told { by: line.device, lost: Some(lost), at: at.parse().unwrap() });
            }
            Some(["done"]) => self.told.push(Told { by: line.device, lost: None, at: 0 }),
            _ => {}
        }
    }
}

impl Watcher<'_> {
    /// Kills the victim a little later.
    fn strike(&mut self) {
        let pid = self.pids[&self.trial.victim.to_string()];
        let (delay_us, signal) = (self.trial.delay_us, self.trial.signal);
        self.killer = Some(std::thread::spawn(move || {
            doze(delay_us);
            let at = now();
            // It may have ended by itself in a teardown. Rust's handler of SIGSEGV takes the first
            // one that no access has caused.
            while kill(pid, signal).is_ok() && signal == Signal::SIGSEGV && is_running(pid) {
                doze(100);
            }
            at
        }));
    }
}
