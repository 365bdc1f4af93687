//! The fifo and the service on real atomics: order, laps, back-pressure, death, forgery.

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

    fn fifo(&self) -> Fifo<&FifoHeader, &[Slot]> {
        Fifo::new(&self.header, self.slots.as_slice()).unwrap()
    }
}

fn owner(number: u32) -> Owner {
    Owner::new(NonZeroU32::new(number).unwrap())
}

fn refusal(code: u32) -> Refusal {
    Refusal::new(NonZeroU32::new(code).unwrap())
}

/// A trigger that carries a number.
fn numbered(number: u32) -> Trigger {
    Trigger::put(Transfer { len: number, source_offset: !number, ..Transfer::default() })
}

fn number(trigger: &Trigger) -> u32 {
    let transfer = trigger.transfer();
    assert_eq!(transfer.source_offset, !transfer.len, "the two words belong together");
    transfer.len
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
    test(&ring, &mut ring.fifo().shared_producer(owner(1)).unwrap());
}

/// Where positions start: at zero, around the ends of laps, and near the end of all numbers.
const STARTS: [u64; 8] = [0, 1, 3, 4, 5, 8, u64::MAX - 5, u64::MAX - 3];

mod one_thread {
    use super::*;

    #[test]
    fn a_zeroed_ring_is_empty() {
        let ring = Ring::new(4);
        let mut consumer = ring.fifo().consumer();
        assert_eq!(consumer.peek(), None);
        assert_eq!(consumer.depth(), 0);
        consumer.pop();
        assert_eq!(ring.header.snapshot().served, 0, "a pop without a peek does nothing");
    }

    #[test]
    fn the_number_of_slots_is_a_power_of_two_within_the_limit() {
        for slots in [0, 3, 5, 513] {
            let ring = Ring::new(slots);
            let made = Fifo::new(&ring.header, ring.slots.as_slice());
            assert_eq!(made.err(), Some(FifoError::Capacity { slots }));
        }
        assert_eq!(Ring::new(512).fifo().capacity(), 512);
    }

    #[test]
    fn a_full_ring_takes_no_more_until_a_pop_and_holds_nothing_for_who_was_refused() {
        for capacity in [1_u32, 2, 4] {
            for start in STARTS {
                with_each_producer(capacity as usize, start, |ring, producer| {
                    let mut consumer = ring.fifo().consumer();
                    for lap in 0..5 {
                        for i in 0..capacity {
                            producer.try_push(numbered(lap * 10 + i)).unwrap();
                        }
                        assert_eq!(producer.try_push(numbered(99)), Err(Full));
                        assert_eq!(producer.try_push(numbered(99)), Err(Full));
                        assert!(consumer.peek().is_some());
                        assert_eq!(producer.try_push(numbered(99)), Err(Full), "a peek frees nothing");
                        for i in 0..capacity {
                            assert_eq!(number(&pop(&mut consumer).unwrap().1), lap * 10 + i);
                        }
                        assert_eq!(consumer.peek(), None);
                    }
                    assert_eq!(ring.header.snapshot().stalls, 5, "a push that tries again stalls once");
                });
            }
        }
    }

    #[test]
    fn positions_count_on_across_laps_and_the_end_of_all_numbers() {
        for start in STARTS {
            with_each_producer(4, start, |ring, producer| {
                let mut consumer = ring.fifo().consumer();
                for i in 0..20_u64 {
                    let pushed = producer.try_push(Trigger::flush()).unwrap();
                    assert_eq!(pushed.get(), start.wrapping_add(i));
                    assert!(!pushed.is_completed(&ring.header));
                    let (position, _) = consumer.peek().unwrap();
                    assert_eq!(position, pushed);
                    consumer.complete(position);
                    assert!(pushed.is_completed(&ring.header));
                    consumer.pop();
                }
            });
        }
    }

    #[test]
    fn an_exclusive_producer_shares_with_nobody() {
        let ring = Ring::new(4);
        let fifo = ring.fifo();
        let exclusive = fifo.producer().unwrap();
        assert_eq!(fifo.producer().err(), Some(FifoError::Taken));
        assert_eq!(fifo.shared_producer(owner(1)).err(), Some(FifoError::Taken));
        drop(exclusive);
        let shared = fifo.shared_producer(owner(1)).unwrap();
        assert_eq!(fifo.producer().err(), Some(FifoError::Taken));
        drop(shared);
        assert!(fifo.producer().is_ok());
    }

