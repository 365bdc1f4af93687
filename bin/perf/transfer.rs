//! Copies in one direction, in both, and towards oneself: bandwidth, and the time of a get.

pub(crate) mod flood;

use shmccl::Result;
use shmccl::channel::{Channel, MemoryChannel, PortChannel};
use shmccl::heap::HeapOffset;
use shmccl::shm::{CopyKernel, HostKernel, Span};

use super::clock::{now_ns, thread_cpu_ns};
use super::ends::FlagEnd;
use super::lane::Lane;
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

/// A get over a direct channel.
#[derive(Debug)]
pub(crate) struct Get {
    /// The channel.
    pub(crate) channel: MemoryChannel,
    /// From where in the peer's heap.
    pub(crate) source: HeapOffset,
    /// To where in this rank's.
    pub(crate) target: HeapOffset,
    /// How much.
    pub(crate) len: u64,
}

impl Mover for Get {
    #[inline]
    fn start(&mut self) -> Result<()> {
        self.channel.get(self.target, self.source, self.len)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Who moves, who rewrites the source, and who reads the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The leader rewrites and moves, the other reads.
    Push,
    /// The other rewrites, the leader moves and reads.
    Pull,
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
    kernel: HostKernel,
    turn: u64,
    seq: u64,
    wrong: u64,
    cpu_ns: u64,
    moved: u64,
}

/// Small messages are moved several times in a row until about this much has been moved.
const BURST_BYTES: u64 = 64 << 10;

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
        // A pull is timed one by one, as its reader would.
        let burst = match direction {
            Direction::Pull => 1,
            Direction::Push | Direction::Both => (BURST_BYTES / outgoing.span().len().max(1)).clamp(1, 64),
        };
        let kernel = HostKernel::detect();
        Self {
            mover,
            direction,
            leads,
            burst,
            outgoing,
            incoming,
            flags,
            kernel,
            turn: 0,
            seq: 0,
            wrong: 0,
            cpu_ns: 0,
            moved: 0,
        }
    }

    /// CPU time of this rank's thread for handing over one transfer, where it moved any.
    pub(crate) fn cpu_ns(&self) -> Option<f64> {
        (self.moved > 0).then(|| self.cpu_ns as f64 / self.moved as f64)
    }

    fn meet(&mut self) {
        self.turn += 1;
        self.flags.theirs.set(self.turn);
        self.flags.mine.spin_yielding(&self.kernel, self.turn);
    }

    fn rewrites(&self) -> bool {
        self.direction == Direction::Both || self.leads == (self.direction == Direction::Push)
    }

    fn moves(&self) -> bool {
        self.direction == Direction::Both || self.leads
    }

    fn reads(&self) -> bool {
        self.direction == Direction::Both || self.leads == (self.direction == Direction::Pull)
    }

    /// How many transfers settle the caches at the beginning of a slice; it then has as many samples at least.
    fn settling(&self) -> u64 {
        (SETTLING_BYTES / self.outgoing.span().len().max(1)).clamp(1, SETTLING)
    }

    /// Moves fresh data once, and has them read; the sample where this rank moves.
    fn exchange(&mut self) -> Result<Option<f64>> {
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
            sample = Some(self.time()?);
            if self.seq.is_multiple_of(CHARGE_EVERY) {
                self.charge()?;
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
        self.direction == Direction::Both && self.flags.yields.is_some()
    }

    /// The rest of such an exchange. The leader's sample begins before the other may and ends when both are done, or it would be
    /// of one direction only.
    fn exchange_in_turn(&mut self) -> Result<f64> {
        self.turn += 1;
        let start = now_ns();
        if self.leads {
            self.flags.theirs.set(self.turn);
        } else {
            self.flags.mine.spin_yielding(&self.kernel, self.turn);
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

    /// The same, for the CPU time of handing over: reading that clock takes too long to be part of a sample.
    fn charge(&mut self) -> Result<()> {
        let start = thread_cpu_ns();
        for _ in 0..self.burst {
            self.mover.start()?;
        }
        self.cpu_ns += thread_cpu_ns() - start;
        self.moved += self.burst;
        self.mover.finish()
    }
}

/// The first transfers of a slice are no samples: past or through the cache, each way to copy leaves the target in a state
/// that the next lane pays for. Measured after a stream past the cache, the third one through it costs the usual.
const SETTLING: u64 = 3;

/// It takes fewer transfers where each of them turns the caches over. A source and a target of 16 MiB do not quite: there the
/// first transfer after others took a sixth less or more than the fourth, by what those others were.
const SETTLING_BYTES: u64 = 64 << 20;

/// One burst in this many is repeated to be charged.
const CHARGE_EVERY: u64 = 8;

impl<M: Mover> Lane for Transfer<M> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..self.settling() {
            self.exchange()?;
        }
        for _ in 0..ops / self.burst {
            samples.extend(self.exchange()?);
        }
        self.meet();
        Ok(())
    }

    fn batch(&self) -> u64 {
        self.settling() * self.burst
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}
