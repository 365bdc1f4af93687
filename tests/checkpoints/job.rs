//! One job that restores and keeps, of which some ranks are killed; and what the next one may find.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::Error;
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Launch, Observer, OutputLine};
use support::{Random, is_running};

use crate::keeper::{COUNT, DIRECTORY};
use crate::{names, this_test};

/// More checkpoints than any job comes to write.
const MANY: u64 = 1 << 20;

/// A job, and when which of its ranks are killed.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    n_ranks: u32,
    count: u64,
    kill: Kill,
}

#[derive(Clone, Debug)]
enum Kill {
    Nobody,
    /// One rank, or each, at its step of this number.
    AtStep(Option<u32>, u64),
    /// So many microseconds after all have said this word.
    After(Vec<u32>, &'static str, u64),
}

impl Trial {
    /// One rank or all of them are killed while they start, restore, or keep.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let n_ranks = 3;
        let victims = match u32::try_from(random.below(5)).unwrap() {
            all if all >= n_ranks => (0..n_ranks).collect(),
            one => vec![one],
        };
        let (word, latest) = if random.below(4) == 0 { ("start", 40_000) } else { ("holds", 80_000) };
        Self { n_ranks, count: MANY, kill: Kill::After(victims, word, random.below(latest)) }
    }

    pub(crate) fn at_step(victim: Option<u32>, number: u64) -> Self {
        Self { n_ranks: 2, count: 1, kill: Kill::AtStep(victim, number) }
    }

    pub(crate) fn in_peace(n_ranks: u32) -> Self {
        Self { n_ranks, count: 1, kill: Kill::Nobody }
    }

    /// Runs it on `directory`, looks at what it has found and what it leaves; whether nobody was
    /// killed.
    pub(crate) fn run(&self, test: &str, directory: &Path, summary: &mut Summary) -> bool {
        let launch = Launch::new(self.n_ranks).unwrap().program(this_test(test)).heap_len(8 << 20);
        let launch = launch.timeout(Duration::from_secs(20)).capture_output(true).env("SHMCCL_TUNING", "");
        let launch = launch.env(DIRECTORY, directory).env(COUNT, self.count.to_string());
        let plan = match self.kill {
            Kill::AtStep(Some(victim), number) => format!("kill:rank={victim},of=step,at={number}"),
            Kill::AtStep(None, number) => format!("kill:of=step,at={number}"),
            _ => String::new(),
        };
        let mut watcher = Watcher { trial: self, pids: BTreeMap::new(), killer: None, said: Said::default() };
        let outcome = launch.faults(plan.parse().unwrap()).supervise(&mut watcher);
        let Watcher { pids, killer, said, .. } = watcher;
        let was_struck = killer.map(|killer| killer.join().unwrap()).is_some();
        let context = || format!("{self:?} after {summary:?}: {outcome:?}\n{}", said.text);
        let is_whole = match &outcome {
            Ok(_) => true,
            Err(Error::DeviceFailed { cause: ExitCause::Signal(9), .. }) if was_struck => false,
            Err(Error::DeviceFailed { cause: ExitCause::Injected(_), .. }) if !plan.is_empty() => false,
            Err(_) => panic!("{}", context()),
        };
        assert!(!pids.values().any(|pid| is_running(*pid)), "{}", context());
        assert!(!is_whole || said.done == self.n_ranks, "{}", context());
        said.check_states(&summary.may_find, is_whole.then_some(self.n_ranks))
            .unwrap_or_else(|wrong| panic!("{wrong}: {}", context()));
        summary.note(&said, !is_whole);
        is_whole
    }
}

/// What the devices of a job have said.
#[derive(Default)]
struct Said {
    /// What each has found.
    held: Vec<u64>,
    /// What somebody has begun to keep at last, and what somebody was told is kept.
    begun: Option<u64>,
    kept: Option<u64>,
    done: u32,
    text: String,
}

impl Said {
    /// Whether all have found the same, which is one of those that there `may` be.
    fn check_states(&self, may: &RangeInclusive<u64>, tellers: Option<u32>) -> Result<(), String> {
        if tellers.is_some_and(|tellers| self.held.len() != tellers as usize) {
            return Err(format!("{:?} have told", self.held));
        }
        match self.held.iter().find(|held| **held != self.held[0] || !may.contains(held)) {
            Some(_) => Err(format!("found {:?}, may be {may:?}", self.held)),
            None => Ok(()),
        }
    }
}

