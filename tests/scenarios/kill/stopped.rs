//! Trials in which a rank is stopped in the midst of an operation, be it for a while that is too
//! short to take it for hung, or until the others have given it up, by their deadline or by the
//! launcher's word, and have gone on without it.
//!
//! What it does when it wakes after that, and what the others hold against it, is in
//! [`woken`](crate::kill::woken).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::Rank;
use shmccl::bootstrap::ProxyMode;
use shmccl::collective::Algorithm;
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{HangRule, JobOutcome, Launch, Observer, OutputLine};
use support::{Random, is_running, wait_until};

use crate::fault_program::Scratch;
use crate::kill::device::{is_device, pid, saying};
use crate::kill::series::Series;
use crate::kill::woken::{Signs, be_stopped_or_not};
use crate::kill::work::{DIRECTORY, KINDS};
use crate::kill::{MODES, doze, long, this_test};

/// The test that the processes are told to run.
const TEST: &str = "stopped::a_rank_that_is_stopped_for_long_is_given_up_and_changes_nothing_when_it_wakes";

/// The time between two looks of the launcher, where a stop is nobody's death and where it is. A
/// rank that it finds to hang has been silent for 9 of the latter at least.
const PERIOD: Duration = Duration::from_millis(50);
const LONG_PERIOD: Duration = Duration::from_millis(100);

/// The longest time between the stop of a rank and that of the service process: several looks of
/// the launcher.
const SERVICE_LATER_US: u64 = 300_000;

/// How long peers wait that are to give up the stopped rank themselves, also for each other, and
/// those that are not to.
const DEADLINE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);

/// The deadline of a trial with a stop that is nobody's death, and how many looks in a row have to
/// miss a rank there: none that is silent for less than 3.15 s is taken for hung.
const SHORT_DEADLINE: Duration = Duration::from_secs(4);
const SHORT_LOOKS: u32 = 64;

/// The longest stop that is nobody's death, in microseconds: several looks miss it. In the long
/// form it comes near to what the deadline and the rule of such a trial leave, whichever is
/// shorter.
fn longest_pause_us() -> u64 {
    let bound = SHORT_DEADLINE.min(PERIOD * (SHORT_LOOKS - 1));
    let pause = if long() { bound * 4 / 5 } else { Duration::from_millis(400) };
    u64::try_from(pause.as_micros()).unwrap()
}

#[test]
fn a_rank_that_is_stopped_for_long_is_given_up_and_changes_nothing_when_it_wakes() {
    if is_device() {
        return be_stopped_or_not();
    }
    let trials = if long() { 480 } else { 8 };
    let Some(mut series) = Series::begin(TEST, &format!("{trials} trials")) else { return };
    let mut tally = Tally::default();
    for number in 0..trials {
        series.trial(|random| StoppedTrial::draw(number, random), |trial| trial.run(&mut tally));
    }
    println!("{tally}");
    tally.hold(long());
}

#[test]
fn a_service_process_that_is_found_to_hang_when_the_others_are_in_their_next_epoch_ends_nothing() {
    let test = "stopped::a_service_process_that_is_found_to_hang_when_the_others_are_in_their_next_epoch_ends_nothing";
    let Some(mut series) = Series::begin(test, "a trial") else { return };
    let draw = |random: &mut Random| StoppedTrial {
        number: u64::MAX,
        n_ranks: 3,
        kind: KINDS[0],
        mode: "service",
        algorithm: None,
        victim: 2,
        with_service: true,
        delay_us: random.below(10_000),
        service_later_us: SERVICE_LATER_US,
        fate: Fate::SleepsOn(Finder::Killing),
    };
    series.trial(draw, |trial| trial.run(&mut Tally::default()));
}

/// Who finds out that a rank is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finder {
    /// Its peers, whose waits time out.
    Peers,
    /// The launcher, which leaves it as it is.
    Sparing,
    /// The launcher, which kills it.
    Killing,
}

/// What becomes of the stopped rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is woken after so many microseconds, which nobody takes for its death.
    Pauses(u64),
    /// It is woken when the others have gone on without it.
    Wakes(Finder),
    /// It is never woken, and killed, at the latest when the others are through.
    SleepsOn(Finder),
}

/// Who is stopped, when, in which operation, and what becomes of it.
#[derive(Clone, Debug)]
struct StoppedTrial {
    number: u64,
    n_ranks: u32,
    kind: &'static str,
    mode: &'static str,
    algorithm: Option<Algorithm>,
    victim: u32,
    /// Whether the service process is stopped and woken with it.
    with_service: bool,
    /// After all are up.
    delay_us: u64,
    /// How much later the service process is stopped than the rank, so that the others may be in
    /// their next epoch when it is found.
    service_later_us: u64,
    fate: Fate,
}

