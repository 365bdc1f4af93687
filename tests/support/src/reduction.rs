//! Computes what a reduction has to give, one element at a time, as slowly and plainly as possible.
//!
//! The oracle of the collective operations and the unit tests of the reducer compare with it. It
//! shares no code with the library: it has conversions of its own even for floats of 8 bits.

use half::{bf16, f16};

use crate::float8::{E4M3, E5M2, Float8};

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// `i8`.
    I8,
    /// `u8`.
    U8,
    /// `i32`.
    I32,
    /// `u32`.
    U32,
    /// `i64`.
    I64,
    /// `u64`.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// The OCP's 8-bit float with 4 bits of exponent.
    F8E4M3,
    /// The OCP's 8-bit float with 5 bits of exponent.
    F8E5M2,
    /// `i16`.
    I16,
    /// `u16`.
    U16,
    /// A byte that is true unless it is 0.
    Bool,
    /// Two `f32`, the real and the imaginary part.
    Complex64,
    /// Two `f64`.
    Complex128,
}

impl ElementType {
    /// All types, in the order of the library's codes for them.
    const ALL: [Self; 17] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::I16,
        Self::U16,
        Self::Bool,
        Self::Complex64,
        Self::Complex128,
    ];

    /// Returns the type that the library gives this `code`.
    ///
    /// # Panics
    /// When there is no such code.
    #[must_use]
    pub fn of_code(code: u8) -> Self {
        Self::ALL[usize::from(code)]
    }
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Adds.
    Sum,
    /// Multiplies.
    Prod,
    /// Takes the least.
    Min,
    /// Takes the greatest.
    Max,
    /// Adds, and divides by the number of ranks at the end.
    Avg,
    /// Combines bit by bit: set where both are.
    BitAnd,
    /// Set where one is.
    BitOr,
    /// Set where one is and the other is not.
    BitXor,
    /// Multiplies each fresh source by a scalar, whose bytes come first, and adds.
    PreMulSum([u8; 8]),
}

impl Operator {
    /// Returns the operator that multiplies by the scalar that `bytes` are.
    ///
    /// # Panics
    /// When they are more than 8.
    #[must_use]
    pub fn pre_mul_sum(bytes: &[u8]) -> Self {
        let mut scalar = [0; 8];
        scalar[..bytes.len()].copy_from_slice(bytes);
        Self::PreMulSum(scalar)
    }

    /// Returns the operator that nccl-tests calls `name`, with the bytes of its scalar if it takes
    /// one.
    ///
    /// # Panics
    /// When there is no operator of that name.
    #[must_use]
    pub fn of_name(name: &str, scalar: [u8; 8]) -> Self {
        match name {
            "sum" => Self::Sum,
            "prod" => Self::Prod,
            "min" => Self::Min,
            "max" => Self::Max,
            "avg" => Self::Avg,
            "band" => Self::BitAnd,
            "bor" => Self::BitOr,
            "bxor" => Self::BitXor,
            "mulsum" => Self::PreMulSum(scalar),
            _ => panic!("no operator is called {name}"),
        }
    }
}

/// An element as the oracle computes with it: integers in two's complement, floats as documented.
trait OracleElement: Copy {
    type Wide: Copy;

    /// Reads the element that `bytes` are.
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn wide(self) -> Self::Wide;
    fn stored(wide: Self::Wide) -> Self;
    fn apply(operator: Operator, one: Self::Wide, other: Self::Wide) -> Self::Wide;
    /// What an average adds instead of `wide`, and by how much it divides the sum of that.
    fn share(wide: Self::Wide, n_ranks: u32) -> Self::Wide;
    fn divided(wide: Self::Wide, n_ranks: u32) -> Self::Wide;
    fn times(wide: Self::Wide, scalar: Self::Wide) -> Self::Wide;
}

