//! What a thread records of what it does: records in a ring, the newest of which are kept.
//!
//! Each writer fills positions one after the other, from a *block* of positions that is its own.
//! Taking a block is the one step in which writers meet, once in [`BLOCK`] records. So recording
//! needs no locked instruction otherwise; one would wait until all that the thread has stored
//! before is out, such as a put. The [`CursorCell`] of a writer holds its next position.
//!
//! ```text
//! cursor at the start of a block: take the next block ──► cursor + 1 ──► fill the slot ──► ...
//!                                                        ▲ also when the ring has gone round
//! ```
//!
//! A record is in the slot of its position modulo the length of the ring, the word with the lap
//! last. A reader knows by the lap whether the record of a position is there. A record that a dead
//! writer has left half written is not there, nor one that was overwritten. Where the position was
//! taken and is not used yet, the record of the lap before is still there.
//!
//! There is no edge, and so no model; Relaxed suffices. Rings are read when their writers have
//! ended, which orders it: processes were waited for, threads joined, or the last handle was
//! dropped. Where a thread still writes all the same, a record may be a mixture of words that
//! somebody has stored. None of them is believed, and only a picture is made of them.

use super::atomic::{AtomicU64, Ordering, Reserved};
use super::plain::{load, store};

/// How many words a record has.
pub const RECORD_WORDS: usize = 4;

/// How many positions a writer takes at once; a ring has as many, or more.
pub const BLOCK: u64 = 64;

/// How many bits of the last word say the lap.
const LAP_BITS: u32 = 8;

/// A slot of a ring.
///
/// | field | bytes | what |
/// |---|---|---|
/// | words | 0..32 | what the writer records; the lowest 8 bits of the last: the lap, 128 to 255 |
#[repr(C, align(32))]
#[derive(Debug)]
pub struct RecordCell {
    words: [AtomicU64; RECORD_WORDS],
}

/// Where a writer has come to, alone in its two cache lines.
///
/// | field | bytes | what |
/// |---|---|---|
/// | next | 0..8 | the next position; at the start of a block, that there is none |
/// | reserved | 8..128 | nothing |
#[repr(C, align(128))]
#[derive(Debug)]
pub struct CursorCell {
    next: AtomicU64,
    reserved: Reserved<30>,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<RecordCell>() == 32 && align_of::<RecordCell>() == 32);
    assert!(size_of::<CursorCell>() == 128 && std::mem::offset_of!(CursorCell, next) == 0);
};

/// A ring of records, the word that counts how many positions were taken, and how far each writer
/// has come.
#[derive(Clone, Copy, Debug)]
pub struct RecordRing<'a> {
    /// How many.
    pub taken: &'a AtomicU64,
    /// One for each writer.
    pub cursors: &'a [CursorCell],
    /// A power of two of them.
    pub slots: &'a [RecordCell],
}