impl StoppedTrial {
    fn draw(number: u64, random: &mut Random) -> Self {
        use Finder::{Killing, Peers, Sparing};
        let fate = match number % 8 {
            0 => Fate::Pauses(1 + random.below(longest_pause_us())),
            1 | 4 => Fate::Wakes(Peers),
            2 | 5 => Fate::Wakes(Sparing),
            3 => Fate::SleepsOn(Peers),
            6 => Fate::SleepsOn(Killing),
            _ => Fate::SleepsOn(Sparing),
        };
        // Every third time it has a fifo full of puts, which goes round with the 8 fates.
        let index = if number.is_multiple_of(3) { 0 } else { 1 + random.below(KINDS.len() as u64 - 1) };
        let kind = KINDS[usize::try_from(index).unwrap()];
        let mode = random.pick(&MODES);
        let reduces = ["all_reduce", "large all_reduce", "ordinary"].contains(&kind);
        let drawn = usize::try_from(random.below(1 + Algorithm::ALL.len() as u64)).unwrap();
        let n_ranks = 3 + u32::try_from(random.below(2)).unwrap();
        let may_stop_service = !matches!(fate, Fate::SleepsOn(Peers | Sparing));
        let are_found = matches!(fate, Fate::Wakes(Sparing) | Fate::SleepsOn(Killing));
        Self {
            number,
            n_ranks,
            kind,
            mode,
            algorithm: Algorithm::ALL.get(drawn).copied().filter(|_| reduces),
            victim: u32::try_from(random.below(n_ranks.into())).unwrap(),
            with_service: random.below(2) == 0 && mode == "service" && may_stop_service,
            delay_us: random.below(10_000),
            service_later_us: if are_found { random.below(SERVICE_LATER_US) } else { 0 },
            fate,
        }
    }

    fn device(&self) -> DeviceName {
        DeviceName::Rank(Rank::new(self.victim, self.n_ranks).unwrap())
    }

    /// Whether this one may be found to hang.
    fn is_stopped(&self, device: DeviceName) -> bool {
        device == self.device() || (self.with_service && device == DeviceName::Proxy)
    }

    /// A launch that finds out what the fate says, and by whom.
    fn launch(&self) -> Launch {
        let mode = if self.mode == "service" { ProxyMode::Process } else { ProxyMode::Thread };
        let launch = Launch::new(self.n_ranks).unwrap().program(this_test(TEST)).service(this_test(TEST));
        let launch = launch.proxy(mode).heap_len(64 << 20).keep_going(true).capture_output(true);
        // Who sleeps on is killed after it, and who wakes ends by itself.
        let sleeps_on = matches!(self.fate, Fate::SleepsOn(_));
        let launch =
            launch.grace(if sleeps_on { Duration::from_millis(300) } else { Duration::from_secs(10) });
        let launch = launch.env("STOPPED_KIND", self.kind).env("STOPPED_MODE", self.mode);
        let algorithm = self.algorithm.map_or("", Algorithm::name);
        let launch = launch.env("STOPPED_ALGORITHM", algorithm).env("STOPPED_RANK", self.victim.to_string());
        let rule = HangRule::new(LONG_PERIOD, 10, 20).unwrap();
        let (fate, launch) = match self.fate {
            Fate::Pauses(_) => {
                let rule = HangRule::new(PERIOD, SHORT_LOOKS, SHORT_LOOKS).unwrap();
                ("pauses", launch.timeout(SHORT_DEADLINE).detect_hangs(rule))
            }
            Fate::Wakes(Finder::Peers) | Fate::SleepsOn(Finder::Peers) => ("late", launch.timeout(DEADLINE)),
            Fate::SleepsOn(Finder::Killing) => ("hangs", launch.timeout(PATIENCE).detect_hangs(rule)),
            _ => ("hangs", launch.timeout(PATIENCE).detect_hangs(rule.sparing())),
        };
        launch.env("STOPPED_FATE", fate).env("STOPPED_SERVICE", self.with_service.to_string())
    }

