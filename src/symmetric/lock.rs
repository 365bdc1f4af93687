//! Locks: words of 8 bytes in the heap of any rank, which outlive whoever holds them.
//!
//! A word is a lock that nobody holds when it is 0. How it is taken and handed on is told in
//! [`lock`](crate::sync::lock).

use super::Symmetric;
use crate::channel::{EpochMapping, WaitKind};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;
pub use crate::sync::lock::Acquired;
use crate::sync::lock::{HeapLock, LockRanks, WishCell};
use crate::trace::Verb;

/// The operation in whose name a lock that is taken is refused.
const TRY_LOCK: &str = "try_lock";

impl LockRanks for EpochMapping {
    fn n_ranks(&self) -> u32 {
        self.n_ranks()
    }

    fn wishes(&self, rank: Rank) -> &WishCell {
        self.lock_wishes(rank)
    }

    #[inline]
    fn is_gone(&self, rank: Rank) -> bool {
        self.life(rank).status().is_gone()
    }
}

impl Symmetric {
    /// Takes the lock at `word` of the heap of `rank`, for this rank. Waits while another rank, or
    /// another thread of this one, holds it. Turns go round by rank.
    ///
    /// All that was done under the lock before is there. Where its last holder died or left with
    /// it, the result is [`Acquired::Recovered`], once: what the lock guards may be half done.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::PeerLost`] and [`Error::Revoked`] when the lock does not come;
    /// otherwise those of [`Symmetric::fetch`]. The lock was not taken then.
    #[inline]
    pub fn lock(&self, rank: Rank, word: HeapOffset) -> Result<Acquired> {
        self.verb(Verb::LOCK, rank, 0, |all| {
            let lock = all.heap_lock(rank, word)?;
            lock.try_acquire().map_or_else(|| all.wait_for(&lock), Ok)
        })
    }

    /// Takes the lock at `word` of the heap of `rank` if nobody holds it. A try that fails lets
    /// other threads have the core, as programs poll by it.
    ///
    /// # Errors
    /// As [`Symmetric::lock`], without a deadline: a try that fails looks whether the epoch has
    /// ended.
    #[inline]
    pub fn try_lock(&self, rank: Rank, word: HeapOffset) -> Result<Option<Acquired>> {
        self.tested(TRY_LOCK, None, |all| Ok(all.heap_lock(rank, word)?.try_acquire()))
    }

    /// Lets the lock at `word` of the heap of `rank` go, which this rank holds. It goes to the next
    /// rank that waits for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where this rank does not hold it; otherwise those of
    /// [`Symmetric::fetch`].
    #[inline]
    pub fn unlock(&self, rank: Rank, word: HeapOffset) -> Result<()> {
        self.verb(Verb::UNLOCK, rank, 0, |all| {
            let expected = "a lock that this rank holds";
            let foreign = |value| Error::InvalidArgument { name: "lock", value, expected };
            let next = all.heap_lock(rank, word)?.release().map_err(foreign)?;
            all.wake_holder(next);
            Ok(())
        })
    }

    fn heap_lock(&self, rank: Rank, word: HeapOffset) -> Result<HeapLock<'_, EpochMapping>> {
        let target = self.reach(rank, Region::new(word, 8))?;
        // Offsets are below 2^40.
        let name = (u64::from(target.member.get()) + 1) << 48 | word.get();
        let (word, mapped) = (target.heap.atomic(word.get())?, self.context.mapped());
        Ok(HeapLock { word, name, rank: self.context.rank(), ranks: mapped })
    }

    #[inline(never)]
    fn wait_for(&self, lock: &HeapLock<'_, EpochMapping>) -> Result<Acquired> {
        let mut wish = lock.wish();
        let acquired = self.until(WaitKind::Lock, || wish.poll());
        self.wake_holder(wish.end());
        acquired
    }

    /// Wakes the threads of a rank that a lock was handed to.
    fn wake_holder(&self, rank: Option<Rank>) {
        if let Some(rank) = rank {
            self.context.mapped().cells(rank).word_park().wake(&self.kernel);
        }
    }
}
