//! Small messages one after the other, without waiting for each: the message rate.

use shmccl::Result;
use shmccl::channel::Channel;
use shmccl::heap::HeapOffset;
use shmccl::shm::Span;
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::{Contender, LimitRule};
use shmccl_harness::sync::{FlagEnd, PairSync};

use super::bench::{TestBench, TestResult, with_channel};
use super::buffers::{PairBuffers, PairEnds};

/// Messages in a window. Each has a slot of its own, and the receiver answers when all have come.
pub(crate) const WINDOW: u64 = 1024;

/// Bytes of a message.
pub(crate) const MESSAGE: u64 = 8;

/// Sends and receives messages of one word.
trait MessageStream {
    /// Sends the message at `offset` of the window, the `count`-th in all.
    fn send(&mut self, offset: u64, count: u64) -> Result<()>;

    /// Returns when the whole window has arrived, whose last message is the `count`-th.
    fn receive_window(&mut self, count: u64) -> Result<()>;
}

/// A word and a flag, stored: the limit.
#[derive(Debug)]
struct BareStream {
    source: Span,
    target: Span,
    /// Set after each message.
    flags: FlagEnd,
}

impl MessageStream for BareStream {
    #[inline]
    fn send(&mut self, offset: u64, count: u64) -> Result<()> {
        self.target.write(offset, self.source.read::<u64>(offset)?)?;
        self.flags.theirs.set(count);
        Ok(())
    }

    fn receive_window(&mut self, count: u64) -> Result<()> {
        self.flags.mine.spin_yielding(count);
        Ok(())
    }
}

/// A put with signal for each message, and a wait for each.
#[derive(Debug)]
struct PutStream<C> {
    channel: C,
    /// Where the window is in this rank's heap.
    source: HeapOffset,
    /// Where the window goes in the peer's heap.
    target: HeapOffset,
}

impl<C: Channel> MessageStream for PutStream<C> {
    #[inline]
    fn send(&mut self, offset: u64, _count: u64) -> Result<()> {
        let at = |base: HeapOffset| HeapOffset::new(base.get() + offset);
        self.channel.put_with_signal(at(self.target), at(self.source), MESSAGE)
    }

    fn receive_window(&mut self, _count: u64) -> Result<()> {
        (0..WINDOW).try_for_each(|_| self.channel.wait())
    }
}

/// Windows of messages from the leader to the other rank. The flags say that a window was read.
#[derive(Debug)]
struct MessageRate<S> {
    stream: S,
    ends: PairEnds,
    windows: u64,
    wrong: u64,
}

impl<S: MessageStream> MessageRate<S> {
    fn new(stream: S, ends: PairEnds) -> Self {
        Self { stream, ends, windows: 0, wrong: 0 }
    }

    fn send_window(&mut self) -> Result<f64> {
        for slot in 0..WINDOW {
            self.ends.outgoing.span().write(slot * MESSAGE, self.windows * WINDOW + slot)?;
        }
        let start = now_ns();
        for slot in 0..WINDOW {
            self.stream.send(slot * MESSAGE, (self.windows - 1) * WINDOW + slot + 1)?;
        }
        self.ends.flags.mine.spin_yielding(self.windows);
        Ok((now_ns() - start) as f64 / WINDOW as f64)
    }

    fn receive_window(&mut self) -> Result<()> {
        self.stream.receive_window(self.windows * WINDOW)?;
        for slot in 0..WINDOW {
            let word: u64 = self.ends.incoming.span().read(slot * MESSAGE)?;
            self.wrong += u64::from(word != self.windows * WINDOW + slot);
        }
        self.ends.flags.theirs.set(self.windows);
        Ok(())
    }
}

impl<S: MessageStream> Contender for MessageRate<S> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..ops / WINDOW {
            self.windows += 1;
            if self.ends.leads {
                samples.push(self.send_window()?);
            } else {
                self.receive_window()?;
            }
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        WINDOW
    }

    fn per_sample(&self) -> u64 {
        WINDOW
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl TestBench<'_> {
    /// Measures a stream of puts with signal against words and flags.
    pub(crate) fn message_rate(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let bare = BareStream {
            source: buffers.outgoing(self.comm)?,
            target: buffers.remote(self.comm)?,
            flags: buffers.flags(self.comm, 0)?,
        };
        let mut limit = MessageRate::new(bare, buffers.ends(self.comm, 1)?);
        let ends = buffers.ends(self.comm, 2)?;
        sync.meet();
        with_channel!(self, buffers.peer(), channel => {
            let puts = PutStream { channel, source: buffers.source(), target: buffers.target() };
            let mut test = MessageRate::new(puts, ends);
            let measured = self.interleave(sync, &mut [&mut test, &mut limit], &[LimitRule::Of(1)])?;
            let limit = "raw word + flag, streamed";
            self.report(buffers.leads(), &measured, Some(MESSAGE), limit, |row| {
                row.set_rate();
            })
        })
    }
}
