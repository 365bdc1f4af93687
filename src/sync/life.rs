//! A rank's presence, which the operating system withdraws when the rank dies, and its heartbeat.
//!
//! A [`LifeCell`] is a robust futex. While its rank lives, the word holds the id of the thread that
//! took it, and the system itself writes to it when that thread ends, however it ends. Taking it,
//! watching it and the thread that does both are in `shm::life`; here is what the word says.
//!
//! ```text
//! 0 not yet ──take──► thread id | WAITERS ──leave──► WAITERS           (left)
//!                              └──death, or mark_lost──► ... | OWNER_DIED   (lost, for good)
//! ```
//!
//! `WAITERS` is set from the start: without it the system would write and wake nobody. A rank that
//! has left cannot be lost any more, since the system only touches a word that holds the dying
//! thread's id.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | L1 end | `leave`, `mark_lost`, the system at death | `status` | all the rank did before |
//!
//! Where the system refuses robust futexes, a rank lives for as long as it holds a lock on a file
//! that all have, and says so in its cell. Whoever finds the cell alive and the lock free marks the
//! rank lost.
//!
//! L1 with R1 of [`revoke`](super::revoke) carries a dead rank's last signal to a third rank that
//! is told of the death.
//!
//! # Heartbeat
//! A [`HeartbeatCell`] holds the time of a rank's last beat, and of the last beat by which the rank
//! had done something since the one before. There is no edge, and so no model: an onlooker compares
//! a word with its value at the last look, and reads nothing else because of it. Relaxed suffices,
//! since reads of one word never go back in its order of modification. A beat that is seen late is
//! a look that missed it, and that is why looks are counted. Where two threads beat, the later time
//! counts, since a word goes forward only: one of the threads may be held up between its look at
//! the clock and its write. What follows from a rank's being taken for lost has edges of its own
//! (L1 and R1).

use std::time::Duration;

use super::atomic::{AtomicU32, AtomicU64, Ordering, Reserved};
use super::kernel::{Kernel, SleepWord};
use super::plain::{self, advance_time, load_time};

/// Set when a sleeper wants to be woken (`FUTEX_WAITERS`).
const WAITERS: u32 = 0x8000_0000;
/// Set by the system when the owner ended without letting go (`FUTEX_OWNER_DIED`).
const OWNER_DIED: u32 = 0x4000_0000;
/// The owner's thread id (`FUTEX_TID_MASK`).
const OWNER: u32 = 0x3fff_ffff;

/// What a life cell says about its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifeStatus {
    /// The rank has not arrived.
    Absent,
    /// The rank is there.
    Alive,
    /// The rank said good-bye.
    Left,
    /// The rank died, or was given up.
    Lost,
}

impl LifeStatus {
    /// Returns whether the rank was lost or has left.
    pub(crate) fn is_gone(self) -> bool {
        matches!(self, Self::Lost | Self::Left)
    }
}

/// Whether one rank lives.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | word | 0..4 | its rank, the operating system, whoever gives the rank up | all ranks |
/// | reserved | 4..8 | nobody | nobody |
/// | by lock | 8..16 | its rank, before it arrives: 1 where it lives by a lock | all ranks |
/// | reserved | 16..128 | nobody | nobody |
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct LifeCell {
    word: AtomicU32,
    reserved: Reserved<1>,
    by_lock: AtomicU64,
    reserved_too: Reserved<28>,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<LifeCell>() == 128 && align_of::<LifeCell>() == 128);
    assert!(std::mem::offset_of!(LifeCell, word) == 0 && std::mem::offset_of!(LifeCell, by_lock) == 8);
};

impl LifeCell {
    /// Returns what the cell says.
    ///
    /// # Ordering
    /// When it says left or lost, acquires everything that the rank did before (L1).
    #[must_use]
    pub fn status(&self) -> LifeStatus {
        status_of(self.word.load(Ordering::Acquire)) // L1 end
    }

    /// Returns the number of the thread that has taken the cell, as long as it says so; for
    /// reports.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        let word = self.word.load(Ordering::Relaxed); // Relaxed: only a number, to be checked by whoever uses it
        Some(word & OWNER).filter(|thread| *thread != 0)
    }

    /// Gives the rank up for a caller that knows that it is dead, or as good as dead, and wakes
    /// those that watch.
    pub fn mark_lost<K: Kernel + ?Sized>(&self, kernel: &K) {
        self.word.fetch_or(OWNER_DIED | WAITERS, Ordering::Release); // L1 end
        kernel.wake_all(&self.word);
    }

    /// Writes the calling thread's id into an unused cell; otherwise returns the word that is
    /// there.
    pub(crate) fn take<K: Kernel + ?Sized>(&self, kernel: &K, thread: u32) -> Result<(), u32> {
        assert!(thread & !OWNER == 0 && thread != 0, "thread id {thread:#x} does not fit a futex");
        // Relaxed: arriving publishes nothing; the job's set-up is handed over by other means.
        self.word.compare_exchange(0, thread | WAITERS, Ordering::Relaxed, Ordering::Relaxed)?;
        kernel.wake_all(&self.word);
        Ok(())
    }

    /// Tells that its rank, which is about to arrive, lives by a lock. A peer that sees the rank
    /// before this word takes it for one that the system watches, until the next look.
    pub(crate) fn live_by_lock(&self) {
        plain::store(&self.by_lock, 1);
    }

    /// Returns whether its rank is to be looked for at the lock by which it lives.
    pub(crate) fn lives_by_lock(&self) -> bool {
        plain::load(&self.by_lock) != 0 && self.status() == LifeStatus::Alive
    }

    /// Says good-bye on behalf of the owner, `thread`; does nothing if it was given up meanwhile.
    pub(crate) fn leave<K: Kernel + ?Sized>(&self, kernel: &K, thread: u32) {
        let (ok, failed) = (
            Ordering::Release, // L1 end
            Ordering::Relaxed, // nothing is read on failure
        );
        if self.word.compare_exchange(thread | WAITERS, WAITERS, ok, failed).is_ok() {
            kernel.wake_all(&self.word);
        }
    }

    /// Returns the status, and the word to sleep on until it changes.
    pub(crate) fn observe(&self) -> (LifeStatus, SleepWord<'_>) {
        let word = self.word.load(Ordering::Acquire); // L1 end
        (status_of(word), SleepWord { word: &self.word, expected: word })
    }
}

