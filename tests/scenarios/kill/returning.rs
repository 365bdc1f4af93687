//! Trials in which ranks are killed, started again, and taken back, and in which another one dies
//! meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::comm::{JoinedAs, Recovery, join_job};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::heap::{HeapOffset, Region};
use shmccl::launch::{JobOutcome, Launch, Observer, OutputLine};
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator, Error, Rank, Result};
use support::{Random, is_running};

use crate::kill::device::{is_device, pid, say, saying};
use crate::kill::series::Series;
use crate::kill::statistics::percentiles;
use crate::kill::{doze, long, now, steps, this_test};

/// The test that the ranks are told to run.
const TEST: &str = "returning::ranks_that_are_killed_are_started_again_and_taken_back_by_the_others";

/// How many steps there are to do: so many that ranks still work when they are killed.
const STEPS: u64 = if cfg!(debug_assertions) { 300 } else { 3000 };

/// The step after which the rank kills itself that is told to do so, in the first epoch.
const FATAL: u64 = 5;

/// Where each rank writes which step it has completed.
const DIARY: Region = Region::new(HeapOffset::new(0), 8);

/// Set in a process that has come through a recovery.
static RETURNED: OnceLock<()> = OnceLock::new();

/// How often ranks may be started again in a trial: once more than there are kills.
const RESTARTS: u32 = 3;

#[test]
fn ranks_that_are_killed_are_started_again_and_taken_back_by_the_others() {
    if is_device() {
        return be_brought_back();
    }
    let trials = if long() { 300 } else { 12 };
    let Some(mut series) = Series::begin(TEST, &format!("{trials} trials")) else { return };
    let mut returns = Returns::default();
    for number in 0..trials {
        series.trial(|random| ReturningTrial::draw(number, random), |trial| trial.run(&mut returns));
    }
    println!("{returns}");
}

/// The body of a device process: does all steps, however often somebody has to be brought back.
pub(crate) fn be_brought_back() {
    say(&format!("start {}", std::process::id()));
    let incarnation = incarnation();
    steps::count_from(&format!("start {incarnation} {}", rank_of_process()));
    let comm = match join_job() {
        Ok(Some(JoinedAs::Device(comm))) => comm,
        // Nobody is there to take it back.
        other => return say(&format!("alone {other:?}")),
    };
    let mut comm = *comm;
    let told = listen(&mut comm);
    let mut completed = told.try_recv().unwrap_or(0);
    while let Err(error) = work(&mut comm, &mut completed) {
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        steps::count_from(&format!("loss {incarnation} {}", comm.rank()));
        comm = match comm.recover(completed) {
            Ok(comm) => comm,
            // All was done, and the others have gone home.
            Err(Error::Unavailable { .. }) if completed == STEPS => break,
            Err(error) => panic!("{error}"),
        };
        completed = told.try_recv().expect("it was told before");
        assert!(told.try_recv().is_err(), "and once");
    }
    let _ = comm.finalize();
    say("done");
}

fn rank_of_process() -> String {
    std::env::var("SHMCCL_RANK").unwrap()
}

/// Which process of its rank this is in a trial in which steps are counted, as the directory of the
/// trial tells.
fn incarnation() -> u32 {
    let Ok(directory) = std::env::var("RETURN_DIRECTORY") else { return 0 };
    let name = |number| Path::new(&directory).join(format!("{}-{number}", rank_of_process()));
    (1..).find(|number| std::fs::File::create_new(name(*number)).is_ok()).unwrap()
}

/// Does the steps that are left.
pub(crate) fn work(comm: &mut Communicator, completed: &mut u64) -> Result<()> {
    let diary = comm.alloc::<u64>(1)?;
    assert_eq!(diary.region(), DIARY, "the same in every epoch");
    diary.set(0, *completed)?;
    say("up");
    let n_ranks = u64::from(comm.n_ranks());
    while *completed < STEPS {
        let step = *completed + 1;
        let mut sum = [step * (1 + u64::from(comm.rank().get()))];
        comm.all_reduce_in_place(&mut sum, &ReduceOp::Sum)?;
        assert_eq!(sum[0], step * n_ranks * (n_ranks + 1) / 2, "step {step}");
        *completed = step;
        diary.set(0, step)?;
        if step == FATAL && RETURNED.get().is_none() {
            steps::die_as("RETURN_VICTIM", comm.rank());
        }
    }
    comm.barrier()
}

/// Says and hands on what is told of recoveries: the step that all have completed.
pub(crate) fn listen(comm: &mut Communicator) -> mpsc::Receiver<u64> {
    let (tell, told) = mpsc::channel();
    comm.on_recovery(move |recovery| {
        let _ = RETURNED.set(());
        check_inheritance(recovery);
        let restarted: Vec<_> = recovery.restarted.iter().map(ToString::to_string).collect();
        say(&format!("back {} {} {}", recovery.sequence, restarted.join(","), now()));
        let _ = tell.send(recovery.sequence);
    });
    told
}