    #[test]
    fn places_for_shared_producers_are_limited_and_come_back() {
        let ring = Ring::new(4);
        let fifo = ring.fifo();
        let mut all: Vec<_> = (0..MAX_PRODUCERS).map(|_| fifo.shared_producer(owner(1)).unwrap()).collect();
        assert_eq!(fifo.shared_producer(owner(1)).err(), Some(FifoError::NoPlace { limit: MAX_PRODUCERS }));
        all.remove(5);
        assert!(fifo.shared_producer(owner(2)).is_ok());
    }

    #[test]
    fn a_new_producer_or_consumer_goes_on_where_the_last_one_stopped() {
        let ring = Ring::starting_at(4, 6);
        for i in 0..12 {
            let pushed = if i % 2 == 0 {
                ring.fifo().producer().unwrap().try_push(numbered(i))
            } else {
                ring.fifo().shared_producer(owner(1)).unwrap().try_push(numbered(i))
            };
            assert_eq!(pushed.unwrap().get(), 6 + u64::from(i));
            assert_eq!(number(&pop(&mut ring.fifo().consumer()).unwrap().1), i);
        }
    }

    proptest! {
        #[test]
        fn any_sequence_of_pushes_and_pops_behaves_like_a_bounded_queue(
            steps in prop::collection::vec(any::<bool>(), 0..200),
            capacity_log2 in 0_u32..4,
            start in prop_oneof![0_u64..20, (u64::MAX - 40)..=u64::MAX],
        ) {
            let capacity = 1_usize << capacity_log2;
            with_each_producer(capacity, start, |ring, producer| {
                let mut consumer = ring.fifo().consumer();
                let mut oracle = VecDeque::new();
                for (push, i) in steps.iter().zip(0..) {
                    if *push {
                        let pushed = producer.try_push(numbered(i));
                        assert_eq!(pushed.is_ok(), oracle.len() < capacity);
                        if pushed.is_ok() {
                            oracle.push_back(i);
                        }
                    } else {
                        assert_eq!(pop(&mut consumer).map(|(_, trigger)| number(&trigger)), oracle.pop_front());
                    }
                    assert_eq!(consumer.depth(), oracle.len() as u64);
                }
            });
        }
    }
}

mod death {
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
            assert_eq!(ring.header.snapshot().skipped, 18);
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
        assert_eq!(ring.header.snapshot().served, 8);
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
            assert_eq!(ring.header.snapshot().skipped, 10);
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
}

mod many_threads {
    use super::*;

    /// Pushes `each` numbered triggers from every producer and checks that they arrive once and in order.
    fn lose_nothing(capacity: usize, n_producers: u32, each: u32, start: u64) {
        let ring = Ring::starting_at(capacity, start);
        let fifo = ring.fifo();
        let barrier = Barrier::new(n_producers as usize);
        thread::scope(|scope| {
            // Joined by hand: ThreadSanitizer does not see a scope's own join unless std is instrumented too.
            let mut pushing = Vec::new();
            for producer in 0..n_producers {
                let (fifo, barrier) = (&fifo, &barrier);
                pushing.push(scope.spawn(move || {
                    let mut end = fifo.shared_producer(owner(producer + 1)).unwrap();
                    barrier.wait();
                    for i in 0..each {
                        let transfer = Transfer {
                            len: i,
                            source_offset: !i,
                            target_offset: producer,
                            ..Transfer::default()
                        };
                        while end.try_push(Trigger::put(transfer)).is_err() {
                            thread::yield_now();
                        }
                    }
                }));
            }
            let mut next = vec![0; n_producers as usize];
            let mut service = Service::new([fifo.consumer()]);
            let mut served = 0;
            while served < u64::from(n_producers) * u64::from(each) {
                let mut handler = |_: usize, trigger: &Trigger| {
                    let producer = trigger.transfer().target_offset as usize;
                    assert_eq!(number(trigger), next[producer], "producer {producer} is served in order");
                    next[producer] += 1;
                    Ok(())
                };
                match service.poll(&mut handler) {
                    0 => thread::yield_now(),
                    n => served += n,
                }
            }
            pushing.into_iter().for_each(|producer| producer.join().unwrap());
        });
        let snapshot = ring.header.snapshot();
        assert_eq!(snapshot.served, start.wrapping_add(u64::from(n_producers) * u64::from(each)));
        assert_eq!((snapshot.depth, snapshot.skipped, snapshot.refused), (0, 0, 0));
    }

