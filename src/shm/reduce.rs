//! Combining payload element by element: what is combined, where it goes, and the kernels that do
//! it.
//!
//! [`Source`] and [`Target`] name bytes in shared memory or in slices of the caller. They are
//! resolved to addresses once per call (`with_addresses`), with every bounds and overlap check, and
//! a `CombineKernel` runs over the addresses. A kernel is generic over the element, the operator
//! and the instructions; which types and operators there are is decided one layer up, in
//! `src/reduce`.
//!
//! # Invariants
//! - A kernel loads a block of every source before it stores the block to any target. So a source
//!   may be the very bytes of a target, and must not overlap one in any other way; `with_addresses`
//!   refuses that.
//! - A kernel that has stored past the cache fences before it returns, so that a signal covers its
//!   stores like any others.
//! - Each element is computed by the same operations in the same order whatever the kernel, the
//!   length and the alignment. A NaN is replaced by one fixed NaN before it is stored. Results
//!   agree bit by bit.
//! - A kernel is made only where the processor has its instructions: `CombineKernels::of` wants a
//!   proof, `Supported`.

mod arithmetic;
mod instructions;
mod kernel;
mod kernels;
mod operator;
mod places;
mod store;

pub(crate) use self::arithmetic::{Arithmetic, MiniFloat};
pub use self::kernel::ReduceKernel;
pub(crate) use self::kernel::Supported;
pub(crate) use self::kernels::{CombineKernels, Terms};
pub(crate) use self::operator::{
    Bits, BitwiseAnd, BitwiseOr, BitwiseXor, Maximum, Mean, Minimum, PartialMean, Product, ScaledSum, Sum,
};
pub(crate) use self::places::{OperandAddresses, with_addresses};
use super::Span;
use crate::rank::MAX_RANKS;

/// The most sources, and the most targets, of one combination.
pub const MAX_PLACES: usize = MAX_RANKS as usize;

/// One operand of a combination.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Where its elements are.
    pub place: SourcePlace<'a>,
    /// Whether it is an original input, which an average and `PreMulSum` scale first, or already a
    /// partial result.
    pub fresh: bool,
}

/// Where the elements of a source are. They need no alignment.
#[derive(Clone, Copy, Debug)]
pub enum SourcePlace<'a> {
    /// The elements are in shared memory, from this offset on.
    Shared(&'a Span, u64),
    /// The elements are at the start of these bytes.
    Slice(&'a [u8]),
    /// The elements are the old content of the target of this index.
    Target(usize),
}

/// Where a result goes. It needs no alignment.
#[derive(Debug)]
pub enum Target<'a> {
    /// The result goes to shared memory, from this offset on.
    Shared(&'a Span, u64),
    /// The result goes to the start of these bytes.
    Slice(&'a mut [u8]),
}

impl<'a> Source<'a> {
    /// Returns an original input.
    #[must_use]
    pub const fn fresh(place: SourcePlace<'a>) -> Self {
        Self { place, fresh: true }
    }

    /// Returns the result of an earlier, unfinished combination.
    #[must_use]
    pub const fn partial(place: SourcePlace<'a>) -> Self {
        Self { place, fresh: false }
    }
}
