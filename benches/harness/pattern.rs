//! Data whose reduction is known exactly: small whole numbers made of the rank, the turn and the
//! place.
//!
//! They repeat along a buffer after a prime number of elements, so that rewriting a buffer and
//! comparing a result run at the speed of memory, and data in a wrong place are still seen. Values
//! are chosen so that no sum of any ranks, in whatever order, leaves the whole numbers that the
//! type holds exactly.
//!
//! [`TestElement`] says which whole numbers each type holds exactly. [`OneWordData`] holds the data
//! of the shortest operations, ready to be written and compared in one go: beside an operation that
//! takes as long as a cache line from core to core, anything else would be most of the time.

use std::ops::Range;

use crate::case::CaseSpec;
use half::{bf16, f16};
use shmccl::collective::Operation;
use shmccl::reduce::{
    Bool, Complex64, Complex128, DataType, Element, F8E4M3, F8E5M2, ReduceOp, Reducer, Scalar,
};
use shmccl::shm::Span;
use shmccl::{Rank, Result};

/// Elements after which a buffer repeats itself.
pub const PERIOD: usize = 509;

/// Operations after which the data are the same again.
pub const TURNS: usize = 5;

/// Values are below this, however much the type would hold.
const MOST: u32 = 1023;

/// Ranks that contribute a factor of two to a product.
const FACTORS: u32 = 6;

/// The greatest scalar of `mulsum`.
const SCALAR: u32 = 2;

/// The inputs of all ranks and their reduction, for every turn.
#[derive(Debug)]
pub struct Pattern<T> {
    inputs: Vec<Vec<T>>,
    reduced: Vec<T>,
    n_ranks: u32,
}

impl<T: TestElement> Pattern<T> {
    /// Makes data of `n_ranks` ranks, which are only moved, or of which `op` reduces those that are
    /// `combined`.
    pub fn new(n_ranks: u32, combined: Range<usize>, op: Option<&ReduceOp>) -> Self {
        let values = Values::new::<T>(n_ranks, op);
        let mut pattern = Self { inputs: Vec::new(), reduced: Vec::new(), n_ranks };
        for turn in 0..TURNS as u64 {
            let wholes: Vec<Vec<u32>> = (0..n_ranks).map(|rank| values.of(rank, turn)).collect();
            pattern.reduced.extend((0..PERIOD).map(|place| {
                let ranks = (0..).zip(&wholes).take(combined.end).skip(combined.start);
                let column: Vec<(u32, u32)> = ranks.map(|(rank, values)| (rank, values[place])).collect();
                reduce::<T>(&column, op)
            }));
            for values in wholes {
                pattern.inputs.push(values.into_iter().map(T::of).collect());
            }
        }
        pattern
    }

    /// Returns one period of the input of `rank`.
    #[inline]
    pub fn input(&self, turn: u64, rank: u32) -> &[T] {
        &self.inputs[index(turn) * self.n_ranks as usize + rank as usize]
    }

    /// Returns one period of the reduction of all inputs.
    #[inline]
    pub fn reduced(&self, turn: u64) -> &[T] {
        &self.reduced[index(turn) * PERIOD..][..PERIOD]
    }
}

#[inline]
fn index(turn: u64) -> usize {
    usize::try_from(turn % TURNS as u64).expect("small")
}

/// Returns the scalar of `rank` in `mulsum`, as in nccl-tests.
fn scalar(rank: u32) -> u32 {
    if rank.is_multiple_of(2) { 1 } else { SCALAR }
}

/// Returns the operator of this name, with the scalar of `rank` where it needs one.
///
/// # Errors
/// A name that no operator has.
pub fn operator<T: TestElement>(name: &str, rank: Rank) -> anyhow::Result<ReduceOp> {
    Ok(match name {
        "mulsum" => ReduceOp::PreMulSum(T::scalar(scalar(rank.get()))),
        _ => name.parse()?,
    })
}

