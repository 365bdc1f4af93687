//! Copies in one direction and in both: bandwidth.

pub(crate) mod flood;

use shmccl::channel::{Channel, MemoryChannel, PortChannel};
use shmccl::heap::HeapOffset;
use shmccl::heap::layout::FIFO_SLOTS;
use shmccl::shm::{CopyKernel, Span};
use shmccl::{Communicator, Result};
use shmccl_harness::clock::{now_ns, thread_cpu_ns};
use shmccl_harness::interleave::{Contender, LimitRule, Measured};
use shmccl_harness::report::FifoLevel;
use shmccl_harness::sync::PairSync;
use shmccl_harness::test::TestChannel;

use super::bench::{TestBench, TestResult, copy_kernels, counts_of, lineup, with_channel};
use super::buffers::{PairBuffers, PairEnds};
use super::ping_pong::settling;

/// Moves one message, and knows when its source may be rewritten.
pub(crate) trait MessageMover {
    /// Moves the message, or has a proxy move it.
    fn start(&mut self) -> Result<()>;

    /// Returns when all that was started is done.
    fn finish(&mut self) -> Result<()>;

    /// Returns how many triggers wait for the proxy, where there is one.
    fn queued(&self) -> Option<u64> {
        None
    }
}

/// A channel that may have a proxy behind it.
pub(crate) trait QueueDepth {
    /// Returns how many triggers wait for the proxy, where there is one.
    fn queued(&self) -> Option<u64>;
}

impl QueueDepth for MemoryChannel {
    fn queued(&self) -> Option<u64> {
        None
    }
}

impl QueueDepth for PortChannel {
    fn queued(&self) -> Option<u64> {
        Some(Self::queued(self))
    }
}

/// A plain copy by one kernel: the limit.
#[derive(Debug)]
pub(crate) struct PlainCopy {
    pub(crate) source: Span,
    pub(crate) target: Span,
    pub(crate) kernel: CopyKernel,
}

impl PlainCopy {
    /// Makes a copy of the outgoing message of `buffers` to the peer.
    pub(crate) fn to_peer(buffers: &PairBuffers, comm: &Communicator, kernel: CopyKernel) -> Result<Self> {
        Ok(Self { source: buffers.outgoing(comm)?, target: buffers.remote(comm)?, kernel })
    }
}

impl MessageMover for PlainCopy {
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
    pub(crate) channel: C,
    /// Where the message is in this rank's heap.
    pub(crate) source: HeapOffset,
    /// Where the message goes in the peer's heap.
    pub(crate) target: HeapOffset,
    pub(crate) len: u64,
}

impl<C: Channel + QueueDepth> MessageMover for Put<C> {
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

/// Which ranks rewrite their source, move, and read their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferDirection {
    /// The leader rewrites and moves, the other reads.
    Push,
    /// Both rewrite, move at the same time, and read.
    Both,
}

/// Transfers in one direction or both. A sample is the time of one transfer, without rewriting the
/// source before it and reading the target after it.
#[derive(Debug)]
pub(crate) struct BulkTransfer<M> {
    mover: M,
    direction: TransferDirection,
    ends: PairEnds,
    /// Transfers of one message in a row, which share a sample.
    burst: u64,
    turn: u64,
    seq: u64,
    wrong: u64,
    charges: Charges,
}

/// CPU time that a slice has cost the thread that moves, or hands over.
#[derive(Clone, Copy, Debug, Default)]
struct Charges {
    /// The time of moving, or of handing over and of reading that clock.
    all_ns: u64,
    /// The time of reading that clock as often.
    reading_ns: u64,
    /// Transfers that were moved or handed over meanwhile.
    moved: u64,
}

impl Charges {
    /// Adds transfers without a proxy: their time is that of the thread that moves them.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a sum that need not be exact"
    )]
    fn add_own(&mut self, took_ns: f64, transfers: u64) {
        self.all_ns += (took_ns * transfers as f64) as u64;
        self.moved += transfers;
    }

    /// Returns the CPU time of one transfer.
    fn each(self) -> Option<f64> {
        (self.moved > 0).then(|| self.all_ns.saturating_sub(self.reading_ns) as f64 / self.moved as f64)
    }
}

/// Small messages are moved several times in a row, up to about so many bytes,
pub(crate) const BURST_BYTES: u64 = 64 << 10;

/// or so many times.
pub(crate) const MOST_IN_BURST: u64 = 64;

impl<M: MessageMover> BulkTransfer<M> {
    /// Makes transfers by `mover` between `buffers` with flags number `pair`.
    pub(crate) fn new(
        mover: M,
        direction: TransferDirection,
        buffers: &PairBuffers,
        comm: &Communicator,
        pair: u64,
    ) -> Result<Self> {
        let ends = buffers.ends(comm, pair)?;
        let burst = (BURST_BYTES / buffers.len().max(1)).clamp(1, MOST_IN_BURST);
        let charges = Charges::default();
        Ok(Self { mover, direction, ends, burst, turn: 0, seq: 0, wrong: 0, charges })
    }

    fn meet(&mut self) {
        self.turn += 1;
        self.ends.flags.meet(self.turn);
    }

    fn moves(&self) -> bool {
        self.direction == TransferDirection::Both || self.ends.leads
    }

