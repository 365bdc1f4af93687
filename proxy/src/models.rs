//! loom models of the fifo's edges: every interleaving and every value that the memory model lets a
//! load return.
//!
//! They run the production code on loom's atomics. Each edge of the table in [`crate::fifo`] has a
//! model that fails when either side of it is weakened; the model's doc names the edge. Data that
//! an edge must carry are relaxed atomics beside the fifo, so that a missing edge shows as an old
//! value.
//!
//! loom looks for races with the *last* access of a cell only. A thread that loads a cell and then
//! exchanges it hides another's load that way, and the order in which the exchange comes first is
//! never tried. Where a model depends on it, the threads pass `gates`: relaxed cells, each stored
//! once, that make loom try both orders and carry nothing.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p shmccl-proxy --release --lib`.

use std::sync::Arc;

use loom::thread;

use crate::atomic::{AtomicU64, Ordering};
use crate::*;

type SharedFifo = Fifo<Arc<FifoHeader>, Arc<[Slot]>>;
type Tail = Consumer<Arc<FifoHeader>, Arc<[Slot]>>;

fn fifo(capacity: usize) -> SharedFifo {
    let slots: Arc<[Slot]> = (0..capacity).map(|_| Slot::default()).collect();
    Fifo::new(Arc::new(FifoHeader::default()), slots).unwrap()
}

/// A relaxed cell beside the fifo.
fn cell() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(0))
}

fn set(cell: &AtomicU64, value: u64) {
    cell.store(value, Ordering::Relaxed); // relaxed: the edge under test has to carry it
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed) // relaxed: the edge under test has to carry it
}

/// A trigger that carries a number in both words.
fn numbered(number: u32) -> Trigger {
    Trigger::put(Transfer { source_offset: number, target_offset: number, ..Transfer::default() })
}

fn number(trigger: &Trigger) -> u32 {
    let Transfer { source_offset, target_offset, .. } = trigger.transfer();
    assert_eq!(source_offset, target_offset, "the two words belong together");
    source_offset
}

fn pop(consumer: &mut Tail) -> Option<u32> {
    let trigger = consumer.peek().map(|(_, trigger)| number(&trigger));
    consumer.pop();
    trigger
}

/// Pops until `count` triggers have come.
fn pop_all(consumer: &mut Tail, count: usize) -> Vec<u32> {
    let mut all = Vec::new();
    while all.len() < count {
        match pop(consumer) {
            Some(number) => all.push(number),
            None => thread::yield_now(),
        }
    }
    all
}

/// Pushes, however long it takes.
fn push(producer: &mut impl Push, trigger: Trigger) {
    while producer.try_push(trigger).is_err() {
        thread::yield_now();
    }
}

/// Explores with at most `preemptions` switches away from a thread that could have gone on.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// F1, with an exclusive producer, in laps 0 and 1.
#[test]
fn a_trigger_arrives_whole_and_with_what_was_written_before_it() {
    loom::model(|| {
        let (fifo, data) = (fifo(1), cell());
        let mut producer = fifo.producer().unwrap();
        let mut consumer = fifo.consumer();
        let theirs = Arc::clone(&data);
        let pushing = thread::spawn(move || {
            for i in 1..3 {
                set(&theirs, u64::from(i));
                push(&mut producer, numbered(i));
            }
        });
        for i in 1..3 {
            assert_eq!(pop_all(&mut consumer, 1), [i]);
            assert!(get(&data) >= u64::from(i));
        }
        pushing.join().unwrap();
        assert_eq!(pop(&mut consumer), None);
    });
}