macro_rules! bytes_of {
    () => {
        fn read(bytes: &[u8]) -> Self {
            Self::from_ne_bytes(bytes.try_into().expect("bytes of one element"))
        }

        fn write(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl OracleElement for $number {
            type Wide = i128;

            bytes_of!();

            fn wide(self) -> i128 {
                self.into()
            }

            /// Keeps the low bits, as a wrapped sum does.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "that is what wrapping means")]
            fn stored(wide: i128) -> Self {
                wide as Self
            }

            fn apply(operator: Operator, one: i128, other: i128) -> i128 {
                let result = match operator {
                    Operator::Prod => one.wrapping_mul(other),
                    Operator::Min => one.min(other),
                    Operator::Max => one.max(other),
                    Operator::BitAnd => one & other,
                    Operator::BitOr => one | other,
                    Operator::BitXor => one ^ other,
                    _ => one + other,
                };
                Self::stored(result).into()
            }

            fn share(wide: i128, _n_ranks: u32) -> i128 {
                wide
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

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! floats {
    ($($number:ty as $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl OracleElement for $number {
            type Wide = $wide;

            bytes_of!();

            fn wide(self) -> $wide {
                $widen(self)
            }

            fn stored(wide: $wide) -> Self {
                $narrow(if wide.is_nan() { <$wide>::NAN } else { wide })
            }

            fn apply(operator: Operator, one: $wide, other: $wide) -> $wide {
                match operator {
                    Operator::Prod => one * other,
                    Operator::Min | Operator::Max if one.is_nan() || other.is_nan() => <$wide>::NAN,
                    Operator::Min if one.total_cmp(&other).is_lt() => one,
                    Operator::Max if one.total_cmp(&other).is_gt() => one,
                    Operator::Min | Operator::Max => other,
                    _ => one + other,
                }
            }

            fn share(wide: $wide, n_ranks: u32) -> $wide {
                wide / n_ranks.next_power_of_two() as $wide
            }

            fn divided(wide: $wide, n_ranks: u32) -> $wide {
                wide / (n_ranks as $wide / n_ranks.next_power_of_two() as $wide)
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
    Float8<E4M3> as f32, Float8::to_f32, Float8::from_f32;
    Float8<E5M2> as f32, Float8::to_f32, Float8::from_f32;
}

/// A truth value in a byte.
#[derive(Clone, Copy)]
struct Truth(bool);

impl OracleElement for Truth {
    type Wide = bool;

    fn read(bytes: &[u8]) -> Self {
        Self(bytes != [0])
    }

    fn write(self, bytes: &mut [u8]) {
        bytes[0] = self.0.into();
    }

    fn wide(self) -> bool {
        self.0
    }

    fn stored(wide: bool) -> Self {
        Self(wide)
    }

    fn apply(operator: Operator, one: bool, other: bool) -> bool {
        match operator {
            Operator::Sum | Operator::Max | Operator::BitOr => one || other,
            Operator::Prod | Operator::Min | Operator::BitAnd => one && other,
            Operator::BitXor => one != other,
            Operator::Avg | Operator::PreMulSum(_) => panic!("{operator:?} is not defined on it"),
        }
    }

    fn share(wide: bool, _n_ranks: u32) -> bool {
        wide
    }

    fn divided(wide: bool, _n_ranks: u32) -> bool {
        wide
    }

    fn times(wide: bool, _scalar: bool) -> bool {
        wide
    }
}

/// Calls `$function` for the type of elements that `$number` is, with the rest as its arguments.
macro_rules! for_type {
    ($number:expr, $function:ident($($argument:expr),*)) => {
        match $number {
            ElementType::I8 => $function::<i8>($($argument),*),
            ElementType::U8 => $function::<u8>($($argument),*),
            ElementType::I32 => $function::<i32>($($argument),*),
            ElementType::U32 => $function::<u32>($($argument),*),
            ElementType::I64 => $function::<i64>($($argument),*),
            ElementType::U64 => $function::<u64>($($argument),*),
            ElementType::F16 => $function::<f16>($($argument),*),
            ElementType::Bf16 => $function::<bf16>($($argument),*),
            ElementType::F32 => $function::<f32>($($argument),*),
            ElementType::F64 => $function::<f64>($($argument),*),
            ElementType::F8E4M3 => $function::<Float8<E4M3>>($($argument),*),
            ElementType::F8E5M2 => $function::<Float8<E5M2>>($($argument),*),
            ElementType::I16 => $function::<i16>($($argument),*),
            ElementType::U16 => $function::<u16>($($argument),*),
            ElementType::Bool => $function::<Truth>($($argument),*),
            // Part by part.
            ElementType::Complex64 => $function::<f32>($($argument),*),
            ElementType::Complex128 => $function::<f64>($($argument),*),
        }
    };
}

/// Reduces `sources`, each marked whether it is fresh: not combined before.
///
/// The operators differ in their scalars at most: there is one for each source, or one for all. An
/// average is divided by `n_ranks` where this step `finish`es the reduction.
///
/// # Panics
/// When there is no source, or one is shorter than the first.
#[must_use]
pub fn reduce(
    number: ElementType,
    operators: &[Operator],
    n_ranks: u32,
    sources: &[(Vec<u8>, bool)],
    finish: bool,
) -> Vec<u8> {
    for_type!(number, reduced(operators, n_ranks, sources, finish))
}

fn reduced<T: OracleElement>(
    operators: &[Operator],
    n_ranks: u32,
    sources: &[(Vec<u8>, bool)],
    finish: bool,
) -> Vec<u8> {
    let (operator, width) = (operators[0], size_of::<T>());
    let mut result = vec![0; sources[0].0.len()];
    for (index, place) in result.chunks_exact_mut(width).enumerate() {
        let mut operands = sources.iter().zip(operators.iter().cycle()).map(|((bytes, fresh), operator)| {
            let wide = T::read(&bytes[index * width..][..width]).wide();
            match operator {
                Operator::PreMulSum(scalar) if *fresh => T::times(wide, T::read(&scalar[..width]).wide()),
                Operator::Avg if *fresh => T::share(wide, n_ranks),
                _ => wide,
            }
        });
        let first = operands.next().expect("there is a source");
        let combined = operands.fold(first, |one, other| T::apply(operator, one, other));
        let is_divided = finish && operator == Operator::Avg;
        let last = if is_divided { T::divided(combined, n_ranks) } else { combined };
        T::stored(last).write(place);
    }
    result
}

/// Converts the elements of a short float in `bytes` to `f32`.
///
/// # Panics
/// When `number` is no float of 16 or 8 bits.
#[must_use]
pub fn widened(number: ElementType, bytes: &[u8]) -> Vec<u8> {
    fn of<T: OracleElement<Wide = f32>>(bytes: &[u8]) -> Vec<u8> {
        let mut result = Vec::with_capacity(bytes.len() * 4);
        for code in bytes.chunks_exact(size_of::<T>()) {
            result.extend_from_slice(&T::read(code).wide().to_ne_bytes());
        }
        result
    }
    match number {
        ElementType::F16 => of::<f16>(bytes),
        ElementType::Bf16 => of::<bf16>(bytes),
        ElementType::F8E4M3 => of::<Float8<E4M3>>(bytes),
        ElementType::F8E5M2 => of::<Float8<E5M2>>(bytes),
        _ => panic!("{number:?} is no short float"),
    }
}

/// Rounds the `f32` in `bytes` to elements of a short float.
///
/// # Panics
/// When `number` is no float of 16 or 8 bits.
#[must_use]
pub fn narrowed(number: ElementType, bytes: &[u8]) -> Vec<u8> {
    fn of<T: OracleElement<Wide = f32>>(bytes: &[u8]) -> Vec<u8> {
        let mut result = vec![0; bytes.len() / 4 * size_of::<T>()];
        for (wide, place) in bytes.chunks_exact(4).zip(result.chunks_exact_mut(size_of::<T>())) {
            T::stored(f32::read(wide)).write(place);
        }
        result
    }
    match number {
        ElementType::F16 => of::<f16>(bytes),
        ElementType::Bf16 => of::<bf16>(bytes),
        ElementType::F8E4M3 => of::<Float8<E4M3>>(bytes),
        ElementType::F8E5M2 => of::<Float8<E5M2>>(bytes),
        _ => panic!("{number:?} is no short float"),
    }
}

/// Puts into `first` each element of `other` for which it has none but zero bytes; `size` is that
/// of an element.
pub fn take_first(first: &mut [u8], other: &[u8], size: usize) {
    for (first, other) in first.chunks_exact_mut(size).zip(other.chunks_exact(size)) {
        if first.iter().all(|&byte| byte == 0) {
            first.copy_from_slice(other);
        }
    }
}
