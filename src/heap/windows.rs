//! How a trigger reaches heaps longer than its 32-bit offsets: each heap is cut into *windows*,
//! each with a memory id.
//!
//! Ids follow from arithmetic, so nothing is looked up when a transfer is pushed: window `w` of
//! rank `r` has id `r * per_rank + w`. [`HeapWindows::split`] cuts a transfer wherever its source
//! or its target crosses a window border and wherever a piece would grow past the longest one
//! allowed.

use shmccl_proxy::{MemoryId, Transfer, TransferLen};

use crate::error::{Error, Result};
use crate::heap::offset::{HeapOffset, Region};
use crate::rank::{Rank, check_n_ranks};

/// The longest window that 32-bit offsets reach, in bytes.
pub const WINDOW_LEN: u64 = 1 << 32;

/// The longest piece of a transfer, in bytes: a proxy looks up from its work at least this often.
pub const PIECE_LEN: u32 = TransferLen::LIMIT / 2;

/// A place in the heap of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeapPlace {
    /// Whose heap.
    pub rank: Rank,
    /// Where in it.
    pub offset: HeapOffset,
}

/// How the heaps of a communicator are cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapWindows {
    n_ranks: u32,
    heap_len: u64,
    /// The binary logarithm of the window length.
    window_bits: u32,
    piece_len: u32,
    per_rank: u32,
}

impl HeapWindows {
    /// Cuts the heaps of `n_ranks` ranks, each `heap_len` bytes long, into windows of
    /// [`WINDOW_LEN`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for `n_ranks`; [`Error::Exhausted`] when the windows need more
    /// memory ids than there are.
    pub fn new(n_ranks: u32, heap_len: u64) -> Result<Self> {
        Self::with_limits(n_ranks, heap_len, WINDOW_LEN, PIECE_LEN)
    }

    /// Cuts as [`HeapWindows::new`] does, into windows of `window_len` and pieces of at most
    /// `piece_len` bytes.
    ///
    /// # Errors
    /// Fails as [`HeapWindows::new`] does, or with [`Error::InvalidArgument`] unless `window_len`
    /// is a power of two up to [`WINDOW_LEN`], and `piece_len` at least one byte and below
    /// [`TransferLen::LIMIT`].
    pub fn with_limits(n_ranks: u32, heap_len: u64, window_len: u64, piece_len: u32) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        let invalid = |name, value, expected| Err(Error::InvalidArgument { name, value, expected });
        if !window_len.is_power_of_two() || window_len > WINDOW_LEN {
            return invalid("window length", window_len, "a power of two up to 4 GiB");
        }
        if !(1..TransferLen::LIMIT).contains(&piece_len) {
            return invalid("piece length", piece_len.into(), "from one byte to a byte less than 256 MiB");
        }
        let exhausted =
            Error::Exhausted { what: "memory ids for heap windows", limit: MemoryId::LIMIT.into() };
        match u32::try_from(heap_len.div_ceil(window_len)) {
            Ok(per_rank) if per_rank.checked_mul(n_ranks).is_some_and(|ids| ids <= MemoryId::LIMIT) => {
                Ok(Self { n_ranks, heap_len, window_bits: window_len.trailing_zeros(), piece_len, per_rank })
            }
            _ => Err(exhausted),
        }
    }

    /// Returns how many ids the windows take, from id 0 on.
    #[must_use]
    pub const fn ids(&self) -> u32 {
        self.n_ranks * self.per_rank
    }

    /// Walks over all windows in the order of their ids, from id 0 on.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, Region)> + use<> {
        let Self { n_ranks, heap_len, window_bits, per_rank, .. } = *self;
        (0..n_ranks).flat_map(move |rank| {
            (0..u64::from(per_rank)).map(move |window| {
                let start = window << window_bits;
                let len = (heap_len - start).min(1 << window_bits);
                (Rank::known(rank), Region::new(HeapOffset::new(start), len))
            })
        })
    }

    /// Cuts the copy of `len` bytes from `source` to `target` into transfers that fit a trigger.
    ///
    /// The pieces come in ascending order, touch each byte once, and are as few as the borders
    /// allow; an empty copy has none. Nothing is allocated.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] and [`Error::OutOfRange`] when source or target is not within a heap.
    pub fn split(&self, source: HeapPlace, target: HeapPlace, len: u64) -> Result<TransferPieces> {
        Ok(TransferPieces {
            source: self.cursor(source, len)?,
            target: self.cursor(target, len)?,
            window_bits: self.window_bits,
            piece_len: self.piece_len,
            left: len,
        })
    }

    fn cursor(&self, place: HeapPlace, len: u64) -> Result<Cursor> {
        let HeapPlace { rank, offset } = place;
        if rank.get() >= self.n_ranks {
            return Err(Error::InvalidRank { rank: rank.get(), n_ranks: self.n_ranks });
        }
        Region::new(offset, len).check("symmetric heap", self.heap_len)?;
        Ok(Cursor { first_id: rank.get() * self.per_rank, at: offset.get() })
    }
}

