//! Which bytes of this process a call reads and writes: calls that share some have an order.

use std::collections::BTreeMap;

use super::{Call, CallBlock, Input, Output};

/// Bytes of this process, by their addresses. Those of this rank's own heap are among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    start: u64,
    end: u64,
}

/// What a call does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The member that makes a call, as far as the addresses of its buffers depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberMemory {
    /// The address of the first byte of this rank's heap.
    pub(crate) heap: u64,
    pub(crate) n_members: usize,
}

/// Some bytes, or more than these: what they overlap may be too much, and is never too little.
pub(crate) trait ByteSet: Default {
    fn insert(&mut self, range: ByteRange);
    fn overlaps(&self, range: ByteRange) -> bool;
}

/// These bytes and no others.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    hull: ByteRange,
    /// Ends by starts, of ranges that lie apart.
    ranges: BTreeMap<u64, u64>,
}

/// The bytes that some calls read, and those that they write.
#[derive(Debug, Default)]
pub(crate) struct Touched<S> {
    read: S,
    written: S,
}

impl Default for ByteRange {
    fn default() -> Self {
        Self::NONE
    }
}

impl ByteRange {
    /// No bytes, which overlap nothing.
    pub(crate) const NONE: Self = Self { start: u64::MAX, end: 0 };

    /// Makes the range of `len` bytes from `start` on.
    #[inline]
    const fn new(start: u64, len: u64) -> Self {
        if len == 0 { Self::NONE } else { Self { start, end: start.saturating_add(len) } }
    }

