//! What a reduction has to give, computed one element at a time, as slowly and plainly as possible.

use half::{bf16, f16};

use crate::reduce::{DataType, Element, F8E4M3, F8E5M2, ReduceOp};

/// An element as the oracle computes with it: integers in two's complement of their type, floats as
/// documented.
pub(super) trait Plain: Element {
    type Wide: Copy;
    fn wide(self) -> Self::Wide;
    fn stored(wide: Self::Wide) -> Self;
    fn apply(op: &ReduceOp, one: Self::Wide, other: Self::Wide) -> Self::Wide;
    fn divided(wide: Self::Wide, n_ranks: u32) -> Self::Wide;
    fn times(wide: Self::Wide, scalar: Self::Wide) -> Self::Wide;
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Plain for $number {
            type Wide = i128;

            fn wide(self) -> i128 {
                self.into()
            }

            /// Keeps the low bits, as a wrapped sum does.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "that is what wrapping means")]
            fn stored(wide: i128) -> Self {
                wide as Self
            }

            fn apply(op: &ReduceOp, one: i128, other: i128) -> i128 {
                let result = match op {
                    ReduceOp::Prod => one.wrapping_mul(other),
                    ReduceOp::Min => one.min(other),
                    ReduceOp::Max => one.max(other),
                    _ => one + other,
                };
                Self::stored(result).into()
            }

            fn divided(wide: i128, n_ranks: u32) -> i128 {
                wide / i128::from(n_ranks)
            }

            fn times(wide: i128, scalar: i128) -> i128 {
                Self::stored(wide.wrapping_mul(scalar)).into()
            }
        }
    )*};
}

integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($number:ty as $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Plain for $number {
            type Wide = $wide;

            fn wide(self) -> $wide {
                $widen(self)
            }

            fn stored(wide: $wide) -> Self {
                $narrow(if wide.is_nan() { <$wide>::NAN } else { wide })
            }

            fn apply(op: &ReduceOp, one: $wide, other: $wide) -> $wide {
                match op {
                    ReduceOp::Prod => one * other,
                    ReduceOp::Min | ReduceOp::Max if one.is_nan() || other.is_nan() => <$wide>::NAN,
                    ReduceOp::Min if one.total_cmp(&other).is_lt() => one,
                    ReduceOp::Max if one.total_cmp(&other).is_gt() => one,
                    ReduceOp::Min | ReduceOp::Max => other,
                    _ => one + other,
                }
            }

            fn divided(wide: $wide, n_ranks: u32) -> $wide {
                wide / n_ranks as $wide
            }

            fn times(wide: $wide, scalar: $wide) -> $wide {
                wide * scalar
            }
        }
    )*};
}

floats! {
    f32 as f32, |x| x, |x| x;
    f64 as f64, |x| x, |x| x;
    f16 as f32, f16::to_f32, f16::from_f32;
    bf16 as f32, bf16::to_f32, bf16::from_f32;
    F8E4M3 as f32, F8E4M3::to_f32, F8E4M3::from_f32;
    F8E5M2 as f32, F8E5M2::to_f32, F8E5M2::from_f32;
}

/// Returns the result for elements of type `T` that lie in `sources`, each with its mark of being
/// fresh. The operators differ in their scalars at most: one for each source, or one for all.
fn reduced<T: Plain>(ops: &[ReduceOp], n_ranks: u32, sources: &[(Vec<u8>, bool)], finish: bool) -> Vec<u8> {
    let op = &ops[0];
    let width = size_of::<T>();
    let mut result = vec![0; sources[0].0.len()];
    for (index, place) in result.chunks_exact_mut(width).enumerate() {
        let mut operands = sources.iter().zip(ops.iter().cycle()).map(|((bytes, fresh), op)| {
            let wide = bytemuck::pod_read_unaligned::<T>(&bytes[index * width..][..width]).wide();
            match op {
                ReduceOp::PreMulSum(scalar) if *fresh => {
                    T::times(wide, bytemuck::pod_read_unaligned::<T>(&scalar.bytes()[..width]).wide())
                }
                _ => wide,
            }
        });
        let first = operands.next().expect("there is a source");
        let combined = operands.fold(first, |one, other| T::apply(op, one, other));
        let is_divided = finish && *op == ReduceOp::Avg;
        let last = if is_divided { T::divided(combined, n_ranks) } else { combined };
        place.copy_from_slice(bytemuck::bytes_of(&T::stored(last)));
    }
    result
}

/// Computes like `reduced`, for elements with a type that is a value, and one operator.
pub(super) fn reduce(
    dtype: DataType,
    op: &ReduceOp,
    n_ranks: u32,
    sources: &[(Vec<u8>, bool)],
    finish: bool,
) -> Vec<u8> {
    reduce_each(dtype, std::slice::from_ref(op), n_ranks, sources, finish)
}

/// Computes like `reduced`, with an operator of each source.
pub(super) fn reduce_each(
    dtype: DataType,
    ops: &[ReduceOp],
    n_ranks: u32,
    sources: &[(Vec<u8>, bool)],
    finish: bool,
) -> Vec<u8> {
    let reduced = match dtype {
        DataType::I8 => reduced::<i8>,
        DataType::U8 => reduced::<u8>,
        DataType::I32 => reduced::<i32>,
        DataType::U32 => reduced::<u32>,
        DataType::I64 => reduced::<i64>,
        DataType::U64 => reduced::<u64>,
        DataType::F16 => reduced::<f16>,
        DataType::Bf16 => reduced::<bf16>,
        DataType::F32 => reduced::<f32>,
        DataType::F64 => reduced::<f64>,
        DataType::F8E4M3 => reduced::<F8E4M3>,
        DataType::F8E5M2 => reduced::<F8E5M2>,
    };
    reduced(ops, n_ranks, sources, finish)
}
