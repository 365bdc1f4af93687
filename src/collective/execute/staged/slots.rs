//! How a call is cut into pieces, and where in a staging area each of them is staged.
//!
//! Members with cores of their own may be two pieces apart, so that none holds another up. Members
//! that share cores take turns anyway, and each turn costs them time. Results that are returned
//! take most turns. So then members are one piece apart, pieces are as long as the staging area
//! allows, and what fits into the whole staging area is one piece.
//!
//! So it is with two members on whatever cores. Each needs only the other one, and few long pieces
//! are worth more than a piece in hand. Against pieces of 128 KiB two apart, an all-reduce of 512
//! KiB to 64 MiB took up to a fifth less time. Pieces of 16 KiB and 32 KiB took longer still. More
//! members on cores of their own were not measured.

use crate::collective::call::Operation;
use crate::collective::region::STAGING_LEN;
use crate::reduce::DataType;

/// How many pieces members may be apart that are not close.
const LAG: u64 = 2;

/// What the slots of a staging area hold together, in bytes: the rest of it is for slots that begin
/// behind a line.
const SLOTS_LEN: u64 = 1 << 20;

/// Blocks of a piece begin at multiples of so many bytes in a slot, which itself begins less than
/// that behind its place.
const ALIGN: u64 = 128;

const _: () = assert!(SLOTS_LEN + 2 * LAG * ALIGN <= STAGING_LEN, "slots may begin anywhere in a line");

/// The cut of a call: the same on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// How many pieces members may be apart. There are twice as many slots.
    pub(super) lag: u64,
    /// How many pieces there are.
    pub(super) pieces: u64,
    /// Elements of each block in all pieces but the last.
    elements: u64,
    /// Elements of each block.
    count: u64,
    /// Bytes of an element.
    pub(super) size: u64,
    /// The distance from one slot to the next, in bytes.
    stride: u64,
    /// Whether results go through the staging area, too.
    pub(super) returns: bool,
}

/// A part of every block of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StagedPiece {
    pub(super) number: u64,
    /// The offset at which the piece begins in each block, in bytes.
    pub(super) start: u64,
    pub(super) count: u64,
    /// The length of the piece in each block, in bytes.
    pub(super) len: u64,
}

impl Slots {
    /// Makes the cut of `operation` on blocks of `count` elements among `n_members`, which share
    /// cores where they are `oversubscribed`.
    pub(super) fn new(
        operation: Operation,
        data_type: DataType,
        count: u64,
        n_members: u64,
        oversubscribed: bool,
    ) -> Self {
        let (size, blocks) = (data_type.size() as u64, operation.blocks(n_members).0);
        let returns = operation.combines_a_block();
        let is_close = returns && (oversubscribed || n_members == 2);
        let lag = if is_close { 1 } else { LAG };
        let slot_len = SLOTS_LEN / (2 * lag);
        // There are at most 256 members and so 256 blocks: more than ALIGN each.
        let block_in = |len: u64| len / blocks / ALIGN * ALIGN;
        let whole = block_in(SLOTS_LEN);
        let is_one = is_close && count.saturating_mul(size) <= whole;
        let longest = if is_one { whole } else { block_in(slot_len) };
        let elements = longest / size;
        // No elements are one piece of none.
        let pieces = count.div_ceil(elements).max(1);
        Self { lag, pieces, elements, count, size, stride: slot_len + ALIGN, returns }
    }

    /// Returns piece `number`, if there are so many.
    pub(super) fn piece(&self, number: u64) -> Option<StagedPiece> {
        if number >= self.pieces {
            return None;
        }
        let first = number * self.elements;
        let count = self.elements.min(self.count - first);
        Some(StagedPiece { number, start: first * self.size, count, len: count * self.size })
    }

    /// Returns where in a staging area block number `block` of `piece` is staged, where slots begin
    /// at their places.
    pub(super) fn place(&self, piece: StagedPiece, block: u64) -> u64 {
        piece.number % (2 * self.lag) * self.stride + block * self.elements * self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATIONS: [Operation; 4] =
        [Operation::AllReduce, Operation::ReduceScatter, Operation::AllToAll, Operation::Broadcast];

    /// Counts of elements about the lengths where the cut changes.
    fn counts(n_members: u64) -> impl Iterator<Item = u64> {
        let lengths = [0, 1, SLOTS_LEN / 16, SLOTS_LEN / 4, SLOTS_LEN / 2, SLOTS_LEN, 5 * SLOTS_LEN];
        let near =
            move |len: u64| [len.saturating_sub(1), len, len + 1, len / n_members, len / n_members + 1];
        lengths.into_iter().flat_map(near)
    }

    /// Returns the bytes of a staging area that `piece` may take up there: its slot may begin
    /// anywhere in a line.
    fn taken(slots: &Slots, piece: StagedPiece, blocks: u64) -> std::ops::Range<u64> {
        slots.place(piece, 0)..slots.place(piece, blocks - 1) + piece.len + 63
    }

    #[test]
    fn pieces_that_are_staged_at_a_time_lie_apart_and_within_the_scratch() {
        for (operation, n) in OPERATIONS.into_iter().flat_map(|op| [2, 3, 8, 64].map(|n| (op, n))) {
            for (count, oversubscribed) in counts(n).flat_map(|count| [(count, false), (count, true)]) {
                let slots = Slots::new(operation, DataType::U8, count, n, oversubscribed);
                let blocks = operation.blocks(n).0;
                let pieces: Vec<_> = (0..slots.pieces).map_while(|number| slots.piece(number)).collect();
                assert_eq!(pieces.iter().map(|piece| piece.count).sum::<u64>(), count);
                for together in pieces.windows(usize::try_from(2 * slots.lag).unwrap().min(pieces.len())) {
                    let mut all: Vec<_> =
                        together.iter().map(|&piece| taken(&slots, piece, blocks)).collect();
                    all.sort_unstable_by_key(|range| range.start);
                    assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "{slots:?} {all:?}");
                    assert!(all.last().is_none_or(|last| last.end <= STAGING_LEN), "{slots:?}");
                }
            }
        }
    }

    #[test]
    fn members_that_share_cores_take_fewer_and_longer_pieces_where_results_are_returned() {
        let slots =
            |count, oversubscribed| Slots::new(Operation::AllReduce, DataType::F32, count, 4, oversubscribed);
        assert_eq!((slots(1 << 18, false).pieces, slots(1 << 18, true).pieces), (4, 1));
        assert_eq!((slots(1 << 20, false).pieces, slots(1 << 20, true).pieces), (16, 8));
        assert_eq!(slots(0, true).piece(0).map(|piece| piece.len), Some(0));
        let gathered =
            |oversubscribed| Slots::new(Operation::AllGather, DataType::F32, 1 << 20, 4, oversubscribed);
        assert_eq!(gathered(true), gathered(false), "no results are returned");
    }

    #[test]
    fn two_members_take_long_pieces_on_whatever_cores_where_results_are_returned() {
        let slots = |operation, oversubscribed| {
            let of = |count| Slots::new(operation, DataType::F32, count, 2, oversubscribed);
            (of(1 << 18), of(1 << 20))
        };
        for operation in [Operation::AllReduce, Operation::Reduce] {
            let (short, long) = slots(operation, false);
            assert_eq!((short.lag, short.pieces, long.lag, long.pieces), (1, 1, 1, 8));
            assert_eq!((short, long), slots(operation, true));
        }
        assert_eq!(slots(Operation::ReduceScatter, false).0.lag, LAG, "no results are returned");
    }
}
