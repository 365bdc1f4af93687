//! Waiting for words of this rank's own heap, and testing them.
//!
//! A wait goes through the one waiting loop ([`wait`](crate::sync::wait)). Verbs of this library
//! that write into the heap of a rank wake its sleepers, and a store by address does not. So sleeps
//! are bounded: a millisecond at first, then twice as long each time up to [`LONGEST_NAP`].

use std::time::Duration;

use super::{Atom, Symmetric};
use crate::channel::{EpochWatch, LongWait, RankContext, WaitKind};
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;
use crate::sync::{AtomicWord, Kernel, Stop, WaitingIn, Watch, spin_until, wait_until};
use crate::trace::Verb;

/// How long a rank sleeps at most, when a word may change without a wake.
const LONGEST_NAP: Duration = Duration::from_millis(20);

/// The operation in whose name a test fails.
pub(super) const TEST: &str = "test";

/// How a word has to stand to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`, in OpenSHMEM `SHMEM_CMP_EQ`.
    Equal,
    /// `!=`, in OpenSHMEM `SHMEM_CMP_NE`.
    NotEqual,
    /// `>`, in OpenSHMEM `SHMEM_CMP_GT`.
    Greater,
    /// `>=`, in OpenSHMEM `SHMEM_CMP_GE`.
    GreaterOrEqual,
    /// `<`, in OpenSHMEM `SHMEM_CMP_LT`.
    Less,
    /// `<=`, in OpenSHMEM `SHMEM_CMP_LE`.
    LessOrEqual,
}

impl Comparison {
    /// Returns whether `found` stands so to `value`.
    #[inline]
    #[must_use]
    pub fn holds<T: PartialOrd>(self, found: T, value: T) -> bool {
        match self {
            Self::Equal => found == value,
            Self::NotEqual => found != value,
            Self::Greater => found > value,
            Self::GreaterOrEqual => found >= value,
            Self::Less => found < value,
            Self::LessOrEqual => found <= value,
        }
    }
}

/// A wait for words of a heap.
#[derive(Debug)]
struct WordWait<'a> {
    all: &'a Symmetric,
    kind: WaitKind,
    /// The ranks of which one has to be there; none where any may leave.
    needed: &'a [Rank],
}

impl WordWait<'_> {
    /// Returns a rank as the job numbers it.
    fn member(&self, rank: Rank) -> Rank {
        self.all.targets[rank.index()].member
    }

    /// Returns one of those that are needed, when all of them are gone.
    fn missing(&self) -> Option<Rank> {
        let is_gone = |rank: &Rank| self.all.context.mapped().life(self.member(*rank)).status().is_gone();
        let last = self.needed.last().filter(|_| self.needed.iter().all(is_gone));
        last.map(|rank| self.member(*rank))
    }

    /// Returns the rank that is awaited, if it is a certain one.
    fn awaited(&self) -> Option<Rank> {
        if let [rank] = self.needed { Some(self.member(*rank)) } else { None }
    }
}

impl LongWait for WordWait<'_> {
    fn context(&self) -> &RankContext {
        &self.all.context
    }

    fn stop(&self) -> Option<Stop> {
        self.all.context.watch(None).check().or_else(|| self.missing().map(Stop::PeerLost))
    }

    fn seen(&self) -> WaitingIn {
        let awaited = self.awaited().into_iter().collect();
        WaitingIn { call: None, kind: self.kind as u64, step: 0, awaited }
    }

    fn longest_sleep(&self, slept: u32) -> Duration {
        Duration::from_millis(1 << slept.min(5)).min(LONGEST_NAP)
    }
}

impl Symmetric {
    /// Waits until the element at `word` of this rank's own heap stands to `value` as `comparison`
    /// says, and returns it. What its writer did before is there then.
    ///
    /// Any rank may write it, by any verb or by address. A store by address is seen up to 20 ms
    /// later.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout), [`Error::PeerLost`](crate::Error::PeerLost) and
    /// [`Error::Revoked`](crate::Error::Revoked) when nothing comes; otherwise those of
    /// [`Symmetric::fetch`].
    #[inline]
    pub fn wait_until<T: Atom>(&self, word: HeapOffset, comparison: Comparison, value: T) -> Result<T> {
        self.verb(Verb::WAIT_UNTIL, self.rank, 0, |all| {
            let word = all.own_word::<T>(word)?;
            all.until(WaitKind::WaitUntil, || {
                Some(T::from_bits(word.fetch())).filter(|found| comparison.holds(*found, value))
            })
        })
    }

