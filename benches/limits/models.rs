//! Models of the flags (Y1 to Y5).

use loom::{sync::Arc, thread};
use shmccl::sync::atomic::{AtomicU64, Ordering};

use super::flags::{BareBarrier, BareConsumer, BareFlag, BareProducer, BareSlot};

/// Runs `body` with enough forced switches for the worst case of each protocol, which needs two,
/// and one more.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Something written before an edge and read after it.
struct Ghost(AtomicU64);

impl Ghost {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn write(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed); // Relaxed: the edge under test has to carry it
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // Relaxed: the edge under test has to carry it
    }
}

#[test]
fn y1_a_flag_carries_what_came_before_it() {
    model(|| {
        let shared = Arc::new((BareFlag::new(0), Ghost::new()));
        let theirs = Arc::clone(&shared);
        let setter = thread::spawn(move || {
            theirs.1.write(7);
            theirs.0.set(1);
        });
        shared.0.spin(1);
        assert_eq!(shared.1.read(), 7);
        setter.join().unwrap();
    });
}

#[test]
fn y5_what_is_added_to_a_flag_carries_what_came_before_it() {
    model(|| {
        let shared = Arc::new((BareFlag::new(0), [Ghost::new(), Ghost::new()]));
        let adding = [0, 1].map(|number| {
            let theirs = Arc::clone(&shared);
            thread::spawn(move || {
                theirs.1[number].write(7);
                theirs.0.add(1);
            })
        });
        shared.0.spin(2);
        assert_eq!([shared.1[0].read(), shared.1[1].read()], [7, 7]);
        for thread in adding {
            thread.join().unwrap();
        }
    });
}

#[test]
fn y2_y3_a_ring_carries_words_forth_and_slots_back() {
    const SLOTS: usize = 2;
    const ROUNDS: u64 = 3;
    model(|| {
        let slots: Vec<_> = (0..SLOTS).map(|_| BareSlot::new()).collect();
        let shared = Arc::new((slots, BareFlag::new(0), Ghost::new()));
        let theirs = Arc::clone(&shared);
        let pushing = thread::spawn(move || {
            let mut producer = BareProducer::new(&theirs.0[..], &theirs.1);
            for round in 0..ROUNDS {
                while !producer.has_room() {
                    thread::yield_now();
                }
                // The slot is free only once the consumer has read what a lap ago was in it.
                assert!(theirs.2.read() + SLOTS as u64 > round);
                producer.push(round + 10, round);
            }
        });
        let mut consumer = BareConsumer::new(&shared.0[..], &shared.1);
        for round in 0..ROUNDS {
            let words = loop {
                match consumer.peek() {
                    Some(words) => break words,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((words.0, words.1 & !(1 << 63)), (round + 10, round));
            shared.2.write(round + 1);
            consumer.pop();
        }
        pushing.join().unwrap();
    });
}

#[test]
fn y4_a_counter_makes_two_meet() {
    model(|| {
        let shared = Arc::new((BareFlag::new(0), [Ghost::new(), Ghost::new()]));
        let attend = |shared: &(BareFlag, [Ghost; 2]), member: usize| {
            shared.1[member].write(7);
            BareBarrier::new(&shared.0, 2).meet();
            assert_eq!(shared.1[1 - member].read(), 7);
        };
        let theirs = Arc::clone(&shared);
        let other = thread::spawn(move || attend(&theirs, 1));
        attend(&shared, 0);
        other.join().unwrap();
    });
}
