//! Where the buffers of a call lie, as members post it.

use crate::collective::call::{Call, Input, Operation, Output};
use crate::heap::HeapOffset;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Where a buffer lies: in the heap, or in ordinary memory, of which others know only how it lies
/// in its cache line.
///
/// | word | buffer |
/// |---|---|
/// | an offset | at that offset of the member's heap; 0 also for no buffer |
/// | 2^64 - 1 - b, b below 64 | in ordinary memory, b bytes behind the start of a cache line |
/// | 2^64 - 65 - b, b below 64 | likewise, and the input is a part of the output |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferPlace(u64);

/// The place of a buffer in ordinary memory at the start of a cache line.
const ELSEWHERE: u64 = u64::MAX;

impl BufferPlace {
    /// No buffer.
    const NONE: Self = Self(0);

    /// Makes the buffer at `offset` of the heap.
    #[inline]
    pub(crate) const fn heap(offset: HeapOffset) -> Self {
        Self(offset.get())
    }

    /// Makes the buffer at `address` in ordinary memory.
    #[inline]
    pub(crate) const fn elsewhere(address: u64) -> Self {
        Self(ELSEWHERE - address % LINE)
    }

    /// Makes the input at `address` in ordinary memory, which is a part of the output.
    #[inline]
    const fn within_output(address: u64) -> Self {
        Self(ELSEWHERE - address % LINE - LINE)
    }

    /// Returns the word that is posted.
    #[inline]
    pub(crate) const fn to_word(self) -> u64 {
        self.0
    }

    /// Returns the place that `word` says; any word says one.
    #[inline]
    pub(super) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    const fn is_elsewhere(self) -> bool {
        self.0 > ELSEWHERE - 2 * LINE
    }

    /// Returns by how many bytes the buffer begins behind a cache line.
    pub(crate) const fn behind_line(self) -> u64 {
        if self.is_elsewhere() { (ELSEWHERE - self.0) % LINE } else { self.0 % LINE }
    }
}

/// Where the two buffers of one member lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    pub(crate) input: BufferPlace,
    pub(crate) output: BufferPlace,
}

impl Buffers {
    /// Returns where this member's buffers of `call` lie.
    #[inline]
    pub(crate) fn of(call: &Call<'_>) -> Self {
        let start = match &call.output {
            Output::Memory(bytes) | Output::Within(bytes, _) => bytes.as_ptr().addr() as u64,
            Output::Heap(_) | Output::None => 0,
        };
        let input = match &call.input {
            Input::Heap(offset) => BufferPlace::heap(*offset),
            Input::Memory(bytes) => BufferPlace::elsewhere(bytes.as_ptr().addr() as u64),
            Input::InOutput(at) => BufferPlace::within_output(start.wrapping_add(*at)),
            Input::None => BufferPlace::NONE,
        };
        let output = match call.output {
            Output::Heap(offset) => BufferPlace::heap(offset),
            Output::Memory(_) => BufferPlace::elsewhere(start),
            Output::Within(_, at) => BufferPlace::elsewhere(start.wrapping_add(at)),
            Output::None => BufferPlace::NONE,
        };
        Self { input, output }
    }

    /// Says whether the input is the output, or a part of it.
    pub(crate) fn are_in_place(self) -> bool {
        let Self { input, output } = self;
        if input.is_elsewhere() { input.0 <= ELSEWHERE - LINE } else { input == output }
    }

    /// Says whether no buffer lies in ordinary memory.
    pub(crate) const fn are_in_heap(self) -> bool {
        !(self.input.is_elsewhere() || self.output.is_elsewhere())
    }

    /// Says whether all members can work on both buffers of an `operation` where they lie.
    pub(crate) fn are_reachable(self, operation: Operation) -> bool {
        let Self { input, output } = self;
        // Blocks that are exchanged in place would be overwritten before they are read.
        let is_exchanged = operation == Operation::AllToAll && input == output;
        self.are_in_heap() && !is_exchanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_of_ordinary_memory_tells_its_lines_and_is_no_offset() {
        for address in [0, 16, 63, 64, 0x7fff_ffff_f010, u64::MAX] {
            let (place, within) = (BufferPlace::elsewhere(address), BufferPlace::within_output(address));
            let buffers = |input| Buffers { input, output: place };
            assert!(place.is_elsewhere() && within.is_elsewhere());
            assert!(buffers(within).are_in_place() && !buffers(place).are_in_place());
            assert_eq!([place, within].map(BufferPlace::behind_line), [address % LINE; 2]);
        }
        // Offsets end below the length of a heap, 1 TiB at most.
        for offset in [0, 128, 192 + 16, 1 << 40] {
            let place = |at| BufferPlace::heap(HeapOffset::new(at));
            let buffers = |at| Buffers { input: place(offset), output: place(at) };
            assert!(!place(offset).is_elsewhere());
            assert_eq!(place(offset).behind_line(), offset % LINE);
            assert!(buffers(offset).are_in_place() && !buffers(offset + 1).are_in_place());
        }
    }
}
