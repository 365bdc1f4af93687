//! Operators that are functions of the user's.

use std::sync::Arc;

use super::{DataType, Element};
use crate::shm::reduce::OperandAddresses;

/// Bytes that are handed to the function at once: small beside a first-level cache.
const CHUNK: usize = 2048;

/// Memory for a chunk of any element: aligned for the widest.
type Chunk = [u64; CHUNK / size_of::<u64>()];

type Function = dyn Fn(&mut [u8], &[u8]) + Send + Sync;

/// An operator that is a function over slices: `accumulator[i] = accumulator[i] op other[i]`.
///
/// The function must be associative, and treat each index by itself: slices are cut into chunks as it suits. It need not be
/// commutative: inputs are combined in the order of the ranks, unless the program has chosen an
/// [algorithm](crate::collective::Algorithm) that does not keep to that, or registered one of its own. It sees copies, never shared memory. Ranks take two custom
/// operators for the same when name and type agree.
///
/// It is one pointer, so that what may hold one is no larger for it.
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

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The type of element that it takes.
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

    /// Combines the elements in the first `len` bytes of each of `words`, of which there is one at least.
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