/// F2: a push into a slot that was in use sees that the consumer has finished with it.
fn overwrite_only_after_pop(mut producer: impl Push + Send + 'static, mut consumer: Tail) {
    let finished = cell();
    let theirs = Arc::clone(&finished);
    producer.try_push(numbered(1)).unwrap();
    let pushing = thread::spawn(move || {
        let pushed = producer.try_push(numbered(2)).is_ok();
        assert!(!pushed || get(&theirs) == 1, "the slot was overwritten while the consumer looked at it");
        pushed
    });
    let shown = consumer.peek().map(|(_, trigger)| number(&trigger));
    assert_eq!(shown, Some(1));
    set(&finished, 1);
    consumer.pop();
    let expected = if pushing.join().unwrap() { Some(2) } else { None };
    assert_eq!(pop(&mut consumer), expected);
}

#[test]
fn an_exclusive_producer_overwrites_a_slot_only_after_its_pop() {
    loom::model(|| {
        let fifo = fifo(1);
        overwrite_only_after_pop(fifo.producer().unwrap(), fifo.consumer());
    });
}

#[test]
fn a_shared_producer_overwrites_a_slot_only_after_its_pop() {
    loom::model(|| {
        let fifo = fifo(1);
        overwrite_only_after_pop(fifo.shared_producer().unwrap(), fifo.consumer());
    });
}

/// F2, with a service, which publishes the pops of a stretch together.
#[test]
fn a_slot_is_overwritten_only_after_its_handler() {
    loom::model(|| {
        let (fifo, handled) = (fifo(2), cell());
        let mut producer = fifo.producer().unwrap();
        let mut service = Service::new([fifo.consumer()]);
        (0..2).for_each(|i| push(&mut producer, numbered(i)));
        let theirs = Arc::clone(&handled);
        let pushing = thread::spawn(move || {
            let pushed = producer.try_push(numbered(2)).is_ok();
            assert!(!pushed || get(&theirs) > 0, "the slot was overwritten before its trigger was handled");
            u64::from(pushed)
        });
        let mut handler = |_: usize, trigger: &Trigger| {
            assert_eq!(u64::from(number(trigger)), get(&handled));
            set(&handled, get(&handled) + 1);
            Ok(())
        };
        let served = service.poll(&mut handler);
        let pushed = pushing.join().unwrap();
        assert_eq!(served + service.poll(&mut handler), 2 + pushed);
    });
}

/// F1 and F2 together, around the end of a lap.
#[test]
fn several_laps_lose_nothing() {
    explore(3, || {
        let fifo = fifo(2);
        let mut producer = fifo.producer().unwrap();
        let mut consumer = fifo.consumer();
        let pushing = thread::spawn(move || (1..6).for_each(|i| push(&mut producer, numbered(i))));
        assert_eq!(pop_all(&mut consumer, 5), [1, 2, 3, 4, 5]);
        pushing.join().unwrap();
        assert_eq!(pop(&mut consumer), None);
    });
}

/// Two shared producers try to push two triggers each, while the consumer pops; what was pushed
/// arrives, in order.
fn two_producers(capacity: usize) {
    explore(3, move || {
        let fifo = fifo(capacity);
        let mut consumer = fifo.consumer();
        let pushing = [10, 20].map(|base| {
            let mut producer = fifo.shared_producer().unwrap();
            let mut push = move |number| producer.try_push(numbered(number)).ok().map(|_| number);
            thread::spawn(move || [push(base), push(base + 1)])
        });
        let mut popped: Vec<_> = pop(&mut consumer).into_iter().collect();
        let pushed = pushing.map(|pushing| pushing.join().unwrap());
        while let Some(number) = pop(&mut consumer) {
            popped.push(number);
        }
        for (mine, base) in pushed.iter().zip([10, 20]) {
            let pushed = mine.iter().copied().flatten();
            let popped = popped.iter().copied().filter(|number| number / 10 == base / 10);
            assert!(pushed.eq(popped), "lost, doubled or out of order");
        }
    });
}

#[test]
fn two_producers_lose_nothing_and_keep_their_order() {
    two_producers(4);
}

#[test]
fn two_producers_on_a_full_ring_lose_nothing_and_keep_their_order() {
    two_producers(1);
}