    #[test]
    fn four_producers_lose_nothing_and_keep_their_order() {
        lose_nothing(512, 4, 50_000, 0);
        lose_nothing(8, 4, 10_000, u64::MAX - 1000);
        lose_nothing(1, 4, 1_000, 3);
        lose_nothing(2, 1, 5_000, 0);
    }

    #[test]
    fn producers_that_abandon_now_and_then_lose_nothing_else() {
        let ring = Ring::new(8);
        let fifo = ring.fifo();
        thread::scope(|scope| {
            let mut pushing = Vec::new();
            for producer in 1..=3 {
                let mut end = fifo.shared_producer(owner(producer)).unwrap();
                pushing.push(scope.spawn(move || {
                    let mut i = 0;
                    while i < 3_000 {
                        match end.reserve() {
                            Ok(reservation) if i % 7 == 3 => drop(reservation),
                            Ok(reservation) => drop(reservation.commit(numbered(i))),
                            Err(Full) => {
                                thread::yield_now();
                                continue;
                            }
                        }
                        i += 1;
                    }
                }));
            }
            let mut consumer = fifo.consumer();
            let mut sum = 0_u64;
            while consumer.depth() > 0 || ring.header.snapshot().served < 9_000 {
                match pop(&mut consumer) {
                    Some((_, trigger)) => sum += u64::from(number(&trigger)),
                    None => thread::yield_now(),
                }
            }
            pushing.into_iter().for_each(|producer| producer.join().unwrap());
            assert_eq!(sum, 3 * (0..3_000).filter(|i| i % 7 != 3).sum::<u64>());
        });
    }
}

mod serving {
    use super::*;

    fn signal(id: u32) -> Trigger {
        Trigger::signal(SemaphoreId::new(id).unwrap())
    }

    #[test]
    fn every_fifo_gets_its_turn_and_a_batch_is_bounded() {
        let rings: Vec<_> = (0..3).map(|_| Ring::new(256)).collect();
        let mut service = Service::new(rings.iter().map(|ring| ring.fifo().consumer()));
        for ring in &rings {
            let mut producer = ring.fifo().producer().unwrap();
            for i in 0..100 {
                producer.try_push(numbered(i)).unwrap();
            }
        }
        let mut served = [0; 3];
        let mut firsts = Vec::new();
        for expected in [3 * BATCH, 3 * (100 - BATCH), 0] {
            let mut first = None;
            let turn = service.poll(&mut |fifo: usize, _: &Trigger| {
                first.get_or_insert(fifo);
                served[fifo] += 1;
                Ok(())
            });
            assert_eq!(turn, expected);
            firsts.extend(first);
        }
        assert_eq!(served, [100; 3]);
        assert_eq!(firsts, [0, 1]);
    }

    #[test]
    fn a_service_without_fifos_has_nothing_to_do() {
        let mut service = Service::<&FifoHeader, &[Slot]>::new([]);
        let mut handler = |_: usize, _: &Trigger| Ok(());
        assert_eq!(service.poll(&mut handler), 0);
        let goal = service.drain_goal();
        assert_eq!(service.drain(&goal, &mut handler), 0);
    }

    #[test]
    fn only_a_flush_publishes_the_completed_position() {
        let ring = Ring::new(8);
        let mut producer = ring.fifo().producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        let mut handler = |_: usize, _: &Trigger| Ok(());
        let before = producer.try_push(numbered(1)).unwrap();
        service.poll(&mut handler);
        assert!(!before.is_completed(producer.header()));
        let flush = producer.try_push(Trigger::flush()).unwrap();
        let after = producer.try_push(numbered(1)).unwrap();
        service.poll(&mut handler);
        assert!(before.is_completed(producer.header()) && flush.is_completed(producer.header()));
        assert!(!after.is_completed(producer.header()));
    }

