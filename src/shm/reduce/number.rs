//! Arithmetic on what a register holds.

/// A number that operators compute with.
///
/// Integers wrap. Floats follow IEEE 754 without contraction; their minimum and maximum are the standard's `minimum` and
/// `maximum`: NaN if either is NaN, and -0 is less than +0.
pub(crate) trait Number: Copy + 'static {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
    /// Divides by a number that is not zero; integers truncate toward zero.
    fn divide(self, divisor: Self) -> Self;
    /// The number as it may be stored: every NaN becomes the same one.
    fn settle(self) -> Self;
    /// A small number, at most [`MAX_PLACES`](super::MAX_PLACES).
    fn small(value: u8) -> Self;
}

macro_rules! integer {
    ($($number:ty),*) => {$(
        impl Number for $number {
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
            fn divide(self, divisor: Self) -> Self {
                self.wrapping_div(divisor)
            }

            #[inline(always)]
            fn settle(self) -> Self {
                self
            }

            #[inline(always)]
            fn small(value: u8) -> Self {
                Self::try_from(value).expect("at most MAX_PLACES, which every integer holds")
            }
        }
    )*};
}

macro_rules! float {
    ($($number:ty),*) => {$(
        impl Number for $number {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            /// Both comparisons pick the same number unless one is NaN or both are zero. Then they pick one each, and
            /// the union of their bits is a NaN, or -0 if there is one.
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

            #[inline(always)]
            fn small(value: u8) -> Self {
                Self::from(value)
            }
        }
    )*};
}

integer!(i8, u8, i32, u32, i64, u64);
float!(f32, f64);
