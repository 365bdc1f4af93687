//! Copies in one direction and in both: bandwidth.

pub(crate) mod flood;

use shmccl::Result;
use shmccl::channel::{Channel, MemoryChannel, PortChannel};
use shmccl::heap::HeapOffset;
use shmccl::heap::layout::FIFO_SLOTS;
use shmccl::shm::{CopyKernel, Span};

use super::clock::{now_ns, thread_cpu_ns};
use super::ends::FlagEnd;
use super::lane::{Lane, settling};
use super::payload::Payload;

/// Moves one message, and says when its source may be rewritten.
pub(crate) trait Mover {
    /// Moves it, or has it moved.
    fn start(&mut self) -> Result<()>;

    /// Returns when all that was started is done.
    fn finish(&mut self) -> Result<()>;

    /// How many triggers wait for the proxy, where there is one.
    fn queued(&self) -> Option<u64> {
        None
    }
}

/// A channel that may have a proxy behind it.
pub(crate) trait Queue {
    /// How many triggers wait for the proxy, where there is one.
    fn queued(&self) -> Option<u64>;
}

impl Queue for MemoryChannel {
    fn queued(&self) -> Option<u64> {
        None
    }
}

impl Queue for PortChannel {
    fn queued(&self) -> Option<u64> {
        Some(Self::queued(self))
    }
}

/// A plain copy by one kernel: the limit.
#[derive(Debug)]
pub(crate) struct PlainCopy {
    /// From where.
    pub(crate) source: Span,
    /// To where.
    pub(crate) target: Span,
    /// How.
    pub(crate) kernel: CopyKernel,
}

impl Mover for PlainCopy {
    #[inline]
    fn start(&mut self) -> Result<()> {
        self.source.copy_with(self.kernel, &self.target)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A put over a channel.
#[derive(Debug)]
pub(crate) struct Put<C> {
    /// The channel.
    pub(crate) channel: C,
    /// From where in this rank's heap.
    pub(crate) source: HeapOffset,
    /// To where in the peer's.
    pub(crate) target: HeapOffset,
    /// How much.
    pub(crate) len: u64,
}

impl<C: Channel + Queue> Mover for Put<C> {
    #[inline]
    fn start(&mut self) -> Result<()> {
        self.channel.put(self.target, self.source, self.len)
    }

    fn finish(&mut self) -> Result<()> {
        self.channel.flush()
    }

    fn queued(&self) -> Option<u64> {
        self.channel.queued()
    }
}

/// Who moves, who rewrites the source, and who reads the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The leader rewrites and moves, the other reads.
    Push,
    /// Both rewrite, move at the same time, and read.
    Both,
}

/// Transfers in one direction or both. A sample is the time of one transfer; rewriting the source before, and reading
/// the target after, are not in it.
#[derive(Debug)]
pub(crate) struct Transfer<M> {
    mover: M,
    direction: Direction,
    leads: bool,
    /// Transfers of the same message in a row, which share a sample.
    burst: u64,
    outgoing: Payload,
    incoming: Payload,
    flags: FlagEnd,
    turn: u64,
    seq: u64,
    wrong: u64,
    charges: Charges,
}

/// What a slice has charged to the thread that moves, or hands over.
#[derive(Clone, Copy, Debug, Default)]
struct Charges {
    /// CPU time of moving, or of handing over and of reading that clock.
    all_ns: u64,
    /// CPU time of reading that clock as often.
    reading_ns: u64,
    /// Transfers that were handed over meanwhile.
    moved: u64,
}

impl Charges {
    /// Adds transfers that nobody else has a part in: they take as long as the thread that moves them is busy.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a sum that need not be exact"
    )]
    fn add_own(&mut self, took_ns: f64, transfers: u64) {
        self.all_ns += (took_ns * transfers as f64) as u64;
        self.moved += transfers;
    }

    /// For one transfer.
    fn each(self) -> Option<f64> {
        (self.moved > 0).then(|| self.all_ns.saturating_sub(self.reading_ns) as f64 / self.moved as f64)
    }
}

/// Small messages are moved several times in a row until about this much has been moved.
pub(crate) const BURST_BYTES: u64 = 64 << 10;

/// Or so many times.
pub(crate) const MOST_IN_BURST: u64 = 64;

impl<M: Mover> Transfer<M> {
    /// Transfers between `outgoing` of one rank and `incoming` of the other; `flags` are this lane's own.
    pub(crate) fn new(
        mover: M,
        direction: Direction,
        leads: bool,
        outgoing: Payload,
        incoming: Payload,
        flags: FlagEnd,
    ) -> Self {
        let burst = (BURST_BYTES / outgoing.span().len().max(1)).clamp(1, MOST_IN_BURST);
        Self {
            mover,
            direction,
            leads,
            burst,
            outgoing,
            incoming,
            flags,
            turn: 0,
            seq: 0,
            wrong: 0,
            charges: Charges::default(),
        }
    }

    fn meet(&mut self) {
        self.turn += 1;
        self.flags.theirs.set(self.turn);
        self.flags.mine.spin_yielding(self.turn);
    }

