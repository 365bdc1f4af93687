//! The operators of a reduction, those included that are functions of the user's.

use std::sync::Arc;

use super::{DataType, Element, Reducer};
use crate::shm::reduce::OperandAddresses;

/// How the data of several ranks become one.
///
/// Floats of 16 and 8 bits are accumulated in `f32` over all ranks and rounded once, whatever the
/// [algorithm](crate::collective::Algorithm).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Adds.
    Sum,
    /// Multiplies.
    Prod,
    /// Takes the least.
    Min,
    /// Takes the greatest.
    Max,
    /// Adds, and divides by the number of ranks n. Integers wrap as sums do, and truncate toward
    /// zero.
    ///
    /// Floats are multiplied by the greatest power of two up to 1 / n first. So an average of large
    /// numbers is finite, as with NCCL, which multiplies each input by 1 / n, rounded to its type.
    /// Here the result is that of the sum divided by n, rounded once at the end. Only where
    /// elements of `f32` or `f64` are within n times the least normal number does it lose bits.
    Avg,
    /// Keeps the bits that are set in all inputs: of integers and [`Bool`](super::Bool).
    BitAnd,
    /// Keeps the bits that are set in any input: of integers and [`Bool`](super::Bool).
    BitOr,
    /// Keeps the bits that are set in an odd number of inputs: of integers and
    /// [`Bool`](super::Bool).
    BitXor,
    /// Multiplies each rank's input by a scalar of that rank, then adds. Complex elements are
    /// multiplied by a scalar of their [`DataType::real_type`]. Where one rank does all of it, as
    /// [`SwitchChannel::reduce`](crate::comm::SwitchChannel::reduce) does, it multiplies the inputs
    /// of all by the scalar that it was called with.
    PreMulSum(Scalar),
    /// Calls a function of the user's.
    Custom(CustomOp),
}

/// An element with its type: what `PreMulSum` multiplies by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scalar {
    dtype: DataType,
    bytes: [u8; 8],
}

impl Scalar {
    /// Wraps an element. No reduction takes a complex one.
    #[must_use]
    pub fn new<T: Element>(value: T) -> Self {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(bytemuck::bytes_of(&value)).for_each(|(byte, &given)| *byte = given);
        Self { dtype: T::DATA_TYPE, bytes }
    }

    /// Wraps the element of type `dtype` that consists of these bytes; `None` for more or fewer
    /// bytes than it has, or more than 8.
    #[must_use]
    pub fn from_bytes(dtype: DataType, element: &[u8]) -> Option<Self> {
        let mut bytes = [0; 8];
        bytes.get_mut(..dtype.size()).filter(|bytes| bytes.len() == element.len())?.copy_from_slice(element);
        Some(Self { dtype, bytes })
    }

    /// Returns the zero of a type.
    #[must_use]
    pub const fn zero(dtype: DataType) -> Self {
        Self { dtype, bytes: [0; 8] }
    }

    /// Returns its type.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        self.dtype
    }

    /// Returns its bytes, then zeros.
    #[must_use]
    pub const fn bytes(self) -> [u8; 8] {
        self.bytes
    }
}

impl ReduceOp {
    /// The operators that need nothing but their name.
    pub const PLAIN: [Self; 8] =
        [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg, Self::BitAnd, Self::BitOr, Self::BitXor];

