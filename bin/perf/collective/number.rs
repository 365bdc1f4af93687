//! Whole numbers as elements of every type, and which of them each type holds exactly.

use half::{bf16, f16};
use shmccl::reduce::{DataType, Element, F8E4M3, F8E5M2};

/// An element that whole numbers from 0 to [`Number::EXACT`] can be made into.
pub(crate) trait Number: Element {
    /// All whole numbers up to this one are elements.
    const EXACT: u32;

    /// The element of that value.
    fn of(whole: u32) -> Self;

    /// The average of `n` elements whose sum is `sum`, as the library defines it for the type.
    fn average(sum: u32, n: u32) -> Self;
}

macro_rules! integers {
    ($($integer:ty: $exact:expr),*) => {$(
        impl Number for $integer {
            const EXACT: u32 = $exact;

            fn of(whole: u32) -> Self {
                Self::try_from(whole).expect("no value is above EXACT")
            }

            fn average(sum: u32, n: u32) -> Self {
                Self::of(sum / n)
            }
        }
    )*};
}

integers!(i8: 127, u8: 255, i32: 1 << 24, u32: 1 << 24, i64: 1 << 24, u64: 1 << 24);

/// Types whose elements are computed with as `f32`.
macro_rules! floats {
    ($($float:ty: $exact:expr, $from:expr);*) => {$(
        impl Number for $float {
            const EXACT: u32 = $exact;

            fn of(whole: u32) -> Self {
                $from(whole as f32)
            }

            fn average(sum: u32, n: u32) -> Self {
                $from(sum as f32 / n as f32)
            }
        }
    )*};
}

floats! {
    f32: 1 << 24, std::convert::identity;
    f16: 2048, f16::from_f32;
    bf16: 256, bf16::from_f32;
    F8E4M3: 16, F8E4M3::from_f32;
    F8E5M2: 8, F8E5M2::from_f32
}

impl Number for f64 {
    const EXACT: u32 = 1 << 24;

    fn of(whole: u32) -> Self {
        Self::from(whole)
    }

    fn average(sum: u32, n: u32) -> Self {
        Self::from(sum) / Self::from(n)
    }
}

/// Something that is done with elements of a type that is known only at run time.
pub(crate) trait ForType {
    /// What comes of it.
    type Outcome;

    /// Does it with elements of type `T`.
    fn run<T: Number>(self) -> Self::Outcome;
}

/// Does `what` with elements of `data_type`.
pub(crate) fn with_type<F: ForType>(data_type: DataType, what: F) -> F::Outcome {
    match data_type {
        DataType::I8 => what.run::<i8>(),
        DataType::U8 => what.run::<u8>(),
        DataType::I32 => what.run::<i32>(),
        DataType::U32 => what.run::<u32>(),
        DataType::I64 => what.run::<i64>(),
        DataType::U64 => what.run::<u64>(),
        DataType::F16 => what.run::<f16>(),
        DataType::Bf16 => what.run::<bf16>(),
        DataType::F32 => what.run::<f32>(),
        DataType::F64 => what.run::<f64>(),
        DataType::F8E4M3 => what.run::<F8E4M3>(),
        DataType::F8E5M2 => what.run::<F8E5M2>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct EveryNumberIsAnotherElement;

    impl ForType for EveryNumberIsAnotherElement {
        type Outcome = ();

        fn run<T: Number>(self) {
            let bytes: Vec<_> =
                (0..=T::EXACT.min(4096)).map(|whole| bytemuck::bytes_of(&T::of(whole)).to_vec()).collect();
            let distinct: std::collections::HashSet<_> = bytes.iter().collect();
            assert_eq!(distinct.len(), bytes.len(), "{:?}", T::DATA_TYPE);
        }
    }

    #[test]
    fn every_whole_number_up_to_exact_is_an_element_of_its_own() {
        for data_type in DataType::ALL {
            with_type(data_type, EveryNumberIsAnotherElement);
        }
    }
}
