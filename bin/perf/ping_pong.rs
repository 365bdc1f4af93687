//! One thing that is timed, over and over: what every measurement is made of.

use shmccl::Result;

use super::dither::Dither;
use super::stage::is_stamped;

/// Work that all its ranks do together and that can be timed in slices.
///
/// Lanes of one interleave take turns, slice by slice, so that whatever the machine does to one it does to all.
pub(crate) trait Contender {
    /// Does `ops` operations; the rank that keeps the time appends one sample (nanoseconds per operation) per timing.
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()>;

    /// Slices are multiples of so many operations: what one sample stands for, or more.
    fn batch(&self) -> u64 {
        1
    }

    /// Told before the first slice that counts: about how long an operation takes here, in nanoseconds.
    fn settle(&mut self, _op_ns: f64) {}

    /// Operations that one sample is the mean of.
    fn per_sample(&self) -> u64 {
        1
    }

    /// CPU time of this rank's thread for one operation of the last slice, where that is measured.
    fn cpu_ns(&self) -> Option<f64> {
        None
    }

    /// Words that did not arrive as sent, in all slices so far, seen by this rank.
    fn wrong(&self) -> u64 {
        0
    }
}

/// The first transfers of a slice are no samples: past or through the cache, each way to copy leaves the target in a state
/// that the next contender pays for. Measured after a stream past the cache, the third one through it costs the usual.
const SETTLING: u64 = 3;

/// It takes fewer transfers where each of them turns the caches over. A source and a target of 16 MiB do not quite: there the
/// first transfer after others took a sixth less or more than the fourth, by what those others were.
const SETTLING_BYTES: u64 = 64 << 20;

/// How many transfers of `len` bytes settle the caches at the beginning of a slice; it then has as many samples at least.
pub(crate) fn settling(len: u64) -> u64 {
    (SETTLING_BYTES / len.max(1)).clamp(1, SETTLING)
}

/// One end of a link over which two ranks throw something back and forth.
pub(crate) trait PingPongEnd {
    /// Rewrites what is to be sent as throw number `seq`. Not part of a stamped sample.
    fn prepare(&mut self, seq: u64);

    /// Notes the time in what is to be sent, where it has room.
    fn stamp(&mut self, now: u64);

    /// Sends it.
    fn send(&mut self, seq: u64) -> Result<()>;

    /// Waits for throw number `seq` and reads all of it.
    fn receive(&mut self, seq: u64) -> Result<Arrival>;
}

/// What a receiver found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// The first word, where it is long enough: the sender's stamp, where it set one.
    pub(crate) first: u64,
    /// When the last byte of a stamped message had been read.
    pub(crate) read_at: u64,
    /// Words that were not what the sender wrote.
    pub(crate) wrong: u64,
}

/// Two ranks that throw back and forth over an [`PingPongEnd`] each.
///
/// A sample of short messages is half the time of a round trip, or of as many in a row as leave the clock out of it. Before each the
/// leader lets a delay of no pattern pass, which is measured by itself and deducted.
/// Long ones carry the sender's clock, so that preparing them is not in the sample: from just before the send to just
/// after the last byte was read. Both processes read the same monotonic clock.
#[derive(Debug)]
pub(crate) struct PingPong<E> {
    end: E,
    /// Whether this rank throws first and keeps the time.
    leads: bool,
    stamped: bool,
    /// Round trips at the beginning of a slice that are no samples.
    settling: u64,
    /// Round trips in one sample.
    together: u64,
    dither: Dither,
    seq: u64,
    wrong: u64,
}

/// The most operations that are timed together because each is too short for the clock.
pub(crate) const BATCH: u64 = 16;

/// The clock takes less than one part in so many of what is timed, unless that takes more than a batch.
const CLOCK_SHARE: f64 = 50.0;

/// How many operations that take `op_ns` each are timed together: one, wherever reading the clock is short beside it. Batches are
/// a multiple of it.
pub(crate) fn timed_together(op_ns: f64) -> u64 {
    enough_for(super::clock::reading_ns(), op_ns)
}

fn enough_for(reading_ns: f64, op_ns: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let wanted = (reading_ns * CLOCK_SHARE / op_ns.max(1.0)).ceil() as u64;
    wanted.clamp(1, BATCH).next_power_of_two()
}

impl<E: PingPongEnd> PingPong<E> {
    /// Messages too short for the clock, or without room for a stamp.
    pub(crate) fn new(end: E, leads: bool) -> Self {
        Self {
            end,
            leads,
            stamped: false,
            settling: 0,
            together: BATCH,
            dither: Dither::new(),
            seq: 0,
            wrong: 0,
        }
    }

    /// Messages of `len` bytes, stamped where they are long enough. The first of a slice then only settle the caches.
    pub(crate) fn of_messages(end: E, leads: bool, len: u64) -> Self {
        let new = Self::new(end, leads);
        if !is_stamped(len) {
            return new;
        }
        Self { stamped: true, settling: settling(len), together: 1, ..new }
    }

    fn throw(&mut self) -> Result<()> {
        self.end.prepare(self.seq);
        if self.stamped {
            self.end.stamp(super::clock::now_ns());
        }
        self.end.send(self.seq)
    }

    fn catch(&mut self) -> Result<Arrival> {
        let received = self.end.receive(self.seq)?;
        self.wrong += received.wrong;
        Ok(received)
    }

    fn round_trip(&mut self) -> Result<Arrival> {
        self.seq += 1;
        if self.leads {
            self.throw()?;
            self.catch()
        } else {
            let received = self.catch()?;
            self.throw()?;
            Ok(received)
        }
    }

    /// One sample of the leader, in nanoseconds one way.
    fn time(&mut self) -> Result<f64> {
        let delays = self.dither.cost(self.together);
        let mut arrived = 0;
        let start = super::clock::now_ns();
        for _ in 0..self.together {
            self.dither.pass(arrived);
            arrived = self.round_trip()?.first;
        }
        let took = (super::clock::now_ns() - start).saturating_sub(delays);
        Ok(took as f64 / (2 * self.together) as f64)
    }
}

impl<E: PingPongEnd> Contender for PingPong<E> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        if self.stamped {
            for _ in 0..self.settling {
                self.round_trip()?;
            }
            for _ in 0..ops {
                let received = self.round_trip()?;
                if self.leads {
                    samples.push(received.read_at.saturating_sub(received.first) as f64);
                }
            }
            return Ok(());
        }
        for _ in 0..ops / self.together {
            if self.leads {
                samples.push(self.time()?);
            } else {
                (0..self.together).try_for_each(|_| self.round_trip().map(drop))?;
            }
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        if self.stamped { self.settling } else { BATCH }
    }

    fn settle(&mut self, op_ns: f64) {
        if !self.stamped {
            self.together = timed_together(op_ns);
        }
    }

    fn per_sample(&self) -> u64 {
        if self.stamped { 1 } else { 2 * self.together }
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_short_for_the_clock_is_timed_together() {
        assert_eq!(enough_for(25.0, 5000.0), 1);
        assert_eq!(enough_for(25.0, 1250.0), 1);
        assert_eq!(enough_for(25.0, 300.0), 8);
        assert_eq!(enough_for(25.0, 100.0), BATCH);
        assert_eq!(enough_for(25.0, 0.0), BATCH);
        assert_eq!(enough_for(0.0, 100.0), 1);
        // So that a slice, which is a multiple of the batch, is one of it as well.
        assert!((1..2000).all(|ns| BATCH.is_multiple_of(enough_for(25.0, f64::from(ns)))));
    }
}
