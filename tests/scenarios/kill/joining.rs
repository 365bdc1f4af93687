//! Trials in which a member or a newcomer is killed while they come together.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use shmccl::{Communicator, Error, Rank, Result, UniqueId};
use support::{Random, is_running};

use crate::kill::device::{is_device, pid, say, saying};
use crate::kill::series::Series;
use crate::kill::statistics::percentiles;
use crate::kill::survivor::{carry_on, compute};
use crate::kill::{doze, long, now, steps, these_args, this_test};

/// The test that members and newcomers are told to run.
const TEST: &str = "joining::a_death_while_newcomers_join_leaves_all_of_them_together_or_none";

/// How long everybody waits for the others, in milliseconds; and in trials in which it may be that
/// a newcomer never comes.
const PATIENCE_MS: u64 = 10_000;
const LITTLE_PATIENCE_MS: u64 = 5000;

fn patience() -> Duration {
    Duration::from_millis(std::env::var("JOIN_PATIENCE").unwrap().parse().unwrap())
}

pub(crate) fn is_newcomer() -> bool {
    std::env::var_os("JOIN_ID").is_some()
}

#[test]
fn a_death_while_newcomers_join_leaves_all_of_them_together_or_none() {
    if is_newcomer() {
        return be_a_newcomer();
    }
    if is_device() {
        return be_a_growing_member();
    }
    let (trials, wanted) = if long() { (300, 300) } else { (24, 0) };
    let Some(mut series) = Series::begin(TEST, &format!("{trials} trials and more")) else { return };
    let mut tally = Tally::default();
    for number in 0..4 * trials {
        if number >= trials && tally.apart >= wanted {
            break;
        }
        series.trial(JoiningTrial::draw, |trial| trial.run(&mut tally));
    }
    println!("{tally}");
    assert!(tally.apart >= wanted, "fewer than {wanted} have died before they were together");
}

fn n_ranks() -> u32 {
    std::env::var("JOIN_RANKS").unwrap().parse().unwrap()
}

/// The body of a newcomer.
pub(crate) fn be_a_newcomer() {
    let id: UniqueId = std::env::var("JOIN_ID").unwrap().parse().unwrap();
    steps::count_from(&std::env::var("JOIN_NUMBER").unwrap());
    say(&format!("up {}", std::process::id()));
    if let Some(grown) = tell(Communicator::join_within(&id, patience())) {
        go_on(grown, n_ranks());
    }
    say("done");
}

/// The body of a member.
pub(crate) fn be_a_growing_member() {
    let Ok(Some(JoinedAs::Device(mut comm))) = join_job() else { return };
    let id = (comm.rank().get() == 0).then(|| UniqueId::new().unwrap());
    comm.barrier().unwrap();
    if let Some(id) = &id {
        say(&format!("id {id}"));
    }
    say(&format!("up {}", std::process::id()));
    steps::count_from(&comm.rank().to_string());
    let (grown, n_members) = (tell(comm.grow(n_ranks(), id.as_ref())), comm.n_ranks());
    match grown {
        Some(grown) => go_on(grown, n_ranks()),
        None => go_on(*comm, n_members),
    }
    say("done");
}

/// Computes, and goes on without the victim if need be.
fn go_on(mut comm: Communicator, n_ranks: u32) {
    let numbers: Vec<_> = (0..n_ranks).collect();
    let outcome = compute(&mut comm, &numbers);
    carry_on(comm, numbers, outcome);
}

/// Says what has come of it.
fn tell(grown: Result<Communicator>) -> Option<Communicator> {
    match &grown {
        Ok(_) => say(&format!("grown - {}", now())),
        Err(Error::PeerLost { rank }) => say(&format!("failed {rank} {}", now())),
        // Nobody knows which rank it is.
        Err(error @ Error::NoMeeting { .. }) if error.to_string().contains("before it had a rank") => {
            say(&format!("failed nameless {}", now()));
        }
        // Whoever has no rank yet knows nobody's.
        Err(Error::NoMeeting { .. }) => say(&format!("failed host {}", now())),
        // A newcomer that is killed before it has knocked is nobody's loss: it is missed.
        Err(Error::Timeout { awaited: Some(rank), .. }) => say(&format!("failed {rank} late")),
        // It was not heard in time by a host that is held up.
        Err(Error::Timeout { awaited: None, .. }) => say("failed host late"),
        Err(error) => panic!("{error}"),
    }
    grown.ok()
}

/// Who is killed, and when, after all of them have begun. Newcomers have numbers behind the
/// members', and ranks as they come.
#[derive(Clone, Debug)]
pub(crate) struct JoiningTrial {
    n_members: u32,
    n_newcomers: u32,
    victim: u32,
    moment: Moment,
    test: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Moment {
    /// So many microseconds after all have begun.
    After(u64),
    /// At its step of this number.
    Step(u64),
}

/// What the trials have in common: how long it took to learn of a failure, and how often they had
/// come together before the death, or never did.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    failed: Vec<u64>,
    together: u32,
    apart: u32,
}

