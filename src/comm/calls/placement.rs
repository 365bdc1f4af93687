//! How the buffers of a call lie to each other, for callers that name them by their addresses.

use crate::collective::Operation;
use crate::rank::Rank;
use crate::reduce::DataType;

/// Bytes of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRange {
    /// The address of the first one.
    pub start: usize,
    /// The number of bytes.
    pub len: usize,
}

/// The input and the output of a call, of which a rank has no bytes where it has no part.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// What is sent.
    pub send: MemoryRange,
    /// What is received.
    pub recv: MemoryRange,
}

/// An input and an output that share bytes, and are no call in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialOverlap {
    /// The bytes that the output of such an input has; `None` for an input that cannot be divided
    /// among the ranks.
    pub expected: Option<usize>,
}

impl MemoryRange {
    /// Returns whether some of these bytes are among `other`.
    #[inline]
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        let (end, other_end) = (self.start.saturating_add(self.len), other.start.saturating_add(other.len));
        self.len > 0 && other.len > 0 && self.start < other_end && other.start < end
    }
}

impl Placement {
    /// Returns the longer buffer, which holds the other one of a call in place.
    #[inline]
    #[must_use]
    pub const fn longer(self) -> MemoryRange {
        if self.send.len > self.recv.len { self.send } else { self.recv }
    }

    /// Returns whether these are the buffers of a call of `operation` in place, by `rank` of
    /// `n_ranks`: the same one, or this rank's block and the one with a block for each rank. In
    /// [`Operation::AllToAllV`] the blocks have to be the same, too, which the caller looks at.
    ///
    /// # Errors
    /// [`PartialOverlap`].
    #[inline]
    pub fn is_in_place(
        self,
        operation: Operation,
        data_type: DataType,
        rank: Rank,
        n_ranks: u32,
    ) -> Result<bool, PartialOverlap> {
        if !self.send.overlaps(self.recv) {
            return Ok(false);
        }
        self.is_overlap_in_place(operation, data_type, rank, n_ranks)
    }

    #[cold]
    fn is_overlap_in_place(
        self,
        operation: Operation,
        data_type: DataType,
        rank: Rank,
        n_ranks: u32,
    ) -> Result<bool, PartialOverlap> {
        let Self { send, recv } = self;
        let is_block = |block: MemoryRange, whole: MemoryRange| {
            block.start.checked_sub(whole.start) == rank.index().checked_mul(block.len)
        };
        let n = n_ranks as usize;
        let (inputs, outputs) = operation.blocks(n_ranks.into());
        let (expected, fits) = match inputs.cmp(&outputs) {
            _ if operation == Operation::AllToAllV => (Some(recv.len), send == recv),
            std::cmp::Ordering::Equal => (Some(send.len), send.start == recv.start),
            std::cmp::Ordering::Less => (send.len.checked_mul(n), is_block(send, recv)),
            std::cmp::Ordering::Greater => {
                let is_divided = send.len.is_multiple_of(n * data_type.size());
                (is_divided.then(|| send.len / n), is_block(recv, send))
            }
        };
        if fits && expected == Some(recv.len) { Ok(true) } else { Err(PartialOverlap { expected }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rank 1 of 3 calls with floats.
    fn is_in_place(
        operation: Operation,
        send: (usize, usize),
        recv: (usize, usize),
    ) -> Result<bool, PartialOverlap> {
        let range = |(start, len)| MemoryRange { start, len };
        let placement = Placement { send: range(send), recv: range(recv) };
        placement.is_in_place(operation, DataType::F32, Rank::known(1), 3)
    }

    #[test]
    fn buffers_apart_are_no_call_in_place() {
        for (send, recv) in [((64, 8), (72, 8)), ((72, 8), (64, 8)), ((64, 0), (64, 8)), ((64, 8), (68, 0))] {
            assert_eq!(is_in_place(Operation::AllReduce, send, recv), Ok(false));
        }
    }

    #[test]
    fn one_buffer_or_the_block_of_this_rank_is_a_call_in_place() {
        for operation in [Operation::AllReduce, Operation::AllToAll, Operation::RunPlan, Operation::Scan] {
            assert_eq!(is_in_place(operation, (64, 24), (64, 24)), Ok(true));
            assert_eq!(
                is_in_place(operation, (64, 24), (68, 24)),
                Err(PartialOverlap { expected: Some(24) })
            );
            assert_eq!(
                is_in_place(operation, (64, 24), (64, 12)),
                Err(PartialOverlap { expected: Some(24) })
            );
        }
        assert_eq!(is_in_place(Operation::AllToAllV, (64, 24), (64, 24)), Ok(true));
        let overlapping = Err(PartialOverlap { expected: Some(12) });
        assert_eq!(is_in_place(Operation::AllToAllV, (64, 24), (64, 12)), overlapping);
        for operation in [Operation::AllGather, Operation::Gather] {
            assert_eq!(is_in_place(operation, (72, 8), (64, 24)), Ok(true));
            assert_eq!(is_in_place(operation, (64, 8), (64, 24)), Err(PartialOverlap { expected: Some(24) }));
            assert_eq!(is_in_place(operation, (72, 8), (64, 20)), Err(PartialOverlap { expected: Some(24) }));
        }
        for operation in [Operation::ReduceScatter, Operation::Scatter] {
            assert_eq!(is_in_place(operation, (64, 24), (72, 8)), Ok(true));
            assert_eq!(is_in_place(operation, (64, 24), (80, 8)), Err(PartialOverlap { expected: Some(8) }));
            assert_eq!(is_in_place(operation, (64, 20), (72, 8)), Err(PartialOverlap { expected: None }));
        }
    }
}
