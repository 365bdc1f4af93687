//! Producers that die or give up between reserving and committing.

use super::*;

#[test]
fn a_reservation_that_is_dropped_is_stepped_over() {
    for start in STARTS {
        let ring = Ring::starting_at(4, start);
        let mut producer = ring.fifo().shared_producer(owner(1)).unwrap();
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
    let mut producer = ring.fifo().shared_producer(owner(1)).unwrap();
    for _ in 0..8 {
        drop(producer.reserve().unwrap());
    }
    assert_eq!(ring.fifo().consumer().peek(), None);
    assert_eq!(ring.snapshot().served, 8);
}

#[test]
fn a_producer_that_dies_between_reserve_and_commit_does_not_wedge_the_others() {
    for start in STARTS {
        let ring = Ring::starting_at(4, start);
        let fifo = ring.fifo();
        let mut alive = fifo.shared_producer(owner(1)).unwrap();
        let mut consumer = fifo.consumer();
        for victim in 2..12 {
            let mut dying = fifo.shared_producer(owner(victim)).unwrap();
            alive.try_push(numbered(1)).unwrap();
            std::mem::forget(dying.reserve().unwrap());
            std::mem::forget(dying);
            alive.try_push(numbered(2)).unwrap();

            assert_eq!(number(&pop(&mut consumer).unwrap().1), 1);
            assert_eq!(consumer.peek(), None, "stops in front of the hole");
            assert_eq!(consumer.skip_stuck(|_| false), None, "the holder may still be alive");
            assert!(consumer.skip_stuck(|who| who == owner(victim)).is_some());
            assert_eq!(consumer.skip_stuck(|_| true), None, "the next position is committed");
            assert_eq!(number(&pop(&mut consumer).unwrap().1), 2);
            assert_eq!(consumer.skip_stuck(|_| true), None, "nothing is reserved");
        }
        assert_eq!(ring.snapshot().skipped, 10);
    }
}

#[test]
fn a_skipped_slot_does_not_show_its_old_trigger_one_lap_later() {
    let ring = Ring::new(2);
    let fifo = ring.fifo();
    let mut alive = fifo.shared_producer(owner(1)).unwrap();
    let mut consumer = fifo.consumer();
    for _ in 0..2 {
        alive.try_push(numbered(5)).unwrap();
        pop(&mut consumer).unwrap();
    }
    let mut dying = fifo.shared_producer(owner(2)).unwrap();
    std::mem::forget(dying.reserve().unwrap());
    consumer.skip_stuck(|who| who == owner(2)).unwrap();
    alive.try_push(numbered(6)).unwrap();
    assert_eq!(number(&pop(&mut consumer).unwrap().1), 6);
    assert_eq!(consumer.peek(), None);
}

#[test]
fn a_producer_that_lost_the_race_for_a_stuck_position_and_lives_does_not_block_the_skip_for_ever() {
    let ring = Ring::new(1);
    let fifo = ring.fifo();
    let mut dying = fifo.shared_producer(owner(1)).unwrap();
    let mut alive = fifo.shared_producer(owner(2)).unwrap();
    std::mem::forget(dying.reserve().unwrap());
    // The ring is full: its next attempt withdraws whatever it had announced.
    assert_eq!(alive.try_push(numbered(1)), Err(Full));
    let mut consumer = fifo.consumer();
    assert!(consumer.skip_stuck(|who| who == owner(1)).is_some());
    alive.try_push(numbered(1)).unwrap();
}