/// Checks that the operator of this name is defined on `data_type`.
///
/// # Errors
/// What the library refuses it by; a name that no operator has.
pub fn check_operator(data_type: DataType, name: &str) -> anyhow::Result<()> {
    let op = match name {
        "mulsum" => ReduceOp::PreMulSum(Scalar::zero(data_type.real_type())),
        _ => name.parse()?,
    };
    Ok(Reducer::new(data_type, &op, 1).map(drop)?)
}

/// Reduces the values of some ranks, each of which stands behind its rank.
fn reduce<T: TestElement>(column: &[(u32, u32)], op: Option<&ReduceOp>) -> T {
    let values = || column.iter().map(|(_, value)| *value);
    let sum = values().sum::<u32>();
    let folded = |of: fn(u32, u32) -> u32| values().reduce(of).unwrap_or(0);
    match op {
        Some(ReduceOp::Prod) => T::of(values().product()),
        Some(ReduceOp::Min) => T::of(folded(u32::min)),
        Some(ReduceOp::Max) => T::of(folded(u32::max)),
        Some(ReduceOp::BitAnd) => T::of(folded(|one, other| one & other)),
        Some(ReduceOp::BitOr) => T::of(folded(|one, other| one | other)),
        Some(ReduceOp::BitXor) => T::of(folded(|one, other| one ^ other)),
        Some(ReduceOp::Avg) => T::average(sum, column.len().max(1).try_into().expect("at most 256 ranks")),
        Some(ReduceOp::PreMulSum(_)) => T::of(scaled_sum(column)),
        // The reduction of moved data is never used, and need not be an element.
        None => T::of(0),
        Some(_) => T::of(sum),
    }
}

fn scaled_sum(column: &[(u32, u32)]) -> u32 {
    column.iter().map(|(rank, value)| scalar(*rank) * value).sum()
}

/// The whole numbers that ranks contribute.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// From 0 to a mask.
    UpTo { mask: u32 },
    /// 0, and 1 from one of so many ranks: no more can be added exactly.
    Sparse { every: u32 },
    /// 1, and 2 from some of so many ranks.
    Factors { n_ranks: u32 },
}

impl Values {
    fn new<T: TestElement>(n_ranks: u32, op: Option<&ReduceOp>) -> Self {
        let summands = match op {
            Some(ReduceOp::Prod) if T::EXACT > 1 => return Self::Factors { n_ranks },
            Some(ReduceOp::PreMulSum(_)) => SCALAR * n_ranks,
            Some(ReduceOp::Sum | ReduceOp::Avg) => n_ranks,
            _ => 1,
        };
        match (T::EXACT / summands).min(MOST) {
            0 => Self::Sparse { every: summands.div_ceil(T::EXACT) },
            most => Self::UpTo { mask: (1 << (most + 1).ilog2()) - 1 },
        }
    }

    /// Returns one period of the numbers of `rank`.
    fn of(self, rank: u32, turn: u64) -> Vec<u32> {
        let turn = u32::try_from(turn).expect("small");
        let value = |place: u32| match self {
            Self::UpTo { mask } => scramble(place, rank, turn) & mask,
            Self::Sparse { every } => u32::from((scramble(place, 0, turn) + rank).is_multiple_of(every)),
            Self::Factors { n_ranks } => {
                let seat = (scramble(place, 0, turn) + rank) % n_ranks;
                1 + (u32::from(seat < FACTORS) & scramble(place, rank, turn) & 1)
            }
        };
        (0..).take(PERIOD).map(value).collect()
    }
}

/// Computes a hash of 20 bits.
fn scramble(place: u32, rank: u32, turn: u32) -> u32 {
    let mut hash =
        place.wrapping_mul(0x9E37_79B1) ^ rank.wrapping_mul(0x85EB_CA77) ^ turn.wrapping_mul(0xC2B2_AE3D);
    hash ^= hash >> 15;
    hash = hash.wrapping_mul(0x2C1B_3C6D);
    hash ^= hash >> 12;
    hash.wrapping_mul(0x297A_2D39) >> 12
}