fn status_of(word: u32) -> LifeStatus {
    if word & OWNER_DIED != 0 {
        LifeStatus::Lost
    } else if word & OWNER != 0 {
        LifeStatus::Alive
    } else if word & WAITERS != 0 {
        LifeStatus::Left
    } else {
        LifeStatus::Absent
    }
}

/// The heartbeat of one member of a job.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | beat | 0..8 | the life thread; the thread that listens to the launcher | launcher, onlookers |
/// | moved | 8..16 | the rank's life thread | onlookers |
///
/// Both are in nanoseconds of the system's monotonic clock; 0 stands for none. The life thread
/// beats twice a second, the other one where the launcher looks for beats.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct HeartbeatCell {
    beat: AtomicU64,
    moved: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<HeartbeatCell>() == 128 && align_of::<HeartbeatCell>() == 128);
    assert!(
        std::mem::offset_of!(HeartbeatCell, beat) == 0 && std::mem::offset_of!(HeartbeatCell, moved) == 8
    );
};

impl HeartbeatCell {
    /// Beats, at the time `now`, unless another thread has beaten at a later one.
    pub fn beat(&self, now: Duration) {
        advance_time(&self.beat, now);
    }

    /// Tells that the rank had done something by the beat at the time `now`, since the one before.
    pub fn tell_moved(&self, now: Duration) {
        advance_time(&self.moved, now);
    }

    /// Returns when it has beaten last; `None` when it has not.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        load_time(&self.beat)
    }

    /// Returns when it was found last to have done something; `None` when it was not.
    #[must_use]
    pub fn last_moved(&self) -> Option<Duration> {
        load_time(&self.moved)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::kernel::mock::MockKernel;
    use super::*;

    #[test]
    fn a_rank_is_absent_then_alive_then_gone_one_way_or_the_other() {
        let (kernel, cell) = (MockKernel::new(), LifeCell::default());
        assert_eq!(cell.status(), LifeStatus::Absent);
        cell.take(&kernel, 7).unwrap();
        assert_eq!(cell.status(), LifeStatus::Alive);
        assert_eq!(cell.take(&kernel, 8), Err(7 | WAITERS));
        cell.leave(&kernel, 8);
        assert_eq!(cell.status(), LifeStatus::Alive, "only the owner can leave");
        cell.leave(&kernel, 7);
        assert_eq!(cell.status(), LifeStatus::Left);
    }

    #[test]
    fn a_rank_that_was_given_up_stays_lost() {
        let (kernel, cell) = (MockKernel::new(), LifeCell::default());
        cell.take(&kernel, 7).unwrap();
        cell.mark_lost(&kernel);
        cell.leave(&kernel, 7);
        assert_eq!(cell.status(), LifeStatus::Lost);
    }

    #[test]
    fn what_the_system_writes_at_a_death_reads_as_lost() {
        assert_eq!(status_of(WAITERS | OWNER_DIED), LifeStatus::Lost);
        assert_eq!(status_of(OWNER_DIED), LifeStatus::Lost);
    }

    #[test]
    fn a_beat_is_the_time_at_which_it_was() {
        let cell = HeartbeatCell::default();
        assert_eq!(cell.last(), None);
        cell.beat(Duration::ZERO);
        assert!(cell.last().is_some(), "at whatever time");
        cell.beat(Duration::from_millis(7));
        assert_eq!((cell.last(), cell.last_moved()), (Some(Duration::from_millis(7)), None));
        cell.tell_moved(Duration::from_millis(6));
        assert_eq!(cell.last_moved(), Some(Duration::from_millis(6)));
    }

    #[test]
    fn a_beat_that_is_written_late_takes_none_back() {
        let (cell, ms) = (HeartbeatCell::default(), Duration::from_millis);
        for at in [7, 5] {
            cell.beat(ms(at));
            cell.tell_moved(ms(at));
        }
        assert_eq!((cell.last(), cell.last_moved()), (Some(ms(7)), Some(ms(7))));
    }
}
