//! The reduction of the inputs of all ranks, in an order that is one of several.

use std::ops::Range;

use half::{bf16, f16};
use shmccl::reduce::{DataType, F8E4M3, F8E5M2, ReduceOp, Scalar};

use crate::order::{Orders, Term};
use crate::plain;

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

/// The inputs of a reduction, in the order of the ranks, and the operator of each of them, which may have a scalar of its own.
#[derive(Debug)]
pub(crate) struct Reduction {
    pub(crate) dtype: DataType,
    pub(crate) ops: Vec<ReduceOp>,
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
                narrowed(self.dtype, &self.widened(range).combined(parts, &wide, true))
            }
            Term::Node(parts) => self.combined(parts, range, true),
        }
    }

    /// Whether elements are accumulated in `f32`, and rounded once at the end, whatever they are combined by.
    fn is_widened(&self) -> bool {
        self.dtype.is_short_float() && !self.is_custom()
    }

    fn is_custom(&self) -> bool {
        matches!(self.ops[0], ReduceOp::Custom(_))
    }

    /// The same of the bytes `range` of the inputs, as `f32`.
    fn widened(&self, range: &Range<usize>) -> Self {
        let op = |op: &ReduceOp| match op {
            ReduceOp::PreMulSum(scalar) => {
                let wide = widened(self.dtype, &scalar.bytes()[..self.dtype.size()]);
                ReduceOp::PreMulSum(Scalar::new(bytemuck::pod_read_unaligned::<f32>(&wide)))
            }
            op => op.clone(),
        };
        let inputs = self.inputs.iter().map(|input| widened(self.dtype, &input[range.clone()])).collect();
        Self { dtype: DataType::F32, ops: self.ops.iter().map(op).collect(), inputs }
    }

    fn combined(&self, parts: &[Term], range: &Range<usize>, last: bool) -> Vec<u8> {
        let source = |part: &Term| match part {
            Term::Input(rank) => (self.scaled(*rank, self.inputs[*rank][range.clone()].to_vec()), false),
            Term::Node(parts) => (self.combined(parts, range, false), false),
        };
        let sources: Vec<_> = parts.iter().map(source).collect();
        if self.is_custom() {
            return first_of(&sources, self.dtype.size());
        }
        plain::reduce(self.dtype, &self.ops[0], u32::try_from(self.inputs.len()).unwrap(), &sources, last)
    }

    /// The `bytes` of the input of `rank`, multiplied if its operator does so.
    fn scaled(&self, rank: usize, bytes: Vec<u8>) -> Vec<u8> {
        match &self.ops[rank] {
            op @ ReduceOp::PreMulSum(_) => plain::reduce(self.dtype, op, 1, &[(bytes, true)], false),
            _ => bytes,
        }
    }
}

/// The elements `dtype` in `bytes` as `f32`.
fn widened(dtype: DataType, bytes: &[u8]) -> Vec<u8> {
    let wide = |code: &[u8]| match dtype {
        DataType::F16 => bytemuck::pod_read_unaligned::<f16>(code).to_f32(),
        DataType::Bf16 => bytemuck::pod_read_unaligned::<bf16>(code).to_f32(),
        DataType::F8E4M3 => F8E4M3(code[0]).to_f32(),
        _ => F8E5M2(code[0]).to_f32(),
    };
    bytes.chunks_exact(dtype.size()).flat_map(|code| wide(code).to_ne_bytes()).collect()
}

/// The `f32` in `bytes` rounded to elements `dtype`.
fn narrowed(dtype: DataType, bytes: &[u8]) -> Vec<u8> {
    let narrow = |wide: f32| match dtype {
        DataType::F16 => f16::from_f32(wide).to_ne_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f32(wide).to_ne_bytes().to_vec(),
        DataType::F8E4M3 => vec![F8E4M3::from_f32(wide).0],
        _ => vec![F8E5M2::from_f32(wide).0],
    };
    bytes.chunks_exact(4).flat_map(|wide| narrow(bytemuck::pod_read_unaligned(wide))).collect()
}

/// Of each element the first that is not all zero bytes; the last, if there is none.
fn first_of(sources: &[(Vec<u8>, bool)], size: usize) -> Vec<u8> {
    let mut result = sources[0].0.clone();
    for (other, _) in &sources[1..] {
        for (first, other) in result.chunks_exact_mut(size).zip(other.chunks_exact(size)) {
            if first.iter().all(|&byte| byte == 0) {
                first.copy_from_slice(other);
            }
        }
    }
    result
}
