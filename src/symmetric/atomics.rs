//! Atomic operations on one element of any rank's heap.
//!
//! They are atomic towards each other, whichever ranks and threads make them, and towards nothing
//! else: a `write`, a `put` or a store by address that goes to the same element at the same time
//! may be lost.

use super::atom::sealed::AsWord;
use super::{Atom, IntegerAtom, Symmetric, TargetHeap};
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;
use crate::sync::AtomicWord;
use crate::trace::Verb;

/// The bits of the word that an element is kept in.
type WordBits<T> = <<T as AsWord>::Word as AtomicWord>::Bits;

impl Symmetric {
    /// Reads the element at `source` of the heap of `rank`.
    ///
    /// # Errors
    /// [`Error::Misaligned`](crate::Error::Misaligned) unless the offset is a multiple of the size
    /// of the element; otherwise those of [`Symmetric::read`]. Every atomic has these, and has
    /// changed nothing then.
    #[inline]
    pub fn fetch<T: Atom>(&self, rank: Rank, source: HeapOffset) -> Result<T> {
        match self.word_at_hand::<T>(rank, source) {
            Some((_, word)) => Ok(T::from_bits(word.fetch())),
            None => self.fetch_watched(rank, source),
        }
    }

    #[inline(never)]
    fn fetch_watched<T: Atom>(&self, rank: Rank, source: HeapOffset) -> Result<T> {
        self.verb(Verb::ATOMIC, rank, size_of::<T>() as u64, |all| {
            Ok(T::from_bits(all.word::<T>(rank, source)?.1.fetch()))
        })
    }

    /// Writes the element at `target` of the heap of `rank`.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn set<T: Atom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<()> {
        self.atomic::<T, _>(rank, target, move |word| word.set(value.into_bits()))
    }

    /// Writes the element at `target` of the heap of `rank`, and returns what it was before.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn swap<T: Atom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<T> {
        self.atomic::<T, _>(rank, target, move |word| T::from_bits(word.swap(value.into_bits())))
    }

    /// Writes the element at `target` of the heap of `rank` if it is `expected`, and returns what
    /// it was before. It was written if the result is `expected`.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn compare_swap<T>(&self, rank: Rank, target: HeapOffset, expected: T, value: T) -> Result<T>
    where
        T: IntegerAtom,
    {
        self.atomic::<T, _>(rank, target, move |word| {
            T::from_bits(word.compare_swap(expected.into_bits(), value.into_bits()))
        })
    }

    /// Adds to the element at `target` of the heap of `rank`.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn add<T: Atom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<()> {
        self.fetch_add(rank, target, value).map(drop)
    }

    /// Adds to the element at `target` of the heap of `rank`, and returns what it was before.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn fetch_add<T: Atom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<T> {
        self.atomic::<T, _>(rank, target, move |word| value.add_to(word))
    }

    /// Keeps those bits of the element at `target` of the heap of `rank` that `value` has.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn and<T: IntegerAtom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<()> {
        self.fetch_and(rank, target, value).map(drop)
    }

    /// Does an [`and`](Symmetric::and), and returns what the element was before.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn fetch_and<T: IntegerAtom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<T> {
        self.combine(rank, target, value, T::Word::fetch_and)
    }

    /// Sets those bits of the element at `target` of the heap of `rank` that `value` has.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn or<T: IntegerAtom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<()> {
        self.fetch_or(rank, target, value).map(drop)
    }

    /// Does an [`or`](Symmetric::or), and returns what the element was before.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn fetch_or<T: IntegerAtom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<T> {
        self.combine(rank, target, value, T::Word::fetch_or)
    }

    /// Turns those bits of the element at `target` of the heap of `rank` over that `value` has.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn xor<T: IntegerAtom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<()> {
        self.fetch_xor(rank, target, value).map(drop)
    }

    /// Does an [`xor`](Symmetric::xor), and returns what the element was before.
    ///
    /// # Errors
    /// Fails as [`Symmetric::fetch`] does.
    #[inline]
    pub fn fetch_xor<T: IntegerAtom>(&self, rank: Rank, target: HeapOffset, value: T) -> Result<T> {
        self.combine(rank, target, value, T::Word::fetch_xor)
    }

    #[inline]
    fn combine<T: IntegerAtom>(
        &self,
        rank: Rank,
        target: HeapOffset,
        value: T,
        operation: impl FnOnce(&T::Word, WordBits<T>) -> WordBits<T>,
    ) -> Result<T> {
        self.atomic::<T, _>(rank, target, move |word| T::from_bits(operation(word, value.into_bits())))
    }

    /// Does `change` to the word at `offset` of the heap of `rank`.
    #[inline]
    fn atomic<T: Atom, R>(
        &self,
        rank: Rank,
        offset: HeapOffset,
        change: impl FnOnce(&T::Word) -> R,
    ) -> Result<R> {
        match self.word_at_hand::<T>(rank, offset) {
            Some((target, word)) => Ok(self.change(target, |_| change(word))),
            None => self.atomic_watched::<T, R>(rank, offset, change),
        }
    }

    #[inline(never)]
    fn atomic_watched<T: Atom, R>(
        &self,
        rank: Rank,
        offset: HeapOffset,
        change: impl FnOnce(&T::Word) -> R,
    ) -> Result<R> {
        self.verb(Verb::ATOMIC, rank, size_of::<T>() as u64, |all| {
            let (target, word) = all.word::<T>(rank, offset)?;
            Ok(all.change(target, |_| change(word)))
        })
    }

    /// Returns the word at `offset` of the heap of `rank`, and whose it is.
    #[inline]
    fn word<T: Atom>(&self, rank: Rank, offset: HeapOffset) -> Result<(&TargetHeap, &T::Word)> {
        let target = self.reach(rank, region_of::<T>(offset))?;
        Ok((target, target.heap.atomic(offset.get())?))
    }

    /// Does as [`Symmetric::word`] if it may be changed at once.
    #[inline]
    fn word_at_hand<T: Atom>(&self, rank: Rank, offset: HeapOffset) -> Option<(&TargetHeap, &T::Word)> {
        let target = self.at_hand(rank, region_of::<T>(offset))?;
        Some((target, target.heap.word(offset.get())?))
    }
}

#[inline]
fn region_of<T>(offset: HeapOffset) -> Region {
    Region::new(offset, size_of::<T>() as u64)
}
