//! The operators, as kernels are generic over them, and the arithmetic that they are made of.

use std::ops::{BitAnd, BitOr, BitXor};

/// A number that operators compute with.
///
/// Integers wrap. Floats follow IEEE 754 without contraction; their minimum and maximum are the
/// standard's `minimum` and `maximum`: NaN if either is NaN, and -0 is less than +0.
pub(crate) trait Numeric: bytemuck::Pod {
    /// What an average divides by: a number that holds any number of ranks.
    type Divisor: Copy + std::fmt::Debug;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// Divides by a number that is not zero; integers truncate toward zero.
    fn divide(self, divisor: Self::Divisor) -> Self;
    /// Returns the number as it may be stored: every NaN becomes the same one.
    fn settle(self) -> Self;
    /// Whether an average multiplies its inputs before it adds them.
    const SCALES_MEAN: bool;
    /// Returns what an average of `n` inputs multiplies each by, and what it divides their sum by;
    /// `n` is at most [`MAX_PLACES`](super::MAX_PLACES).
    ///
    /// Floats are multiplied by a power of two, `1 / n` or less. So no sum overflows, and the
    /// result is that of the sum divided by `n` to the last bit, unless it is subnormal.
    fn mean_terms(n: u16) -> (Self, Self::Divisor);
}

/// A number whose bits can be combined one by one.
pub(crate) trait Bits:
    Numeric + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
}

macro_rules! integer {
    ($($number:ty: $one:ident / $divisor:ident: $as:ty => $quotient:expr;)*) => {$(
        impl Numeric for $number {
            type Divisor = $as;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a quotient is no longer than its dividend, and has a sign only if that has"
            )]
            fn divide(self, $divisor: $as) -> Self {
                let $one = self;
                $quotient
            }

            #[inline(always)]
            fn settle(self) -> Self {
                self
            }

            const SCALES_MEAN: bool = false;

            #[inline(always)]
            fn mean_terms(n: u16) -> (Self, $as) {
                (1, <$as>::from(n))
            }
        }

        impl Bits for $number {}
    )*};
}

macro_rules! float {
    ($($number:ty),*) => {$(
        impl Numeric for $number {
            type Divisor = Self;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            /// Returns both comparisons pick the same number unless one is NaN or both are zero.
            /// Then they pick one each, and the union of their bits is a NaN, or -0 if there is
            /// one.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                Self::from_bits(one.to_bits() | two.to_bits())
            }

            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                -(-self).least(-other)
            }

            #[inline(always)]
            fn divide(self, divisor: Self) -> Self {
                self / divisor
            }

            #[inline(always)]
            fn settle(self) -> Self {
                if self.is_nan() { Self::NAN } else { self }
            }

            const SCALES_MEAN: bool = true;

            #[inline(always)]
            fn mean_terms(n: u16) -> (Self, Self) {
                let share = 1.0 / Self::from(n.next_power_of_two());
                (share, Self::from(n) * share)
            }
        }
    )*};
}

// Shorter integers are divided as floats that hold them exactly, for which there are vector
// instructions. A quotient that is not whole is at least 1 / divisor away from the next whole
// number, much further than rounding moves it. So the quotient of the floats, without its fraction,
// is the quotient of the integers.
integer! {
    i8: one / divisor: f32 => (f32::from(one) / divisor) as Self;
    u8: one / divisor: f32 => (f32::from(one) / divisor) as Self;
    i16: one / divisor: f32 => (f32::from(one) / divisor) as Self;
    u16: one / divisor: f32 => (f32::from(one) / divisor) as Self;
    i32: one / divisor: f64 => (f64::from(one) / divisor) as Self;
    u32: one / divisor: f64 => (f64::from(one) / divisor) as Self;
    i64: one / divisor: i64 => one.wrapping_div(divisor);
    u64: one / divisor: u64 => one.wrapping_div(divisor);
}
float!(f32, f64);

/// What is done to the operands of one element.
pub(crate) trait ElementOperator<R: Numeric>: 'static {
    /// Whether original inputs are multiplied first.
    const SCALES: bool = false;

    /// Returns what an original input is multiplied by: its rank's scalar, or a share of an
    /// average.
    #[inline(always)]
    fn factor(scalar: R, _share: R) -> R {
        scalar
    }

    /// Takes one more input, which most operators add.
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.add(other)
    }

    /// Takes the last step, before the result is stored.
    #[inline(always)]
    fn finish(result: R, _divisor: R::Divisor) -> R {
        result
    }
}

