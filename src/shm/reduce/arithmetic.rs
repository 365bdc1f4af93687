//! The way from an element in memory to a number in a register, and back.

use bytemuck::Pod;
use half::{bf16, f16};

use super::instructions::Instructions;
use super::operator::{ElementOperator, Numeric};

/// A type that can be combined: stored as `Self`, computed with as `Register`.
pub(crate) trait Arithmetic: Pod {
    type Register: Numeric;

    /// Elements that a kernel takes at once. Where they have to be converted, enough for a loop to
    /// pay.
    const BLOCK: usize = 128;

    /// Returns the element as a number, exactly.
    fn widen(self) -> Self::Register;

    /// Returns the nearest element; of two equally near the even one.
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

            /// Four vectors of 32 bytes, which stay in registers; half of that for bytes, of which
            /// the compiler would not unroll more.
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

stored_as_computed!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);

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

/// A binary float format with a sign, at most 8 bits of exponent and fewer than 23 of mantissa.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MiniFloat {
    exponent: u32,
    mantissa: u32,
    /// The magnitude (the bits without sign) from which on codes are infinite or NaN.
    special: u32,
    /// The magnitude that too large a value becomes: infinity, or the largest finite value.
    overflow: u32,
    /// The code that every NaN becomes.
    nan: u32,
}

impl MiniFloat {
    /// IEEE 754 binary16.
    pub(crate) const F16: Self =
        Self { exponent: 5, mantissa: 10, special: 0x7C00, overflow: 0x7C00, nan: 0x7E00 };
    /// OCP 8-bit E4M3 ("FN"): no infinities, one NaN of either sign, saturates at 448.
    pub(crate) const E4M3: Self = Self { exponent: 4, mantissa: 3, special: 0x7F, overflow: 0x7E, nan: 0x7F };
    /// OCP 8-bit E5M2: the upper half of a binary16.
    pub(crate) const E5M2: Self = Self { exponent: 5, mantissa: 2, special: 0x7C, overflow: 0x7C, nan: 0x7E };

    const fn bias(&self) -> u32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Returns the value of a code, exactly.
    ///
    /// With the exponent in place but not its bias, an `f32` is too small by a power of two, for
    /// subnormal codes too. One multiplication makes up for that.
    #[inline(always)]
    pub(crate) const fn widen(&self, code: u32) -> f32 {
        let magnitude = code & ((1 << (self.exponent + self.mantissa)) - 1);
        let sign = (code >> (self.exponent + self.mantissa)) << 31;
        let scale = f32::from_bits((127 + 127 - self.bias()) << 23);
        let value = (f32::from_bits(magnitude << (23 - self.mantissa)) * scale).to_bits();
        let value = if magnitude >= self.special { value | 0x7F80_0000 } else { value };
        f32::from_bits(value | sign)
    }

    /// Returns the code nearest to `value`; of two equally near the one with an even mantissa.
    #[inline(always)]
    pub(crate) const fn narrow(&self, value: f32) -> u32 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7FFF_FFFF;
        let finite = if magnitude < (128 - self.bias()) << 23 {
            self.narrow_subnormal(magnitude)
        } else {
            self.narrow_normal(magnitude)
        };
        let bounded = if finite < self.overflow { finite } else { self.overflow };
        let sign = (bits >> 31) << (self.exponent + self.mantissa);
        if magnitude > 0x7F80_0000 { self.nan } else { bounded | sign }
    }

    /// Shifts the bits that are too many out, rounding; a carry into the exponent is as it should
    /// be.
    #[inline(always)]
    const fn narrow_normal(&self, magnitude: u32) -> u32 {
        let excess = 23 - self.mantissa;
        let is_odd = (magnitude >> excess) & 1;
        let rounding = (1 << (excess - 1)) - 1 + is_odd;
        magnitude.wrapping_sub((127 - self.bias()) << 23).wrapping_add(rounding) >> excess
    }

    /// Adds a number that has the smallest subnormal code as its last place: the processor rounds.
    #[inline(always)]
    const fn narrow_subnormal(&self, magnitude: u32) -> u32 {
        let magic = f32::from_bits((127 + 24 - self.bias() - self.mantissa) << 23);
        (f32::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits())
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

/// Returns the number of which `word` begins with the bytes.
#[inline(always)]
pub(super) fn scalar_of<T: Arithmetic>(word: u64) -> T::Register {
    let scalar: T = bytemuck::pod_read_unaligned(&word.to_ne_bytes()[..size_of::<T>()]);
    scalar.widen()
}

/// Combines words of one type of element by one operator: the shortest combination, of sources that
/// are one word each and have been loaded already.
///
/// The way to a kernel (operands, addresses, blocks of four lengths) takes several times as long as
/// the arithmetic on one word. The result is the same to the last bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordKernel(fn(&[u64], u64, u16) -> u64);

impl WordKernel {
    pub(super) const fn of<T: Arithmetic, O: ElementOperator<T::Register>>() -> Self {
        Self(combine::<T, O>)
    }

    /// Combines `words`, original inputs each, lane by lane. Words that are partly used give a word
    /// of which the same part can be used.
    ///
    /// `scalar` begins with the bytes of the element to scale all of them by; `divisor` is what an
    /// average divides by, not zero.
    #[inline]
    pub(crate) fn run(self, words: &[u64], scalar: u64, divisor: u16) -> u64 {
        (self.0)(words, scalar, divisor)
    }
}

fn combine<T: Arithmetic, O: ElementOperator<T::Register>>(words: &[u64], scalar: u64, divisor: u16) -> u64 {
    let (share, divisor) = T::Register::mean_terms(divisor);
    let scalar = O::factor(scalar_of::<T>(scalar), share);
    match *words {
        // Of a length that is known here, or there are loops of several kinds for each lane.
        [first, second] => combine_among::<T, O>(&[first, second], scalar, divisor),
        _ => combine_among::<T, O>(words, scalar, divisor),
    }
}

#[inline(always)]
fn combine_among<T: Arithmetic, O: ElementOperator<T::Register>>(
    words: &[u64],
    scalar: T::Register,
    divisor: <T::Register as Numeric>::Divisor,
) -> u64 {
    let mut result = [0; size_of::<u64>()];
    for (lane, place) in result.chunks_exact_mut(size_of::<T>()).enumerate() {
        let number = |word: &u64| {
            let bytes = word.to_ne_bytes();
            let element: T = bytemuck::pod_read_unaligned(&bytes[lane * size_of::<T>()..][..size_of::<T>()]);
            let number = element.widen();
            if O::SCALES { number.multiply(scalar) } else { number }
        };
        if let Some(combined) = words.iter().map(number).reduce(O::combine) {
            place.copy_from_slice(bytemuck::bytes_of(&T::narrow(O::finish(combined, divisor).settle())));
        }
    }
    u64::from_ne_bytes(result)
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
