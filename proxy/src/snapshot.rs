//! The counters of a fifo as plain numbers, readable from any process while the fifo runs.
//!
//! Each number is read by itself: together they are a picture with a little motion blur, never a
//! cut in time.

use crate::atomic::{AtomicU64, Ordering};
use crate::fifo::clamp_depth;
use crate::header::{BUCKETS, FifoHeader};
use crate::trigger::Trigger;

/// What a fifo has counted since it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Positions reserved.
    pub pushed: u64,
    /// Positions popped: served, refused or abandoned.
    pub served: u64,
    /// One past the last position that a FLUSH completed.
    pub completed: u64,
    /// Positions in flight.
    pub depth: u64,
    /// The most positions seen in flight: by the service as a batch begins, and never below the
    /// depth of this snapshot.
    ///
    /// A ring that was full for a moment shows in `stalls`.
    pub depth_high_water: u64,
    /// Pushes that found the ring full, however long they waited.
    pub stalls: u64,
    /// Triggers refused.
    pub refused: u64,
    /// Positions without a trigger: abandoned by a producer.
    pub skipped: u64,
    /// The last trigger refused.
    pub last_refused: Option<RefusedTrigger>,
    /// How long the handler took, for a sample of the triggers.
    pub service_time: Histogram,
}

/// A trigger that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedTrigger {
    /// Where it was.
    pub position: u64,
    /// What it said.
    pub trigger: Trigger,
    /// The [`TriggerRefusal`](crate::TriggerRefusal)'s code.
    pub code: u64,
}

/// Counts of times: bucket `i` holds those from `2^i` to below `2^(i+1)` nanoseconds, the last one
/// all above as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The count of each bucket.
    pub buckets: [u64; BUCKETS],
}

impl Histogram {
    /// Returns how many times were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// Returns the end of the bucket, in nanoseconds, below which `percent` of the times lie;
    /// `None` when there are none.
    #[must_use]
    pub fn percentile_ns(&self, percent: u32) -> Option<u64> {
        let count = u128::from(self.count());
        let wanted = (count * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen = 0;
        for (&bucket, power) in self.buckets.iter().zip(1_u32..) {
            seen += u128::from(bucket);
            if seen >= wanted {
                return Some(1 << power);
            }
        }
        None
    }
}

impl FifoHeader {
    /// Reads all counters of a fifo of `slots` slots. More than these are never in flight, whatever
    /// is read.
    #[must_use]
    pub fn snapshot(&self, slots: u64) -> Snapshot {
        let served = read(&self.tail);
        // The exclusive producer counts after its commit, so the consumer may be seen ahead of it.
        let depth = clamp_depth(read(&self.head).wrapping_sub(served), slots);
        let refused = read(&self.service.refused);
        let [position, word0, word1, code] = [0, 1, 2, 3].map(|i| read(&self.service.last_refused[i]));
        let trigger = Trigger::from_words([word0, word1]);
        Snapshot {
            pushed: served.wrapping_add(depth),
            served,
            completed: read(&self.completed),
            depth,
            depth_high_water: read(&self.service.depth_high_water).min(slots).max(depth),
            stalls: self.stalls.iter().fold(0, |sum, stalls| sum.saturating_add(read(stalls))),
            refused,
            skipped: read(&self.service.skipped),
            last_refused: (refused > 0).then_some(RefusedTrigger { position, trigger, code }),
            service_time: Histogram { buckets: core::array::from_fn(|i| read(&self.service_time[i])) },
        }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed) // relaxed: a counter; nothing is concluded from it
}