    fn reads(&self) -> bool {
        self.direction == TransferDirection::Both || !self.ends.leads
    }

    /// Moves fresh data once, and has them read. Returns the sample where this rank moves. With
    /// `charged`, the CPU time of handing transfers to a proxy is measured after it.
    fn exchange(&mut self, charged: bool) -> Result<Option<f64>> {
        self.seq += 1;
        if self.moves() {
            self.ends.outgoing.rewrite(self.seq);
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
            self.wrong += self.ends.incoming.read(self.seq, false).wrong;
        }
        Ok(sample)
    }

    /// Returns whether both ranks move on one core, so that one waits until the other is done.
    fn takes_turns(&self) -> bool {
        self.direction == TransferDirection::Both && self.ends.flags.yields
    }

    /// Moves in one direction after the other. The leader's sample spans both directions.
    fn exchange_in_turn(&mut self) -> Result<f64> {
        self.turn += 1;
        let start = now_ns();
        if self.ends.leads {
            self.ends.flags.theirs.set(self.turn);
        } else {
            self.ends.flags.mine.spin_yielding(self.turn);
        }
        self.time()?;
        self.meet();
        let took = (now_ns() - start) as f64 / self.burst as f64;
        self.wrong += self.ends.incoming.read(self.seq, false).wrong;
        Ok(took)
    }

    /// Takes one sample: the burst and its end.
    fn time(&mut self) -> Result<f64> {
        let start = now_ns();
        for _ in 0..self.burst {
            self.mover.start()?;
        }
        self.mover.finish()?;
        Ok((now_ns() - start) as f64 / self.burst as f64)
    }

    /// Measures the CPU time of handing transfers over that take about `took_ns` each. Reading that
    /// clock takes as long as a hundred short transfers. So enough are handed over to make it
    /// small, and its own cost is measured beside them.
    fn charge(&mut self, took_ns: f64) -> Result<()> {
        let count = charged(took_ns, self.ends.outgoing.span().len());
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

/// How long transfers are charged together, in nanoseconds: fifty readings of that clock.
const CHARGE_NS: f64 = 20_000.0;

/// Triggers that are pushed at least, where their transfers are short enough.
const CHARGED_PUSHES: u64 = 8;

/// The bytes of those transfers at most.
const CHARGED_BYTES: u64 = 4 << 20;

/// Returns how many transfers of `len` bytes and `took_ns` each are charged together: no more than
/// a fifo has room for.
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

impl<M: MessageMover> Contender for BulkTransfer<M> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..settling(self.ends.outgoing.span().len()) {
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
        settling(self.ends.outgoing.span().len()) * self.burst
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

impl TestBench<'_> {
    /// Measures puts from the leader to the other rank.
    pub(crate) fn put_bandwidth(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        self.transfer(sync, buffers, TransferDirection::Push)
    }

    /// Measures puts in both directions at once.
    pub(crate) fn put_bidirectional(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        self.transfer(sync, buffers, TransferDirection::Both)
    }

    /// Measures puts against plain copies by every kernel; the best of them is the limit.
    fn transfer(
        &mut self,
        sync: &mut PairSync,
        buffers: &PairBuffers,
        direction: TransferDirection,
    ) -> TestResult {
        let (kernels, len) = (copy_kernels(), buffers.len());
        with_channel!(self, buffers.peer(), channel => {
            let put = Put { channel, source: buffers.source(), target: buffers.target(), len };
            let mut test = BulkTransfer::new(put, direction, buffers, self.comm, 0)?;
            let mut limits = Vec::new();
            for (pair, &kernel) in (1..).zip(&kernels) {
                let copy = PlainCopy::to_peer(buffers, self.comm, kernel)?;
                limits.push(BulkTransfer::new(copy, direction, buffers, self.comm, pair)?);
            }
            sync.meet();
            let mut contenders = lineup(&mut test, &mut limits);
            let measured = self.interleave(sync, &mut contenders, &LimitRule::each(kernels.len()))?;
            let (level, wrong) = self.flood(sync, len, &mut test, &measured)?;
            let (best, measured) =
                Measured { wrong: measured.wrong + wrong, ..measured }.with_lowest_limit();
            let limit = format!("plain copy ({})", kernels[best]);
            let directions = if direction == TransferDirection::Both { 2 } else { 1 };
            self.report(buffers.leads(), &measured, Some(len), &limit, |row| {
                row.set_bandwidth(directions * len);
                row.set_level(level);
            })
        })
    }

    /// Floods the fifo of a proxied transfer, unless that takes too long. Returns how full the fifo
    /// was, and the words that came wrong.
    fn flood<M: MessageMover>(
        &self,
        sync: &mut PairSync,
        len: u64,
        test: &mut BulkTransfer<M>,
        measured: &Measured,
    ) -> anyhow::Result<(Option<FifoLevel>, u64)> {
        if self.channel != Some(TestChannel::Port) || !flood::can_flood(len) {
            return Ok((None, 0));
        }
        let put_ns = measured.comparisons.first().map_or(0.0, |comparison| comparison.test.p50_ns);
        let puts = sync.share(flood::puts(put_ns));
        let before = test.wrong();
        let level = test.flood(puts, || counts_of(self.comm))?;
        let wrong = test.wrong() - before;
        Ok((level, wrong + sync.share_back(wrong)))
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
