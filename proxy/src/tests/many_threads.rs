//! Producers that push at once.

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
