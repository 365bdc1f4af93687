//! Gets, one after the other. Each fetches what the peer has just written, and the address of the
//! next one depends on it.
//!
//! A short get takes less than reading its clock, so many are timed together, each from a slot of
//! its own that the peer has rewritten. The dependency keeps the processor from fetching several at
//! a time, which would make a rate of a latency.

use std::hint::black_box;

use shmccl::Result;
use shmccl::channel::MemoryChannel;
use shmccl::heap::HeapOffset;
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::{Contender, LimitRule};
use shmccl_harness::sync::{FlagEnd, PairSync};

use super::bench::{TestBench, TestResult, copy_kernels, lineup};
use super::buffers::PairBuffers;
use super::links::Payload;
use super::ping_pong::settling;
use super::transfer::{MessageMover, PlainCopy};

/// Fetches messages by their slots.
trait FetchSlot {
    /// Fetches the message in `slot`.
    fn fetch(&mut self, slot: usize) -> Result<()>;
}

/// Gets over a direct channel.
#[derive(Debug)]
struct ChannelGets {
    channel: MemoryChannel,
    /// Where slots are in the peer's heap, and in this rank's.
    slots: Vec<(HeapOffset, HeapOffset)>,
    len: u64,
}

impl FetchSlot for ChannelGets {
    #[inline]
    fn fetch(&mut self, slot: usize) -> Result<()> {
        let (source, target) = self.slots[slot];
        self.channel.get(target, source, self.len)
    }
}

/// Plain copies by one kernel: the limit.
#[derive(Debug)]
struct PlainGets(Vec<PlainCopy>);

impl FetchSlot for PlainGets {
    #[inline]
    fn fetch(&mut self, slot: usize) -> Result<()> {
        self.0[slot].start()
    }
}

/// Gets of one rank. The other rank rewrites all messages; the leader fetches and reads them. A
/// sample is the mean of all slots, one after the other.
#[derive(Debug)]
struct Gets<F> {
    fetch: F,
    leads: bool,
    outgoing: Vec<Payload>,
    incoming: Vec<Payload>,
    flags: FlagEnd,
    turn: u64,
    seq: u64,
    wrong: u64,
}

impl<F: FetchSlot> Gets<F> {
    fn count(&self) -> u64 {
        self.outgoing.len() as u64
    }

    fn meet(&mut self) {
        self.turn += 1;
        self.flags.meet(self.turn);
    }

    fn exchange(&mut self) -> Result<Option<f64>> {
        let first = self.seq;
        self.seq += self.count();
        if !self.leads {
            (first..).zip(&self.outgoing).for_each(|(seq, payload)| payload.rewrite(seq));
        }
        self.meet();
        let sample = if self.leads { Some(self.time()?) } else { None };
        self.meet();
        if self.leads {
            let wrong = (first..).zip(&self.incoming).map(|(seq, payload)| payload.read(seq, false).wrong);
            self.wrong += wrong.sum::<u64>();
        }
        Ok(sample)
    }

    fn time(&mut self) -> Result<f64> {
        let (fetch, incoming) = (&mut self.fetch, &self.incoming);
        let start = now_ns();
        one_after_the_other(incoming.len(), |slot| {
            fetch.fetch(slot)?;
            incoming[slot].first()
        })?;
        Ok((now_ns() - start) as f64 / incoming.len() as f64)
    }
}

/// Calls `fetch` with each slot from 0 on, and only after the value of the last call has arrived.
#[inline]
fn one_after_the_other(count: usize, mut fetch: impl FnMut(usize) -> Result<usize>) -> Result<()> {
    let mut slot = 0;
    for _ in 0..count {
        // Nothing is added, but neither compiler nor processor knows.
        let nothing = black_box(fetch(slot)?) & black_box(0);
        slot += 1 + nothing;
    }
    Ok(())
}

impl<F: FetchSlot> Contender for Gets<F> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..settling(self.outgoing[0].span().len()) {
            self.exchange()?;
        }
        for _ in 0..ops / self.count() {
            samples.extend(self.exchange()?);
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        self.count()
    }

    fn per_sample(&self) -> u64 {
        self.count()
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl TestBench<'_> {
    /// Measures gets against plain copies by every kernel; the best of them is the limit.
    pub(crate) fn get_latency(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let kernels = copy_kernels();
        let slots = buffers.slots().map(|(source, target)| (source.offset, target.offset)).collect();
        let channel = self.comm.memory_channel(buffers.peer())?;
        let mut test = self.gets(buffers, ChannelGets { channel, slots, len: buffers.len() }, 0)?;
        let mut limits = Vec::new();
        for (pair, &kernel) in (1..).zip(&kernels) {
            let copy = |(out, into)| -> Result<_> {
                let source = self.comm.span(buffers.peer(), out)?;
                Ok(PlainCopy { source, target: self.comm.span(self.comm.rank(), into)?, kernel })
            };
            let copies = PlainGets(buffers.slots().map(copy).collect::<Result<_>>()?);
            limits.push(self.gets(buffers, copies, pair)?);
        }
        sync.meet();
        let mut contenders = lineup(&mut test, &mut limits);
        let measured = self.interleave(sync, &mut contenders, &LimitRule::each(kernels.len()))?;
        let (best, measured) = measured.with_lowest_limit();
        let (len, limit) = (buffers.len(), format!("plain copy ({})", kernels[best]));
        self.report(buffers.leads(), &measured, Some(len), &limit, |row| row.set_bandwidth(len))
    }

    /// Returns gets by `fetch` with bare flags number `pair`.
    fn gets<F: FetchSlot>(&self, buffers: &PairBuffers, fetch: F, pair: u64) -> Result<Gets<F>> {
        let (outgoing, incoming) = buffers.payloads(self.comm)?;
        let (leads, flags) = (buffers.leads(), buffers.flags(self.comm, pair)?);
        Ok(Gets { fetch, leads, outgoing, incoming, flags, turn: 0, seq: 0, wrong: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_fetched_once_whatever_was_found_there() {
        let mut slots = Vec::new();
        one_after_the_other(5, |slot| {
            slots.push(slot);
            Ok(usize::MAX - slot)
        })
        .unwrap();
        assert_eq!(slots, [0, 1, 2, 3, 4]);
        one_after_the_other(0, |_| panic!("there is none")).unwrap();
    }
}
