//! A flood of puts: as fast as they can be pushed and without a flush, so that the fifo fills as
//! far as its proxy lets it.
//!
//! The bursts that are timed are shorter than the ring, so the triggers that wait then tell only
//! the length of a burst. A flood pushes a lap first, which no ring can refuse, and counts from
//! there on.

use shmccl::Result;
use shmccl::heap::layout::FIFO_SLOTS;
use shmccl_harness::report::{FifoCounts, FifoLevel};

use super::{BulkTransfer, MessageMover};

/// A flood goes on for about this long, or for a lap.
const FLOOD_NS: f64 = 20e6;

/// Most puts of a flood, however short they seem.
const MOST: f64 = 1e6;

/// Bytes of a lap past which there is no flood: filling the ring would take as many copies.
const LAP_BYTES: u64 = 1 << 30;

/// How often a flood looks at the fifo, about.
const LOOKS: u64 = 1024;

/// Returns whether puts of `len` bytes can flood a fifo in reasonable time.
pub(crate) fn can_flood(len: u64) -> bool {
    len.saturating_mul(FIFO_SLOTS) <= LAP_BYTES
}

/// Returns how many puts a flood counts, where one takes about `put_ns`.
pub(crate) fn puts(put_ns: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count that need not be exact"
    )]
    let puts = (FLOOD_NS / put_ns.max(1.0)).min(MOST) as u64;
    puts.max(FIFO_SLOTS)
}

impl<M: MessageMover> BulkTransfer<M> {
    /// Floods with a lap and `puts` more, and has the data of the last one read. Returns how full
    /// the fifo was, where this rank moves.
    pub(crate) fn flood(
        &mut self,
        puts: u64,
        counters: impl Fn() -> Result<FifoCounts>,
    ) -> Result<Option<FifoLevel>> {
        self.seq += 1;
        if self.moves() {
            self.ends.outgoing.rewrite(self.seq);
        }
        self.meet();
        let level = if self.moves() { Some(self.pour(puts, counters)?) } else { None };
        self.meet();
        if self.reads() {
            self.wrong += self.ends.incoming.read(self.seq, false).wrong;
        }
        self.meet();
        Ok(level)
    }

    fn pour(&mut self, puts: u64, counters: impl Fn() -> Result<FifoCounts>) -> Result<FifoLevel> {
        for _ in 0..FIFO_SLOTS {
            self.mover.start()?;
        }
        // Odd, so that it falls in step neither with the batches of a proxy nor with laps.
        let every = (puts / LOOKS) | 1;
        let mut depths = Vec::new();
        let before = counters()?;
        for put in 1..=puts {
            self.mover.start()?;
            if put.is_multiple_of(every) {
                depths.extend(self.mover.queued());
            }
        }
        let counted = counters()?.since(before);
        self.mover.finish()?;
        Ok(FifoLevel::of(depths, counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_tells_of_a_full_ring_that_no_look_has_seen() {
        let level = |stalls| FifoLevel::of(vec![7, 500, 3], FifoCounts { pushed: 1000, stalls });
        assert_eq!((level(0).p50, level(0).greatest), (Some(7), Some(500)));
        assert_eq!((level(1).p50, level(1).greatest), (Some(7), Some(FIFO_SLOTS)));
        let unseen = FifoLevel::of(Vec::new(), FifoCounts::default());
        assert_eq!((unseen.p50, unseen.greatest), (None, None));
    }

    #[test]
    fn a_flood_is_a_lap_at_least_and_never_endless() {
        assert_eq!(puts(1e9), FIFO_SLOTS);
        assert_eq!(puts(f64::NAN), 1_000_000);
        assert_eq!(puts(200.0), 100_000);
        assert_eq!(puts(0.0), 1_000_000);
    }

    #[test]
    fn what_would_take_a_gigabyte_to_fill_the_ring_does_not_flood_it() {
        assert!(can_flood(8) && can_flood(LAP_BYTES / FIFO_SLOTS));
        assert!(!can_flood(LAP_BYTES / FIFO_SLOTS + 1) && !can_flood(u64::MAX));
    }
}
