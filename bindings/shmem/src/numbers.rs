//! Numbers of C that Rust does not have: complex ones, and long doubles.

use std::arch::asm;
use std::ops::{Add, Mul};

/// A complex number of two parts.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Complex<T> {
    re: T,
    im: T,
}

impl<T: Add<Output = T>> Add for Complex<T> {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

macro_rules! complex {
    ($($real:ty),*) => {$(
        impl Mul for Complex<$real> {
            type Output = Self;

            fn mul(self, other: Self) -> Self {
                Self {
                    re: self.re * other.re - self.im * other.im,
                    im: self.re * other.im + self.im * other.re,
                }
            }
        }

        impl Complex<$real> {
            pub(crate) const ZERO: Self = Self { re: 0.0, im: 0.0 };
        }
    )*};
}

complex!(f32, f64);

/// A long double of x86-64: 80 bits of the floating-point unit of old in 16 bytes.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub(crate) struct LongDouble([u8; 16]);

impl LongDouble {
    pub(crate) const ZERO: Self = Self([0; 16]);

    /// Returns whether it is less than `other`, which no comparison with a NaN is.
    pub(crate) fn is_less(&self, other: &Self) -> bool {
        let is_above: u8;
        // SAFETY: it reads both numbers, and leaves the stack of the unit as it was.
        unsafe {
            asm!(
                "fld tbyte ptr [{left}]",
                "fld tbyte ptr [{right}]",
                "fcomip st, st(1)",
                "fstp st(0)",
                "seta {is_above}",
                left = in(reg) &raw const *self,
                right = in(reg) &raw const *other,
                is_above = lateout(reg_byte) is_above,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        is_above != 0
    }
}

macro_rules! long_double {
    ($($operator:ident, $method:ident, $instruction:literal);*) => {$(
        impl $operator for LongDouble {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                let mut result = Self::ZERO;
                // SAFETY: it reads both numbers, writes the result, and leaves the stack as it was.
                unsafe {
                    asm!(
                        "fld tbyte ptr [{left}]",
                        "fld tbyte ptr [{right}]",
                        $instruction,
                        "fstp tbyte ptr [{result}]",
                        left = in(reg) &raw const self,
                        right = in(reg) &raw const other,
                        result = in(reg) &raw mut result,
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                result
            }
        }
    )*};
}

long_double!(Add, add, "faddp st(1), st"; Mul, mul, "fmulp st(1), st");