    #[derive(Default)]
    struct Picky {
        handled: u32,
        refused: Vec<(usize, u64, u32)>,
    }

    impl Handler for Picky {
        fn handle(&mut self, _: usize, trigger: &Trigger) -> Result<(), Refusal> {
            if trigger.kind().contains(Kind::DATA) {
                return Err(refusal(17));
            }
            self.handled += 1;
            Ok(())
        }

        fn refused(&mut self, fifo: usize, position: Position, _: &Trigger, refusal: Refusal) {
            self.refused.push((fifo, position.get(), refusal.code()));
        }
    }

    #[test]
    fn a_refused_trigger_is_counted_told_and_popped_and_its_flush_completes() {
        let ring = Ring::new(8);
        let mut producer = ring.fifo().producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        let mut handler = Picky::default();
        producer.try_push(signal(3)).unwrap();
        let bad = Trigger::put_with_signal_and_flush(
            Transfer { len: 9, ..Transfer::default() },
            SemaphoreId::default(),
        );
        let refused = producer.try_push(bad).unwrap();
        producer.try_push(signal(4)).unwrap();
        assert_eq!(service.poll(&mut handler), 3);
        assert_eq!(handler.handled, 2);
        assert_eq!(handler.refused, [(0, 1, 17)]);
        assert!(refused.is_completed(producer.header()));
        let snapshot = service.header(0).unwrap().snapshot();
        assert_eq!(snapshot.refused, 1);
        assert_eq!(snapshot.last_refused, Some(RefusedTrigger { position: 1, trigger: bad, code: 17 }));
    }

    #[test]
    fn words_that_ask_for_nothing_are_refused() {
        let ring = Ring::new(8);
        let mut producer = ring.fifo().producer().unwrap();
        producer.try_push(Trigger::from_words([1, 1])).unwrap();
        let mut handler = Picky::default();
        assert_eq!(Service::new([ring.fifo().consumer()]).poll(&mut handler), 1);
        assert_eq!(handler.refused, [(0, 0, Refusal::NO_KIND.code())]);
    }

    #[test]
    fn a_drain_serves_what_was_pushed_before_it_and_no_more() {
        for start in STARTS {
            let ring = Ring::starting_at(256, start);
            let mut producer = ring.fifo().producer().unwrap();
            let mut service = Service::new([ring.fifo().consumer()]);
            for i in 0..200 {
                producer.try_push(numbered(i)).unwrap();
            }
            let goal = service.drain_goal();
            producer.try_push(numbered(200)).unwrap();
            let mut served = 0;
            let mut handler = |_: usize, trigger: &Trigger| {
                assert_eq!(number(trigger), served);
                served += 1;
                Ok(())
            };
            assert_eq!(service.drain(&goal, &mut handler), 0);
            assert_eq!(service.drain(&goal, &mut handler), 0);
            assert_eq!(served, 200);
        }
    }

    #[test]
    fn a_drain_tells_what_a_dead_producer_left_and_ends_once_it_is_skipped() {
        let ring = Ring::new(8);
        let fifo = ring.fifo();
        let mut alive = fifo.shared_producer(owner(1)).unwrap();
        let mut dying = fifo.shared_producer(owner(2)).unwrap();
        let mut service = Service::new([fifo.consumer()]);
        alive.try_push(numbered(0)).unwrap();
        std::mem::forget(dying.reserve().unwrap());
        alive.try_push(numbered(1)).unwrap();
        let goal = service.drain_goal();
        let mut handler = |_: usize, _: &Trigger| Ok(());
        assert_eq!(service.drain(&goal, &mut handler), 2);
        assert_eq!(service.skip_stuck(|_, who| who == owner(2)), 1);
        assert_eq!(service.drain(&goal, &mut handler), 0);
    }

