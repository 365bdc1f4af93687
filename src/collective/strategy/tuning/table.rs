//! The table as plain data, what is built in, and what can be wrong with a table.

use serde::{Deserialize, Serialize};

use super::Tuning;
use crate::collective::call::{Algorithm, AlgorithmName, Operation};
use crate::collective::region::EAGER_LEN;
use crate::rank::MAX_RANKS;

/// Up to this many bytes `one_shot` sends data along with the announcement of the call, before
/// anybody knows where the buffers of the other ranks are. That happens where it is the choice for
/// both kinds of buffers.
pub const ONE_SHOT_LEN: u64 = EAGER_LEN;

/// Where the buffers of a call are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferKind {
    /// All in the symmetric heap, where every rank reaches them.
    Heap,
    /// Some in ordinary memory: data go through the heap piece by piece.
    Ordinary,
}

impl BufferKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Heap, Self::Ordinary];

    /// Returns its name, as tables have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Ordinary => "ordinary",
        }
    }
}

/// An algorithm, and up to which size it is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The most bytes that a rank contributes; `None`: any number.
    pub up_to: Option<u64>,
    /// What is taken. Where it is a plan that is not registered or does not fit, [`built_in`] is.
    pub algorithm: AlgorithmName,
}

/// What is taken under the same circumstances.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The operation.
    pub operation: Operation,
    /// How many ranks it was measured with.
    pub n_ranks: u32,
    /// Whether ranks shared cores, so that who waits gives way to others.
    pub oversubscribed: bool,
    /// Where the buffers were.
    pub buffers: BufferKind,
    /// By ascending size; the last one has no limit.
    pub steps: Vec<Step>,
}

/// The steps where a table has no case.
static BUILT_IN: [Step; 2] = one_shot_up_to(ONE_SHOT_LEN);

/// Those of an all-reduce among so many ranks with a core each that the time to read all inputs is
/// longer than a second hand-over: `benches/RESULTS.md`, "Ranks with cores of their own".
static BUILT_IN_FOR_MANY: [Step; 2] = one_shot_up_to(MANY_ONE_SHOT_LEN);

/// From so many ranks on.
const MANY: u32 = 8;

/// Up to this many bytes `one_shot` is quicker there, or as quick.
const MANY_ONE_SHOT_LEN: u64 = 1 << 10;

const fn one_shot_up_to(len: u64) -> [Step; 2] {
    [
        Step { up_to: Some(len), algorithm: AlgorithmName::BuiltIn(Algorithm::OneShot) },
        Step { up_to: None, algorithm: AlgorithmName::BuiltIn(Algorithm::TwoShot) },
    ]
}

fn built_in_steps(operation: Operation, n_ranks: u32, oversubscribed: bool) -> &'static [Step; 2] {
    let is_for_many = operation == Operation::AllReduce && n_ranks >= MANY && !oversubscribed;
    if is_for_many { &BUILT_IN_FOR_MANY } else { &BUILT_IN }
}

/// Returns what does an `operation` among `n_ranks`, to which no rank contributes more than `len`
/// bytes, where no table says otherwise. Ranks that are `oversubscribed` share cores.
#[must_use]
pub fn built_in(operation: Operation, n_ranks: u32, oversubscribed: bool, len: u64) -> Algorithm {
    let [short, _] = built_in_steps(operation, n_ranks, oversubscribed);
    if short.reaches(len) { Algorithm::OneShot } else { Algorithm::TwoShot }
}

impl Step {
    fn reaches(&self, len: u64) -> bool {
        self.up_to.is_none_or(|most| len <= most)
    }
}

/// Which algorithm to take, by operation, ranks, buffers and size. The default is what is built in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// In the order of their keys, none of which is there twice.
    cases: Vec<Case>,
}

impl Table {
    /// Makes the table of `cases`, which have been checked.
    pub(super) fn of(mut cases: Vec<Case>) -> Self {
        cases.sort_by_key(key);
        Self { cases }
    }

    /// Returns its cases.
    #[must_use]
    pub fn cases(&self) -> &[Case] {
        &self.cases
    }

