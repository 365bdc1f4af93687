//! Faults that are made on purpose, so that what a program does about them can be tried out.
//!
//! A plan ([`Faults`]) says what goes wrong, on which rank, and when: at the N-th of what is
//! counted, or at one in N, drawn by the seed of the plan. The same plan hits at the same places,
//! as far as the program itself does the same again. It comes from
//! [`Launch::faults`](crate::launch::Launch::faults), from
//! [`Options::faults`](crate::bootstrap::Options::faults), from `shmccl run --faults`, or from
//! `SHMCCL_FAULTS`:
//!
//! ```text
//! SHMCCL_FAULTS = CLAUSE [; CLAUSE]...
//! CLAUSE        = seed=N | FAULT:KEY=VALUE[,KEY=VALUE]...
//! ```
//!
//! | fault | what happens | what it counts, unless told by `of` |
//! |---|---|---|
//! | `kill` | the process is killed; a thread is lost; not `of=trigger` of a service | operations |
//! | `delay` | it takes so much longer (`time`), or until the epoch has ended | operations |
//! | `drop` | the proxy pops the trigger, and executes nothing | triggers |
//! | `fail` | the proxy refuses the trigger, as it does a bad one | triggers |
//! | `stop` | the proxy is lost before it executes the trigger | triggers |
//! | `corrupt` | one bit of what was written is flipped before the reader is told of it | writes |
//!
//! | key | value |
//! |---|---|
//! | `rank` | the rank, as the job numbers it at first; every rank, if there is none |
//! | `at` | hits the N-th, once |
//! | `one_in` | hits one in N, drawn by the seed, the clause, the rank and the number |
//! | `time` | of a delay: `20us`, `5ms`, `1s` |
//! | `of` | what is counted: the name of an operation, or one of the words below |
//!
//! What is counted, by each rank, of each communicator with those that are made of it:
//! - *operations*, as the rank calls them: the verbs of its channels (`poll` left aside, and those
//!   of a `SwitchChannel`), and the calls of its communicators that take others (`barrier`,
//!   `alloc`, `all_reduce`, ..., `group` for a whole group). A put that is flushed as well is a
//!   `put_with_signal`. What an operation does within is not counted (the memory that a first call
//!   takes, say), nor is going on after a loss.
//! - `trigger`: what the proxy of the rank takes off its fifo, also for collectives over proxied
//!   channels.
//! - *writes*: `put` (by the rank's own core, of `put`, `put_with_signal` and `put_slice`; neither
//!   packets nor a `write`), `trigger` (by its proxy), `message` (into the pipes of an algorithm,
//!   and of a `send`), `stage` (of what a collective makes of ordinary memory, and of results that
//!   come back so), `post` (of what a collective of at most 8 KiB posts, of those of a group that
//!   go together left aside), and `file` (of a checkpoint).
//! - `step`: of a checkpoint or its restoration.
//!
//! Examples: `kill:rank=1,at=12`, `seed=7;drop:one_in=100`,
//! `delay:rank=0,at=3,of=all_reduce,time=50ms`.
//!
//! A rank that the launcher has started again suffers none. A strike is told where failures are:
//! the error of a rank that is lost by one ([`crate::Error::FaultInjected`],
//! [`ExitCause::Injected`](crate::error::ExitCause::Injected)) names it, refused triggers have
//! [`RefusalReason::Injected`](crate::channel::RefusalReason::Injected), and reports of the job
//! ([`Communicator::report`](crate::Communicator::report), `shmccl report`) name the last of each
//! rank, or the one that has ended it, with the seed.
//! [`Communicator::fault_hits`](crate::Communicator::fault_hits) lists all of this process. The
//! launcher names the fault by which a rank dies, in whatever epoch; of one that is killed and
//! whose proxy was stopped before, in a process of its own, the kill.
//!
//! Where nothing is planned nothing is looked up: a verb takes a branch or two, by a word that the
//! rank has at hand.
//!
//! Tried by its unit tests, `scenarios faults:: kill::stepwise::` and `command run::faults::`.

mod counters;
mod injector;
mod text;

use std::time::Duration;

pub(crate) use counters::FAULT_WORDS;
pub(crate) use injector::{DrawnFault, FaultPoint, Injector};
pub use text::FaultSpecError;