    /// Returns its name, as nccl-tests or MPI spells it; a custom operator's own.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Custom(op) => op.name(),
            built_in => built_in.kind(),
        }
    }

    /// Returns its name, without that of a custom operator.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::BitAnd => "band",
            Self::BitOr => "bor",
            Self::BitXor => "bxor",
            Self::PreMulSum(_) => "mulsum",
            Self::Custom(_) => "custom",
        }
    }

    /// Returns whether something is left to do to the elements when all are combined.
    pub(crate) const fn has_last_step(&self) -> bool {
        match self {
            Self::Avg => true,
            Self::Sum
            | Self::Prod
            | Self::Min
            | Self::Max
            | Self::BitAnd
            | Self::BitOr
            | Self::BitXor
            | Self::PreMulSum(_)
            | Self::Custom(_) => false,
        }
    }

    /// Returns whether elements `dtype` can be combined by it.
    ///
    /// Integers take all operators, and floats all but the bitwise ones. [`Bool`](super::Bool)
    /// takes all but averages and scaled sums. Complex types take sums, averages and scaled sums.
    #[must_use]
    pub fn supports(&self, dtype: DataType) -> bool {
        Reducer::new(dtype, self, 1).is_ok()
    }

    /// Returns a number that ranks compare to see whether they mean the same operator; never
    /// changes.
    ///
    /// It covers the type of a scalar, which is each rank's own, and of a custom operator the name
    /// and the type (but not what the function does).
    #[inline]
    #[must_use]
    pub fn code(&self) -> u64 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Min => 2,
            Self::Max => 3,
            Self::Avg => 4,
            Self::BitAnd => 5,
            Self::BitOr => 6,
            Self::BitXor => 7,
            Self::PreMulSum(scalar) => hash(b"mulsum", scalar.dtype, &[]),
            Self::Custom(op) => hash(b"custom", op.data_type(), op.name().as_bytes()),
        }
    }

    /// Returns the code of an operator that needs nothing but its name.
    #[inline]
    pub(crate) const fn plain_code(&self) -> Option<u32> {
        match self {
            Self::Sum => Some(0),
            Self::Prod => Some(1),
            Self::Min => Some(2),
            Self::Max => Some(3),
            Self::Avg => Some(4),
            Self::BitAnd => Some(5),
            Self::BitOr => Some(6),
            Self::BitXor => Some(7),
            Self::PreMulSum(_) | Self::Custom(_) => None,
        }
    }

    /// Returns the bytes of the scalar, where there is one; otherwise zeros.
    #[inline]
    pub(super) fn scalar_bytes(&self) -> [u8; 8] {
        match self {
            Self::PreMulSum(scalar) => scalar.bytes(),
            _ => [0; 8],
        }
    }
}

/// Hashes by FNV-1a, with the top bit set so that no plain operator's code comes out.
#[cold]
fn hash(kind: &[u8], dtype: DataType, value: &[u8]) -> u64 {
    const OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01B3;
    let dtype = [dtype.code()];
    let bytes = kind.iter().chain(&dtype).chain(value);
    bytes.fold(OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)) | 1 << 63
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no plain operator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such operator, expected sum, prod, min, max, avg, band, bor or bxor")]
pub struct UnknownOp;

impl std::str::FromStr for ReduceOp {
    type Err = UnknownOp;

    /// Accepts the names of the [`PLAIN`](Self::PLAIN) operators, in either case.
    fn from_str(name: &str) -> Result<Self, UnknownOp> {
        Self::PLAIN.into_iter().find(|op| op.name().eq_ignore_ascii_case(name)).ok_or(UnknownOp)
    }
}

/// Bytes that are handed to the function at once: small beside a first-level cache.
const CHUNK: usize = 2048;

/// Memory for a chunk of any element: aligned for the widest.
type Chunk = [u64; CHUNK / size_of::<u64>()];

type Function = dyn Fn(&mut [u8], &[u8]) + Send + Sync;

/// An operator that is a function over slices: `accumulator[i] = accumulator[i] op other[i]`.
///
/// The function must be associative, and treat each index by itself: slices are cut into chunks. It
/// need not be commutative. Inputs are combined in the order of the ranks, unless the program has
/// chosen an [algorithm](crate::collective::Algorithm) that does not keep to that, or registered
/// one of its own. The function sees copies, never shared memory. It makes no collective call and
/// waits for none: the call that it is part of waits for it. Ranks take two custom operators
/// for the same when name and type agree.
///
/// It is one pointer, so that an enum that may hold one is no larger for it.
#[derive(Clone)]
pub struct CustomOp(Arc<Definition>);