/// One end of a transfer, on its way through a heap.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    first_id: u32,
    at: u64,
}

impl Cursor {
    /// Returns the id of the window, the offset in it, and the bytes left in it.
    fn locate(self, window_bits: u32) -> (MemoryId, u32, u64) {
        let window = u32::try_from(self.at >> window_bits).expect("checked in HeapWindows::cursor");
        let offset = self.at & ((1 << window_bits) - 1);
        let id = MemoryId::new(self.first_id + window).expect("counted in HeapWindows::with_limits");
        let short = u32::try_from(offset).expect("a window is at most 4 GiB long");
        (id, short, (1 << window_bits) - offset)
    }
}

/// The pieces of a transfer, as [`HeapWindows::split`] cuts it.
#[derive(Clone, Debug)]
pub struct TransferPieces {
    source: Cursor,
    target: Cursor,
    window_bits: u32,
    piece_len: u32,
    left: u64,
}

impl Iterator for TransferPieces {
    type Item = Transfer;

    fn next(&mut self) -> Option<Transfer> {
        if self.left == 0 {
            return None;
        }
        let (source, source_offset, source_room) = self.source.locate(self.window_bits);
        let (target, target_offset, target_room) = self.target.locate(self.window_bits);
        let len = self.left.min(u64::from(self.piece_len)).min(source_room).min(target_room);
        self.left -= len;
        self.source.at += len;
        self.target.at += len;
        let len = u32::try_from(len).ok().and_then(|len| TransferLen::new(len).ok());
        let len = len.expect("no longer than a piece");
        Some(Transfer { len, source, source_offset, target, target_offset })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn place(rank: u32, offset: u64) -> HeapPlace {
        HeapPlace { rank: Rank::known(rank), offset: HeapOffset::new(offset) }
    }

    fn lens(pieces: TransferPieces) -> Vec<u32> {
        pieces.map(|piece| piece.len.get()).collect()
    }

    #[test]
    fn a_transfer_within_one_window_is_one_piece() {
        let windows = HeapWindows::new(2, 64 << 20).unwrap();
        let pieces: Vec<_> = windows.split(place(0, 8), place(1, 4096), 1000).unwrap().collect();
        assert_eq!(pieces.len(), 1);
        assert_eq!((pieces[0].len.get(), pieces[0].source_offset, pieces[0].target_offset), (1000, 8, 4096));
        assert_eq!((pieces[0].source.get(), pieces[0].target.get()), (0, 1));
    }

    #[test]
    fn an_empty_transfer_has_no_pieces_wherever_it_stands() {
        let windows = HeapWindows::new(2, 16 * GIB).unwrap();
        for offset in [0, 1, 4 * GIB, 16 * GIB] {
            assert_eq!(windows.split(place(0, offset), place(1, 16 * GIB), 0).unwrap().count(), 0);
        }
        assert!(windows.split(place(0, 16 * GIB + 1), place(1, 0), 0).is_err());
    }

    #[test]
    fn a_transfer_is_cut_at_four_gigabytes_and_at_the_longest_piece() {
        let windows = HeapWindows::new(8, 64 * GIB).unwrap();
        assert_eq!(windows.ids(), 128);
        let pieces: Vec<_> =
            windows.split(place(1, 4 * GIB - 1), place(7, 8 * GIB - 3), GIB / 8 + 8).unwrap().collect();
        let len: Vec<_> = pieces.iter().map(|piece| piece.len.get()).collect();
        assert_eq!(len, [1, 2, 1 << 27, 5]);
        assert_eq!((pieces[0].source.get(), pieces[0].source_offset), (16, u32::MAX));
        assert_eq!((pieces[1].source.get(), pieces[1].source_offset), (17, 0));
        assert_eq!((pieces[1].target.get(), pieces[1].target_offset), (113, u32::MAX - 1));
        assert_eq!((pieces[2].target.get(), pieces[2].target_offset), (114, 0));
    }

    #[test]
    fn a_whole_heap_of_64_gigabytes_moves_in_pieces_of_an_eighth_of_one() {
        let windows = HeapWindows::new(8, 64 * GIB).unwrap();
        let pieces = windows.split(place(0, 0), place(1, 0), 64 * GIB).unwrap();
        assert_eq!(lens(pieces), vec![1 << 27; 512]);
    }

    #[test]
    fn a_transfer_past_the_heap_or_from_no_rank_is_an_error() {
        let windows = HeapWindows::new(2, 1024).unwrap();
        assert!(windows.split(place(0, 1000), place(1, 0), 25).is_err());
        assert!(windows.split(place(0, 0), place(1, 1024), 1).is_err());
        assert!(windows.split(place(0, u64::MAX), place(1, 0), u64::MAX).is_err());
        assert!(matches!(windows.split(place(2, 0), place(1, 0), 1), Err(Error::InvalidRank { .. })));
    }

    #[test]
    fn windows_that_need_too_many_ids_are_refused() {
        assert_eq!(HeapWindows::new(64, 32 * GIB).unwrap().ids(), 512);
        assert!(matches!(HeapWindows::new(64, 32 * GIB + 1), Err(Error::Exhausted { limit: 512, .. })));
        assert!(HeapWindows::new(1, u64::MAX).is_err());
        assert_eq!(HeapWindows::new(256, 8 * GIB).unwrap().ids(), 512);
        assert!(HeapWindows::new(256, 8 * GIB + 1).is_err());
        assert!(HeapWindows::new(0, 1).is_err() && HeapWindows::new(257, 1).is_err());
        assert!(HeapWindows::with_limits(1, 64, 48, 1).is_err());
        assert!(HeapWindows::with_limits(1, 64, 2 * WINDOW_LEN, 1).is_err());
        assert!(HeapWindows::with_limits(1, 64, 0, 1).is_err());
        assert!(HeapWindows::with_limits(1, 64, 16, 0).is_err());
        assert!(HeapWindows::with_limits(1, 64, 16, TransferLen::LIMIT - 1).is_ok());
        assert!(HeapWindows::with_limits(1, 64, 16, TransferLen::LIMIT).is_err());
    }

    #[test]
    fn the_windows_of_a_heap_cover_it_and_the_last_is_the_rest() {
        let windows = HeapWindows::with_limits(2, 40, 16, 8).unwrap();
        let all: Vec<_> = windows.iter().map(|(r, w)| (r.get(), w.offset.get(), w.len)).collect();
        assert_eq!(all, [(0, 0, 16), (0, 16, 16), (0, 32, 8), (1, 0, 16), (1, 16, 16), (1, 32, 8)]);
        assert_eq!(HeapWindows::new(3, 0).unwrap().iter().count(), 0);
    }

    proptest! {
        #[test]
        fn pieces_touch_each_byte_once_in_order_and_stay_in_their_windows(
            heap_len in 1..200_u64,
            window_bits in 2..6_u32,
            piece_len in 1..40_u32,
            ends in (0..2_u32, 0..2_u32),
            offsets in (0..200_u64, 0..200_u64),
            len in 0..200_u64,
        ) {
            let window_len = 1_u64 << window_bits;
            let windows = HeapWindows::with_limits(2, heap_len, window_len, piece_len).unwrap();
            let (source, target) = (place(ends.0, offsets.0), place(ends.1, offsets.1));
            let legal = offsets.0 + len <= heap_len && offsets.1 + len <= heap_len;
            let pieces = windows.split(source, target, len);
            prop_assert_eq!(pieces.is_ok(), legal);
            let Ok(pieces) = pieces else { return Ok(()) };
            let all: Vec<_> = windows.iter().collect();
            let mut moved = Vec::new();
            for piece in pieces {
                let (source_rank, source_window) = all[usize::from(piece.source.get())];
                let (target_rank, target_window) = all[usize::from(piece.target.get())];
                prop_assert_eq!((source_rank, target_rank), (source.rank, target.rank));
                let from = source_window.part(piece.source_offset.into(), piece.len.get().into()).unwrap();
                let to = target_window.part(piece.target_offset.into(), piece.len.get().into()).unwrap();
                moved.extend((0..from.len).map(|i| (from.offset.get() + i, to.offset.get() + i)));
                let more = (moved.len() as u64) < len;
                let at_border = [from, to].iter().any(|r| r.end().unwrap().is_multiple_of(window_len));
                prop_assert!(!more || piece.len.get() == piece_len || at_border, "a piece is needlessly short");
            }
            let expected: Vec<_> = (0..len).map(|i| (offsets.0 + i, offsets.1 + i)).collect();
            prop_assert_eq!(moved, expected);
        }
    }
}