use crate::error::Result;
pub use crate::error::{FaultHit, FaultKind};
use crate::rank::Rank;
use crate::variables;

/// The variable that a plan is taken from.
pub const VARIABLE: &str = "SHMCCL_FAULTS";

/// The most faults in a plan.
const MAX_FAULTS: usize = 32;

impl FaultKind {
    /// Returns what a fault of this kind counts where its clause does not say.
    const fn usual(self) -> &'static str {
        match self {
            Self::Kill | Self::Delay => OPERATIONS,
            Self::Drop | Self::Fail | Self::Stop => TRIGGER,
            Self::Corrupt => WRITES,
        }
    }

    fn can_count(self, of: &str) -> bool {
        match self {
            Self::Kill | Self::Delay => [TRIGGER, STEP, OPERATIONS].contains(&of) || VERBS.contains(&of),
            Self::Drop | Self::Fail | Self::Stop => of == TRIGGER,
            Self::Corrupt => of == WRITES || WRITTEN.contains(&of),
        }
    }
}

/// Any operation.
pub(crate) const OPERATIONS: &str = "operation";
/// Anything written.
pub(crate) const WRITES: &str = "write";
/// A trigger, as it is executed or as what it has written.
pub(crate) const TRIGGER: &str = "trigger";
/// A step of a checkpoint.
pub(crate) const STEP: &str = "step";
/// A file of a checkpoint.
pub(crate) const FILE: &str = "file";
/// The puts of a rank itself.
pub(crate) const PUT: &str = "put";
/// The contents of a pipe.
pub(crate) const MESSAGE: &str = "message";
/// The stages of a collective.
pub(crate) const STAGE: &str = "stage";
/// The data that an eager collective posts.
pub(crate) const POST: &str = "post";

/// The writes that a fault can corrupt.
const WRITTEN: [&str; 6] = [PUT, TRIGGER, MESSAGE, STAGE, POST, FILE];

/// Operations, as a rank calls them.
const VERBS: [&str; 40] = [
    PUT,
    "put_with_signal",
    "put_slice",
    "put_packets",
    "put_registered",
    "write",
    "get",
    "read",
    "atomic",
    "signal",
    "relaxed_signal",
    "wait",
    "wait_until",
    "relaxed_wait",
    "unpack_packets",
    "flush",
    "barrier",
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "send",
    "recv",
    "group",
    "alloc",
    "free",
    "split",
    "duplicate",
    "grow",
    "switch_channel",
    "set_channel_kind",
    "register_algorithm",
    "finalize",
    "checkpoint",
    "restore",
];

/// The other things that are counted.
const OTHERS: [&str; 8] = [OPERATIONS, WRITES, TRIGGER, STEP, MESSAGE, STAGE, FILE, POST];

/// Returns the words for all that is counted.
fn words() -> impl Iterator<Item = &'static str> {
    VERBS.into_iter().chain(OTHERS)
}

/// Returns the word for what is counted, if `text` is one.
fn counted(text: &str) -> Option<&'static str> {
    words().find(|word| *word == text)
}

/// When a fault hits, by the number of what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum When {
    At(u64),
    OneIn(u64),
}

/// One thing that goes wrong: what, whom, when.
///
/// ```
/// use shmccl::faults::{Fault, FaultKind, Faults};
///
/// let plan = Faults::seeded(7)
///     .with(Fault::one_in(FaultKind::Drop, 100))?
///     .with(Fault::at(FaultKind::Kill, 12).on(1))?
///     .with(Fault::at(FaultKind::Delay, 3).for_time(std::time::Duration::from_millis(5)))?;
/// let written = "seed=7;drop:one_in=100;kill:rank=1,at=12;delay:at=3,time=5000000ns";
/// assert_eq!(plan.to_string(), written);
/// let by_hand = "seed=7; drop: one_in=100; kill: at=12, rank=1; delay: at=3, time=5ms";
/// assert_eq!(plan, by_hand.parse()?);
/// # Ok::<(), shmccl::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    kind: FaultKind,
    rank: Option<u32>,
    when: When,
    of: Option<String>,
    time: Option<Duration>,
}

impl Fault {
    /// Makes a fault that hits the `number`-th of what it counts, from 1 on.
    #[must_use]
    pub const fn at(kind: FaultKind, number: u64) -> Self {
        Self { kind, rank: None, when: When::At(number), of: None, time: None }
    }

