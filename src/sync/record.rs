//! What a thread notes of what it does: records in a ring, the newest of which are kept.
//!
//! A writer takes the next position and fills the slot of that position modulo the length of the ring, the word with the lap last.
//! A reader knows by the lap whether the record of a position is there: one that a dead writer has left half written is not, nor is
//! one that was overwritten.
//!
//! There is no edge, and Relaxed suffices: rings are read when those who write there have ended, which orders it (their processes were
//! waited for, their threads joined, or the last handle was dropped). Where a thread still writes all the same, a record may be a
//! mixture: words that somebody has stored, of which none is believed and only a picture is made. So there is no model of it.

use super::atomic::AtomicU64;
use super::plain::{load, next, store};

/// The words of a record.
pub const RECORD_WORDS: usize = 4;

/// How many bits of the last word say the lap.
const LAP_BITS: u32 = 8;

/// A slot of a ring.
///
/// | field | bytes | what |
/// |---|---|---|
/// | words | 0..32 | whatever the writer notes; the lowest 8 bits of the last one are the lap, from 1 to 255 |
#[repr(C, align(32))]
#[derive(Debug)]
pub struct RecordCell {
    words: [AtomicU64; RECORD_WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RecordCell>() == 32 && align_of::<RecordCell>() == 32);

/// A ring of records, and the word that counts how many were begun.
#[derive(Clone, Copy, Debug)]
pub struct RecordRing<'a> {
    /// How many.
    pub begun: &'a AtomicU64,
    /// A power of two of them.
    pub slots: &'a [RecordCell],
}

impl RecordRing<'_> {
    /// Notes `words`, of the last of which the lowest 8 bits are lost.
    #[inline]
    pub fn note(self, words: [u64; RECORD_WORDS]) {
        let position = next(self.begun);
        let Some(slot) = self.slots.get(self.index(position)) else { return };
        let [first, second, third, last] = words;
        store(&slot.words[0], first);
        store(&slot.words[1], second);
        store(&slot.words[2], third);
        store(&slot.words[3], last >> LAP_BITS << LAP_BITS | self.lap(position));
    }

    /// How many records were begun.
    #[must_use]
    pub fn begun(self) -> u64 {
        load(self.begun)
    }

    /// The positions whose records have not been overwritten.
    #[must_use]
    pub fn kept(self) -> std::ops::Range<u64> {
        let end = self.begun();
        end.saturating_sub(self.slots.len() as u64)..end
    }

    /// The record at `position`, if it is there and whole.
    #[must_use]
    pub fn read(self, position: u64) -> Option<[u64; RECORD_WORDS]> {
        let slot = self.slots.get(self.index(position))?;
        let words: [u64; RECORD_WORDS] = std::array::from_fn(|word| load(&slot.words[word]));
        let lap = words[RECORD_WORDS - 1] & ((1 << LAP_BITS) - 1);
        (lap == self.lap(position)).then_some(words)
    }

    #[inline]
    fn index(self, position: u64) -> usize {
        // Below the length, so nothing is lost.
        usize::try_from(position & (self.slots.len() as u64).wrapping_sub(1)).unwrap_or(0)
    }

    /// Tells a lap from those before and after it; never what an unused slot says.
    #[inline]
    fn lap(self, position: u64) -> u64 {
        (position >> self.slots.len().trailing_zeros()) % 255 + 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slots(len: usize) -> Vec<RecordCell> {
        let zero = || RecordCell { words: [0; RECORD_WORDS].map(AtomicU64::new) };
        (0..len).map(|_| zero()).collect()
    }

    #[test]
    fn the_newest_records_are_kept_and_the_others_counted() {
        let (begun, slots) = (AtomicU64::new(0), slots(8));
        let ring = RecordRing { begun: &begun, slots: &slots };
        assert_eq!((ring.kept(), ring.read(0)), (0..0, None));
        for number in 0..3000_u64 {
            ring.note([number, 1, 2, number << 8]);
            let kept = ring.kept();
            assert_eq!(kept, (number + 1).saturating_sub(8)..number + 1);
            assert!(kept.clone().all(|at| ring.read(at).is_some_and(|words| words[0] == at)));
            assert_eq!(kept.start.checked_sub(1).and_then(|before| ring.read(before)), None);
        }
    }

    #[test]
    fn a_record_that_was_begun_and_not_finished_is_not_there() {
        let (begun, slots) = (AtomicU64::new(0), slots(4));
        let ring = RecordRing { begun: &begun, slots: &slots };
        (0..6).for_each(|number| ring.note([number, 0, 0, 0]));
        // The writer was killed when it had taken a position and stored a word.
        store(&slots[2].words[0], 99);
        next(&begun);
        assert_eq!((ring.kept(), ring.read(6)), (3..7, None));
        assert!((3..6).all(|at| ring.read(at).is_some_and(|words| words[0] == at)));
    }
}
