//! One data type and one operator, made ready to combine.

use half::{bf16, f16};

use super::{CustomOp, DataType, F8E4M3, F8E5M2, ReduceKernel, ReduceOp, Source, Target};
use crate::error::{Error, Result};
use crate::rank::check_n_ranks;
use crate::shm::reduce::{
    Arithmetic, Average, Kernel, Maximum, Minimum, Places, Product, ScaledSum, Sum, with_places,
};

/// Combines elements of one type by one operator. Cheap to clone, needs no preparation per call, never allocates.
#[derive(Clone, Debug)]
pub struct Reducer {
    dtype: DataType,
    steps: Steps,
}

#[derive(Clone, Debug)]
enum Steps {
    /// One loop for partial results, one that ends with the operator's final step.
    Built {
        partial: Kernel,
        last: Kernel,
        scalar: [u8; 8],
        n_ranks: u8,
    },
    Custom(CustomOp),
}

impl Reducer {
    /// Picks the best loops that this processor has for elements `dtype` and operator `op` among `n_ranks` ranks.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `op` is for elements of another type, or `n_ranks` is not within 1 to 64.
    pub fn new(dtype: DataType, op: &ReduceOp, n_ranks: u32) -> Result<Self> {
        Self::with_kernel(dtype, op, n_ranks, ReduceKernel::best())
    }

    /// As [`new`](Self::new), on the instructions that `kernel` names: for tests and measurements.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and [`Error::InvalidArgument`] when the processor lacks the instructions.
    pub fn with_kernel(dtype: DataType, op: &ReduceOp, n_ranks: u32, kernel: ReduceKernel) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        if !kernel.is_supported() {
            let expected = "one that this processor supports";
            return Err(Error::InvalidArgument { name: "reduce kernel", value: kernel as u64, expected });
        }
        let scalar = match op {
            ReduceOp::PreMulSum(scalar) => {
                check_type(scalar.data_type(), dtype, "code of the scalar's type")?;
                scalar.bytes()
            }
            ReduceOp::Custom(custom) => {
                check_type(custom.data_type(), dtype, "code of the custom operator's type")?;
                return Ok(Self { dtype, steps: Steps::Custom(custom.clone()) });
            }
            _ => [0; 8],
        };
        let (partial, last) = kernels(dtype, op, kernel);
        let n_ranks = u8::try_from(n_ranks).expect("checked above: at most 64");
        Ok(Self { dtype, steps: Steps::Built { partial, last, scalar, n_ranks } })
    }

    /// The type of its elements.
    #[must_use]
    pub const fn data_type(&self) -> DataType {
        self.dtype
    }

    /// Combines `count` elements of all sources, in their order, and stores the result to every target.
    ///
    /// With `finish` the operator's final step is taken too (an average divides), once at the end of a reduction that
    /// takes several calls. Each source is read once and each target written once. A source may be the very bytes of a
    /// target. Sources marked fresh are multiplied by the scalar of `PreMulSum`. With one source the result is that
    /// source, scaled and finished alike. Orders nothing between processes: that is the business of the signals around it.
    ///
    /// # Errors
    /// Nothing was changed.
    /// - [`Error::InvalidArgument`] unless there are 1 to 64 sources and 1 to 64 targets, when a source names a target
    ///   that is not there, and when a target overlaps another place without being the same bytes (as seen by address:
    ///   two mappings of one segment are taken for distinct memory).
    /// - [`Error::OutOfRange`] when `count` elements reach past a place.
    #[inline]
    pub fn combine(
        &self,
        sources: &[Source<'_>],
        targets: &mut [Target<'_>],
        count: u64,
        finish: bool,
    ) -> Result<()> {
        let Some(len) = count.checked_mul(self.dtype.size() as u64) else {
            return Err(Error::OutOfRange {
                what: "elements to reduce",
                offset: 0,
                len: count,
                limit: u64::MAX,
            });
        };
        with_places(sources, targets, len, |places| self.run(places, count, finish))
    }

    #[inline]
    fn run(&self, places: &Places<'_>, count: u64, finish: bool) {
        match &self.steps {
            Steps::Built { partial, last, scalar, n_ranks } => {
                let kernel = if finish { last } else { partial };
                kernel.run(places, count, *scalar, *n_ranks);
            }
            Steps::Custom(custom) => custom.combine(places),
        }
    }
}

fn check_type(found: DataType, expected: DataType, name: &'static str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let value = found.code().into();
    Err(Error::InvalidArgument { name, value, expected: "that of the elements to reduce" })
}

/// The loops for partial and for last results.
fn kernels(dtype: DataType, op: &ReduceOp, kernel: ReduceKernel) -> (Kernel, Kernel) {
    match dtype {
        DataType::I8 => kernels_of::<i8>(op, kernel),
        DataType::U8 => kernels_of::<u8>(op, kernel),
        DataType::I32 => kernels_of::<i32>(op, kernel),
        DataType::U32 => kernels_of::<u32>(op, kernel),
        DataType::I64 => kernels_of::<i64>(op, kernel),
        DataType::U64 => kernels_of::<u64>(op, kernel),
        DataType::F16 => kernels_of::<f16>(op, kernel),
        DataType::Bf16 => kernels_of::<bf16>(op, kernel),
        DataType::F32 => kernels_of::<f32>(op, kernel),
        DataType::F64 => kernels_of::<f64>(op, kernel),
        DataType::F8E4M3 => kernels_of::<F8E4M3>(op, kernel),
        DataType::F8E5M2 => kernels_of::<F8E5M2>(op, kernel),
    }
}

fn kernels_of<T: Arithmetic>(op: &ReduceOp, kernel: ReduceKernel) -> (Kernel, Kernel) {
    let both = |kernel| (kernel, kernel);
    match op {
        ReduceOp::Sum => both(Kernel::of::<T, Sum>(kernel)),
        ReduceOp::Prod => both(Kernel::of::<T, Product>(kernel)),
        ReduceOp::Min => both(Kernel::of::<T, Minimum>(kernel)),
        ReduceOp::Max => both(Kernel::of::<T, Maximum>(kernel)),
        ReduceOp::Avg => (Kernel::of::<T, Sum>(kernel), Kernel::of::<T, Average>(kernel)),
        ReduceOp::PreMulSum(_) => both(Kernel::of::<T, ScaledSum>(kernel)),
        ReduceOp::Custom(_) => unreachable!("a custom operator has no kernel"),
    }
}

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