/// An element that whole numbers from 0 to [`TestElement::EXACT`] can be made into.
pub trait TestElement: Element {
    /// All whole numbers up to this one are elements.
    const EXACT: u32;

    /// Returns the element of that value.
    fn of(whole: u32) -> Self;

    /// Returns the average of `n` elements whose sum is `sum`, as the library defines it for the
    /// type.
    fn average(sum: u32, n: u32) -> Self;

    /// Returns the scalar of that value, which elements are multiplied by.
    fn scalar(whole: u32) -> Scalar {
        Scalar::new(Self::of(whole))
    }
}

macro_rules! integers {
    ($($integer:ty: $exact:expr),*) => {$(
        impl TestElement for $integer {
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

integers!(i8: 127, u8: 255, i16: 32767, u16: 65535, i32: 1 << 24, u32: 1 << 24, i64: 1 << 24, u64: 1 << 24);

/// Types whose elements are computed in floating point.
macro_rules! floats {
    ($($float:ty: $exact:expr, $computed:ty => $from:expr);*) => {$(
        impl TestElement for $float {
            const EXACT: u32 = $exact;

            fn of(whole: u32) -> Self {
                $from(whole as $computed)
            }

            fn average(sum: u32, n: u32) -> Self {
                $from(sum as $computed / n as $computed)
            }
        }
    )*};
}

floats! {
    f32: 1 << 24, f32 => std::convert::identity;
    f64: 1 << 24, f64 => std::convert::identity;
    f16: 2048, f32 => f16::from_f32;
    bf16: 256, f32 => bf16::from_f32;
    F8E4M3: 16, f32 => F8E4M3::from_f32;
    F8E5M2: 8, f32 => F8E5M2::from_f32
}

impl TestElement for Bool {
    const EXACT: u32 = 1;

    fn of(whole: u32) -> Self {
        Self::from(whole != 0)
    }

    fn average(_sum: u32, _n: u32) -> Self {
        unreachable!("it has no average")
    }
}

/// Complex types: the parts differ in their signs.
macro_rules! complex {
    ($($complex:ident of $real:ty),*) => {$(
        impl TestElement for $complex {
            const EXACT: u32 = <$real>::EXACT;

            fn of(whole: u32) -> Self {
                let re = <$real>::of(whole);
                Self { re, im: -re }
            }

            fn average(sum: u32, n: u32) -> Self {
                let re = <$real>::average(sum, n);
                Self { re, im: -re }
            }

            fn scalar(whole: u32) -> Scalar {
                Scalar::new(<$real>::of(whole))
            }
        }
    )*};
}

complex!(Complex64 of f32, Complex128 of f64);

/// A function of a type of elements that is known only at run time.
pub trait ForType {
    /// The result.
    type Outcome;

    /// Runs with elements of type `T`.
    fn run<T: TestElement>(self) -> Self::Outcome;
}

/// Does `what` with elements of `data_type`.
pub fn with_type<F: ForType>(data_type: DataType, what: F) -> F::Outcome {
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
        DataType::I16 => what.run::<i16>(),
        DataType::U16 => what.run::<u16>(),
        DataType::Bool => what.run::<Bool>(),
        DataType::Complex64 => what.run::<Complex64>(),
        DataType::Complex128 => what.run::<Complex128>(),
    }
}

/// The contents of a buffer of one word in each turn.
#[derive(Debug)]
pub struct OneWordData {
    inputs: [u64; TURNS],
    results: [u64; TURNS],
}

impl OneWordData {
    /// Returns the words of `rank` in `spec`, if every rank's input and output is one word.
    pub fn new<T: TestElement>(spec: &CaseSpec, pattern: &Pattern<T>, rank: u32) -> Option<Self> {
        let count = size_of::<u64>() / size_of::<T>();
        let is_short = count > 0 && [spec.layout.send(), spec.layout.recv()] == [count as u64; 2];
        if spec.operation != Operation::AllReduce || !is_short {
            return None;
        }
        let word = |data: &[T]| bytemuck::pod_read_unaligned(bytemuck::cast_slice(&data[..count]));
        Some(Self {
            inputs: std::array::from_fn(|turn| word(pattern.input(turn as u64, rank))),
            results: std::array::from_fn(|turn| word(pattern.reduced(turn as u64))),
        })
    }

    /// Writes the input of `turn` to the start of `buffer`.
    ///
    /// # Errors
    /// A buffer that is shorter.
    #[inline]
    pub fn write(&self, turn: u64, buffer: &Span) -> Result<()> {
        buffer.write(0, self.inputs[index(turn)])
    }

    /// Returns whether the result of `turn` is at the start of `buffer`.
    ///
    /// # Errors
    /// A buffer that is shorter.
    #[inline]
    pub fn are_in(&self, turn: u64, buffer: &Span) -> Result<bool> {
        Ok(buffer.read::<u64>(0)? == self.results[index(turn)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmccl::reduce::DataType;

    const OPERATORS: [&str; 9] = ["sum", "prod", "min", "max", "avg", "mulsum", "band", "bor", "bxor"];

    struct StaysExact {
        n_ranks: u32,
    }

    impl ForType for StaysExact {
        type Outcome = ();

        fn run<T: TestElement>(self) {
            let is_defined = |name: &&str| check_operator(T::DATA_TYPE, name).is_ok();
            for name in OPERATORS.into_iter().filter(is_defined) {
                let op = operator::<T>(name, Rank::new(1, self.n_ranks).unwrap()).unwrap();
                let values = Values::new::<T>(self.n_ranks, Some(&op));
                let rows: Vec<_> = (0..self.n_ranks).map(|rank| values.of(rank, 1)).collect();
                for place in 0..PERIOD {
                    let column: Vec<_> = (0..).zip(&rows).map(|(rank, row)| (rank, row[place])).collect();
                    let values = column.iter().map(|(_, value)| *value);
                    let most = match name {
                        "prod" => values.product(),
                        "sum" | "avg" => values.sum(),
                        "mulsum" => scaled_sum(&column),
                        _ => values.fold(0, |one, other| one | other),
                    };
                    // A product is a power of two, of which floats hold more.
                    assert!(most <= T::EXACT.max(if name == "prod" { 64 } else { 0 }), "{name} {most}");
                }
            }
        }
    }

    #[test]
    fn no_reduction_of_up_to_64_ranks_leaves_the_numbers_that_a_type_holds_exactly() {
        for data_type in DataType::ALL {
            for n_ranks in [2, 3, 8, 64, 256] {
                with_type(data_type, StaysExact { n_ranks });
            }
        }
    }

    #[test]
    fn data_differ_between_ranks_turns_and_places() {
        let pattern = Pattern::<f32>::new(2, 0..2, Some(&ReduceOp::Sum));
        assert_ne!(pattern.input(0, 0), pattern.input(0, 1));
        assert_ne!(pattern.input(0, 0), pattern.input(1, 0));
        assert_ne!(pattern.reduced(0), pattern.reduced(1));
        assert_ne!(pattern.input(0, 0)[..100], pattern.input(0, 0)[100..200]);
        let sum = |place: usize| pattern.input(3, 0)[place] + pattern.input(3, 1)[place];
        assert!((0..PERIOD).all(|place| pattern.reduced(3)[place] == sum(place)));
    }

    struct EveryNumberIsAnotherElement;

    impl ForType for EveryNumberIsAnotherElement {
        type Outcome = ();

        fn run<T: TestElement>(self) {
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