struct Definition {
    name: Box<str>,
    dtype: DataType,
    function: Box<Function>,
}

impl CustomOp {
    /// Makes an operator on elements `T`.
    pub fn new<T: Element>(name: &str, function: impl Fn(&mut [T], &[T]) + Send + Sync + 'static) -> Self {
        let function = move |accumulator: &mut [u8], other: &[u8]| {
            function(bytemuck::cast_slice_mut(accumulator), bytemuck::cast_slice(other));
        };
        Self(Arc::new(Definition { name: name.into(), dtype: T::DATA_TYPE, function: Box::new(function) }))
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the type of element that it takes.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.0.dtype
    }

    /// Combines all sources into all targets, chunk by chunk.
    pub(super) fn combine(&self, places: &OperandAddresses<'_>) {
        let (mut accumulator, mut other): (Chunk, Chunk) = bytemuck::Zeroable::zeroed();
        for start in (0..places.len()).step_by(CHUNK) {
            let len = (places.len() - start).min(CHUNK);
            let accumulator = &mut bytemuck::bytes_of_mut(&mut accumulator)[..len];
            let other = &mut bytemuck::bytes_of_mut(&mut other)[..len];
            places.load(0, start, accumulator);
            for index in 1..places.n_sources() {
                places.load(index, start, other);
                (self.0.function)(accumulator, other);
            }
            places.store(start, accumulator);
        }
    }

    /// Combines the elements in the first `len` bytes of each of `words`, of which there is one at
    /// least.
    pub(super) fn combine_words(&self, words: &[u64], len: usize) -> u64 {
        let (mut accumulator, others) = (words[0], &words[1..]);
        for other in others {
            let accumulator = &mut bytemuck::bytes_of_mut(&mut accumulator)[..len];
            (self.0.function)(accumulator, &bytemuck::bytes_of(other)[..len]);
        }
        accumulator
    }
}

/// Whether both are clones of one operator.
impl Eq for CustomOp {}

impl PartialEq for CustomOp {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CustomOp")
            .field("name", &self.0.name)
            .field("dtype", &self.0.dtype)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_operators() {
        for op in ReduceOp::PLAIN {
            assert_eq!(op.name().parse(), Ok(op.clone()));
            assert!(UnknownOp.to_string().contains(op.name()));
        }
        assert_eq!("mulsum".parse::<ReduceOp>(), Err(UnknownOp));
    }

    #[test]
    fn a_scalar_is_made_of_its_value_or_of_its_bytes() {
        assert_eq!(Scalar::from_bytes(DataType::F32, &2.5_f32.to_ne_bytes()), Some(Scalar::new(2.5_f32)));
        assert_eq!(Scalar::from_bytes(DataType::I8, &[3]), Some(Scalar::new(3_i8)));
        for (dtype, len) in [(DataType::F32, 3), (DataType::F32, 5), (DataType::I64, 0), (DataType::I64, 9)] {
            assert_eq!(Scalar::from_bytes(dtype, &vec![0; len]), None, "{dtype} of {len} bytes");
        }
    }

    #[test]
    fn codes_tell_operators_types_and_names_apart_and_no_scalars() {
        let custom = |name| ReduceOp::Custom(CustomOp::new::<i32>(name, |_, _| ()));
        let mut ops = ReduceOp::PLAIN.to_vec();
        let scaled = |factor: f32| ReduceOp::PreMulSum(Scalar::new(factor));
        ops.extend([scaled(2.0), ReduceOp::PreMulSum(Scalar::new(2.0_f32.to_bits()))]);
        ops.extend([custom("a"), custom("b"), custom("")]);
        ops.push(ReduceOp::Custom(CustomOp::new::<u32>("a", |_, _| ())));
        let codes: std::collections::HashSet<_> = ops.iter().map(ReduceOp::code).collect();
        assert_eq!(codes.len(), ops.len());
        assert_eq!(custom("a").code(), custom("a").code());
        assert_eq!(scaled(2.0).code(), scaled(3.0).code());
    }
}
