//! One data type and one operator, made ready to combine.

use half::{bf16, f16};

use super::{
    Bool, CustomOp, DataType, F8E4M3, F8E5M2, ReduceKernel, ReduceOp, Scalar, Source, Target, short_floats,
};
use crate::error::{Error, Result};
use crate::rank::check_n_ranks;
use crate::shm::reduce::{
    Arithmetic, Bits, BitwiseAnd, BitwiseOr, BitwiseXor, CombineKernels, Maximum, Mean, Minimum,
    OperandAddresses, PartialMean, Product, ScaledSum, Sum, Supported, Terms, with_addresses,
};

/// Combines elements of one type by one operator. Cheap to clone, needs no preparation per call,
/// never allocates.
#[derive(Clone, Debug)]
pub struct Reducer {
    dtype: DataType,
    /// What ranks compare to see whether they mean the same operator.
    code: u32,
    n_ranks: u16,
    /// What to scale by, where that is done: the bytes of an element, then zeros.
    scalar: u64,
    steps: CombineSteps,
}

#[derive(Clone, Debug)]
enum CombineSteps {
    Built(&'static CombineKernels),
    Custom(CustomOp),
}

impl Reducer {
    /// Picks the best loops that this processor has for elements `dtype` and operator `op` among
    /// `n_ranks` ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `op` is for elements of another type, or `n_ranks` is not
    /// within 1 to 256; [`Error::UnsupportedOperator`] unless `op` [supports](ReduceOp::supports)
    /// `dtype`.
    #[inline(always)] // see `supported`
    pub fn new(dtype: DataType, op: &ReduceOp, n_ranks: u32) -> Result<Self> {
        Self::supported(dtype, op, n_ranks, Supported::best())
    }

    /// Picks as [`new`](Self::new) does, on the instructions that `kernel` names: for tests and
    /// measurements.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does, or with [`Error::InvalidArgument`] when the processor
    /// lacks the instructions.
    pub fn with_kernel(dtype: DataType, op: &ReduceOp, n_ranks: u32, kernel: ReduceKernel) -> Result<Self> {
        let expected = "one that this processor supports";
        let lacking = || Error::InvalidArgument { name: "reduce kernel", value: kernel as u64, expected };
        Self::supported(dtype, op, n_ranks, Supported::new(kernel).ok_or_else(lacking)?)
    }

    // Made where it stays: a copy of bytes that were just written in narrower pieces waits until
    // they have reached the cache, which takes as long as all the rest of a short call.
    #[inline(always)]
    fn supported(dtype: DataType, op: &ReduceOp, n_ranks: u32, supported: Supported) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        check_operator(dtype, op)?;
        let steps = match op {
            ReduceOp::Custom(custom) => CombineSteps::Custom(custom.clone()),
            _ => CombineSteps::Built(kernels(dtype, op, supported).ok_or_else(|| unsupported(dtype, op))?),
        };
        let n_ranks = u16::try_from(n_ranks).expect("checked above: at most 256");
        let code = op.plain_code().unwrap_or_else(|| short(op.code()) | HASHED);
        Ok(Self { dtype, code, n_ranks, scalar: u64::from_ne_bytes(op.scalar_bytes()), steps })
    }

    /// Returns the type of its elements.
    #[must_use]
    pub const fn data_type(&self) -> DataType {
        self.dtype
    }

    /// Returns the same operator among `n_ranks`, 1 to 256 of them.
    pub(crate) fn among(&self, n_ranks: usize) -> Self {
        Self { n_ranks: u16::try_from(n_ranks).unwrap_or(self.n_ranks), ..self.clone() }
    }

    /// Returns whether it runs a function of the program's own.
    #[inline]
    pub(crate) const fn is_custom(&self) -> bool {
        matches!(self.steps, CombineSteps::Custom(_))
    }