/// The predecessor's diary is where this rank's own will be.
fn check_inheritance(recovery: &Recovery) {
    assert!(recovery.keeps_heap());
    if !recovery.was_restarted {
        assert!(matches!(recovery.inherited(DIARY), Err(Error::Unavailable { .. })));
        return;
    }
    let left: u64 = recovery.inherited(DIARY).unwrap().read(0).unwrap();
    let agreed = recovery.sequence;
    let is_near = (agreed.saturating_sub(1)..=agreed + 1).contains(&left);
    // In a later epoch than the first it may have died before it wrote any.
    assert!(is_near || (left == 0 && recovery.epoch > 2), "{left}, agreed {agreed}");
}

/// Whom the second kill is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    Nobody,
    /// Another rank, a moment after the first.
    Another,
    /// Another rank, when the first has been started again.
    Survivor,
    /// The other one at its step of this number: the process that takes the place of the first, if
    /// that is the same rank.
    Step(u64),
}

/// Who is killed, and when.
#[derive(Clone, Debug)]
pub(crate) struct ReturningTrial {
    n_ranks: u32,
    victim: u32,
    other: u32,
    second: Second,
    /// After all are up, and after what the second one waits for.
    delays_us: [u64; 2],
    test: &'static str,
}

/// Times from the first kill until a survivor was in the new epoch, of trials with one kill and
/// with two, and how many kills came too late.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    alone: Vec<u64>,
    disturbed: Vec<u64>,
    restarts: u32,
}

impl ReturningTrial {
    pub(crate) fn draw(number: u64, random: &mut Random) -> Self {
        use Second::{Another, Nobody, Survivor};
        let second = [Nobody, Another, Survivor][usize::try_from(number % 3).unwrap()];
        // Somebody survives.
        let least = if matches!(second, Another | Survivor) { 3 } else { 2 };
        let n_ranks = least + u32::try_from(random.below(3)).unwrap();
        let victim = u32::try_from(random.below(n_ranks.into())).unwrap();
        let other = (victim + 1) % n_ranks;
        let latest = if second == Another { 3000 } else { 12_000 };
        let delays_us = [random.below(8000), random.below(latest)];
        Self { n_ranks, victim, other, second, delays_us, test: TEST }
    }

    /// A trial of `test` in which rank 2 is killed, and `other` on the way back.
    pub(crate) fn at_step(test: &'static str, other: u32, number: u64) -> Self {
        Self { n_ranks: 3, victim: 2, other, second: Second::Step(number), delays_us: [0; 2], test }
    }

