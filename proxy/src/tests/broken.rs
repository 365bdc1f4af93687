//! Producers that give up between reserving and committing, and memory that was written by
//! somebody who does not follow the protocol.

use super::*;
use std::cell::Cell;
use std::ops::Deref;

#[test]
fn a_reservation_that_is_dropped_is_stepped_over() {
    for start in STARTS {
        let ring = Ring::starting_at(4, start);
        let mut producer = ring.fifo().shared_producer().unwrap();
        let mut consumer = ring.fifo().consumer();
        for i in 0..9 {
            drop(producer.reserve().unwrap());
            drop(producer.reserve().unwrap());
            producer.try_push(numbered(i)).unwrap();
            assert_eq!(number(&pop(&mut consumer).unwrap().1), i);
            assert_eq!(consumer.peek(), None);
        }
        assert_eq!(ring.snapshot().skipped, 18);
    }
}

#[test]
fn a_ring_full_of_abandoned_positions_is_emptied_by_one_peek() {
    let ring = Ring::new(8);
    let mut producer = ring.fifo().shared_producer().unwrap();
    for _ in 0..8 {
        drop(producer.reserve().unwrap());
    }
    assert_eq!(ring.fifo().consumer().peek(), None);
    assert_eq!(ring.snapshot().served, 8);
}

proptest! {
    #[test]
    fn forged_memory_never_panics_nor_holds_the_service(
        words in prop::collection::vec(any::<[u64; 2]>(), 8),
        cells in prop::collection::vec(prop_oneof![any::<u64>(), 0_u64..12], 4 + 8),
        start in prop_oneof![any::<u64>(), 0_u64..12],
    ) {
        let ring = Ring::starting_at(8, start);
        let mut service = Service::new([ring.fifo().consumer()]);
        let header = &ring.header;
        for (slot, words) in ring.slots.iter().zip(&words) {
            slot.publish(*words, words[1] & COMMIT_BIT);
        }
        let lines = [&header.head, &header.tail, &header.completed, &header.places];
        for (line, &value) in lines.iter().zip(&cells) {
            line.store(value, Ordering::Relaxed);
        }
        for (stalls, &value) in header.stalls.iter().zip(&cells[lines.len()..]) {
            stalls.store(value, Ordering::Relaxed);
        }
        let mut handler = |_: usize, _: &Trigger| Err(refusal(1));
        let goal = service.drain_goal();
        prop_assert!(service.poll(&mut handler) <= 8, "the words of one lap at most");
        prop_assert!(service.drain(&goal, &mut handler) <= 8);
        prop_assert!(header.snapshot(8).depth <= 8);
    }
}

#[test]
fn a_consumer_is_not_moved_by_a_forged_tail() {
    let ring = Ring::new(4);
    let mut producer = ring.fifo().producer().unwrap();
    let mut consumer = ring.fifo().consumer();
    producer.try_push(numbered(1)).unwrap();
    producer.try_push(numbered(2)).unwrap();
    assert_eq!(number(&pop(&mut consumer).unwrap().1), 1);
    ring.header.tail.store(u64::MAX - 7, Ordering::Relaxed);
    assert_eq!(number(&pop(&mut consumer).unwrap().1), 2);
    assert_eq!(ring.snapshot().served, 2);
}

#[test]
fn a_producer_in_front_of_a_forged_tail_says_full_and_returns() {
    for forged in [1, 100, u64::MAX / 2, u64::MAX - 100] {
        with_each_producer(4, 0, |ring, producer| {
            ring.header.tail.store(forged, Ordering::Relaxed);
            assert_eq!(producer.try_push(numbered(1)), Err(Full));
        });
    }
}

/// A header whose `head` somebody `moves`, if he does, by `step` between any two looks at it.
#[derive(Clone)]
struct Moving<'r> {
    header: &'r FifoHeader,
    step: u64,
    moves: &'r Cell<bool>,
}

impl Deref for Moving<'_> {
    type Target = FifoHeader;

    fn deref(&self) -> &FifoHeader {
        if self.moves.get() {
            self.header.head.fetch_add(self.step, Ordering::Relaxed);
        }
        self.header
    }
}

#[test]
fn a_producer_whose_head_is_moved_under_its_hands_says_full_and_holds_nothing() {
    // Steps that find room, where the exchange fails; that find none, where `head` has moved on;
    // and that go backwards.
    for step in [1, 4, 1 << 40, u64::MAX] {
        let (ring, moves) = (Ring::new(4), Cell::new(false));
        let moving = Moving { header: &ring.header, step, moves: &moves };
        let mut producer = Fifo::new(moving, ring.slots.as_slice()).unwrap().shared_producer().unwrap();
        moves.set(true);
        assert_eq!(producer.try_push(numbered(1)), Err(Full), "by {step}");
        moves.set(false);
        // Once nobody does so any more it goes on.
        ring.header.head.store(0, Ordering::Relaxed);
        assert_eq!(producer.try_push(numbered(2)), Ok(Position(0)), "by {step}");
    }
}