/// F3: who sees the position completed sees the effects of its trigger and of those before.
#[test]
fn a_flush_carries_the_effects_of_all_earlier_triggers() {
    loom::model(|| {
        let (fifo, effects) = (fifo(2), [cell(), cell()]);
        let mut producer = fifo.producer().unwrap();
        producer.try_push(numbered(0)).unwrap();
        let transfer = Transfer { source_offset: 1, target_offset: 1, ..Transfer::default() };
        let flush = Trigger::put_with_signal_and_flush(transfer, SemaphoreId::default());
        let position = producer.try_push(flush).unwrap();
        let theirs = effects.clone();
        let serving = thread::spawn(move || {
            let served = Service::new([fifo.consumer()]).poll(&mut |_: usize, trigger: &Trigger| {
                set(&theirs[number(trigger) as usize], 1);
                Ok(())
            });
            assert_eq!(served, 2);
        });
        if position.is_completed(producer.header()) {
            assert_eq!(effects.each_ref().map(|effect| get(effect)), [1, 1]);
        }
        serving.join().unwrap();
        assert!(position.is_completed(producer.header()));
    });
}

/// A reservation that is dropped leaves a mark that the consumer steps over, and the slot is used
/// again.
#[test]
fn an_abandoned_position_is_stepped_over() {
    loom::model(|| {
        let fifo = fifo(1);
        let mut consumer = fifo.consumer();
        let mut producer = fifo.shared_producer().unwrap();
        let pushing = thread::spawn(move || {
            drop(producer.reserve().unwrap());
            push(&mut producer, numbered(1));
        });
        assert_eq!(pop_all(&mut consumer, 1), [1]);
        pushing.join().unwrap();
    });
}

/// F5: a producer goes on where the last one stopped.
#[test]
fn a_new_producer_knows_what_the_last_one_pushed() {
    loom::model(|| {
        let fifo = fifo(2);
        let mut consumer = fifo.consumer();
        let push_if_free = |fifo: SharedFifo, number| match fifo.producer() {
            Ok(mut producer) => producer.try_push(numbered(number)).map_or(0, |_| 1),
            Err(_) => 0,
        };
        let other = fifo.clone();
        let pushing = thread::spawn(move || push_if_free(other, 1));
        let pushed = push_if_free(fifo, 2) + pushing.join().unwrap();
        let popped = (0..2).filter(|_| pop(&mut consumer).is_some()).count();
        assert!(pushed >= 1);
        assert_eq!(popped, pushed);
    });
}

/// F6: a trigger of a producer that was told of is served. F5: so is one that a producer has left
/// behind, before that was told of.
#[test]
fn a_fifo_that_was_told_of_is_attended_to() {
    loom::model(|| {
        let (quiet, fifo, roster) = (fifo(1), fifo(1), Arc::new(Roster::default()));
        let mut service = Service::new([quiet.consumer(), fifo.consumer()]);
        service.attend(&roster);
        assert_eq!(service.attended().count(), 0);
        let (rung, theirs) = (cell(), Arc::clone(&roster));
        let doorbell = Arc::clone(&rung);
        let pushing = thread::spawn(move || {
            let mut producer = fifo.producer().unwrap();
            theirs.count_change();
            producer.try_push(numbered(1)).unwrap();
            doorbell.store(1, Ordering::Release);
            drop(producer);
            theirs.count_change();
        });
        service.attend(&roster);
        let has_rung = rung.load(Ordering::Acquire) == 1;
        service.attend(&roster);
        let mut served = 0;
        let mut handler = |fifo: usize, trigger: &Trigger| {
            assert_eq!((fifo, number(trigger)), (1, 1));
            served += 1;
            Ok(())
        };
        let early = service.poll(&mut handler);
        assert!(early == 1 || !has_rung, "not attended to, though told of");
        pushing.join().unwrap();
        service.attend(&roster);
        assert_eq!((early + service.poll(&mut handler), served), (1, 1));
    });
}
