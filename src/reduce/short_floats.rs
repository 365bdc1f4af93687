//! Floats shorter than `f32`: those of 8 bits, as the Open Compute Project's "OFP8" specification
//! (revision 1.0) defines them, and the way of all short floats to `f32` and back.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use super::DataType;
use crate::shm::reduce::{Arithmetic, MiniFloat};

/// 4 bits of exponent (bias 7), 3 of mantissa: up to 448, no infinities ("E4M3FN").
///
/// Conversion from `f32` rounds to nearest even and saturates: what is too large, infinity
/// included, becomes 448 of its sign. NaN becomes the code 0x7f; 0xff reads as NaN too.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// 5 bits of exponent (bias 15), 2 of mantissa: up to 57344, with infinities, like half precision
/// cut short.
///
/// Conversion from `f32` rounds to nearest even; what rounds past 57344 becomes infinity of its
/// sign. NaN becomes the code 0x7e; 0x7d, 0x7f and their negatives read as NaN too.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

macro_rules! fp8 {
    ($($float:ident as $format:ident),*) => {$(
        impl $float {
            /// Returns the nearest value; of two equally near the one with an even mantissa.
            #[inline(always)]
            #[must_use]
            #[expect(clippy::cast_possible_truncation, reason = "a code of 8 bits")]
            pub const fn from_f32(value: f32) -> Self {
                Self(MiniFloat::$format.narrow(value) as u8)
            }

            /// Returns its value, exactly.
            #[inline(always)]
            #[must_use]
            pub const fn to_f32(self) -> f32 {
                MiniFloat::$format.widen(self.0 as u32)
            }
        }

        impl From<$float> for f32 {
            #[inline]
            fn from(value: $float) -> Self {
                value.to_f32()
            }
        }

        /// By value, as for other floats: zeros are equal, NaN differs from itself.
        impl PartialEq for $float {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $float {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl std::fmt::Display for $float {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl Arithmetic for $float {
            type Register = f32;

            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn narrow(number: f32) -> Self {
                Self::from_f32(number)
            }
        }
    )*};
}

fp8!(F8E4M3 as E4M3, F8E5M2 as E5M2);

/// Writes the elements `dtype` in `short`, a type of short floats, to `wide`: as many as both have.
pub(crate) fn widen(dtype: DataType, short: &[u8], wide: &mut [f32]) {
    match dtype {
        DataType::F16 => widen_all::<f16>(short, wide),
        DataType::Bf16 => widen_all::<bf16>(short, wide),
        DataType::F8E4M3 => widen_all::<F8E4M3>(short, wide),
        DataType::F8E5M2 => widen_all::<F8E5M2>(short, wide),
        other => unreachable!("{other} is not widened"),
    }
}

/// Rounds the elements in `wide` to those of `dtype`, a type of short floats, in `short`: as many
/// as both have.
pub(crate) fn narrow(dtype: DataType, wide: &[f32], short: &mut [u8]) {
    match dtype {
        DataType::F16 => narrow_all::<f16>(wide, short),
        DataType::Bf16 => narrow_all::<bf16>(wide, short),
        DataType::F8E4M3 => narrow_all::<F8E4M3>(wide, short),
        DataType::F8E5M2 => narrow_all::<F8E5M2>(wide, short),
        other => unreachable!("{other} is not widened"),
    }
}

fn widen_all<T: Arithmetic<Register = f32>>(short: &[u8], wide: &mut [f32]) {
    for (bytes, wide) in short.chunks_exact(size_of::<T>()).zip(wide) {
        *wide = bytemuck::pod_read_unaligned::<T>(bytes).widen();
    }
}

fn narrow_all<T: Arithmetic<Register = f32>>(wide: &[f32], short: &mut [u8]) {
    for (bytes, wide) in short.chunks_exact_mut(size_of::<T>()).zip(wide) {
        bytes.copy_from_slice(bytemuck::bytes_of(&T::narrow(*wide)));
    }
}

#[cfg(test)]
mod tests;