    fn rewrites(&self) -> bool {
        self.moves()
    }

    fn moves(&self) -> bool {
        self.direction == Direction::Both || self.leads
    }

    fn reads(&self) -> bool {
        self.direction == Direction::Both || !self.leads
    }

    /// Moves fresh data once, and has them read; the sample where this rank moves. What a proxy moves is handed over again where it is
    /// `charged`.
    fn exchange(&mut self, charged: bool) -> Result<Option<f64>> {
        self.seq += 1;
        if self.rewrites() {
            self.outgoing.rewrite(self.seq);
        }
        self.meet();
        if self.takes_turns() {
            return self.exchange_in_turn().map(Some);
        }
        let mut sample = None;
        if self.moves() {
            let took_ns = self.time()?;
            sample = Some(took_ns);
            if self.mover.queued().is_none() {
                self.charges.add_own(took_ns, self.burst);
            } else if charged {
                self.charge(took_ns)?;
            }
        }
        self.meet();
        if self.reads() {
            self.wrong += self.incoming.read(self.seq, false).wrong;
        }
        Ok(sample)
    }

    /// Whether both move, but on one core, so that one has to wait until the other is done.
    fn takes_turns(&self) -> bool {
        self.direction == Direction::Both && self.flags.yields
    }

    /// The rest of such an exchange. The leader's sample begins before the other may and ends when both are done, or it would be
    /// of one direction only.
    fn exchange_in_turn(&mut self) -> Result<f64> {
        self.turn += 1;
        let start = now_ns();
        if self.leads {
            self.flags.theirs.set(self.turn);
        } else {
            self.flags.mine.spin_yielding(self.turn);
        }
        self.time()?;
        self.meet();
        let took = (now_ns() - start) as f64 / self.burst as f64;
        self.wrong += self.incoming.read(self.seq, false).wrong;
        Ok(took)
    }

    /// One sample: the burst and its end.
    fn time(&mut self) -> Result<f64> {
        let start = now_ns();
        for _ in 0..self.burst {
            self.mover.start()?;
        }
        self.mover.finish()?;
        Ok((now_ns() - start) as f64 / self.burst as f64)
    }

    /// The same, for the CPU time of handing over what takes about `took_ns`. Reading that clock takes as long as a hundred short
    /// transfers: they are as many as make it small, and what it takes by itself is measured beside it.
    fn charge(&mut self, took_ns: f64) -> Result<()> {
        let count = charged(took_ns, self.outgoing.span().len());
        // The first look after a wait takes longer than others do, and is no measure of them.
        thread_cpu_ns();
        let start = thread_cpu_ns();
        let between = thread_cpu_ns();
        for _ in 0..count {
            self.mover.start()?;
        }
        let end = thread_cpu_ns();
        self.charges.reading_ns += between - start;
        self.charges.all_ns += end - between;
        self.charges.moved += count;
        self.mover.finish()
    }
}

/// How long transfers that are handed over for that take together, in nanoseconds: fifty times as long as reading the clock.
const CHARGE_NS: f64 = 20_000.0;

/// As many triggers are pushed at least, where they are short enough: pushing one is quick, however long its transfer takes.
const CHARGED_PUSHES: u64 = 8;

/// The bytes that they come to at most.
const CHARGED_BYTES: u64 = 4 << 20;

/// How many transfers of `len` bytes that take `took_ns` each are charged together; no more than a fifo has room for.
fn charged(took_ns: f64, len: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count that need not be exact"
    )]
    let many = (CHARGE_NS / took_ns.max(1.0)) as u64;
    let fewest = (CHARGED_BYTES / len.max(1)).clamp(1, CHARGED_PUSHES);
    many.clamp(fewest, FIFO_SLOTS / 2)
}

impl<M: Mover> Lane for Transfer<M> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..settling(self.outgoing.span().len()) {
            self.exchange(false)?;
        }
        self.charges = Charges::default();
        for left in (0..ops / self.burst).rev() {
            samples.extend(self.exchange(left == 0)?);
        }
        self.meet();
        Ok(())
    }

    fn batch(&self) -> u64 {
        settling(self.outgoing.span().len()) * self.burst
    }

    fn per_sample(&self) -> u64 {
        self.burst
    }

    fn cpu_ns(&self) -> Option<f64> {
        self.charges.each()
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_charged_takes_long_enough_for_its_clock_and_fits_into_a_fifo() {
        assert_eq!(charged(80.0, 8), 250);
        assert_eq!(charged(4.0, 8), FIFO_SLOTS / 2);
        assert_eq!(charged(0.0, 8), FIFO_SLOTS / 2);
        assert_eq!(charged(15_000.0, 128 << 10), 8);
        assert_eq!(charged(1e7, 64 << 20), 1);
    }

    #[test]
    fn reading_the_clock_is_not_charged() {
        assert_eq!(Charges::default().each(), None);
        assert_eq!(Charges { all_ns: 900, reading_ns: 400, moved: 10 }.each(), Some(50.0));
        assert_eq!(Charges { all_ns: 390, reading_ns: 400, moved: 1 }.each(), Some(0.0));
    }
}
