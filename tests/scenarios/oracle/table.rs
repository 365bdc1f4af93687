//! What a call depends on, and which combinations of it are tried.

use shmccl::collective::{Algorithm, Operation};
use shmccl::reduce::DataType;
use support::{long, reduction};

use crate::harness::Random;
use crate::oracle::values::Values;

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Sum,
    Prod,
    Min,
    Max,
    Avg,
    BitAnd,
    BitOr,
    BitXor,
    PreMulSum,
    /// The first that is not all zero bytes: associative, and tells orders apart.
    Custom,
}

impl Operator {
    /// Returns what the slow oracle calls this operator, with the bytes of its scalar; `None` where
    /// it is the user's own.
    pub(crate) fn plain(self, scalar: &[u8]) -> Option<reduction::Operator> {
        Some(match self {
            Self::Sum => reduction::Operator::Sum,
            Self::Prod => reduction::Operator::Prod,
            Self::Min => reduction::Operator::Min,
            Self::Max => reduction::Operator::Max,
            Self::Avg => reduction::Operator::Avg,
            Self::BitAnd => reduction::Operator::BitAnd,
            Self::BitOr => reduction::Operator::BitOr,
            Self::BitXor => reduction::Operator::BitXor,
            Self::PreMulSum => reduction::Operator::pre_mul_sum(scalar),
            Self::Custom => return None,
        })
    }

    /// Whether it is defined on elements `dtype`.
    fn is_defined_on(self, dtype: DataType) -> bool {
        match self {
            Self::Sum | Self::Custom => true,
            Self::Prod | Self::Min | Self::Max => {
                !matches!(dtype, DataType::Complex64 | DataType::Complex128)
            }
            Self::Avg | Self::PreMulSum => dtype != DataType::Bool,
            Self::BitAnd | Self::BitOr | Self::BitXor => dtype.is_integer() || dtype == DataType::Bool,
        }
    }
}

/// Where buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Heap,
    Ordinary,
    /// Each of each rank as chance has it.
    Mixed,
}

/// One call of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Combination {
    pub(crate) operation: Operation,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) dtype: DataType,
    pub(crate) operator: Operator,
    pub(crate) values: Values,
    /// Elements of a block.
    pub(crate) count: usize,
    pub(crate) in_place: bool,
    pub(crate) memory: Memory,
    pub(crate) root: usize,
    /// What else is left to chance: offsets, contents.
    pub(crate) salt: u64,
}

const OPERATORS: [Operator; 10] = [
    Operator::Sum,
    Operator::Prod,
    Operator::Min,
    Operator::Max,
    Operator::Avg,
    Operator::BitAnd,
    Operator::BitOr,
    Operator::BitXor,
    Operator::PreMulSum,
    Operator::Custom,
];

const MEMORIES: [Memory; 3] = [Memory::Heap, Memory::Ordinary, Memory::Mixed];

/// The most bytes that a rank sends or receives, but for the longest calls.
pub(crate) const LONG: usize = 96 << 10;

/// More than goes through the scratch at once.
const LONGEST: usize = 1200 << 10;

/// More than goes through it several times, and than one core's caches hold: the longest of the
/// whole table.
const LARGEST: usize = 4 << 20;

/// The most bytes of a buffer.
pub(crate) fn most_bytes() -> usize {
    if long() { LARGEST } else { LONGEST }
}

impl Combination {
    /// Any one among `n` ranks.
    pub(crate) fn draw(random: &mut Random, n: usize) -> Self {
        let operation = one_of(random, &Algorithm::OPERATIONS);
        let algorithm = one_of(random, &algorithms(operation));
        let dtype = one_of(random, &DataType::ALL);
        let most = elements(operation, dtype, n, LONG);
        let count = match random.below(16) {
            0 => 0,
            1 => 1,
            2..=8 => below(random, 2 * n + 70),
            9..=13 => below(random, 3000.min(most)),
            14 => below(random, most),
            _ => match random.below(6) {
                0 => elements(operation, dtype, n, LONGEST) - below(random, 100),
                1 => below(random, elements(operation, dtype, n, LONGEST)),
                // Around the slots of pipes and eager slots.
                _ => ((4 << 10) << random.below(4)) / dtype.size() + below(random, 3) - 1,
            },
        };
        Self {
            operation,
            algorithm,
            dtype,
            operator: one_of(random, &operators(operation, dtype)),
            values: one_of(random, &Values::ALL),
            count: count.min(elements(operation, dtype, n, LONGEST)),
            in_place: random.below(3) == 0,
            memory: one_of(random, &MEMORIES),
            root: below(random, n),
            salt: random.next(),
        }
    }