    /// Makes a fault that hits one in `n` of what it counts.
    #[must_use]
    pub const fn one_in(kind: FaultKind, n: u64) -> Self {
        Self { kind, rank: None, when: When::OneIn(n), of: None, time: None }
    }

    /// Hits this rank only, as the job numbers it at first.
    #[must_use]
    pub const fn on(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Counts only what has this name: see [the module](self).
    #[must_use]
    pub fn of(mut self, what: impl Into<String>) -> Self {
        self.of = Some(what.into());
        self
    }

    /// Sets how long a delay takes.
    #[must_use]
    pub const fn for_time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Returns what it counts.
    fn counts(&self) -> &'static str {
        self.of.as_deref().and_then(counted).unwrap_or(self.kind.usual())
    }

    /// Checks that it makes sense.
    fn check(&self) -> std::result::Result<(), FaultSpecError> {
        if let When::At(0) | When::OneIn(0) = self.when {
            return Err(FaultSpecError::Number("0".to_owned()));
        }
        if self.rank.is_some_and(|rank| rank >= crate::rank::MAX_RANKS) {
            return Err(FaultSpecError::Rank);
        }
        if let Some(of) =
            self.of.as_deref().filter(|of| counted(of).is_none_or(|of| !self.kind.can_count(of)))
        {
            return Err(FaultSpecError::Of { kind: self.kind, of: of.to_owned() });
        }
        match (self.kind, self.time) {
            (FaultKind::Delay, None) => Err(FaultSpecError::NoTime),
            (FaultKind::Delay, Some(_)) | (_, None) => Ok(()),
            (kind, Some(_)) => Err(FaultSpecError::Time(kind)),
        }
    }
}

/// A plan of what goes wrong. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    seed: u64,
    faults: Vec<Fault>,
}

impl Faults {
    /// Returns a plan of nothing yet, whose draws are made by `seed`.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self { seed, faults: Vec::new() }
    }

    /// Adds `fault`.
    ///
    /// # Errors
    /// [`crate::Error::FaultSpec`] when it makes no sense, or is one too many.
    pub fn with(mut self, fault: Fault) -> Result<Self> {
        if self.faults.len() == MAX_FAULTS {
            return Err(FaultSpecError::TooMany.into());
        }
        fault.check()?;
        self.faults.push(fault);
        Ok(self)
    }

    /// Returns the plan in [`VARIABLE`]; nothing where that is not set, or empty.
    ///
    /// # Errors
    /// [`crate::Error::FaultSpec`].
    pub fn from_env() -> Result<Self> {
        match variables::get(VARIABLE) {
            None => Ok(Self::default()),
            Some(text) => text.to_string_lossy().parse(),
        }
    }

    /// Returns this plan, or the one in [`VARIABLE`] where this one is of nothing.
    ///
    /// # Errors
    /// Fails as [`Faults::from_env`] does.
    pub(crate) fn or_from_env(&self) -> Result<Self> {
        if self.is_empty() { Self::from_env() } else { Ok(self.clone()) }
    }

    /// Checks that a job of `n_ranks`, whose proxy is a service process or not, can suffer this
    /// plan, or the environment's in its place.
    ///
    /// # Errors
    /// Fails as [`Faults::from_env`] does, or with [`crate::Error::FaultSpec`].
    pub(crate) fn check_for(&self, n_ranks: u32, has_service: bool) -> Result<()> {
        let plan = self.or_from_env()?;
        let stranger = plan.faults.iter().filter_map(|fault| fault.rank).find(|rank| *rank >= n_ranks);
        let kills_at_triggers =
            || plan.faults.iter().any(|fault| fault.kind == FaultKind::Kill && fault.counts() == TRIGGER);
        match stranger {
            Some(rank) => Err(FaultSpecError::NoSuchRank { rank, n_ranks }.into()),
            None if has_service && kills_at_triggers() => Err(FaultSpecError::OfService.into()),
            None => Ok(()),
        }
    }

    /// Returns whether the plan is of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Returns the rank of a hit, as its plan numbers it.
fn known(rank: u64) -> Option<Rank> {
    Rank::new(u32::try_from(rank).ok()?, crate::rank::MAX_RANKS).ok()
}
