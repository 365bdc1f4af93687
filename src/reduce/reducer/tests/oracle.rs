//! Asks the slow oracle, which knows nothing of this library, in terms of this library.

use support::reduction::{self, ElementType, Operator};

use crate::reduce::{DataType, ReduceOp};

/// Returns what reducing `sources` has to give, each of them marked whether it is fresh.
pub(super) fn reduce(
    dtype: DataType,
    op: &ReduceOp,
    n_ranks: u32,
    sources: &[(Vec<u8>, bool)],
    finish: bool,
) -> Vec<u8> {
    reduce_each(dtype, std::slice::from_ref(op), n_ranks, sources, finish)
}

/// Like [`reduce`], but with an operator of each source, which differ in their scalars alone.
pub(super) fn reduce_each(
    dtype: DataType,
    ops: &[ReduceOp],
    n_ranks: u32,
    sources: &[(Vec<u8>, bool)],
    finish: bool,
) -> Vec<u8> {
    let operator = |op: &ReduceOp| Operator::of_name(op.name(), op.scalar_bytes());
    let operators: Vec<_> = ops.iter().map(operator).collect();
    reduction::reduce(ElementType::of_code(dtype.code()), &operators, n_ranks, sources, finish)
}