    /// Every one among `n` ranks; what has no bounds is left to chance. Where data are many that is
    /// also true of types and operators: of each algorithm there are two.
    pub(crate) fn all(random: &mut Random, n: usize) -> Vec<Self> {
        let mut all = Vec::new();
        for operation in Algorithm::OPERATIONS {
            for algorithm in algorithms(operation) {
                for dtype in DataType::ALL {
                    for operator in operators(operation, dtype) {
                        let any = Self::draw(random, n);
                        let counts = counts(operation, dtype, n);
                        let one = Self { operation, algorithm, dtype, operator, ..any };
                        one.everywhere(&counts, random, n, &mut all);
                    }
                }
                for dtype in [DataType::F32, one_of(random, &DataType::ALL)] {
                    let counts = large_counts(operation, dtype, n);
                    let operator = one_of(random, &operators(operation, dtype));
                    let one = Self { operation, algorithm, dtype, operator, ..Self::draw(random, n) };
                    one.everywhere(&counts, random, n, &mut all);
                }
            }
        }
        all
    }

    /// Adds it to `all` with each of `counts` and every place of the buffers.
    fn everywhere(self, counts: &[usize], random: &mut Random, n: usize, all: &mut Vec<Self>) {
        for &count in counts {
            for memory in MEMORIES {
                for in_place in [false, true] {
                    let (values, root) = (one_of(random, &Values::ALL), below(random, n));
                    all.push(Self { count, memory, in_place, values, root, salt: random.next(), ..self });
                }
            }
        }
    }

    /// A number that only this call, and `what` of it, has.
    pub(crate) fn chance(&self, what: u64) -> u64 {
        Random(self.salt ^ what.wrapping_mul(0x9e37_79b9)).next()
    }
}

/// Each algorithm that can do `operation`, and none.
fn algorithms(operation: Operation) -> Vec<Option<Algorithm>> {
    let able = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(operation));
    able.map(Some).chain([None]).collect()
}

/// Each operator that is defined on elements `dtype`; any one where nothing is combined.
fn operators(operation: Operation, dtype: DataType) -> Vec<Operator> {
    let able = OPERATORS.into_iter().filter(|operator| operator.is_defined_on(dtype));
    able.take(if operation.reduces() { OPERATORS.len() } else { 1 }).collect()
}

/// How many elements a block may have so that no buffer is longer than `bytes`.
pub(crate) fn elements(operation: Operation, dtype: DataType, n: usize, bytes: usize) -> usize {
    let (sent, received) = operation.blocks(n as u64);
    bytes / dtype.size() / usize::try_from(sent.max(received)).unwrap()
}

/// None, one, odd numbers, one that most numbers of ranks divide, and some that go through the
/// slots of pipes more than once.
fn counts(operation: Operation, dtype: DataType, n: usize) -> [usize; 7] {
    let most = elements(operation, dtype, n, LONG / 4);
    [0, 1, 23, 840, 1009, most, most / 3 - 1]
}

/// One element more than all slots of a pipe hold, or those of the scratch; one less than three
/// pieces of it; and as many as there are.
fn large_counts(operation: Operation, dtype: DataType, n: usize) -> [usize; 4] {
    let (sent, _) = operation.blocks(n as u64);
    let of = |bytes: usize| bytes / dtype.size() / usize::try_from(sent).unwrap();
    let most = elements(operation, dtype, n, LARGEST);
    [of(256 << 10) + 1, of(1 << 20) + 1, of(3 << 19) - 1, most].map(|count| count.min(most))
}

pub(crate) fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit as u64)).unwrap()
}

pub(crate) fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[below(random, choices.len())]
}