/// Adds.
#[derive(Debug)]
pub(crate) struct Sum;
/// Multiplies.
#[derive(Debug)]
pub(crate) struct Product;
/// Takes the least.
#[derive(Debug)]
pub(crate) struct Minimum;
/// Takes the greatest.
#[derive(Debug)]
pub(crate) struct Maximum;
/// Adds, and divides the sum by the number of ranks. Floats are made smaller before, so that their
/// sum does not overflow.
#[derive(Debug)]
pub(crate) struct Mean;
/// Adds like [`Mean`], and leaves the division to the last step.
#[derive(Debug)]
pub(crate) struct PartialMean;
/// Adds inputs that are multiplied by scalars.
#[derive(Debug)]
pub(crate) struct ScaledSum;

impl<R: Numeric> ElementOperator<R> for Sum {}

impl<R: Numeric> ElementOperator<R> for Product {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.multiply(other)
    }
}

impl<R: Numeric> ElementOperator<R> for Minimum {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.least(other)
    }
}

impl<R: Numeric> ElementOperator<R> for Maximum {
    #[inline(always)]
    fn combine(one: R, other: R) -> R {
        one.greatest(other)
    }
}

macro_rules! bitwise {
    ($($(#[$doc:meta])* $operator:ident: $one:ident, $other:ident => $combined:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $operator;

        impl<R: Bits> ElementOperator<R> for $operator {
            #[inline(always)]
            fn combine($one: R, $other: R) -> R {
                $combined
            }
        }
    )*};
}

bitwise! {
    /// Keeps the bits that are set in all inputs.
    BitwiseAnd: one, other => one & other;
    /// Keeps the bits that are set in any input.
    BitwiseOr: one, other => one | other;
    /// Keeps the bits that are set in an odd number of inputs.
    BitwiseXor: one, other => one ^ other;
}

impl<R: Numeric> ElementOperator<R> for PartialMean {
    const SCALES: bool = R::SCALES_MEAN;

    #[inline(always)]
    fn factor(_scalar: R, share: R) -> R {
        share
    }
}

impl<R: Numeric> ElementOperator<R> for Mean {
    const SCALES: bool = R::SCALES_MEAN;

    #[inline(always)]
    fn factor(_scalar: R, share: R) -> R {
        share
    }

    #[inline(always)]
    fn finish(result: R, divisor: R::Divisor) -> R {
        result.divide(divisor)
    }
}

impl<R: Numeric> ElementOperator<R> for ScaledSum {
    const SCALES: bool = true;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::reduce::MAX_PLACES;

    #[test]
    fn division_by_way_of_floats_is_that_of_integers() {
        for divisor in 1..=u16::try_from(MAX_PLACES).unwrap() {
            let (terms, signed) = (f32::from(divisor), divisor.cast_signed());
            for one in 0..=u8::MAX {
                assert_eq!(u16::from(one.divide(terms)), u16::from(one) / divisor);
                let one = one.cast_signed();
                assert_eq!(i16::from(one.divide(terms)), i16::from(one) / signed);
            }
            for one in 0..=u16::MAX {
                assert_eq!(one.divide(terms), one / divisor);
                let one = one.cast_signed();
                assert_eq!(one.divide(terms), one / signed);
            }
            let (terms, divisor) = (f64::from(divisor), u32::from(divisor));
            // All quotients near which the result turns are multiples; the farthest from zero are
            // rounded most.
            for multiple in (0..=u32::MAX / divisor).step_by(9_999_991).chain([u32::MAX / divisor]) {
                for one in [multiple * divisor, (multiple * divisor).wrapping_sub(1), u32::MAX] {
                    assert_eq!(one.divide(terms), one / divisor);
                    let (one, divisor) = (one.cast_signed(), divisor.cast_signed());
                    assert_eq!(one.divide(terms), one / divisor);
                }
            }
            let divisor = divisor.cast_signed();
            assert_eq!(i32::MIN.divide(terms), i32::MIN / divisor);
            assert_eq!(i32::MAX.divide(terms), i32::MAX / divisor);
        }
    }
}
