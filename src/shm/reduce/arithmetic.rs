//! The way from an element in memory to a number in a register, and back.

use bytemuck::Pod;
use half::{bf16, f16};

use super::instructions::Instructions;
use super::minifloat::MiniFloat;
use super::number::Numeric;

/// A type that can be combined: stored as `Self`, computed with as `Register`.
pub(crate) trait Arithmetic: Pod {
    type Register: Numeric;

    /// Elements that a kernel takes at once. Where they have to be converted, enough for a loop to pay.
    const BLOCK: usize = 128;

    /// The element as a number, exactly.
    fn widen(self) -> Self::Register;

    /// The nearest element; of two equally near the even one.
    fn narrow(number: Self::Register) -> Self;

    /// Widens a block.
    ///
    /// # Safety
    /// The processor has the instructions `I`.
    #[inline(always)]
    unsafe fn widen_block<I: Instructions, const L: usize>(block: [Self; L]) -> [Self::Register; L] {
        each(block, Self::widen)
    }

    /// Narrows a block of numbers that are settled.
    ///
    /// # Safety
    /// The processor has the instructions `I`.
    #[inline(always)]
    unsafe fn narrow_block<I: Instructions, const L: usize>(block: [Self::Register; L]) -> [Self; L] {
        each(block, Self::narrow)
    }
}

macro_rules! stored_as_computed {
    ($($element:ty),*) => {$(
        impl Arithmetic for $element {
            type Register = Self;

            /// Four vectors of 32 bytes, which stay in registers; half of that for bytes, of which the compiler would
            /// not unroll more.
            const BLOCK: usize = if size_of::<Self>() == 1 { 64 } else { 128 / size_of::<Self>() };

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(number: Self) -> Self {
                number
            }

            #[inline(always)]
            unsafe fn widen_block<I: Instructions, const L: usize>(block: [Self; L]) -> [Self; L] {
                block
            }

            #[inline(always)]
            unsafe fn narrow_block<I: Instructions, const L: usize>(block: [Self; L]) -> [Self; L] {
                block
            }
        }
    )*};
}

stored_as_computed!(i8, u8, i32, u32, i64, u64, f32, f64);

impl Arithmetic for bf16 {
    type Register = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(number: f32) -> Self {
        let bits = number.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
        Self::from_bits(if number.is_nan() { 0x7FC0 } else { (rounded >> 16) as u16 })
    }
}

impl Arithmetic for f16 {
    type Register = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        MiniFloat::F16.widen(self.to_bits().into())
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a code of 16 bits")]
    fn narrow(number: f32) -> Self {
        Self::from_bits(MiniFloat::F16.narrow(number) as u16)
    }

    #[inline(always)]
    unsafe fn widen_block<I: Instructions, const L: usize>(block: [Self; L]) -> [f32; L] {
        #[cfg(target_arch = "x86_64")]
        if I::CONVERTS_HALF {
            // SAFETY: the caller's contract: the processor has I, which includes the conversion.
            return in_parts(block, |part| unsafe { f16c::widen(part) });
        }
        each(block, Self::widen)
    }

    #[inline(always)]
    unsafe fn narrow_block<I: Instructions, const L: usize>(block: [f32; L]) -> [Self; L] {
        #[cfg(target_arch = "x86_64")]
        if I::CONVERTS_HALF {
            // SAFETY: the caller's contract: the processor has I, which includes the conversion.
            return in_parts(block, |part| unsafe { f16c::narrow(part) });
        }
        each(block, Self::narrow)
    }
}

/// Converts a block number by number: unlike `map`, in a form that the compiler vectorises.
#[inline(always)]
fn each<A: Pod, B: Pod, const L: usize>(block: [A; L], convert: impl Fn(A) -> B) -> [B; L] {
    let mut converted = [B::zeroed(); L];
    for lane in 0..L {
        converted[lane] = convert(block[lane]);
    }
    converted
}

/// Converts a block eight numbers at a time; what is missing to the last eight is zero.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn in_parts<A: Pod, B: Pod, const L: usize>(block: [A; L], convert: impl Fn([A; 8]) -> [B; 8]) -> [B; L] {
    let mut converted = [B::zeroed(); L];
    let mut start = 0;
    while start < L {
        let len = (L - start).min(8);
        let mut part = [A::zeroed(); 8];
        part[..len].copy_from_slice(&block[start..start + len]);
        converted[start..start + len].copy_from_slice(&convert(part)[..len]);
        start += 8;
    }
    converted
}

/// Conversion of half precision by the processor.
#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::{__m128i, __m256, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

    use half::f16;

    /// # Safety
    /// The processor has F16C.
    #[inline]
    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn widen(part: [f16; 8]) -> [f32; 8] {
        let part: __m128i = bytemuck::cast(part.map(f16::to_bits));
        bytemuck::cast::<__m256, _>(_mm256_cvtph_ps(part))
    }

    /// # Safety
    /// The processor has F16C.
    #[inline]
    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn narrow(part: [f32; 8]) -> [f16; 8] {
        let part: __m256 = bytemuck::cast(part);
        bytemuck::cast::<__m128i, _>(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(part))
    }
}