    fn run(&self, tally: &mut Tally) {
        let name = format!("stopped-{}-{}", std::process::id(), self.number);
        let signs = Signs::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        let scratch = Scratch::new("stopped-work");
        let launch = signs.tell(self.launch()).env(DIRECTORY, scratch.path());
        let mut director = Director { trial: self, signs: &signs, helpers: Vec::new(), log: Log::default() };
        let outcome = launch.supervise(&mut director);
        let Director { helpers, log, .. } = director;
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
        signs.remove();
        let context = || format!("{self:?}: {outcome:?}\n{}", log.text);
        let outcome = outcome.as_ref().unwrap_or_else(|_| panic!("{}", context()));
        self.judge(outcome, &log, &context);
        tally.count(self, &log);
    }

    /// Checks that all have ended as they are meant to.
    fn judge(&self, outcome: &JobOutcome, log: &Log, context: &dyn Fn() -> String) {
        use Finder::Peers;
        let lost = |device| outcome.lost.iter().find(|(lost, _)| *lost == device).map(|(_, cause)| *cause);
        match (self.fate, lost(self.device())) {
            (Fate::Pauses(_) | Fate::Wakes(Peers), None) => {}
            (Fate::SleepsOn(Peers), Some(ExitCause::Signal(9))) => {}
            (Fate::Wakes(_) | Fate::SleepsOn(_), Some(ExitCause::Hung(silent))) => {
                assert!(silent >= 9 * LONG_PERIOD && self.fate != Fate::Wakes(Peers), "{}", context());
            }
            _ => panic!("{}", context()),
        }
        assert!(outcome.lost.iter().all(|(device, _)| self.is_stopped(*device)), "{}", context());
        let is_killed = self.fate == Fate::SleepsOn(Finder::Killing);
        let is_right = |hung: &(DeviceName, bool)| self.is_stopped(hung.0) && hung.1 == is_killed;
        assert!(log.hung.iter().all(is_right), "{:?} {}", log.hung, context());
        for rank in 0..self.n_ranks {
            let end = match self.fate {
                Fate::Wakes(_) if rank == self.victim => "excluded",
                Fate::SleepsOn(_) if rank == self.victim => "up",
                _ => "done",
            };
            let last = log.said.get(&rank).map_or("", |said| &said[0]);
            assert_eq!(last, end, "rank {rank}: {}", context());
        }
        assert!(!log.pids.iter().any(|(_, pid)| is_running(*pid)), "{}", context());
    }
}

/// What came of the trials.
#[derive(Debug, Default)]
struct Tally {
    /// What those who woke were told, and how often.
    told: BTreeMap<String, u32>,
    /// How many had triggers in their fifos in the end, by the mode, and how many of those that
    /// fill them with puts had none.
    with_triggers: BTreeMap<&'static str, u32>,
    without: BTreeMap<&'static str, u32>,
    by_fate: BTreeMap<String, u32>,
    /// How long the longest stop was that was nobody's death.
    longest_us: u64,
}

impl Tally {
    fn count(&mut self, trial: &StoppedTrial, log: &Log) {
        let fate = match trial.fate {
            Fate::Pauses(pause_us) => {
                self.longest_us = self.longest_us.max(pause_us);
                "pauses".to_owned()
            }
            fate => format!("{fate:?}"),
        };
        *self.by_fate.entry(fate).or_default() += 1;
        let Some([_, told, left]) = log.said.get(&trial.victim).map(Vec::as_slice) else { return };
        *self.told.entry(told.clone()).or_default() += 1;
        let mode = if trial.with_service { "service stopped with it" } else { trial.mode };
        if left != "0" {
            *self.with_triggers.entry(mode).or_default() += 1;
        } else if trial.kind == KINDS[0] && mode != "direct" {
            *self.without.entry(mode).or_default() += 1;
        }
    }

    /// # Panics
    /// Where `strict`, when nobody had triggers left for its own thread, or for a service that was
    /// stopped with it, and when no service that was not has executed all that a stopped rank had
    /// pushed.
    fn hold(&self, strict: bool) {
        let were = |mode: &str| self.with_triggers.contains_key(mode);
        assert!(!strict || (were("thread proxy") && were("service stopped with it")), "{self}");
        assert!(!strict || self.without.contains_key("service"), "{self}");
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let longest_ms = self.longest_us / 1000;
        writeln!(f, "what became of the stopped: {:?}; the longest pause {longest_ms} ms", self.by_fate)?;
        writeln!(f, "told when they woke: {:?}", self.told)?;
        writeln!(f, "with triggers in their fifos that nobody executes: {:?}", self.with_triggers)?;
        write!(f, "with empty ones, though they fill them: {:?}", self.without)
    }
}