/// What came of all jobs on a directory.
#[derive(Debug)]
pub(crate) struct Summary {
    /// What the next one may find, by number; 0 for nothing.
    may_find: RangeInclusive<u64>,
    /// Whether that is in question because somebody was killed in between.
    in_question: bool,
    kills: u32,
    /// How often somebody was killed between the beginning of a checkpoint and its end, and the old
    /// or the new one was found.
    old: u32,
    new: u32,
}

impl Default for Summary {
    fn default() -> Self {
        Self { may_find: 0..=0, in_question: false, kills: 0, old: 0, new: 0 }
    }
}

impl Summary {
    fn note(&mut self, said: &Said, was_killed: bool) {
        self.kills += u32::from(was_killed);
        if let Some(&held) = said.held.first() {
            if self.in_question {
                let is_new = held == *self.may_find.end();
                *(if is_new { &mut self.new } else { &mut self.old }) += 1;
            }
            self.may_find = held..=held;
        }
        let least = said.kept.unwrap_or(*self.may_find.start()).max(*self.may_find.start());
        let most = said.begun.unwrap_or(*self.may_find.end()).max(*self.may_find.end());
        self.may_find = least..=most;
        self.in_question = least != most;
    }

    /// Looks whether nothing is left in `directory` but the checkpoint that counts, of so many
    /// ranks.
    pub(crate) fn end(&self, directory: &Path, n_ranks: u32) {
        let generation = format!("generation-{}", self.may_find.end());
        assert_eq!(names(directory), ["CURRENT", &generation]);
        let parts: Vec<_> = (0..n_ranks).map(|rank| format!("rank{rank}")).collect();
        assert_eq!(names(&directory.join(generation)), parts);
    }

    /// Looks whether old checkpoints have been found, and new ones if that `can` be.
    pub(crate) fn expect_both(&self, can: bool) {
        assert!(self.old > 3 && (self.new > 0 || !can), "{self}");
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, old, new, may_find, .. } = self;
        write!(
            f,
            "{kills} jobs killed, {} of them with a checkpoint under way, after which {old} times the old state was found and {new} \
             times the new; never another; {} checkpoints in all",
            old + new,
            may_find.end()
        )
    }
}

/// Listens to the devices, and kills when the time has come.
struct Watcher<'t> {
    trial: &'t Trial,
    pids: BTreeMap<u32, Pid>,
    killer: Option<JoinHandle<()>>,
    said: Said,
}

impl Observer for Watcher<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        let DeviceName::Rank(rank) = line.device else { return };
        self.said.text.push_str(&format!("[{rank}] {text}\n"));
        let Some(words) = text.strip_prefix("@ ") else { return };
        let words: Vec<_> = words.split(' ').collect();
        let number = || words[1].parse::<u64>().unwrap();
        match words[0] {
            "start" => _ = self.pids.insert(rank.get(), Pid::from_raw(words[1].parse().unwrap())),
            "holds" => self.said.held.push(number()),
            "begins" => self.said.begun = self.said.begun.max(Some(number())),
            "kept" => self.said.kept = self.said.kept.max(Some(number())),
            "done" => self.said.done += 1,
            _ => {}
        }
        self.strike_after(words[0]);
    }
}

impl Watcher<'_> {
    /// Kills when all have said the `word` after which that is to be.
    fn strike_after(&mut self, word: &str) {
        let Kill::After(victims, awaited, delay_us) = self.trial.kill.clone() else { return };
        let n_tellers = if word == "start" { self.pids.len() } else { self.said.held.len() };
        if word != awaited || n_tellers < self.trial.n_ranks as usize {
            return;
        }
        let victims: Vec<_> = victims.iter().map(|victim| self.pids[victim]).collect();
        self.killer = Some(std::thread::spawn(move || {
            std::thread::park_timeout(Duration::from_micros(delay_us));
            // Who is gone by now was done, or was ended by the launcher when the first of the
            // victims was lost.
            let gone = |errno| assert_eq!(errno, Errno::ESRCH);
            victims.into_iter().for_each(|victim| kill(victim, Signal::SIGKILL).unwrap_or_else(gone));
        }));
    }
}