impl JoiningTrial {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let mut up_to = |limit| u32::try_from(random.below(limit)).unwrap();
        let (n_members, n_newcomers) = (1 + up_to(4), 1 + up_to(2));
        let victim = up_to(u64::from(n_members + n_newcomers));
        // A newcomer is given the time to knock.
        let at_least = if victim < n_members { 0 } else { 3000 };
        let moment = Moment::After(at_least + random.below(25_000));
        Self { n_members, n_newcomers, victim, moment, test: TEST }
    }

    /// A trial of `test`, of two members and a newcomer.
    pub(crate) fn at_step(test: &'static str, victim: u32, number: u64) -> Self {
        Self { n_members: 2, n_newcomers: 1, victim, moment: Moment::Step(number), test }
    }

    fn patience_ms(&self) -> u64 {
        if matches!(self.moment, Moment::Step(_)) { LITTLE_PATIENCE_MS } else { PATIENCE_MS }
    }

    /// What the processes are told: who counts steps, and which one kills it.
    fn environment(&self) -> Vec<(&'static str, String)> {
        let mut told = vec![
            ("JOIN_RANKS", self.n_ranks().to_string()),
            ("JOIN_PATIENCE", self.patience_ms().to_string()),
        ];
        if let Moment::Step(number) = self.moment {
            told.extend([(steps::FROM, self.victim.to_string()), (steps::NUMBER, number.to_string())]);
        }
        told
    }

    fn n_ranks(&self) -> u32 {
        self.n_members + self.n_newcomers
    }

    /// Runs it, and looks at what has come of it; whether somebody was killed.
    pub(crate) fn run(&self, tally: &mut Tally) -> bool {
        let log = Arc::new(Mutex::new(Log::default()));
        let launch = Launch::new(self.n_members).unwrap().program(this_test(self.test)).heap_len(8 << 20);
        let launch = launch.timeout(Duration::from_millis(self.patience_ms()));
        let launch =
            self.environment().into_iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        let mut host = Host { trial: self, log: Arc::clone(&log), newcomers: Vec::new() };
        let outcome = launch.keep_going(true).capture_output(true).supervise(&mut host);
        let ends: Vec<_> = host.newcomers.into_iter().map(Newcomer::end).collect();
        let killer = lock(&log).killer.take();
        let killed = killer.map(|killer| killer.join().unwrap());
        let log = lock(&log);
        let context = || format!("{self:?}: {outcome:?}, newcomers {ends:?}\n{}", log.text);
        let lost = match &outcome {
            Ok(outcome) => outcome.lost.clone(),
            Err(Error::DeviceFailed { device, cause }) if self.n_members == 1 => vec![(*device, *cause)],
            Err(_) => panic!("{}", context()),
        };
        let victim = DeviceName::Rank(Rank::new(self.victim, self.n_ranks()).unwrap());
        // A newcomer is not the launcher's.
        assert!(lost.iter().all(|lost| *lost == (victim, ExitCause::Signal(9))), "{}", context());
        let (dead, well): (Vec<_>, Vec<_>) =
            (self.n_members..).zip(&ends).partition(|(_, end)| end.signal() == Some(9));
        assert!(well.iter().all(|(_, end)| end.success()), "{}", context());
        assert!(dead.iter().all(|(number, _)| *number == self.victim), "{}", context());
        let has_died = lost.len() + dead.len() > 0;
        assert!(!log.pids.values().any(|pid| is_running(*pid)), "{}", context());
        let is_by_step = matches!(self.moment, Moment::Step(_));
        assert!(killed.is_some() || is_by_step, "nobody was killed in {}", context());
        let is_through = is_by_step && log.said.contains_key(&(self.victim, "done".to_owned()));
        assert!(has_died || log.said.contains_key(&(self.victim, "done".to_owned())), "{}", context());
        self.judge(&log, killed, has_died, tally);
        !is_through
    }

    /// Checks that all who survive were told the same, and have computed the same.
    fn judge(&self, log: &Log, killed: Option<u64>, has_died: bool, tally: &mut Tally) {
        let context = || format!("{self:?}\n{}", log.text);
        let said = |number: u32, word: &str| log.said.get(&(number, word.to_owned()));
        let survivors: Vec<_> = (0..self.n_ranks()).filter(|number| *number != self.victim).collect();
        let together = survivors.iter().filter(|number| said(**number, "grown").is_some()).count();
        assert!(together == 0 || together == survivors.len(), "all or none: {}", context());
        assert!(together > 0 || has_died, "kept apart by nobody's death: {}", context());
        let mut named = Vec::new();
        for &number in &survivors {
            assert!(said(number, "done").is_some(), "rank {number}: {}", context());
            let Some([who, at]) = said(number, "failed").map(Vec::as_slice) else { continue };
            let late = at == "late";
            // A host that is held up is late whoever dies.
            // One that dies at a step has knocked.
            let may_be_missed = self.victim >= self.n_members && matches!(self.moment, Moment::After(_));
            assert!(!late || who == "host" || may_be_missed, "{}", context());
            let since = |at: u64| killed.map(|killed| at.saturating_sub(killed));
            tally.failed.extend(at.parse().ok().and_then(since));
            match who.parse::<u32>() {
                Ok(rank) => named.push(rank),
                // Members know each other in any case.
                Err(_) if who == "nameless" => {
                    assert!(number.max(self.victim) >= self.n_members, "{}", context());
                }
                // It was too late to be told, or the host was killed. Of those who join the host
                // itself is the first.
                Err(_) => assert!(late && number != 0 || number >= self.n_members, "{}", context()),
            }
        }
        let is_right = |rank: &u32| {
            if self.victim < self.n_members { *rank == self.victim } else { *rank >= self.n_members }
        };
        assert!(named.iter().all(|rank| is_right(rank) && *rank == named[0]), "{}", context());
        let computing = survivors.iter().filter(|number| together > 0 || **number < self.n_members);
        let computing: Vec<_> = computing.collect();
        // After a kill in the last barrier some have gone home, and the others compute once more
        // without them.
        let all_alike = |which: &str| {
            let mut sums = computing.iter().map(|number| said(**number, which).map(|sum| &sum[0]));
            let first = sums.next().flatten();
            first.is_some() && sums.all(|sum| sum == first)
        };
        assert!(computing.is_empty() || all_alike("first sum") || all_alike("sum"), "{}", context());
        *(if together > 0 { &mut tally.together } else { &mut tally.apart }) += 1;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p99, max] = percentiles(&mut self.failed.clone());
        let Self { together, apart, failed } = self;
        writeln!(
            f,
            "killed while they join: {apart} times before all were together, {together} times after"
        )?;
        write!(f, "killed to the error  {:5} times: p50 {p50} p99 {p99} max {max}", failed.len())
    }
}

