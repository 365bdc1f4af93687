//! The words of a rank that calls need besides the memory of the program. They are in its heap, at
//! the same offset on all ranks.
//!
//! | words | what | written by |
//! |---|---|---|
//! | 0 | the status of `shmem_global_exit`, and that there is one | whoever ends the job |
//! | 32 + 32 s | the words of team slot s | its members |
//!
//! A slot has [`ROUNDS`] words for rounds of synchronisation, then words in which its owner shows
//! something to the other members.

use std::ptr::NonNull;

use shmccl::sync::atomic::AtomicU64;

/// The slot of all ranks.
pub(crate) const WORLD_SLOT: usize = 0;

/// How many teams a rank can be in at once, those that always exist included.
pub(crate) const SLOTS: usize = 1024;

/// Rounds of a synchronisation of as many ranks as a job may have, which are 256.
pub(crate) const ROUNDS: usize = 8;

/// The words of a slot.
const SLOT_WORDS: usize = 32;

/// The length of it all.
pub(crate) const CONTROL_LEN: u64 = ((SLOTS + 1) * SLOT_WORDS * 8) as u64;

/// The words of this rank.
#[derive(Clone, Copy)]
pub(crate) struct ControlWords(NonNull<u8>);

// SAFETY: what it leads to are atomics in memory that stays mapped.
unsafe impl Send for ControlWords {}
// SAFETY: as above.
unsafe impl Sync for ControlWords {}

impl ControlWords {
    pub(crate) fn new(start: NonNull<u8>) -> Self {
        Self(start)
    }

    /// Returns the word that ends the job.
    pub(crate) fn exit(self) -> *const AtomicU64 {
        self.0.as_ptr().cast::<AtomicU64>()
    }

    /// Returns the words of a slot.
    pub(crate) fn slot(self, slot: usize) -> *const AtomicU64 {
        self.exit().wrapping_add((slot + 1) * SLOT_WORDS)
    }
}