/// What the processes have said.
#[derive(Default)]
struct Log {
    pids: Vec<(DeviceName, Pid)>,
    /// The last words of each rank.
    said: BTreeMap<u32, Vec<String>>,
    up: BTreeSet<u32>,
    on: BTreeSet<u32>,
    hung: Vec<(DeviceName, bool)>,
    text: String,
}

/// Stops a rank when all are up, and has it woken when the time has come.
struct Director<'t> {
    trial: &'t StoppedTrial,
    signs: &'t Signs,
    helpers: Vec<JoinHandle<()>>,
    log: Log,
}

impl Observer for Director<'_> {
    fn on_loss(&mut self, device: DeviceName) {
        assert!(self.trial.is_stopped(device), "{device} was lost: {:?}\n{}", self.trial, self.log.text);
    }

    fn on_hang(&mut self, device: DeviceName, _silent: Duration, is_killed: bool) {
        self.log.hung.push((device, is_killed));
        self.end_when_all_is_known();
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        self.log.text.push_str(&format!("[{}] {text}\n", line.device));
        let Some(said) = saying(&text) else { return };
        if let ["start", own] = said[..] {
            self.log.pids.push((line.device, pid(own)));
        }
        let DeviceName::Rank(rank) = line.device else { return };
        self.log.said.insert(rank.get(), said.iter().map(ToString::to_string).collect());
        let n_ranks = self.trial.n_ranks as usize;
        match said[0] {
            "up" if self.log.up.insert(rank.get()) && self.log.up.len() == n_ranks => self.stop(),
            "on" if self.log.on.insert(rank.get()) => match (self.trial.fate, n_ranks - self.log.on.len()) {
                (Fate::Wakes(_), 1) => signal(&self.stopped(), Signal::SIGCONT),
                (Fate::Pauses(_), 0) => self.signs.give("over"),
                (Fate::SleepsOn(_), 1) => self.end_when_all_is_known(),
                _ => {}
            },
            _ => {}
        }
    }
}

impl Director<'_> {
    /// Stops the victim a little later, and wakes it if it pauses only. The launcher looks at
    /// heartbeats meanwhile.
    fn stop(&mut self) {
        let StoppedTrial { delay_us, service_later_us, fate, .. } = *self.trial;
        let (stopped, signs) = (self.stopped(), self.signs.clone());
        let (services, ranks) = (self.to_stop(true), self.to_stop(false));
        self.helpers.push(std::thread::spawn(move || {
            doze(delay_us);
            signal(&ranks, Signal::SIGSTOP);
            doze(service_later_us);
            signal(&services, Signal::SIGSTOP);
            // Where they do not only pause, somebody may wake or kill them, and the launcher reap
            // them, before this one has looked.
            if let Fate::Pauses(pause_us) = fate {
                wait_until("all have stopped", || stopped.iter().all(|pid| is_stopped(*pid)));
                doze(pause_us);
                signal(&stopped, Signal::SIGCONT);
                signs.give("enough");
            }
        }));
    }

    /// Ends a trial in which nobody wakes, once all others have gone on and all who are stopped
    /// were found, a little later: they are told of that meanwhile.
    fn end_when_all_is_known(&mut self) {
        let Self { trial, log, .. } = &*self;
        let have_gone_on = log.on.len() + 1 == trial.n_ranks as usize;
        let is_service_known = !trial.with_service || log.hung.iter().any(|it| it.0 == DeviceName::Proxy);
        if matches!(trial.fate, Fate::SleepsOn(_)) && have_gone_on && is_service_known {
            let signs = self.signs.clone();
            self.helpers.push(std::thread::spawn(move || {
                doze(50_000);
                signs.give("over");
            }));
        }
    }

    fn stopped(&self) -> Vec<Pid> {
        [self.to_stop(false), self.to_stop(true)].concat()
    }

    /// The rank that is to be stopped, or the service process if it is.
    fn to_stop(&self, is_service: bool) -> Vec<Pid> {
        let is_meant = |device| self.trial.is_stopped(device) && is_service == (device == DeviceName::Proxy);
        self.log.pids.iter().filter(|(device, _)| is_meant(*device)).map(|(_, pid)| *pid).collect()
    }
}

/// Whether it does nothing until it is told to go on.
pub(crate) fn is_stopped(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

fn signal(processes: &[Pid], signal: Signal) {
    // One that was found to hang may have been killed.
    processes.iter().for_each(|pid| _ = kill(*pid, signal));
}