    /// Runs it, and looks at what has come of it; whether all were killed that are to be.
    pub(crate) fn run(&self, returns: &mut Returns) -> bool {
        let mut launch = Launch::new(self.n_ranks).unwrap().program(this_test(self.test)).heap_len(8 << 20);
        let directory =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("returns-{}", std::process::id()));
        if let Second::Step(number) = self.second {
            // A failed trial may have left it.
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir(&directory).unwrap();
            let from = if self.other == self.victim { "start 2" } else { "loss 1" };
            launch = launch.env("RETURN_DIRECTORY", &directory).env(steps::NUMBER, number.to_string());
            launch = launch.env(steps::FROM, format!("{from} {}", self.other));
            launch = launch.env("RETURN_VICTIM", self.victim.to_string());
        }
        let launch = launch.timeout(Duration::from_secs(10)).grace(Duration::from_secs(3));
        let (tell, told) = mpsc::channel();
        let own = self.clone();
        let mut watcher = Watcher { log: Log::default(), tell };
        let killer: JoinHandle<Vec<u64>> = std::thread::spawn(move || own.strike(&told));
        let outcome = launch.restart(RESTARTS).capture_output(true).supervise(&mut watcher);
        let Watcher { log, tell } = watcher;
        drop(tell);
        let killed = killer.join().unwrap();
        let restarts = self.judge(&outcome, &log, &killed, returns);
        if matches!(self.second, Second::Step(_)) {
            std::fs::remove_dir_all(directory).unwrap();
            assert!(restarts > 0, "all was done too soon: {self:?} {outcome:?}");
        }
        restarts > 1
    }

    /// Kills one after the other, as the devices say where they are. Returns when it did.
    fn strike(&self, told: &mpsc::Receiver<News>) -> Vec<u64> {
        let mut pids = BTreeMap::new();
        let (mut up, mut killed) = (0, Vec::new());
        let mut hit = |pid: Pid, delay_us| {
            doze(delay_us);
            killed.push(now());
            // It may have ended by itself.
            let _ = kill(pid, Signal::SIGKILL);
        };
        for news in told {
            match news {
                News::Started(rank, pid) => {
                    let is_successor = pids.insert(rank, pid).is_some() && rank == self.victim;
                    if is_successor && self.second == Second::Survivor {
                        hit(pids[&self.other], self.delays_us[1]);
                        return killed;
                    }
                }
                News::Up => {
                    up += 1;
                    if up == self.n_ranks && !matches!(self.second, Second::Step(_)) {
                        hit(pids[&self.victim], self.delays_us[0]);
                        if self.second == Second::Another {
                            hit(pids[&self.other], self.delays_us[1]);
                        }
                    }
                }
            }
        }
        killed
    }

    /// Checks that all have done all steps, and were told the same about every return. Returns how
    /// many there were.
    fn judge(&self, outcome: &Result<JobOutcome>, log: &Log, killed: &[u64], returns: &mut Returns) -> usize {
        let context = || format!("{self:?}: {outcome:?}\n{}", log.text);
        let restarted = match outcome {
            Ok(outcome) => &outcome.restarted[..],
            // It was killed when the others had done all, and they were gone when its successor
            // came.
            Err(Error::DeviceFailed { device: DeviceName::Rank(rank), .. }) => {
                assert!([self.victim, self.other].contains(&rank.get()), "{}", context());
                &[]
            }
            Err(_) => panic!("{}", context()),
        };
        let by_kill = |(device, cause): &(DeviceName, ExitCause)| {
            let victims = [self.victim, self.other].map(|rank| Rank::new(rank, self.n_ranks).unwrap());
            victims.map(DeviceName::Rank).contains(device) && *cause == ExitCause::Signal(9)
        };
        let kills = if matches!(self.second, Second::Step(_)) { 2 } else { killed.len() };
        assert!(restarted.iter().all(by_kill) && restarted.len() <= kills, "{}", context());
        returns.restarts += u32::try_from(restarted.len()).unwrap();
        let is_victim = |rank: &u32| [self.victim, self.other].contains(rank);
        for rank in 0..self.n_ranks {
            assert!(
                log.done.contains(&rank) || (outcome.is_err() && is_victim(&rank)),
                "rank {rank}: {}",
                context()
            );
        }
        let times = if self.second == Second::Nobody { &mut returns.alone } else { &mut returns.disturbed };
        let since_kill = |at: u64| killed.first().map(|killed| at.saturating_sub(*killed));
        times.extend(log.back.iter().filter_map(|(.., at)| since_kill(*at)));
        // Whoever is there at the end has come back from the last loss, and was told the same.
        if let Some((_, last, _)) = log.back.last()
            && outcome.is_ok()
        {
            let told_last = |rank| log.back.iter().rfind(|(by, ..)| *by == rank).map(|(_, told, _)| told);
            let are_alike = (0..self.n_ranks).all(|rank| told_last(rank) == Some(last));
            assert!(are_alike || kills > restarted.len(), "{}", context());
        }
        assert!(!log.pids.iter().any(|pid| is_running(*pid)), "{}", context());
        restarted.len()
    }
}

impl std::fmt::Display for Returns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, times) in [("one kill", &self.alone), ("two kills", &self.disturbed)] {
            let [p50, p99, max] = percentiles(&mut times.clone());
            writeln!(
                f,
                "{what:9}: the first to the new epoch {:5} times: p50 {p50} p99 {p99} max {max}",
                times.len()
            )?;
        }
        write!(f, "{} processes were started again", self.restarts)
    }
}

/// What a device has said that concerns the killer.
enum News {
    Started(u32, Pid),
    Up,
}

/// What the devices have said.
#[derive(Default)]
struct Log {
    pids: Vec<Pid>,
    done: Vec<u32>,
    /// By whom, what, and when.
    back: Vec<(u32, String, u64)>,
    text: String,
}

struct Watcher {
    log: Log,
    tell: mpsc::Sender<News>,
}

impl Observer for Watcher {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        let DeviceName::Rank(rank) = line.device else { return };
        self.log.text.push_str(&format!("[{rank}] {text}\n"));
        let Some(said) = saying(&text) else { return };
        match said[..] {
            ["start", own] => {
                self.log.pids.push(pid(own));
                let _ = self.tell.send(News::Started(rank.get(), pid(own)));
            }
            ["up"] => _ = self.tell.send(News::Up),
            ["back", sequence, restarted, at] => {
                let told = format!("{sequence} {restarted}");
                self.log.back.push((rank.get(), told, at.parse().unwrap()));
            }
            ["done"] => self.log.done.push(rank.get()),
            _ => {}
        }
    }
}