    /// Returns whether some of these bytes are in `other`.
    #[inline]
    pub(crate) const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Returns the shortest range with these bytes and `other`.
    #[inline]
    #[must_use]
    pub(crate) fn hull(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// All bytes from the first to the last one: quick.
impl ByteSet for ByteRange {
    fn insert(&mut self, range: ByteRange) {
        *self = self.hull(range);
    }

    fn overlaps(&self, range: ByteRange) -> bool {
        ByteRange::overlaps(*self, range)
    }
}

impl ByteSet for RangeSet {
    fn insert(&mut self, range: ByteRange) {
        if range == ByteRange::NONE {
            return;
        }
        self.hull.insert(range);
        let ByteRange { mut start, mut end } = range;
        // Joined with those that it overlaps or touches.
        while let Some((&first, &last)) =
            self.ranges.range(..=end).next_back().filter(|other| *other.1 >= start)
        {
            self.ranges.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.ranges.insert(start, end);
    }

    fn overlaps(&self, range: ByteRange) -> bool {
        let before = || self.ranges.range(..range.end).next_back();
        self.hull.overlaps(range) && before().is_some_and(|(_, &end)| end > range.start)
    }
}

impl<S: ByteSet> Touched<S> {
    /// Adds the bytes of `call`.
    pub(crate) fn add(&mut self, call: &Call<'_>, memory: MemberMemory) {
        call.each_range(memory, |access, range| match access {
            Access::Read => self.read.insert(range),
            Access::Write => self.written.insert(range),
        });
    }

    /// Returns whether it matters if `call` comes before those calls or after them: one side writes
    /// what the other one reads or writes.
    pub(crate) fn meets(&self, call: &Call<'_>, memory: MemberMemory) -> bool {
        let mut is_met = false;
        call.each_range(memory, |access, range| {
            is_met |= self.written.overlaps(range) || (access == Access::Write && self.read.overlaps(range));
        });
        is_met
    }
}

impl Call<'_> {
    /// Returns the bytes that this rank's part of a call reads, unless its blocks have lengths of
    /// their own.
    #[inline]
    pub(crate) fn bytes_read(&self, memory: MemberMemory) -> ByteRange {
        let (blocks, _) = self.operation.blocks(memory.n_members as u64);
        self.input_start(memory.heap).map_or(ByteRange::NONE, |start| self.range(start, blocks))
    }

    /// Returns the bytes that this rank's part of a call writes, unless its blocks have lengths of
    /// their own.
    #[inline]
    pub(crate) fn bytes_written(&self, memory: MemberMemory) -> ByteRange {
        let (_, blocks) = self.operation.blocks(memory.n_members as u64);
        self.output_start(memory.heap).map_or(ByteRange::NONE, |start| self.range(start, blocks))
    }

    /// Shows `visit` all bytes that this rank's part of the call reads and writes.
    fn each_range(&self, memory: MemberMemory, mut visit: impl FnMut(Access, ByteRange)) {
        let Some(layout) = &self.layout else {
            visit(Access::Read, self.bytes_read(memory));
            return visit(Access::Write, self.bytes_written(memory));
        };
        let size = self.data_type.size() as u64;
        let range = |start: u64, block: &CallBlock| {
            let (at, len) = (block.at.saturating_mul(size), block.count.saturating_mul(size));
            ByteRange::new(start.saturating_add(at), len)
        };
        let (read, written) = (self.input_start(memory.heap), self.output_start(memory.heap));
        read.iter().for_each(|&start| {
            layout.sent.iter().for_each(|block| visit(Access::Read, range(start, block)));
        });
        written.iter().for_each(|&start| {
            layout.received.iter().for_each(|block| visit(Access::Write, range(start, block)));
        });
    }

    #[inline]
    fn range(&self, start: u64, blocks: u64) -> ByteRange {
        let block = self.count.saturating_mul(self.data_type.size() as u64);
        ByteRange::new(start, block.saturating_mul(blocks))
    }

    #[inline]
    fn input_start(&self, heap: u64) -> Option<u64> {
        match (&self.input, &self.output) {
            (Input::Heap(offset), _) => Some(heap.saturating_add(offset.get())),
            (Input::Memory(bytes), _) => Some(address(bytes)),
            (Input::InOutput(at), Output::Memory(bytes) | Output::Within(bytes, _)) => {
                Some(address(bytes).saturating_add(*at))
            }
            (Input::InOutput(_) | Input::None, _) => None,
        }
    }

    #[inline]
    fn output_start(&self, heap: u64) -> Option<u64> {
        match &self.output {
            Output::Heap(offset) => Some(heap.saturating_add(offset.get())),
            Output::Memory(bytes) => Some(address(bytes)),
            Output::Within(bytes, at) => Some(address(bytes).saturating_add(*at)),
            Output::None => None,
        }
    }
}

#[inline]
fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::call::{BlockLayout, Operation};
    use crate::heap::HeapOffset;
    use crate::reduce::DataType;

    const MEMORY: MemberMemory = MemberMemory { heap: 0x10_0000, n_members: 3 };

    fn call<'a>(operation: Operation, count: u64, input: Input<'a>, output: Output<'a>) -> Call<'a> {
        Call {
            operation,
            data_type: DataType::U32,
            count,
            root: 0,
            tag: 0,
            receipt: None,
            reducer: None,
            layout: None,
            input,
            output,
        }
    }

    fn heap(at: u64) -> (Input<'static>, Output<'static>) {
        (Input::Heap(HeapOffset::new(at)), Output::Heap(HeapOffset::new(at)))
    }

    fn range(start: u64, len: u64) -> ByteRange {
        ByteRange::new(start, len)
    }

    #[test]
    fn bytes_that_touch_do_not_overlap_and_none_overlap_nothing() {
        assert!(range(10, 5).overlaps(range(14, 1)) && range(14, 1).overlaps(range(10, 5)));
        for other in [range(15, 5), range(5, 5), range(12, 0), ByteRange::NONE] {
            assert!(!range(10, 5).overlaps(other) && !other.overlaps(range(10, 5)), "{other:?}");
        }
        assert_eq!(ByteRange::NONE.hull(range(10, 5)), range(10, 5));
        assert!(range(u64::MAX - 1, 9).overlaps(range(u64::MAX - 1, 1)));
    }

    #[test]
    fn a_set_has_the_bytes_that_were_put_in_and_no_others() {
        let (mut set, mut has) = (RangeSet::default(), [false; 64]);
        assert!(!set.overlaps(range(0, 64)));
        let ranges = [(8, 4), (40, 3), (12, 2), (20, 0), (0, 1), (39, 9), (5, 20), (30, 1), (29, 3), (63, 1)];
        for (start, len) in ranges {
            set.insert(range(start, len));
            (start..start + len).for_each(|at| has[usize::try_from(at).unwrap()] = true);
            for (first, end) in (0..64).flat_map(|first| (first..=64).map(move |end| (first, end))) {
                let expected = (first..end).any(|at| has[usize::try_from(at).unwrap()]);
                assert_eq!(set.overlaps(range(first, end - first)), expected, "{first}..{end} of {set:?}");
            }
        }
    }

    #[test]
    fn what_a_call_reads_and_writes_follows_from_its_buffers_and_blocks() {
        let ((input, _), (_, output)) = (heap(64), heap(256));
        let gather = call(Operation::AllGather, 2, input, output);
        assert_eq!(gather.bytes_read(MEMORY), range(MEMORY.heap + 64, 8));
        assert_eq!(gather.bytes_written(MEMORY), range(MEMORY.heap + 256, 24));
        let mut bytes = [0_u8; 24];
        let start = address(&bytes);
        let within = call(Operation::ReduceScatter, 2, Input::InOutput(0), Output::Within(&mut bytes, 8));
        assert_eq!(within.bytes_read(MEMORY), range(start, 24));
        assert_eq!(within.bytes_written(MEMORY), range(start + 8, 8));
        let none = call(Operation::Reduce, 2, Input::Memory(&[0; 8]), Output::None);
        assert_eq!(none.bytes_written(MEMORY), ByteRange::NONE);
        let nothing = call(Operation::AllReduce, 0, heap(64).0, heap(64).1);
        assert_eq!([nothing.bytes_read(MEMORY), nothing.bytes_written(MEMORY)], [ByteRange::NONE; 2]);
    }

    #[test]
    fn heap_memory_and_a_slice_of_it_are_the_same_bytes() {
        let bytes = [0_u8; 16];
        let memory = MemberMemory { heap: address(&bytes) - 4096, n_members: 2 };
        let mut touched = Touched::<RangeSet>::default();
        touched.add(&call(Operation::Broadcast, 1, Input::None, heap(4096 + 4).1), memory);
        let sent = |bytes| call(Operation::Send, 1, Input::Memory(bytes), Output::None);
        assert!(touched.meets(&sent(&bytes[4..8]), memory));
        assert!(!touched.meets(&sent(&bytes[..4]), memory) && !touched.meets(&sent(&bytes[8..]), memory));
    }

    #[test]
    fn calls_that_only_read_the_same_bytes_have_no_order() {
        let one = call(Operation::AllReduce, 4, heap(0).0, heap(128).1);
        let mut touched = Touched::<RangeSet>::default();
        touched.add(&one, MEMORY);
        let meets = |input: u64, output: u64| {
            touched.meets(&call(Operation::AllReduce, 4, heap(input).0, heap(output).1), MEMORY)
        };
        assert!(!meets(0, 256), "both read");
        assert!(meets(128, 256) && meets(140, 256), "it reads what the first writes");
        assert!(meets(512, 0) && meets(512, 12), "it writes what the first reads");
        assert!(meets(512, 128) && !meets(512, 144), "both write, or lie apart");
    }

    #[test]
    fn blocks_of_their_own_lengths_leave_out_what_lies_between_them() {
        let block = |at, count| CallBlock { at, count };
        let layout =
            BlockLayout { sent: vec![block(0, 1), block(4, 1)], received: vec![block(0, 0), block(8, 2)] };
        let mut exchange = call(Operation::AllToAllV, 0, heap(0).0, heap(0).1);
        exchange.layout = Some(Box::new(layout));
        let meets = |at: u64| {
            let writer = call(Operation::Broadcast, 1, Input::None, heap(at).1);
            let reader = call(Operation::Broadcast, 1, heap(at).0, Output::None);
            let mut touched = Touched::<RangeSet>::default();
            touched.add(&exchange, MEMORY);
            (touched.meets(&writer, MEMORY), touched.meets(&reader, MEMORY))
        };
        assert_eq!([meets(0), meets(16)], [(true, false); 2]);
        assert_eq!([meets(4), meets(28), meets(40)], [(false, false); 3]);
        assert_eq!([meets(32), meets(36)], [(true, true); 2]);
    }
}