    /// Returns the steps for `operation` among `n_ranks`: those of the case whose number of ranks
    /// is nearest by factor, the smaller one of two that are equally near. Where there is none that
    /// is as `oversubscribed`, the built-in ones.
    #[must_use]
    pub fn steps(
        &self,
        operation: Operation,
        n_ranks: u32,
        oversubscribed: bool,
        buffers: BufferKind,
    ) -> &[Step] {
        let fits = |case: &&Case| {
            case.operation == operation && case.oversubscribed == oversubscribed && case.buffers == buffers
        };
        // Cases come by ascending numbers of ranks, and the first of equals is taken.
        let nearest = self.cases.iter().filter(fits).min_by(|one, other| {
            f64::total_cmp(&factor(one.n_ranks, n_ranks), &factor(other.n_ranks, n_ranks))
        });
        nearest.map_or_else(
            || built_in_steps(operation, n_ranks, oversubscribed).as_slice(),
            |case| case.steps.as_slice(),
        )
    }

    /// Returns a number that tables of different content hardly share (FNV-1a over their values).
    #[must_use]
    pub fn checksum(&self) -> u64 {
        let built_in = BUILT_IN.iter().chain(&BUILT_IN_FOR_MANY).flat_map(words_of_step);
        let cases = self.cases.iter().flat_map(|case| {
            let head =
                [case.operation as u64, case.n_ranks.into(), case.oversubscribed.into(), case.buffers as u64];
            head.into_iter().chain([case.steps.len() as u64]).chain(case.steps.iter().flat_map(words_of_step))
        });
        let bytes = built_in.chain(cases).flat_map(u64::to_le_bytes);
        bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

fn words_of_step(step: &Step) -> impl Iterator<Item = u64> {
    let (code, name) = match &step.algorithm {
        AlgorithmName::BuiltIn(algorithm) => (*algorithm as u64, ""),
        AlgorithmName::Plan(name) => (0, name.as_str()),
    };
    let head = [step.up_to.unwrap_or(u64::MAX), code, name.len() as u64];
    head.into_iter().chain(name.bytes().map(u64::from))
}

/// By what `one` number of ranks has to be multiplied or divided to make the `other`.
fn factor(one: u32, other: u32) -> f64 {
    f64::from(one.max(other)) / f64::from(one.min(other).max(1))
}

/// Returns what tells a case from others, in the order of cases.
pub(super) fn key(case: &Case) -> (u8, bool, BufferKind, u32) {
    (case.operation as u8, case.oversubscribed, case.buffers, case.n_ranks)
}

/// Why a tuning table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuningFault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// It is a directory, a pipe or a device.
    #[error("is no regular file")]
    NotAFile,
    /// No table is as long.
    #[error("has more than {0} bytes, and no tuning table is as long")]
    TooLong(u64),
    /// It is no TOML, or no table in TOML.
    #[error("{0}")]
    Malformed(String),
    /// It is of another version.
    #[error("is of version {0}, and this is a reader of version {reader}", reader = super::format::VERSION)]
    Version(u32),
    /// No operation has this name, or not one that there are several algorithms for.
    #[error("there are no algorithms to choose from for the operation {0:?}")]
    UnknownOperation(String),
    /// No algorithm has this name.
    #[error("{0:?} is {fault}, or plan:NAME", fault = crate::collective::call::UnknownAlgorithm)]
    UnknownAlgorithm(String),
    /// The algorithm cannot do the operation.
    #[error("{algorithm} cannot do {operation}")]
    Unsupported {
        /// The algorithm, or the plan.
        algorithm: AlgorithmName,
        /// The operation.
        operation: Operation,
    },
    /// A communicator cannot have so many ranks, or has no choice.
    #[error("ranks is {0}, expected 2 to {MAX_RANKS}")]
    Ranks(u32),
    /// Sizes and algorithms do not match.
    #[error(
        "up_to has {sizes} sizes for {algorithms} algorithms, expected one less, as the last is for all that is longer"
    )]
    Count {
        /// How many sizes.
        sizes: usize,
        /// How many algorithms.
        algorithms: usize,
    },
    /// The sizes do not ascend.
    #[error("the sizes in up_to do not ascend")]
    Order,
    /// There are two cases for the same circumstances.
    #[error("this case is there twice")]
    Twice,
}

/// Operations have codes from 1 on.
const CODES: usize = Operation::ALL.len() + 1;

/// The part of a table that matters to one communicator.
///
/// The first question, whether data travel with the post, is asked at every call, and of calls that
/// take less than a microsecond: it is one comparison. The other is asked when all members have
/// posted, and searches a short list.
#[derive(Debug)]
pub(crate) struct CommTable {
    /// By operation: shorter contributions travel with the announcement.
    eager_below: [u64; CODES],
    /// By operation and kind of buffers.
    steps: [[Box<[Step]>; 2]; CODES],
    n_ranks: u32,
    oversubscribed: bool,
}