impl RecordRing<'_> {
    /// Returns the position at which the writer of `cursor` fills in its next record, if its block
    /// has one; it is the only one.
    #[inline]
    #[must_use]
    pub fn advance(self, cursor: &CursorCell) -> Option<u64> {
        let position = load(&cursor.next);
        self.is_usable(position).then(|| {
            store(&cursor.next, position + 1);
            position
        })
    }

    /// Returns the first position of a block that the writer of `cursor` takes.
    #[must_use]
    pub fn take_block(self, cursor: &CursorCell) -> u64 {
        let position = self.next_block();
        store(&cursor.next, position + 1);
        position
    }

    /// Returns the next position for one of several writers that share `cursor`.
    #[must_use]
    pub fn advance_shared(self, cursor: &CursorCell) -> u64 {
        loop {
            let next = load(&cursor.next);
            let position = if self.is_usable(next) { next } else { self.next_block() };
            // Relaxed: a number that no other writer gets. A writer that is too late has taken a
            // block for nothing, which remains empty.
            let taken =
                cursor.next.compare_exchange(next, position + 1, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                return position;
            }
        }
    }

    /// Fills in the record at `position`: `words`, of the last of which the lowest 8 bits are lost.
    #[inline]
    pub fn fill(self, position: u64, words: [u64; RECORD_WORDS]) {
        let Some(slot) = self.slot(position) else { return };
        let [first, second, third, last] = words;
        store(&slot.words[0], first);
        store(&slot.words[1], second);
        store(&slot.words[2], third);
        store(&slot.words[3], last >> LAP_BITS << LAP_BITS | self.lap(position));
    }

    /// Returns the slot of `position`.
    #[inline]
    #[must_use]
    pub fn slot(&self, position: u64) -> Option<&RecordCell> {
        self.slots.get(self.index(position))
    }

    /// Returns how many positions were taken.
    #[must_use]
    pub fn taken(self) -> u64 {
        load(self.taken)
    }

    /// Returns what is there to be read.
    #[must_use]
    pub fn kept(self) -> KeptRecords {
        let end = self.taken();
        let start = end.saturating_sub(self.slots.len() as u64);
        let (mut kept, mut blocks) = (KeptRecords { overwritten: start, ..KeptRecords::default() }, start);
        while blocks < end {
            self.keep(blocks, &mut kept);
            blocks += BLOCK;
        }
        kept
    }

    /// Adds what there is of the block from `start` on.
    fn keep(self, start: u64, kept: &mut KeptRecords) {
        let is_within = |next: &u64| (start + 1..start + BLOCK).contains(next);
        let used = self.cursors.iter().map(|cursor| load(&cursor.next)).find(is_within);
        let before = kept.records.len();
        let mut unfinished = 0;
        for position in start..start + BLOCK {
            let older = position.checked_sub(self.slots.len() as u64);
            match self.read(position) {
                Some(record) => kept.records.push(record),
                None if used.is_none_or(|used| position < used) => unfinished += 1,
                None => {
                    let older = older.and_then(|older| self.read(older));
                    kept.overwritten -= u64::from(older.is_some());
                    kept.records.extend(older);
                }
            }
        }
        // Of a block that was taken for nothing, or by a writer that was killed before it used it,
        // nothing is missing.
        if used.is_some() || kept.records.len() > before {
            kept.unfinished += unfinished;
        }
    }

    /// Returns the record at `position`, if it is there and whole.
    fn read(self, position: u64) -> Option<[u64; RECORD_WORDS]> {
        let slot = self.slot(position)?;
        let words: [u64; RECORD_WORDS] = std::array::from_fn(|word| load(&slot.words[word]));
        let lap = words[RECORD_WORDS - 1] & ((1 << LAP_BITS) - 1);
        (lap == self.lap(position)).then_some(words)
    }

    /// Returns whether `next` is in a block behind its start, and no other writer has come to its
    /// slot meanwhile.
    #[inline]
    #[must_use]
    pub fn is_usable(self, next: u64) -> bool {
        !next.is_multiple_of(BLOCK) && load(self.taken).wrapping_sub(next) <= self.slots.len() as u64
    }

    fn next_block(self) -> u64 {
        self.taken.fetch_add(BLOCK, Ordering::Relaxed) // Relaxed: numbers that nobody else gets
    }

    #[inline]
    fn index(self, position: u64) -> usize {
        // Below the length, so nothing is lost.
        usize::try_from(position & (self.slots.len() as u64).wrapping_sub(1)).unwrap_or(0)
    }

    /// Tells a lap from those before and after it; never what an unused slot says.
    #[inline]
    fn lap(self, position: u64) -> u64 {
        const USED: u64 = 1 << (LAP_BITS - 1);
        position >> self.slots.len().trailing_zeros() & (USED - 1) | USED
    }
}

/// What a ring holds.
#[derive(Debug, Default)]
pub struct KeptRecords {
    /// The newest records.
    pub records: Vec<[u64; RECORD_WORDS]>,
    /// How many older ones there were; the rest of a block that a writer has left for long counts
    /// as some.
    pub overwritten: u64,
    /// How many their writers did not finish.
    pub unfinished: u64,
}

#[cfg(all(test, not(loom)))]
mod tests;
