//! Memory that was written by somebody who does not follow the protocol.

use super::*;
use std::cell::Cell;
use std::ops::Deref;

proptest! {
    #[test]
    fn forged_memory_never_panics_nor_holds_the_service(
        words in prop::collection::vec(any::<[u64; 2]>(), 8),
        cells in prop::collection::vec(prop_oneof![any::<u64>(), 0_u64..12], 6 + 3 * 4),
        start in prop_oneof![any::<u64>(), 0_u64..12],
    ) {
        let ring = Ring::starting_at(8, start);
        let mut service = Service::new([ring.fifo().consumer()]);
        let header = &ring.header;
        for (slot, words) in ring.slots.iter().zip(&words) {
            slot.publish(*words, words[1] & COMMIT_BIT);
        }
        let lines = [&header.head, &header.tail, &header.completed, &header.places];
        for (line, &value) in lines.into_iter().zip(&cells) {
            line.store(value, Ordering::Relaxed);
        }
        for (cell, values) in header.producers.iter().zip(cells[6..].chunks(3)) {
            cell.owner.store(values[0], Ordering::Relaxed);
            cell.reserving.store(values[1], Ordering::Relaxed);
            cell.stalls.store(values[2], Ordering::Relaxed);
        }
        let mut handler = |_: usize, _: &Trigger| Err(refusal(1));
        let goal = service.drain_goal();
        prop_assert!(service.poll(&mut handler) <= 8, "the words of one lap at most");
        prop_assert!(service.drain(&goal, &mut handler) <= 8);
        prop_assert!(service.skip_stuck(|_, _| true) <= 8);
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
    // Steps that find room, where the exchange fails; that find none, where `head` has moved on; and that go backwards.
    for step in [1, 4, 1 << 40, u64::MAX] {
        let (ring, moves) = (Ring::new(4), Cell::new(false));
        let moving = Moving { header: &ring.header, step, moves: &moves };
        let mut producer =
            Fifo::new(moving, ring.slots.as_slice()).unwrap().shared_producer(owner(1)).unwrap();
        moves.set(true);
        assert_eq!(producer.try_push(numbered(1)), Err(Full), "by {step}");
        moves.set(false);
        assert_eq!(ring.header.producers[0].reserving.load(Ordering::Relaxed), 0);
        // Once nobody does so any more it goes on.
        ring.header.head.store(0, Ordering::Relaxed);
        assert_eq!(producer.try_push(numbered(2)), Ok(Position(0)), "by {step}");
    }
}
