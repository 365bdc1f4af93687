//! Laps, back-pressure and the ends of numbers on one thread, and producers that push at once.

use super::*;

#[test]
fn a_zeroed_ring_is_empty() {
    let ring = Ring::new(4);
    let mut consumer = ring.fifo().consumer();
    assert_eq!(consumer.peek(), None);
    assert_eq!(consumer.depth(), 0);
    consumer.pop();
    assert_eq!(ring.snapshot().served, 0, "a pop without a peek does nothing");
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
                assert_eq!(ring.snapshot().stalls, 5, "a push that tries again stalls once");
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
    assert_eq!(fifo.shared_producer().err(), Some(FifoError::Taken));
    drop(exclusive);
    let shared = fifo.shared_producer().unwrap();
    assert_eq!(fifo.producer().err(), Some(FifoError::Taken));
    drop(shared);
    assert!(fifo.producer().is_ok());
}

#[test]
fn places_for_shared_producers_are_limited_and_come_back() {
    let ring = Ring::new(4);
    let fifo = ring.fifo();
    let mut all: Vec<_> = (0..MAX_PRODUCERS).map(|_| fifo.shared_producer().unwrap()).collect();
    assert_eq!(fifo.shared_producer().err(), Some(FifoError::NoPlace { limit: MAX_PRODUCERS }));
    all.remove(5);
    assert!(fifo.shared_producer().is_ok());
}

#[test]
fn a_new_producer_or_consumer_goes_on_where_the_last_one_stopped() {
    let ring = Ring::starting_at(4, 6);
    for i in 0..12 {
        let pushed = if i % 2 == 0 {
            ring.fifo().producer().unwrap().try_push(numbered(i))
        } else {
            ring.fifo().shared_producer().unwrap().try_push(numbered(i))
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

/// Pushes `each` numbered triggers from every producer and checks that they arrive once and in
/// order.
fn lose_nothing(capacity: usize, n_producers: u32, each: u32, start: u64) {
    let ring = Ring::starting_at(capacity, start);
    let fifo = ring.fifo();
    let barrier = Barrier::new(n_producers as usize);
    thread::scope(|scope| {
        // Joined by hand: ThreadSanitizer does not see a scope's own join unless std is
        // instrumented too.
        let mut pushing = Vec::new();
        for producer in 0..n_producers {
            let (fifo, barrier) = (&fifo, &barrier);
            pushing.push(scope.spawn(move || {
                let mut end = fifo.shared_producer().unwrap();
                barrier.wait();
                for i in 0..each {
                    let transfer = Transfer {
                        len: TransferLen::new(producer).unwrap(),
                        source_offset: !i,
                        target_offset: i,
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
                let producer = trigger.transfer().len.get() as usize;
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
    let snapshot = ring.snapshot();
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
        for _ in 1..=3 {
            let mut end = fifo.shared_producer().unwrap();
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
        while consumer.depth() > 0 || ring.snapshot().served < 9_000 {
            match pop(&mut consumer) {
                Some((_, trigger)) => sum += u64::from(number(&trigger)),
                None => thread::yield_now(),
            }
        }
        pushing.into_iter().for_each(|producer| producer.join().unwrap());
        assert_eq!(sum, 3 * (0..3_000).filter(|i| i % 7 != 3).sum::<u64>());
    });
}
