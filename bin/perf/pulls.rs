//! Gets, one after the other: each fetches what the peer has just written, and where the next one begins depends on it.
//!
//! A short get takes less than its clock. So many are timed together, each from lines of its own that the peer has rewritten; the
//! dependency keeps the processor from fetching several at a time, which would make a rate of a latency.

use std::hint::black_box;

use shmccl::Result;
use shmccl::channel::MemoryChannel;
use shmccl::heap::HeapOffset;

use super::clock::now_ns;
use super::ends::FlagEnd;
use super::lane::{Lane, settling};
use super::payload::Payload;
use super::transfer::{Mover, PlainCopy};

/// Fetches messages by their places.
pub(crate) trait Pull {
    /// Fetches the message in this place.
    fn pull(&mut self, place: usize) -> Result<()>;
}

/// Gets over a direct channel.
#[derive(Debug)]
pub(crate) struct Gets {
    /// The channel.
    pub(crate) channel: MemoryChannel,
    /// From where in the peer's heap, and to where in this rank's.
    pub(crate) places: Vec<(HeapOffset, HeapOffset)>,
    /// How much.
    pub(crate) len: u64,
}

impl Pull for Gets {
    #[inline]
    fn pull(&mut self, place: usize) -> Result<()> {
        let (source, target) = self.places[place];
        self.channel.get(target, source, self.len)
    }
}

/// Plain copies by one kernel: the limit.
#[derive(Debug)]
pub(crate) struct PlainPulls(pub(crate) Vec<PlainCopy>);

impl Pull for PlainPulls {
    #[inline]
    fn pull(&mut self, place: usize) -> Result<()> {
        self.0[place].start()
    }
}

/// The other rank rewrites all messages, the leader fetches and reads them. A sample is the mean of one after the other.
#[derive(Debug)]
pub(crate) struct Pulls<P> {
    pull: P,
    leads: bool,
    outgoing: Vec<Payload>,
    incoming: Vec<Payload>,
    flags: FlagEnd,
    turn: u64,
    seq: u64,
    wrong: u64,
}

impl<P: Pull> Pulls<P> {
    /// Fetches `outgoing` of the other rank into `incoming`; `flags` are this lane's own.
    pub(crate) fn new(
        pull: P,
        leads: bool,
        outgoing: Vec<Payload>,
        incoming: Vec<Payload>,
        flags: FlagEnd,
    ) -> Self {
        Self { pull, leads, outgoing, incoming, flags, turn: 0, seq: 0, wrong: 0 }
    }

    fn count(&self) -> u64 {
        self.outgoing.len() as u64
    }

    fn meet(&mut self) {
        self.turn += 1;
        self.flags.theirs.set(self.turn);
        self.flags.mine.spin_yielding(self.turn);
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
        let (pull, incoming) = (&mut self.pull, &self.incoming);
        let start = now_ns();
        one_after_the_other(incoming.len(), |place| {
            pull.pull(place)?;
            incoming[place].first()
        })?;
        Ok((now_ns() - start) as f64 / incoming.len() as f64)
    }
}

/// Calls `fetch` with each place from 0 on, and with none before what the last call has returned is there.
#[inline]
fn one_after_the_other(count: usize, mut fetch: impl FnMut(usize) -> Result<usize>) -> Result<()> {
    let mut place = 0;
    for _ in 0..count {
        // Nothing is added, but neither compiler nor processor knows.
        let nothing = black_box(fetch(place)?) & black_box(0);
        place += 1 + nothing;
    }
    Ok(())
}

impl<P: Pull> Lane for Pulls<P> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_fetched_once_whatever_was_found_there() {
        let mut places = Vec::new();
        one_after_the_other(5, |place| {
            places.push(place);
            Ok(usize::MAX - place)
        })
        .unwrap();
        assert_eq!(places, [0, 1, 2, 3, 4]);
        one_after_the_other(0, |_| panic!("there is none")).unwrap();
    }
}