/// What everybody has said.
#[derive(Default)]
struct Log {
    pids: BTreeMap<u32, Pid>,
    /// By rank and word; the last counts.
    said: BTreeMap<(u32, String), Vec<String>>,
    killer: Option<JoinHandle<u64>>,
    text: String,
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// Takes note of a line; when all have begun, the victim's time has come.
    fn note(&mut self, trial: &JoiningTrial, number: u32, line: &str) {
        self.text.push_str(&format!("[{number}] {line}\n"));
        let Some(said) = saying(line) else { return };
        if said[0] == "up" {
            self.pids.insert(number, pid(said[1]));
            if self.pids.len() == trial.n_ranks() as usize {
                let victim = self.pids[&trial.victim];
                if let Moment::After(delay_us) = trial.moment {
                    self.killer = Some(std::thread::spawn(move || strike(victim, delay_us)));
                }
            }
        }
        let rest: Vec<_> = said[1..].iter().map(ToString::to_string).collect();
        if said[0] == "sum" {
            self.said.entry((number, "first sum".to_owned())).or_insert_with(|| rest.clone());
        }
        self.said.insert((number, said[0].to_owned()), rest);
    }
}

fn strike(victim: Pid, delay_us: u64) -> u64 {
    doze(delay_us);
    let at = now();
    // It may have ended by itself.
    let _ = kill(victim, Signal::SIGKILL);
    at
}

/// Listens to the members, and starts the newcomers when there is an id.
struct Host<'t> {
    trial: &'t JoiningTrial,
    log: Arc<Mutex<Log>>,
    newcomers: Vec<Newcomer>,
}

impl Observer for Host<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        let DeviceName::Rank(rank) = line.device else { return };
        if let Some(["id", id]) = saying(&text).as_deref() {
            let numbers = self.trial.n_members..self.trial.n_ranks();
            self.newcomers =
                numbers.map(|number| Newcomer::start(id, self.trial, number, &self.log)).collect();
        }
        lock(&self.log).note(self.trial, rank.get(), &text);
    }
}

/// A newcomer's process; killed at the latest when this is dropped.
struct Newcomer {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Newcomer {
    fn start(id: &str, trial: &JoiningTrial, number: u32, log: &Arc<Mutex<Log>>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(these_args(trial.test));
        command.env("JOIN_ID", id).env("JOIN_NUMBER", number.to_string()).envs(trial.environment());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (log, trial) = (Arc::clone(log), trial.clone());
        let reader = std::thread::spawn(move || {
            lines.map_while(std::result::Result::ok).for_each(|line| lock(&log).note(&trial, number, &line));
        });
        Self { child, reader: Some(reader) }
    }

    /// Waits for its end, and tells how that was.
    fn end(mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        self.reader.take().into_iter().for_each(|reader| reader.join().unwrap());
        status
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