    /// Returns whether the element at `word` of this rank's own heap stands to `value` as
    /// `comparison` says. What its writer did before is there then.
    ///
    /// A test that fails lets other threads have the core, as programs poll by it.
    ///
    /// # Errors
    /// As [`Symmetric::wait_until`], without a deadline: a test that fails looks whether the epoch
    /// has ended.
    #[inline]
    pub fn test<T: Atom>(&self, word: HeapOffset, comparison: Comparison, value: T) -> Result<bool> {
        self.tested(TEST, false, |all| {
            Ok(comparison.holds(T::from_bits(all.own_word::<T>(word)?.fetch()), value))
        })
    }

    /// Waits until `poll`, which looks at words of this rank, returns something. Whoever changes
    /// one by address has to [`notify`](Self::notify) this rank; otherwise the change is seen up to
    /// 20 ms later.
    ///
    /// Of the ranks that are `needed` one has to be there, if any are.
    ///
    /// # Errors
    /// [`Error::PeerLost`](crate::Error::PeerLost) when all that are needed have left, too;
    /// otherwise those of [`Symmetric::wait_until`].
    pub fn wait_for<R>(&self, needed: &[Rank], poll: impl FnMut() -> Option<R>) -> Result<R> {
        needed.iter().try_for_each(|rank| self.target(*rank).map(drop))?;
        self.verb(Verb::WAIT_UNTIL, self.rank, 0, |all| all.wait_long(WaitKind::WaitUntil, needed, poll))
    }

    /// Wakes the threads of `rank` that wait for words of its heap, after a change by address. It
    /// costs a load where none sleeps.
    ///
    /// # Errors
    /// [`Error::InvalidRank`](crate::Error::InvalidRank).
    #[inline]
    pub fn notify(&self, rank: Rank) -> Result<()> {
        self.notify_after(rank, || ())
    }

    /// Does `change`, which stores to the memory of `rank` by address, and wakes as
    /// [`Symmetric::notify`] does.
    ///
    /// # Errors
    /// Fails as [`Symmetric::notify`] does, and has changed nothing.
    // Fast path: what is woken is found before the change, which may be a locked instruction.
    #[inline]
    pub fn notify_after<T>(&self, rank: Rank, change: impl FnOnce() -> T) -> Result<T> {
        let target = self.target(rank)?;
        Ok(self.change(target, |_| change()))
    }

    #[inline]
    fn own_word<T: Atom>(&self, word: HeapOffset) -> Result<&T::Word> {
        self.reach(self.rank, Region::new(word, size_of::<T>() as u64))?.heap.atomic(word.get())
    }

    /// Returns what `test` says, after a pause when that is `failed`.
    #[inline]
    pub(super) fn tested<T: PartialEq>(
        &self,
        operation: &'static str,
        failed: T,
        test: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        self.context.present(operation)?;
        let found = test(self)?;
        if found == failed { self.give_way(operation).map(|()| found) } else { Ok(found) }
    }

    #[cold]
    fn give_way(&self, operation: &'static str) -> Result<()> {
        self.kernel.yield_now();
        self.context.check(operation)
    }

    /// Waits until `poll`, which looks at words of a heap, returns something. Whoever changes them
    /// wakes this rank.
    #[inline]
    pub(super) fn until<R>(&self, kind: WaitKind, mut poll: impl FnMut() -> Option<R>) -> Result<R> {
        let mut found = poll();
        // A short wait is spent right here, without a watch and a deadline.
        let is_there = found.is_some()
            || spin_until(self.context.policy(), || {
                found = poll();
                found.is_some()
            });
        found.filter(|_| is_there).map_or_else(|| self.wait_long(kind, &[], poll), Ok)
    }

    #[inline(never)]
    fn wait_long<R>(&self, kind: WaitKind, needed: &[Rank], poll: impl FnMut() -> Option<R>) -> Result<R> {
        let watch = EpochWatch(WordWait { all: self, kind, needed });
        let awaited = watch.0.awaited();
        let waiting = self.context.waiting(&watch);
        let park = &self.target(self.rank)?.park;
        wait_until(&waiting, park, poll)
            .map_err(|stop| self.context.error(&waiting, stop, kind.name(), awaited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comparison_holds_for_what_it_names() {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        let all = [Equal, NotEqual, Greater, GreaterOrEqual, Less, LessOrEqual];
        let holding = |found: i64, value| all.map(|comparison| comparison.holds(found, value));
        assert_eq!(holding(-1, 1), [false, true, false, false, true, true]);
        assert_eq!(holding(1, 1), [true, false, false, true, false, true]);
        assert_eq!(holding(2, 1), [false, true, true, true, false, false]);
        assert_eq!(
            all.map(|comparison| comparison.holds(f64::NAN, 1.0)),
            [false, true, false, false, false, false]
        );
    }
}
