//! Registered memory: a table in a rank's segment that says which bytes of which heap a memory id
//! names.
//!
//! The rank writes its own table and pushes triggers that hold ids; the proxy that serves its fifos
//! looks them up at execution, from another thread or another process. An entry is four words:
//!
//! | word | field | meaning |
//! |---|---|---|
//! | 0 | `rank_plus_one` | whose heap; 0 = the id names nothing |
//! | 1 | `offset` | where the region starts in that heap, in bytes |
//! | 2 | `len` | its length in bytes |
//! | 3 | `seal` | a hash of the other three |
//!
//! The words order nothing. A trigger that names an entry was pushed after the entry was written,
//! so the fifo's edge F1 (publish) carries the entry to the proxy. An owner that replaces an entry
//! while triggers naming it are in flight has broken its promise; the proxy might then see words of
//! both, and refuses them by the seal. An intact entry is checked against the heap on every use all
//! the same.

use shmccl_proxy::MemoryId;

use crate::error::{Error, Result, check_layout};
use crate::heap::offset::{HeapOffset, Region};
use crate::heap::windows::HeapWindows;
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// The words of an entry: `rank_plus_one`, `offset`, `len`, `seal`.
const ENTRY_WORDS: usize = 4;

/// The words of a whole table.
pub const TABLE_WORDS: usize = MemoryId::LIMIT as usize * ENTRY_WORDS;

/// What a memory id names, read from the table of some rank.
#[derive(Clone, Debug)]
pub struct MemoryTable {
    words: CellSlice<AtomicU64>,
    n_ranks: u32,
    heap_len: u64,
}

impl MemoryTable {
    /// Reads `words` as a table over the heaps of `n_ranks` ranks, each `heap_len` bytes long.
    ///
    /// # Errors
    /// [`Error::Layout`] unless there are [`TABLE_WORDS`] words.
    pub fn new(words: CellSlice<AtomicU64>, n_ranks: u32, heap_len: u64) -> Result<Self> {
        check_layout("number of memory table words", TABLE_WORDS as u64, words.len() as u64)?;
        Ok(Self { words, n_ranks, heap_len })
    }

    /// Returns which bytes `id` names.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it names nothing; [`Error::Layout`] when the entry was
    /// replaced meanwhile; [`Error::InvalidRank`] and [`Error::OutOfRange`] when it names something
    /// that does not exist.
    pub fn lookup(&self, id: MemoryId) -> Result<(Rank, Region)> {
        let entry = self.entry(id);
        let [rank_plus_one, offset, len, found] = entry.each_ref().map(plain::load);
        let Some(rank) = rank_plus_one.checked_sub(1) else {
            return Err(Error::invalid("memory id", id.get().into(), "an id that is registered"));
        };
        check_layout("seal of a memory table entry", seal([rank_plus_one, offset, len]), found)?;
        let rank = Rank::new(u32::try_from(rank).unwrap_or(u32::MAX), self.n_ranks)?;
        let region = Region::new(HeapOffset::new(offset), len);
        region.check("registered memory", self.heap_len)?;
        Ok((rank, region))
    }

    /// Returns which bytes a trigger means by `len` bytes at `offset` of `id`.
    ///
    /// # Errors
    /// Fails as [`MemoryTable::lookup`] does, or with [`Error::OutOfRange`] when they reach past
    /// what `id` names.
    pub fn resolve(&self, id: MemoryId, offset: u32, len: u32) -> Result<(Rank, Region)> {
        let (rank, region) = self.lookup(id)?;
        Ok((rank, region.part(offset.into(), len.into())?))
    }

    fn entries(&self) -> &[[AtomicU64; ENTRY_WORDS]] {
        self.words.as_chunks().0
    }

    fn entry(&self, id: MemoryId) -> &[AtomicU64; ENTRY_WORDS] {
        &self.entries()[usize::from(id.get())]
    }
}

/// The right to change a table: its one writer, on the rank that owns it.
#[derive(Debug)]
pub struct MemoryRegistrar {
    table: MemoryTable,
    /// How many ids from 0 on belong to the heaps, for good.
    reserved: u32,
}

impl MemoryRegistrar {
    /// Takes the table for writing. There must be one registrar per table.
    #[must_use]
    pub fn new(table: MemoryTable) -> Self {
        Self { table, reserved: 0 }
    }

    /// Gives `region` of the heap of `rank` the lowest id that is not in use.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] and [`Error::OutOfRange`] when there is no such memory;
    /// [`Error::Exhausted`] when all ids are in use.
    pub fn register(&mut self, rank: Rank, region: Region) -> Result<MemoryId> {
        Rank::new(rank.get(), self.table.n_ranks)?;
        region.check("registered memory", self.table.heap_len)?;
        let unused = self.table.entries().iter().position(|entry| plain::load(&entry[0]) == 0);
        let index = unused.ok_or(Error::Exhausted { what: "memory ids", limit: MemoryId::LIMIT.into() })?;
        let words = [u64::from(rank.get()) + 1, region.offset.get(), region.len];
        let id = memory_id(index);
        for (word, value) in self.table.entry(id).iter().zip(words.into_iter().chain([seal(words)])) {
            plain::store(word, value);
        }
        Ok(id)
    }

    /// Takes `id` back. No trigger that names it may be in flight: flush first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the id names nothing, or is one by which channels name the
    /// heaps.
    pub fn unregister(&mut self, id: MemoryId) -> Result<()> {
        let entry = self.table.entry(id);
        if plain::load(&entry[0]) == 0 || u32::from(id.get()) < self.reserved {
            let expected = "an id that was registered, and not one of the heaps";
            return Err(Error::InvalidArgument { name: "memory id", value: id.get().into(), expected });
        }
        entry.iter().for_each(|word| plain::store(word, 0));
        Ok(())
    }
}

/// Registers every window of every heap in an empty table, so that ids follow from arithmetic.
///
/// # Errors
/// [`Error::Layout`] when the table was not empty; otherwise those of
/// [`MemoryRegistrar::register`].
pub fn heap_windows(registrar: &mut MemoryRegistrar, windows: &HeapWindows) -> Result<()> {
    for (expected, (rank, region)) in (0_u64..).zip(windows.iter()) {
        let found = registrar.register(rank, region)?;
        check_layout("first unused memory id", expected, found.get().into())?;
    }
    registrar.reserved = windows.ids();
    Ok(())
}

fn memory_id(index: usize) -> MemoryId {
    let id = u32::try_from(index).expect("a table has 512 entries");
    MemoryId::new(id).expect("a table has as many entries as there are ids")
}

/// Ties the words of an entry together, so that a mix of two entries does not pass for one.
fn seal(words: [u64; 3]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash: u64, word| {
        (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
    })
}

#[cfg(test)]
mod tests;
