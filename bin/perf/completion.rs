//! From the push of a trigger until its transfer is done: what who waits for a flush waits for.

use shmccl::Result;
use shmccl::channel::Channel;
use shmccl::heap::HeapOffset;

use super::clock::now_ns;
use super::ends::FlagEnd;
use super::lane::Lane;
use super::payload::Payload;

/// Puts of the leader, each with a signal and a flush. The other rank waits, reads what has come, and says so by a bare flag; that is
/// not in the sample.
#[derive(Debug)]
pub(crate) struct Completion<C> {
    /// The channel.
    pub(crate) channel: C,
    /// Whether this rank puts and keeps the time.
    pub(crate) leads: bool,
    /// What is put.
    pub(crate) outgoing: Payload,
    /// What arrives.
    pub(crate) incoming: Payload,
    /// Where it is in this rank's heap.
    pub(crate) source: HeapOffset,
    /// Where it goes in the peer's.
    pub(crate) target: HeapOffset,
    /// Says that it was read.
    pub(crate) answer: FlagEnd,
    /// Puts so far.
    pub(crate) seq: u64,
    /// Words that did not arrive as sent.
    pub(crate) wrong: u64,
}

impl<C: Channel> Completion<C> {
    fn put(&mut self) -> Result<f64> {
        self.outgoing.rewrite(self.seq);
        let start = now_ns();
        self.channel.put_with_signal_and_flush(self.target, self.source, self.outgoing.span().len())?;
        let took = now_ns() - start;
        self.answer.mine.spin_yielding(self.seq);
        Ok(took as f64)
    }

    fn take(&mut self) -> Result<()> {
        self.channel.wait()?;
        self.wrong += self.incoming.read(self.seq, false).wrong;
        self.answer.theirs.set(self.seq);
        Ok(())
    }
}

impl<C: Channel> Lane for Completion<C> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..ops {
            self.seq += 1;
            if self.leads {
                samples.push(self.put()?);
            } else {
                self.take()?;
            }
        }
        Ok(())
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}