    #[test]
    fn a_service_steps_over_positions_without_a_trigger_and_counts_them_as_progress() {
        for start in STARTS {
            let ring = Ring::starting_at(4, start);
            let mut producer = ring.fifo().shared_producer(owner(1)).unwrap();
            let mut service = Service::new([ring.fifo().consumer()]);
            for lap in 0..5 {
                drop(producer.reserve().unwrap());
                producer.try_push(numbered(lap)).unwrap();
                drop(producer.reserve().unwrap());
                let mut seen = Vec::new();
                let popped = service.poll(&mut |_: usize, trigger: &Trigger| {
                    seen.push(number(trigger));
                    Ok(())
                });
                assert_eq!((popped, seen), (3, vec![lap]));
            }
            assert_eq!(ring.header.snapshot().skipped, 10);
        }
    }

    #[test]
    fn a_handler_that_panics_leaves_its_trigger_and_those_after_it() {
        for victim in [0, 1, 2, 15, 16, 17, 40] {
            let ring = Ring::new(64);
            let mut producer = ring.fifo().producer().unwrap();
            let mut service = Service::new([ring.fifo().consumer()]);
            (0..victim + 2).for_each(|i| assert!(producer.try_push(numbered(i)).is_ok()));
            let mut broken = |_: usize, trigger: &Trigger| {
                assert!(number(trigger) != victim, "this handler cannot do that one");
                Ok(())
            };
            let turn = std::panic::AssertUnwindSafe(|| service.poll(&mut broken));
            assert!(std::panic::catch_unwind(turn).is_err());
            assert_eq!(ring.header.snapshot().served, u64::from(victim));
            let mut seen = Vec::new();
            service.poll(&mut |_: usize, trigger: &Trigger| {
                seen.push(number(trigger));
                Ok(())
            });
            assert_eq!(seen, [victim, victim + 1]);
        }
    }

    #[test]
    fn a_producer_without_room_learns_of_a_pop_within_a_stretch() {
        let ring = Ring::starting_at(64, 5);
        let mut producer = ring.fifo().producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        while producer.try_push(numbered(1)).is_ok() {}
        let mut popped = 0;
        let served = service.poll(&mut |_: usize, _: &Trigger| {
            let published = ring.header.snapshot().served - 5;
            assert!(published <= popped && popped - published < STRETCH as u64);
            popped += 1;
            Ok(())
        });
        assert_eq!((served, ring.header.snapshot().served), (64, 69));
    }

    #[test]
    fn a_sample_of_the_triggers_is_timed() {
        let ring = Ring::new(64);
        let mut producer = ring.fifo().producer().unwrap();
        let mut service = Service::new([ring.fifo().consumer()]);
        let mut served = 0;
        while served < 3 * u64::from(SAMPLE_EVERY) {
            while producer.try_push(Trigger::flush()).is_ok() {}
            served += service.poll(&mut |_: usize, _: &Trigger| Ok(()));
        }
        let snapshot = ring.header.snapshot();
        let timed = served.div_ceil(u64::from(SAMPLE_EVERY));
        assert_eq!(snapshot.service_time.count(), timed);
        assert!(snapshot.service_time.percentile_ns(50) <= snapshot.service_time.percentile_ns(99));
        assert_eq!(snapshot.depth_high_water, 64);
    }

    #[test]
    fn percentiles_name_the_end_of_their_bucket() {
        let mut histogram = Histogram { buckets: [0; BUCKETS] };
        assert_eq!(histogram.percentile_ns(50), None);
        histogram.buckets[3] = 99;
        histogram.buckets[10] = 1;
        assert_eq!(histogram.percentile_ns(0), Some(16));
        assert_eq!(histogram.percentile_ns(99), Some(16));
        assert_eq!(histogram.percentile_ns(100), Some(2048));
    }
}

mod forgery {
    use super::*;

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
            let _ = header.snapshot();
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
        assert_eq!(ring.header.snapshot().served, 2);
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
}

mod triggers {
    use super::*;