impl CommTable {
    /// Makes those among `n_members`. Where a plan is named that `is_registered` does not know, the
    /// built-in steps are taken.
    pub(crate) fn new(tuning: &Tuning, n_members: usize, is_registered: impl Fn(&str) -> bool) -> Self {
        // Alone there is nothing to choose.
        let tuning = if n_members > 1 { tuning } else { &Tuning::default() };
        let n_ranks = u32::try_from(n_members).unwrap_or(u32::MAX);
        let oversubscribed = tuning.oversubscribed;
        let steps_of = |operation, buffers| {
            let steps = tuning.table.steps(operation, n_ranks, oversubscribed, buffers);
            resolved(steps, built_in_steps(operation, n_ranks, oversubscribed), &is_registered)
        };
        let steps = std::array::from_fn(|_| Default::default());
        let mut table = Self { eager_below: [0; CODES], steps, n_ranks, oversubscribed };
        for operation in Operation::ALL {
            let both = BufferKind::ALL.map(|buffers| steps_of(operation, buffers));
            let code = operation as usize;
            table.eager_below[code] = both.iter().map(|steps| eager_below(steps)).min().unwrap_or(0);
            table.steps[code] = both;
        }
        table
    }

    /// Returns whether data of an `operation` to which no rank contributes more than `len` bytes
    /// travel with its announcement.
    #[inline]
    pub(crate) fn is_eager(&self, operation: Operation, len: u64) -> bool {
        len < self.eager_below[operation as usize]
    }

    /// Returns what does an `operation` to which no rank contributes more than `len` bytes; where
    /// that is a plan, what does it if the plan does not.
    pub(crate) fn algorithm(&self, operation: Operation, buffers: BufferKind, len: u64) -> Algorithm {
        match self.at(operation, buffers, len) {
            Some(AlgorithmName::BuiltIn(algorithm)) => *algorithm,
            _ => built_in(operation, self.n_ranks, self.oversubscribed, len),
        }
    }

    /// Returns the plan for an `operation` to which no rank contributes more than `len` bytes, if
    /// one is to do it.
    pub(crate) fn plan(&self, operation: Operation, buffers: BufferKind, len: u64) -> Option<&str> {
        match self.at(operation, buffers, len) {
            Some(AlgorithmName::Plan(name)) => Some(name),
            _ => None,
        }
    }

    /// Returns whether the table decides which plans do an `operation`.
    pub(crate) fn names_plans(&self, operation: Operation) -> bool {
        self.steps[operation as usize].iter().flatten().any(|step| plan_of(step).is_some())
    }

    fn at(&self, operation: Operation, buffers: BufferKind, len: u64) -> Option<&AlgorithmName> {
        let steps = &self.steps[operation as usize][buffers as usize];
        steps.iter().find(|step| step.reaches(len)).map(|step| &step.algorithm)
    }
}

fn plan_of(step: &Step) -> Option<&str> {
    match &step.algorithm {
        AlgorithmName::Plan(name) => Some(name),
        AlgorithmName::BuiltIn(_) => None,
    }
}

/// Returns `steps` with the `built_in` ones in the place of plans that `is_registered` does not
/// know.
fn resolved(steps: &[Step], built_in: &[Step], is_registered: impl Fn(&str) -> bool) -> Box<[Step]> {
    let within = |built_in: &Step, step: &Step| {
        let up_to = [built_in.up_to, step.up_to].into_iter().flatten().min();
        Step { up_to, algorithm: built_in.algorithm.clone() }
    };
    let resolve = |step: &Step| match plan_of(step) {
        Some(name) if !is_registered(name) => built_in.iter().map(|one| within(one, step)).collect(),
        _ => vec![step.clone()],
    };
    steps.iter().flat_map(resolve).collect()
}

/// Returns where `steps` leave the one shot that travels with the announcement.
fn eager_below(steps: &[Step]) -> u64 {
    let leading = steps.iter().take_while(|step| step.algorithm == Algorithm::OneShot.into());
    leading.last().map_or(0, |step| step.up_to.unwrap_or(u64::MAX).min(ONE_SHOT_LEN) + 1)
}
