//! The fifo and the service on real atomics: order, laps, back-pressure, death, forgery.

mod broken;
mod pushing;
mod serving;
mod triggers;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;

use crate::atomic::Ordering;
use crate::fifo::STRETCH;
use crate::header::BUCKETS;
use crate::service::SAMPLE_EVERY;
use crate::trigger::COMMIT_BIT;
use crate::*;

/// A fifo's memory, and the handles that the tests use.
struct Ring {
    header: FifoHeader,
    slots: Vec<Slot>,
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Self { header: FifoHeader::default(), slots: (0..capacity).map(|_| Slot::default()).collect() }
    }

    /// A ring that has served `start` positions already.
    fn starting_at(capacity: usize, start: u64) -> Self {
        let ring = Self::new(capacity);
        let fifo = ring.fifo();
        let cells = fifo.ring();
        for position in (0..fifo.capacity()).map(|i| start.wrapping_add(i)) {
            cells.slot(position).publish([7, 7], cells.commit_bit(position) ^ COMMIT_BIT);
        }
        for word in [&ring.header.head, &ring.header.tail, &ring.header.completed] {
            word.store(start, Ordering::Relaxed);
        }
        ring
    }

    fn snapshot(&self) -> Snapshot {
        self.header.snapshot(self.slots.len() as u64)
    }

    fn fifo(&self) -> Fifo<&FifoHeader, &[Slot]> {
        Fifo::new(&self.header, self.slots.as_slice()).unwrap()
    }
}

fn refusal(code: u32) -> TriggerRefusal {
    TriggerRefusal::new(NonZeroU32::new(code).unwrap())
}

/// A trigger that carries a number.
fn numbered(number: u32) -> Trigger {
    Trigger::put(Transfer { target_offset: number, source_offset: !number, ..Transfer::default() })
}

fn number(trigger: &Trigger) -> u32 {
    let transfer = trigger.transfer();
    assert_eq!(transfer.source_offset, !transfer.target_offset, "the two words belong together");
    transfer.target_offset
}

fn pop<'a>(consumer: &mut Consumer<&'a FifoHeader, &'a [Slot]>) -> Option<(Position, Trigger)> {
    let next = consumer.peek();
    consumer.pop();
    next
}

/// Runs a test over a fresh ring with an exclusive producer, then with a shared one.
fn with_each_producer(capacity: usize, start: u64, test: impl Fn(&Ring, &mut dyn Push)) {
    let ring = Ring::starting_at(capacity, start);
    test(&ring, &mut ring.fifo().producer().unwrap());
    let ring = Ring::starting_at(capacity, start);
    test(&ring, &mut ring.fifo().shared_producer().unwrap());
}

/// Where positions start: at zero, around the ends of laps, and near the end of all numbers.
const STARTS: [u64; 8] = [0, 1, 3, 4, 5, 8, u64::MAX - 5, u64::MAX - 3];
