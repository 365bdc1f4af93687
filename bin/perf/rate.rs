//! Small messages one after the other, without waiting for each: the message rate.

use shmccl::Result;
use shmccl::channel::Channel;
use shmccl::heap::HeapOffset;
use shmccl::shm::Span;

use super::clock::now_ns;
use super::ends::FlagEnd;
use super::lane::Lane;

/// Messages in a window: each has a slot of its own, and the receiver answers when all have come.
pub(crate) const WINDOW: u64 = 1024;

/// Bytes of a message.
pub(crate) const MESSAGE: u64 = 8;

/// Sends and receives messages of one word.
pub(crate) trait Stream {
    /// Sends the message at `offset` of the window, the `count`-th in all.
    fn send(&mut self, offset: u64, count: u64) -> Result<()>;

    /// Returns when the whole window has arrived, the `count`-th message being its last.
    fn receive_window(&mut self, count: u64) -> Result<()>;
}

/// A word and a flag, stored: the limit.
#[derive(Debug)]
pub(crate) struct BareStream {
    /// From where.
    pub(crate) source: Span,
    /// To where.
    pub(crate) target: Span,
    /// Set after each message.
    pub(crate) flags: FlagEnd,
}

impl Stream for BareStream {
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
pub(crate) struct PutStream<C> {
    /// The channel.
    pub(crate) channel: C,
    /// Where the window is in this rank's heap.
    pub(crate) source: HeapOffset,
    /// Where it goes in the peer's.
    pub(crate) target: HeapOffset,
}

impl<C: Channel> Stream for PutStream<C> {
    #[inline]
    fn send(&mut self, offset: u64, _count: u64) -> Result<()> {
        let at = |base: HeapOffset| HeapOffset::new(base.get() + offset);
        self.channel.put_with_signal(at(self.target), at(self.source), MESSAGE)
    }

    fn receive_window(&mut self, _count: u64) -> Result<()> {
        (0..WINDOW).try_for_each(|_| self.channel.wait())
    }
}

/// Windows of messages from the leader to the other rank.
#[derive(Debug)]
pub(crate) struct Rate<S> {
    stream: S,
    leads: bool,
    outgoing: Span,
    incoming: Span,
    /// Says that a window was read.
    answer: FlagEnd,
    windows: u64,
    wrong: u64,
}

impl<S: Stream> Rate<S> {
    /// Sends `outgoing` into the peer's `incoming`, message by message.
    pub(crate) fn new(stream: S, leads: bool, outgoing: Span, incoming: Span, answer: FlagEnd) -> Self {
        Self { stream, leads, outgoing, incoming, answer, windows: 0, wrong: 0 }
    }

    fn send_window(&mut self) -> Result<f64> {
        for slot in 0..WINDOW {
            self.outgoing.write(slot * MESSAGE, self.windows * WINDOW + slot)?;
        }
        let start = now_ns();
        for slot in 0..WINDOW {
            self.stream.send(slot * MESSAGE, (self.windows - 1) * WINDOW + slot + 1)?;
        }
        self.answer.mine.spin_yielding(self.windows);
        Ok((now_ns() - start) as f64 / WINDOW as f64)
    }

    fn receive_window(&mut self) -> Result<()> {
        self.stream.receive_window(self.windows * WINDOW)?;
        for slot in 0..WINDOW {
            let word: u64 = self.incoming.read(slot * MESSAGE)?;
            self.wrong += u64::from(word != self.windows * WINDOW + slot);
        }
        self.answer.theirs.set(self.windows);
        Ok(())
    }
}

impl<S: Stream> Lane for Rate<S> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..ops / WINDOW {
            self.windows += 1;
            if self.leads {
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
