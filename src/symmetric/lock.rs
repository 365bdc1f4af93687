//! Locks: words of 8 bytes in the heap of any rank, which outlive whoever holds them.
//!
//! A word is a lock that nobody holds when it is 0. How it is taken and handed on is told in
//! [`lock`](crate::sync::lock). A word may also lie elsewhere, where all ranks have it mapped:
//! [`LockWord`].

use super::Symmetric;
use crate::channel::{EpochMapping, WaitKind};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;
use crate::sync::atomic::AtomicU64;
pub use crate::sync::lock::Acquired;
use crate::sync::lock::{HeapLock, LockRanks, WishCell};
use crate::trace::Verb;

/// The operation in whose name a lock that is taken is refused.
const TRY_LOCK: &str = "try_lock";

/// A lock by its word, wherever that is.
#[derive(Clone, Copy, Debug)]
pub struct LockWord<'a> {
    /// The word as this rank has it mapped.
    pub word: &'a AtomicU64,
    /// What names it: on all ranks the same number, which no other lock has: from 1 to 2^63 - 1.
    pub name: u64,
}

impl LockWord<'_> {
    /// # Errors
    /// [`Error::InvalidArgument`] for a name that a program must not give.
    fn of_program(self) -> Result<Self> {
        let expected = "a number from 1 to 2^63 - 1";
        let invalid = Error::InvalidArgument { name: "name of a lock", value: self.name, expected };
        if (1..OF_HEAP).contains(&self.name) { Ok(self) } else { Err(invalid) }
    }
}

/// The bit of the names of locks of the heap.
const OF_HEAP: u64 = 1 << 63;

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
        self.verb(Verb::LOCK, rank, 0, |all| all.acquire(all.heap_lock(rank, word)?))
    }

    /// Takes a lock by its word, as [`Symmetric::lock`] does.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::PeerLost`] and [`Error::Revoked`] when the lock does not come;
    /// [`Error::InvalidArgument`] for its name, and [`Error::Unavailable`].
    #[inline]
    pub fn lock_word(&self, lock: LockWord<'_>) -> Result<Acquired> {
        self.verb(Verb::LOCK, self.rank, 0, |all| all.acquire(lock.of_program()?))
    }

    /// Takes the lock at `word` of the heap of `rank` if nobody holds it. A try that fails lets
    /// other threads have the core, as programs poll by it.
    ///
    /// # Errors
    /// As [`Symmetric::lock`], without a deadline: a try that fails looks whether the epoch has
    /// ended.
    #[inline]
    pub fn try_lock(&self, rank: Rank, word: HeapOffset) -> Result<Option<Acquired>> {
        self.tested(TRY_LOCK, None, |all| Ok(all.known(all.heap_lock(rank, word)?).try_acquire()))
    }

    /// Takes a lock by its word if nobody holds it, as [`Symmetric::try_lock`] does.
    ///
    /// # Errors
    /// Fails as [`Symmetric::lock_word`] does, without a deadline.
    #[inline]
    pub fn try_lock_word(&self, lock: LockWord<'_>) -> Result<Option<Acquired>> {
        self.tested(TRY_LOCK, None, |all| Ok(all.known(lock.of_program()?).try_acquire()))
    }

    /// Lets the lock at `word` of the heap of `rank` go, which this rank holds. It goes to the next
    /// rank that waits for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where this rank does not hold it; otherwise those of
    /// [`Symmetric::fetch`].
    #[inline]
    pub fn unlock(&self, rank: Rank, word: HeapOffset) -> Result<()> {
        self.verb(Verb::UNLOCK, rank, 0, |all| all.release(all.heap_lock(rank, word)?))
    }

    /// Lets a lock go by its word, as [`Symmetric::unlock`] does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where this rank does not hold it, or for its name, and
    /// [`Error::Unavailable`].
    #[inline]
    pub fn unlock_word(&self, lock: LockWord<'_>) -> Result<()> {
        self.verb(Verb::UNLOCK, self.rank, 0, |all| all.release(lock.of_program()?))
    }

    fn heap_lock(&self, rank: Rank, word: HeapOffset) -> Result<LockWord<'_>> {
        let target = self.reach(rank, Region::new(word, 8))?;
        // Offsets are below 2^40.
        let name = OF_HEAP | u64::from(target.member.get()) << 48 | word.get();
        Ok(LockWord { word: target.heap.atomic(word.get())?, name })
    }

    /// Returns a lock as this rank sees it.
    fn known<'a>(&'a self, LockWord { word, name }: LockWord<'a>) -> HeapLock<'a, EpochMapping> {
        HeapLock { word, name, rank: self.context.rank(), ranks: self.context.mapped() }
    }

    fn acquire(&self, lock: LockWord<'_>) -> Result<Acquired> {
        let lock = self.known(lock);
        lock.try_acquire().map_or_else(|| self.wait_for_turn(&lock), Ok)
    }

    fn release(&self, lock: LockWord<'_>) -> Result<()> {
        let expected = "a lock that this rank holds";
        let foreign = |value| Error::InvalidArgument { name: "lock", value, expected };
        self.wake_holder(self.known(lock).release().map_err(foreign)?);
        Ok(())
    }

    #[inline(never)]
    fn wait_for_turn(&self, lock: &HeapLock<'_, EpochMapping>) -> Result<Acquired> {
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