    /// Returns the same operator on the same elements as `f32`, where these are short floats and
    /// the operator is not the program's own.
    pub(crate) fn widened(&self) -> Option<Self> {
        if !self.dtype.is_short_float() || self.is_custom() {
            return None;
        }
        let op =
            ReduceOp::PLAIN.into_iter().find(|op| op.plain_code() == Some(self.code)).unwrap_or_else(|| {
                let mut scalar = [0.0];
                short_floats::widen(self.dtype, &self.scalar.to_ne_bytes()[..self.dtype.size()], &mut scalar);
                ReduceOp::PreMulSum(Scalar::new(scalar[0]))
            });
        Self::new(DataType::F32, &op, self.n_ranks.into()).ok()
    }

    /// Returns whether its operator is told by its name alone.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.code & HASHED == 0
    }

    /// Returns whether it multiplies inputs by a scalar.
    pub(crate) const fn is_scaled(&self) -> bool {
        !self.is_plain() && !self.is_custom()
    }

    /// Returns what it multiplies inputs by, as others take it for
    /// [`combine_scaled`](Self::combine_scaled); 0 where it multiplies none.
    #[inline]
    pub(crate) const fn scalar(&self) -> u64 {
        self.scalar
    }

    /// Returns what adds inputs that were multiplied before, where this one multiplies them.
    pub(crate) fn unscaled(&self) -> Option<Self> {
        let sum = || Self::new(self.dtype, &ReduceOp::Sum, self.n_ranks.into()).ok();
        if self.is_scaled() { sum() } else { None }
    }

    /// Returns what fits into a post of [`ReduceOp::code`].
    #[inline]
    pub(crate) const fn code(&self) -> u32 {
        self.code
    }

    /// Combines the elements in the first `len` bytes of each of `words`, original inputs each, in
    /// their order, and takes the operator's final step. The result is in the same place; what is
    /// behind it means nothing.
    #[inline]
    pub(crate) fn combine_words(&self, words: &[u64], len: usize) -> u64 {
        match &self.steps {
            CombineSteps::Built(kernels) => kernels.word.run(words, self.scalar, self.n_ranks),
            CombineSteps::Custom(custom) => custom.combine_words(words, len),
        }
    }

    /// Combines `count` elements of all sources, in their order, and stores the result to every
    /// target.
    ///
    /// With `finish` the operator's final step is taken too (an average divides), once at the end
    /// of a reduction that takes several calls. Each source is read once and each target written
    /// once. A source may be the very bytes of a target. Sources marked fresh are multiplied by the
    /// scalar of `PreMulSum`, or by what keeps an average of floats from overflowing. With one
    /// source the result is that source, scaled and finished alike. Orders nothing between
    /// processes: that is the business of the signals around it.
    ///
    /// # Errors
    /// Nothing was changed.
    /// - [`Error::InvalidArgument`] unless there are 1 to 256 sources and 1 to 256 targets; when a
    ///   source names a target that is not there; when a target overlaps another operand without
    ///   being the same bytes. (Overlap is seen by address: two mappings of one segment are taken
    ///   for distinct memory.)
    /// - [`Error::OutOfRange`] when `count` elements reach past a place.
    #[inline]
    pub fn combine(
        &self,
        sources: &[Source<'_>],
        targets: &mut [Target<'_>],
        count: u64,
        finish: bool,
    ) -> Result<()> {
        self.combine_by(sources, targets, count, |kernels, places| {
            let kernel = if finish { kernels.last } else { kernels.partial };
            kernel.run(places, self.terms(&[]));
        })
    }

    /// Combines and finishes as [`combine`](Self::combine) does, and multiplies each source that is
    /// marked fresh by its own one of `scalars`: the [`scalar`](Self::scalar) of the reducer of its
    /// rank. Where there are no scalars, all are multiplied by the scalar of this reducer.
    ///
    /// # Errors
    /// Fails as [`combine`](Self::combine) does.
    ///
    /// # Panics
    /// When there are several scalars, but not as many as sources.
    #[inline]
    pub(crate) fn combine_scaled(
        &self,
        scalars: &[u64],
        sources: &[Source<'_>],
        targets: &mut [Target<'_>],
        count: u64,
    ) -> Result<()> {
        self.combine_by(sources, targets, count, |kernels, places| {
            kernels.last.run(places, self.terms(scalars));
        })
    }

    /// Combines as [`combine_scaled`](Self::combine_scaled) does, for targets of several ranks that
    /// all combine a share for all targets at once. The first target is this rank's own; results
    /// for the others may be copied from there. This rank combines `count` elements, and some rank
    /// the `most`.
    ///
    /// # Errors
    /// Fails as [`combine`](Self::combine) does.
    ///
    /// # Panics
    /// As [`combine_scaled`](Self::combine_scaled).
    #[inline]
    pub(crate) fn combine_for_all(
        &self,
        scalars: &[u64],
        sources: &[Source<'_>],
        targets: &mut [Target<'_>],
        count: u64,
        most: u64,
    ) -> Result<()> {
        let most_len = self.len(most)?;
        self.combine_by(sources, targets, count, |kernels, places| {
            kernels.last.run_for_all(places, most_len, self.terms(scalars));
        })
    }

    /// Combines as [`combine_scaled`](Self::combine_scaled) does, for a first target that is not
    /// read soon. Results go to that target past the cache if possible, and to the others through
    /// it.
    ///
    /// # Errors
    /// Fails as [`combine`](Self::combine) does.
    ///
    /// # Panics
    /// As [`combine_scaled`](Self::combine_scaled).
    pub(crate) fn combine_keeping_others(
        &self,
        scalars: &[u64],
        sources: &[Source<'_>],
        targets: &mut [Target<'_>],
        count: u64,
    ) -> Result<()> {
        self.combine_by(sources, targets, count, |kernels, places| {
            kernels.last.run_keeping_others(places, self.terms(scalars));
        })
    }

    /// Combines, a built-in operator by `run` of its kernels.
    #[inline]
    fn combine_by(
        &self,
        sources: &[Source<'_>],
        targets: &mut [Target<'_>],
        count: u64,
        run: impl FnOnce(&CombineKernels, &OperandAddresses<'_>),
    ) -> Result<()> {
        with_addresses(sources, targets, self.len(count)?, |places| match &self.steps {
            CombineSteps::Built(kernels) => run(kernels, places),
            CombineSteps::Custom(custom) => custom.combine(places),
        })
    }

    /// Returns the bytes of `count` elements.
    #[inline]
    fn len(&self, count: u64) -> Result<u64> {
        let what = "elements to reduce";
        let too_many = || Error::OutOfRange { what, offset: 0, len: count, limit: u64::MAX };
        count.checked_mul(self.dtype.size() as u64).ok_or_else(too_many)
    }

    /// Returns what a kernel has to know besides its places; of `scalars`, unless there are none.
    #[inline]
    fn terms<'a>(&'a self, scalars: &'a [u64]) -> Terms<'a> {
        let scalars = if scalars.is_empty() { std::slice::from_ref(&self.scalar) } else { scalars };
        Terms { scalars, divisor: self.n_ranks }
    }
}

/// Checks that `op` is one on elements `dtype`.
#[inline]
fn check_operator(dtype: DataType, op: &ReduceOp) -> Result<()> {
    match op {
        ReduceOp::PreMulSum(scalar) => {
            check_type(scalar.data_type(), dtype.real_type(), "code of the scalar's type")
        }
        ReduceOp::Custom(custom) => {
            check_type(custom.data_type(), dtype, "code of the custom operator's type")
        }
        _ => Ok(()),
    }
}

#[inline]
fn check_type(found: DataType, expected: DataType, name: &'static str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let value = found.code().into();
    Err(Error::InvalidArgument {
        name,
        value,
        expected: "that of the elements to reduce, or of their real parts",
    })
}

/// Set in the code of an operator that is more than its name.
const HASHED: u32 = 1 << 31;

/// Returns both halves of `code` in one.
#[inline]
fn short(code: u64) -> u32 {
    u32::try_from((code ^ code >> 32) & u64::from(u32::MAX)).expect("masked")
}

#[cold]
fn unsupported(dtype: DataType, op: &ReduceOp) -> Error {
    let supported = match dtype {
        DataType::Bool => "sum, prod, min, max, band, bor or bxor",
        DataType::Complex64 | DataType::Complex128 => "sum, avg or mulsum",
        _ => "sum, prod, min, max, avg or mulsum, or integers of the same bits",
    };
    Error::UnsupportedOperator { operator: op.kind(), data_type: dtype.name(), supported }
}

/// Returns the loops of a built-in operator, where it is defined on elements `dtype`.
#[inline(never)]
fn kernels(dtype: DataType, op: &ReduceOp, kernel: Supported) -> Option<&'static CombineKernels> {
    match dtype {
        DataType::I8 => of_integers::<i8>(op, kernel),
        DataType::U8 => of_integers::<u8>(op, kernel),
        DataType::I16 => of_integers::<i16>(op, kernel),
        DataType::U16 => of_integers::<u16>(op, kernel),
        DataType::I32 => of_integers::<i32>(op, kernel),
        DataType::U32 => of_integers::<u32>(op, kernel),
        DataType::I64 => of_integers::<i64>(op, kernel),
        DataType::U64 => of_integers::<u64>(op, kernel),
        DataType::F16 => of_numbers::<f16>(op, kernel),
        DataType::Bf16 => of_numbers::<bf16>(op, kernel),
        DataType::F32 => of_numbers::<f32>(op, kernel),
        DataType::F64 => of_numbers::<f64>(op, kernel),
        DataType::F8E4M3 => of_numbers::<F8E4M3>(op, kernel),
        DataType::F8E5M2 => of_numbers::<F8E5M2>(op, kernel),
        DataType::Bool => of_bools(op, kernel),
        DataType::Complex64 => of_parts::<f32>(op, kernel),
        DataType::Complex128 => of_parts::<f64>(op, kernel),
    }
}

fn of_numbers<T: Arithmetic>(op: &ReduceOp, kernel: Supported) -> Option<&'static CombineKernels> {
    Some(match op {
        ReduceOp::Sum => CombineKernels::of::<T, Sum, Sum>(kernel),
        ReduceOp::Prod => CombineKernels::of::<T, Product, Product>(kernel),
        ReduceOp::Min => CombineKernels::of::<T, Minimum, Minimum>(kernel),
        ReduceOp::Max => CombineKernels::of::<T, Maximum, Maximum>(kernel),
        ReduceOp::Avg => CombineKernels::of::<T, PartialMean, Mean>(kernel),
        ReduceOp::PreMulSum(_) => CombineKernels::of::<T, ScaledSum, ScaledSum>(kernel),
        _ => return None,
    })
}

fn of_integers<T: Arithmetic<Register: Bits>>(
    op: &ReduceOp,
    kernel: Supported,
) -> Option<&'static CombineKernels> {
    of_bits::<T>(op, kernel).or_else(|| of_numbers::<T>(op, kernel))
}

fn of_bits<T: Arithmetic<Register: Bits>>(
    op: &ReduceOp,
    kernel: Supported,
) -> Option<&'static CombineKernels> {
    Some(match op {
        ReduceOp::BitAnd => CombineKernels::of::<T, BitwiseAnd, BitwiseAnd>(kernel),
        ReduceOp::BitOr => CombineKernels::of::<T, BitwiseOr, BitwiseOr>(kernel),
        ReduceOp::BitXor => CombineKernels::of::<T, BitwiseXor, BitwiseXor>(kernel),
        _ => return None,
    })
}

fn of_bools(op: &ReduceOp, kernel: Supported) -> Option<&'static CombineKernels> {
    let op = match op {
        ReduceOp::Sum | ReduceOp::Max => &ReduceOp::BitOr,
        ReduceOp::Prod | ReduceOp::Min => &ReduceOp::BitAnd,
        op => op,
    };
    of_bits::<Bool>(op, kernel)
}

/// Returns the loops for complex numbers, of which each part is a `T`.
fn of_parts<T: Arithmetic>(op: &ReduceOp, kernel: Supported) -> Option<&'static CombineKernels> {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PreMulSum(_) => of_numbers::<T>(op, kernel),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
