//! One thing that is timed, over and over: what every measurement is made of.

use shmccl::Result;

/// Work that all its ranks do together and that can be timed in slices.
///
/// Lanes of one contest take turns, slice by slice, so that whatever the machine does to one it does to all.
pub(crate) trait Lane {
    /// Does `ops` operations; the rank that keeps the time appends one sample (nanoseconds per operation) per timing.
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()>;

    /// Slices are multiples of so many operations: what one sample stands for, or more.
    fn batch(&self) -> u64 {
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

/// One end of a link over which two ranks throw something back and forth.
pub(crate) trait End {
    /// Rewrites what is to be sent as throw number `seq`. Not part of a stamped sample.
    fn prepare(&mut self, seq: u64);

    /// Notes the time in what is to be sent, where it has room.
    fn stamp(&mut self, now: u64);

    /// Sends it.
    fn send(&mut self, seq: u64) -> Result<()>;

    /// Waits for throw number `seq` and reads all of it.
    fn receive(&mut self, seq: u64) -> Result<Received>;
}

/// What a receiver found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    /// The sender's stamp, where it set one.
    pub(crate) stamp: u64,
    /// When the last byte of a stamped message had been read.
    pub(crate) read_at: u64,
    /// Words that were not what the sender wrote.
    pub(crate) wrong: u64,
}

/// Two ranks that throw back and forth over an [`End`] each.
///
/// Short messages are timed in batches: half the time of a batch of round trips, which leaves the clock out of it.
/// Long ones carry the sender's clock, so that preparing them is not in the sample: from just before the send to just
/// after the last byte was read. Both processes read the same monotonic clock.
#[derive(Debug)]
pub(crate) struct PingPong<E> {
    end: E,
    /// Whether this rank throws first and keeps the time.
    leads: bool,
    stamped: bool,
    seq: u64,
    wrong: u64,
}

/// Round trips in one sample of short messages.
const BATCH: u64 = 16;

impl<E: End> PingPong<E> {
    /// Messages with room for a stamp and long enough for the clock not to matter are `stamped`.
    pub(crate) fn new(end: E, leads: bool, stamped: bool) -> Self {
        Self { end, leads, stamped, seq: 0, wrong: 0 }
    }

    fn throw(&mut self) -> Result<()> {
        self.end.prepare(self.seq);
        if self.stamped {
            self.end.stamp(super::clock::now_ns());
        }
        self.end.send(self.seq)
    }

    fn catch(&mut self) -> Result<Received> {
        let received = self.end.receive(self.seq)?;
        self.wrong += received.wrong;
        Ok(received)
    }

    fn round_trip(&mut self) -> Result<Received> {
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
}

impl<E: End> Lane for PingPong<E> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        if self.stamped {
            for _ in 0..ops {
                let received = self.round_trip()?;
                if self.leads {
                    samples.push(received.read_at.saturating_sub(received.stamp) as f64);
                }
            }
            return Ok(());
        }
        for _ in 0..ops / BATCH {
            let start = super::clock::now_ns();
            for _ in 0..BATCH {
                self.round_trip()?;
            }
            if self.leads {
                samples.push((super::clock::now_ns() - start) as f64 / (2 * BATCH) as f64);
            }
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        if self.stamped { 1 } else { BATCH }
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}
