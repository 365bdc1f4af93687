//! Words that are raised once data have arrived.

use bytemuck::Pod;

use super::Symmetric;
use crate::error::Result;
use crate::heap::{HeapOffset, HeapPlace, Region};
use crate::rank::Rank;
use crate::shm::CacheHint;
use crate::sync::AtomicWord;
use crate::sync::atomic::AtomicU64;
use crate::trace::Verb;

/// How a word is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOp {
    /// The word becomes the value. It is quicker, and serves one sender at a time.
    Set,
    /// The value is added to the word, which may have any number of senders.
    Add,
}

/// What tells the target of a put that its data have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordSignal {
    /// The word of 8 bytes, in the heap that the data go to.
    pub word: HeapOffset,
    /// How it is raised.
    pub op: SignalOp,
    /// By how much, or to what.
    pub value: u64,
}

impl WordSignal {
    /// Sets the word at `word` to `value`.
    #[must_use]
    pub const fn set(word: HeapOffset, value: u64) -> Self {
        Self { word, op: SignalOp::Set, value }
    }

    /// Adds `value` to the word at `word`.
    #[must_use]
    pub const fn add(word: HeapOffset, value: u64) -> Self {
        Self { word, op: SignalOp::Add, value }
    }

    #[inline]
    fn raise(self, word: &AtomicU64) {
        match self.op {
            SignalOp::Set => AtomicWord::set(word, self.value),
            SignalOp::Add => _ = AtomicWord::fetch_add(word, self.value),
        }
    }
}

impl Symmetric {
    /// Does a [`put`](Symmetric::put), then raises a word of `rank`. Whoever has seen the word
    /// raised, by a wait, a test or an atomic, finds the data.
    ///
    /// # Errors
    /// [`Error::Misaligned`](crate::Error::Misaligned) for the word; otherwise those of
    /// [`Symmetric::read`], for data and word. Nothing was moved and nothing raised.
    #[inline]
    pub fn put_signal<T: Pod>(
        &self,
        rank: Rank,
        target: HeapOffset,
        source: &[T],
        signal: WordSignal,
    ) -> Result<()> {
        let bytes = bytemuck::cast_slice(source);
        let len = bytes.len() as u64;
        self.verb(Verb::PUT_WITH_SIGNAL, rank, len, |all| {
            let reached = all.reach(rank, Region::new(target, len))?;
            let word = all.signalled(rank, signal)?;
            all.change(reached, |heap| {
                heap.copy_in(target.get(), bytes)?;
                all.written(rank, target, len);
                signal.raise(word);
                Ok(())
            })
        })
    }

    /// Does a [`copy`](Symmetric::copy), then raises a word of the target's rank.
    ///
    /// # Errors
    /// Fails as [`Symmetric::put_signal`] does.
    #[inline]
    pub fn copy_signal(
        &self,
        source: HeapPlace,
        target: HeapPlace,
        len: u64,
        signal: WordSignal,
    ) -> Result<()> {
        self.verb(Verb::PUT_WITH_SIGNAL, target.rank, len, |all| {
            let (from, to) = (all.place(source)?, all.place(target)?);
            let word = all.signalled(target.rank, signal)?;
            all.change(all.target(target.rank)?, |_| {
                all.heaps.copy(from, to, len, CacheHint::Keep)?;
                all.written(target.rank, target.offset, len);
                signal.raise(word);
                Ok(())
            })
        })
    }

    /// Raises a word of `rank`, which publishes all that this rank did before.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn signal(&self, rank: Rank, signal: WordSignal) -> Result<()> {
        self.verb(Verb::SIGNAL, rank, 0, |all| {
            let word = all.signalled(rank, signal)?;
            all.change(all.target(rank)?, |_| signal.raise(word));
            Ok(())
        })
    }

    /// Returns the word of `rank` that `signal` raises.
    #[inline]
    fn signalled(&self, rank: Rank, signal: WordSignal) -> Result<&AtomicU64> {
        self.reach(rank, Region::new(signal.word, 8))?.heap.atomic(signal.word.get())
    }
}
