//! The reduction of the inputs of all ranks, in an order that is one of several.

use std::ops::Range;

use shmccl::reduce::DataType;
use support::reduction::{ElementType, Operator, narrowed, reduce, take_first, widened};

use crate::oracle::order::{Orders, Term};

/// Bytes that are worked out at once, to see which order they were combined in.
const WINDOW: usize = 16 << 10;

/// An element that is wrong.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) index: usize,
    pub(crate) got: Vec<u8>,
    pub(crate) right: Vec<u8>,
}

impl Mistake {
    /// The first of the elements of `size` bytes that differs.
    pub(crate) fn first(got: &[u8], right: &[u8], size: usize) -> Option<Self> {
        assert_eq!(got.len(), right.len());
        let at = if got == right { None } else { Some(common(got, right) / size * size) };
        at.map(|at| {
            let (got, right) = (got[at..at + size].to_vec(), right[at..at + size].to_vec());
            Self { index: at / size, got, right }
        })
    }
}

/// How many bytes are the same up to the first that differs.
fn common(one: &[u8], other: &[u8]) -> usize {
    if one == other {
        one.len()
    } else {
        one.iter().zip(other).take_while(|(one, other)| one == other).count()
    }
}

/// The inputs of a reduction, in the order of the ranks.
#[derive(Debug)]
pub(crate) struct Reduction {
    pub(crate) dtype: DataType,
    /// The operator of each rank, which may have a scalar of its own; `None` where the user's own
    /// operator is called.
    pub(crate) operators: Option<Vec<Operator>>,
    pub(crate) inputs: Vec<Vec<u8>>,
}

impl Reduction {
    /// Where `result` was combined in none of `orders`.
    pub(crate) fn first_mistake(&self, result: &[u8], orders: &Orders) -> Option<Mistake> {
        let n = orders.terms.len();
        let (mut start, mut turn) = (0, 0);
        while start < result.len() {
            let range = start..result.len().min(start + WINDOW);
            let got = &result[range.clone()];
            // The order of the bytes before is the likeliest.
            let right = |ahead: usize| self.of(&orders.terms[(turn + ahead) % n], &range);
            let found = (0..n).map(|ahead| (ahead, orders.grains(common(got, &right(ahead)), got.len())));
            let Some((ahead, len)) = found.into_iter().find(|&(_, len)| len > 0) else {
                let mistake = Mistake::first(got, &right(0), self.dtype.size());
                return mistake.map(|it| Mistake { index: it.index + start / self.dtype.size(), ..it });
            };
            (start, turn) = (start + len, turn + ahead);
        }
        None
    }

    /// The bytes `range` of the result in the order of `term`.
    fn of(&self, term: &Term, range: &Range<usize>) -> Vec<u8> {
        match term {
            Term::Input(_) => unreachable!("a result was combined, if only of one input"),
            Term::Node(parts) if self.is_widened() => {
                let wide = 0..range.len() / self.dtype.size() * size_of::<f32>();
                narrowed(self.number(), &self.widened(range).combined(parts, &wide, true))
            }
            Term::Node(parts) => self.combined(parts, range, true),
        }
    }

    fn n_ranks(&self) -> u32 {
        u32::try_from(self.inputs.len()).unwrap()
    }

    fn number(&self) -> ElementType {
        ElementType::of_code(self.dtype.code())
    }

    /// Whether elements are accumulated in `f32`, and rounded once at the end, whatever they are
    /// combined by.
    fn is_widened(&self) -> bool {
        self.dtype.is_short_float() && self.operators.is_some()
    }

    /// Returns this reduction of the bytes `range` of the inputs, as `f32`.
    fn widened(&self, range: &Range<usize>) -> Self {
        let number = self.number();
        let wide = |operator: &Operator| match operator {
            Operator::PreMulSum(scalar) => {
                Operator::pre_mul_sum(&widened(number, &scalar[..self.dtype.size()]))
            }
            operator => *operator,
        };
        let operators = self.operators.as_ref().map(|operators| operators.iter().map(wide).collect());
        let inputs = self.inputs.iter().map(|input| widened(number, &input[range.clone()])).collect();
        Self { dtype: DataType::F32, operators, inputs }
    }

    fn combined(&self, parts: &[Term], range: &Range<usize>, last: bool) -> Vec<u8> {
        let source = |part: &Term| match part {
            Term::Input(rank) => (self.scaled(*rank, self.inputs[*rank][range.clone()].to_vec()), false),
            Term::Node(parts) => (self.combined(parts, range, false), false),
        };
        let sources: Vec<_> = parts.iter().map(source).collect();
        match &self.operators {
            None => {
                let mut result = sources[0].0.clone();
                sources[1..].iter().for_each(|(other, _)| take_first(&mut result, other, self.dtype.size()));
                result
            }
            Some(operators) => reduce(self.number(), &operators[..1], self.n_ranks(), &sources, last),
        }
    }

    /// The `bytes` of the input of `rank`, multiplied if its operator does so.
    fn scaled(&self, rank: usize, bytes: Vec<u8>) -> Vec<u8> {
        match self.operators.as_ref().map(|operators| operators[rank]) {
            Some(operator @ (Operator::PreMulSum(_) | Operator::Avg)) => {
                reduce(self.number(), &[operator], self.n_ranks(), &[(bytes, true)], false)
            }
            _ => bytes,
        }
    }
}
