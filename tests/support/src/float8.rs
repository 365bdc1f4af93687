//! Floats of 8 bits by their definition ("OFP8", revision 1.0): a table of all values, and a search
//! for the nearest.

use std::marker::PhantomData;
use std::sync::OnceLock;

/// What tells one format of 8 bits from the other.
pub(crate) trait Format {
    const MANTISSA_BITS: u32;
    const BIAS: i32;
    /// The largest code of a positive number; past it come infinity and NaN, or NaN alone.
    const LARGEST: u8;
    /// Whether numbers that are too large become infinity, whose code follows [`Format::LARGEST`].
    const HAS_INFINITY: bool;
    /// What NaN is stored as.
    const NAN: u8;

    /// The values of all positive codes, in ascending order; infinity counts as the next power of
    /// two.
    fn values() -> &'static [f32];
}

/// 4 bits of exponent and 3 of mantissa; saturates.
#[derive(Clone, Copy)]
pub(crate) struct E4M3;

/// 5 bits of exponent and 2 of mantissa, with infinities.
#[derive(Clone, Copy)]
pub(crate) struct E5M2;

impl Format for E4M3 {
    const MANTISSA_BITS: u32 = 3;
    const BIAS: i32 = 7;
    const LARGEST: u8 = 0x7e;
    const HAS_INFINITY: bool = false;
    const NAN: u8 = 0x7f;

    fn values() -> &'static [f32] {
        static VALUES: OnceLock<Vec<f32>> = OnceLock::new();
        VALUES.get_or_init(all::<Self>)
    }
}

impl Format for E5M2 {
    const MANTISSA_BITS: u32 = 2;
    const BIAS: i32 = 15;
    const LARGEST: u8 = 0x7b;
    const HAS_INFINITY: bool = true;
    const NAN: u8 = 0x7e;

    fn values() -> &'static [f32] {
        static VALUES: OnceLock<Vec<f32>> = OnceLock::new();
        VALUES.get_or_init(all::<Self>)
    }
}

fn all<F: Format>() -> Vec<f32> {
    (0..=F::LARGEST + u8::from(F::HAS_INFINITY)).map(value::<F>).collect()
}

/// The value of a positive code: subnormal where its exponent is zero.
fn value<F: Format>(code: u8) -> f32 {
    let one = 1 << F::MANTISSA_BITS;
    let (exponent, digits) = (i32::from(code / one), f32::from(code % one) / f32::from(one));
    match exponent {
        0 => digits * 2_f32.powi(1 - F::BIAS),
        _ => (1.0 + digits) * 2_f32.powi(exponent - F::BIAS),
    }
}

/// An element of format `F`.
#[repr(transparent)]
pub(crate) struct Float8<F>(u8, PhantomData<F>);

impl<F> Clone for Float8<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Float8<F> {}

impl<F: Format> Float8<F> {
    pub(crate) fn from_ne_bytes([code]: [u8; 1]) -> Self {
        Self(code, PhantomData)
    }

    pub(crate) fn to_ne_bytes(self) -> [u8; 1] {
        [self.0]
    }

    pub(crate) fn to_f32(self) -> f32 {
        let (code, is_negative) = (self.0 & 0x7f, self.0 & 0x80 != 0);
        let positive = match code {
            _ if code <= F::LARGEST => F::values()[usize::from(code)],
            _ if F::HAS_INFINITY && code == F::LARGEST + 1 => f32::INFINITY,
            _ => f32::NAN,
        };
        if is_negative { -positive } else { positive }
    }

    /// Rounds to the nearest value; of two equally near to the one whose code is even.
    pub(crate) fn from_f32(number: f32) -> Self {
        if number.is_nan() {
            return Self(F::NAN, PhantomData);
        }
        let (values, number_abs) = (F::values(), number.abs());
        let above = values.partition_point(|value| *value < number_abs).min(values.len() - 1);
        let below = above.saturating_sub(1);
        let (to_below, to_above) = (number_abs - values[below], values[above] - number_abs);
        let nearest = match to_below.total_cmp(&to_above) {
            std::cmp::Ordering::Less => below,
            std::cmp::Ordering::Greater => above,
            std::cmp::Ordering::Equal => below + below % 2,
        };
        let code = u8::try_from(nearest).expect("a positive code");
        Self(code | if number.is_sign_negative() { 0x80 } else { 0 }, PhantomData)
    }
}
