//! A rank's heartbeat: the time of its last beat, which whoever looks on holds against the clock, and of the last one by which the
//! rank had done something since the one before.
//!
//! There is no edge. Threads of one process write the words and nothing is read by virtue of it: a looker compares it with what it
//! was at the last look. Relaxed suffices, since reads of one word never go back in its order of modification, whatever else is
//! reordered: a beat that was seen is not unseen, and one that is seen late is a look that missed it, which is what looks are counted
//! for. Where two threads beat, the later beat counts, though one of them may be held up between its look at the clock and its write: a
//! word goes forward only. What follows from a rank's being taken for lost has edges of its own (L1 and R1).
//! So there is no model of it either: one word has no interleavings.

use std::time::Duration;

use super::atomic::AtomicU64;
use super::plain::{advance_time, load_time};

/// The heartbeat of one member of a job.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | beat | 0..8 | the rank's life thread; the member's thread that listens to its launcher | the launcher, whoever looks on |
/// | moved | 8..16 | the rank's life thread | whoever looks on |
///
/// Both are in nanoseconds of the system's monotonic clock; 0 stands for none. The life thread beats twice a second, the other one
/// where the launcher looks for beats.
#[repr(C, align(128))]
#[derive(Debug)]
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
    /// The cell of a member that has not beaten; the same as all zero bytes.
    #[must_use]
    pub fn new() -> Self {
        Self { beat: AtomicU64::new(0), moved: AtomicU64::new(0) }
    }

    /// Beats, at the time `now`, unless another thread has beaten at a later one.
    pub fn beat(&self, now: Duration) {
        advance_time(&self.beat, now);
    }

    /// Tells that the rank had done something by the beat at the time `now`, since the one before.
    pub fn tell_moved(&self, now: Duration) {
        advance_time(&self.moved, now);
    }

    /// When it has beaten last; `None` when it has not.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        load_time(&self.beat)
    }

    /// When it was found last to have done something; `None` when it was not.
    #[must_use]
    pub fn last_moved(&self) -> Option<Duration> {
        load_time(&self.moved)
    }
}

impl Default for HeartbeatCell {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
        let (cell, ms) = (HeartbeatCell::new(), Duration::from_millis);
        for at in [7, 5] {
            cell.beat(ms(at));
            cell.tell_moved(ms(at));
        }
        assert_eq!((cell.last(), cell.last_moved()), (Some(ms(7)), Some(ms(7))));
    }
}