    fn memory(id: u32) -> MemoryId {
        MemoryId::new(id).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            kind in 1_u8..8,
            len in any::<u32>(),
            offsets in any::<[u32; 2]>(),
            source in 0..MemoryId::LIMIT,
            target in 0..MemoryId::LIMIT,
            semaphore in 0..SemaphoreId::LIMIT,
        ) {
            let [source_offset, target_offset] = offsets;
            let transfer =
                Transfer { len, source: memory(source), source_offset, target: memory(target), target_offset };
            let semaphore = SemaphoreId::new(semaphore).unwrap();
            let kind = [Kind::DATA, Kind::SIGNAL, Kind::FLUSH]
                .into_iter()
                .enumerate()
                .filter(|(bit, _)| kind >> bit & 1 == 1)
                .fold(Kind::NONE, |all, (_, one)| all | one);
            let trigger = Trigger::new(kind, transfer, semaphore).unwrap();
            prop_assert_eq!(trigger.kind(), kind);
            prop_assert_eq!(trigger.transfer(), transfer);
            prop_assert_eq!(trigger.semaphore(), semaphore);
            prop_assert_eq!(trigger.words()[1] & COMMIT_BIT, 0);
            prop_assert_eq!(Trigger::from_words(trigger.words()), trigger);
        }

        #[test]
        fn any_words_decode_and_encode_to_themselves_but_for_the_commit_bit(words in any::<[u64; 2]>()) {
            let trigger = Trigger::from_words(words);
            prop_assert_eq!(trigger.words(), [words[0], words[1] & !COMMIT_BIT]);
            match Trigger::new(trigger.kind(), trigger.transfer(), trigger.semaphore()) {
                Ok(again) => prop_assert_eq!(again, trigger),
                Err(error) => {
                    prop_assert!(trigger.kind().is_none());
                    prop_assert_eq!(error, TriggerError::NoKind);
                }
            }
        }

        #[test]
        fn a_trigger_comes_out_of_the_ring_as_it_went_in(words in any::<[u64; 2]>(), start in any::<u64>()) {
            let trigger = Trigger::from_words([words[0], words[1] | 1 << 60]);
            with_each_producer(4, start, |ring, producer| {
                let mut consumer = ring.fifo().consumer();
                for _ in 0..9 {
                    producer.try_push(trigger).unwrap();
                    assert_eq!(pop(&mut consumer).unwrap().1, trigger);
                }
            });
        }
    }

    #[test]
    fn ids_that_do_not_fit_are_errors() {
        assert_eq!(memory(511).get(), 511);
        for value in [512, 513, 1 << 16, u32::MAX] {
            let error = MemoryId::new(value).unwrap_err();
            assert_eq!(error, TriggerError::OutOfRange { field: "memory id", value, limit: 512 });
        }
        assert_eq!(SemaphoreId::new(1023).unwrap().get(), 1023);
        let error = SemaphoreId::new(1024).unwrap_err();
        assert_eq!(error.to_string(), "semaphore id 1024 does not fit a trigger: it has to be below 1024");
    }

    #[test]
    fn the_layout_of_the_words_is_the_documented_one() {
        let transfer = Transfer {
            len: 0x11,
            source_offset: 0x22,
            target_offset: 0x33,
            source: memory(0x144),
            target: memory(0x155),
        };
        let trigger = Trigger::put_with_signal_and_flush(transfer, SemaphoreId::new(0x266).unwrap());
        assert_eq!(trigger.words()[0], 0x22_0000_0011);
        assert_eq!(trigger.words()[1], 0x33 | 0x144 << 32 | 0x155 << 41 | 0x266 << 50 | 7 << 60);
    }

    #[test]
    fn the_shorthands_carry_their_kinds() {
        let (transfer, semaphore) = (Transfer::default(), SemaphoreId::default());
        assert_eq!(Trigger::put(transfer).kind(), Kind::DATA);
        assert_eq!(Trigger::signal(semaphore).kind(), Kind::SIGNAL);
        assert_eq!(Trigger::flush().kind(), Kind::FLUSH);
        assert_eq!(Trigger::put_with_signal(transfer, semaphore).kind(), Kind::DATA | Kind::SIGNAL);
        let all = Trigger::put_with_signal_and_flush(transfer, semaphore).kind();
        assert!(all.contains(Kind::DATA | Kind::SIGNAL | Kind::FLUSH) && !all.is_none());
    }
}
