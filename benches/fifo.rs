//! The fifo against crossbeam's bounded queue, on one thread and across two cores.
//!
//! crossbeam's `ArrayQueue` takes many producers *and* many consumers, checks a full stamp per
//! slot, and cannot live in shared memory; the fifo takes one consumer. So the comparison is fair
//! for what is asked of both here: bounded, several producers, one consumer, 16-byte elements.
//!
//! Across cores the consumer is pinned to one core and every producer to another, where there are
//! two.

use std::hint;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use shmccl_proxy::{Fifo, FifoHeader, Push, Service, Slot, Transfer, Trigger};

const SLOTS: usize = 512;

struct Ring {
    header: FifoHeader,
    slots: Vec<Slot>,
}

impl Ring {
    fn new() -> Self {
        Self { header: FifoHeader::default(), slots: (0..SLOTS).map(|_| Slot::default()).collect() }
    }

    fn fifo(&self) -> Fifo<&FifoHeader, &[Slot]> {
        Fifo::new(&self.header, self.slots.as_slice()).expect("a power of two")
    }
}

fn numbered(number: u32) -> Trigger {
    Trigger::put(Transfer { source_offset: number, target_offset: number, ..Transfer::default() })
}

/// Pins the calling thread to the first allowed core, or to the second one where there is one.
fn pin(second: bool) {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return };
    let cores: Vec<_> = (0..CpuSet::count()).filter(|&core| allowed.is_set(core) == Ok(true)).collect();
    let mut one = CpuSet::new();
    if let [first, other, ..] = cores[..]
        && one.set(if second { other } else { first }).is_ok()
    {
        // Without it the figures are noisier; nothing else depends on it.
        let _ = sched_setaffinity(Pid::from_raw(0), &one);
    }
}

/// Pushes until there is room: spins when the consumer runs beside it, yields when producers share
/// a core.
fn insist(alone: bool, mut push: impl FnMut() -> bool) {
    while !push() {
        if alone { hint::spin_loop() } else { thread::yield_now() }
    }
}

fn served(trigger: &Trigger) {
    hint::black_box(trigger.transfer());
}

/// Times `total` elements from the start of the producers to the last one served.
fn across_cores(
    n_producers: u32,
    total: u64,
    produce: impl Fn(u64) + Sync,
    consume: impl FnOnce(u64) + Send,
) -> Duration {
    let each = total.div_ceil(u64::from(n_producers));
    let barrier = Barrier::new(n_producers as usize + 1);
    thread::scope(|scope| {
        for _ in 0..n_producers {
            scope.spawn(|| {
                pin(false);
                barrier.wait();
                produce(each);
            });
        }
        let consumer = scope.spawn(|| {
            pin(true);
            barrier.wait();
            let start = Instant::now();
            consume(each * u64::from(n_producers));
            start.elapsed()
        });
        consumer.join().expect("the consumer does not panic")
    })
}

/// Keeps asking for elements until `total` have come.
fn serve_all(total: u64, mut turn: impl FnMut() -> u64) {
    let mut count = 0;
    while count < total {
        match turn() {
            0 => hint::spin_loop(),
            n => count += n,
        }
    }
}

fn serve_fifo(ring: &Ring, total: u64) {
    let mut service = Service::new([ring.fifo().consumer()]);
    let mut handler = |_: usize, trigger: &Trigger| {
        served(trigger);
        Ok(())
    };
    serve_all(total, || service.poll(&mut handler));
}

fn fifo_exclusive(total: u64) -> Duration {
    let ring = Ring::new();
    let produce = |each| {
        let mut producer = ring.fifo().producer().expect("the only one");
        (0..each).for_each(|_| insist(true, || producer.try_push(numbered(7)).is_ok()));
    };
    across_cores(1, total, produce, |all| serve_fifo(&ring, all))
}

fn fifo_shared(n_producers: u32, total: u64) -> Duration {
    let ring = Ring::new();
    let produce = |each| {
        let mut producer = ring.fifo().shared_producer().expect("few enough");
        (0..each).for_each(|_| insist(n_producers == 1, || producer.try_push(numbered(7)).is_ok()));
    };
    across_cores(n_producers, total, produce, |all| serve_fifo(&ring, all))
}

fn array_queue(n_producers: u32, total: u64) -> Duration {
    let queue = ArrayQueue::new(SLOTS);
    let produce = |each| (0..each).for_each(|_| insist(n_producers == 1, || queue.push(numbered(7)).is_ok()));
    let consume = |all| {
        serve_all(all, || match queue.pop() {
            Some(trigger) => {
                served(&trigger);
                1
            }
            None => 0,
        });
    };
    across_cores(n_producers, total, produce, consume)
}

fn push_and_pop(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fifo/one_thread");
    group.throughput(Throughput::Elements(1));
    let ring = Ring::new();
    let mut handler = |_: usize, trigger: &Trigger| {
        served(trigger);
        Ok(())
    };
    let mut service = Service::new([ring.fifo().consumer()]);
    let mut exclusive = ring.fifo().producer().expect("the only one");
    group.bench_function("exclusive", |bencher| {
        bencher.iter(|| (exclusive.try_push(numbered(7)).is_ok(), service.poll(&mut handler)));
    });
    drop(exclusive);
    let mut shared = ring.fifo().shared_producer().expect("the only one");
    group.bench_function("shared", |bencher| {
        bencher.iter(|| (shared.try_push(numbered(7)).is_ok(), service.poll(&mut handler)));
    });
    let queue = ArrayQueue::new(SLOTS);
    group.bench_function("array_queue", |bencher| {
        bencher.iter(|| (queue.push(numbered(7)).is_ok(), queue.pop().as_ref().map(served)));
    });
    group.finish();
}

fn push_to_served(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fifo/push_to_served");
    group.throughput(Throughput::Elements(1));
    group.bench_function(BenchmarkId::new("exclusive", 1), |bencher| bencher.iter_custom(fifo_exclusive));
    for n_producers in [1, 2, 4] {
        group.bench_function(BenchmarkId::new("shared", n_producers), |bencher| {
            bencher.iter_custom(|total| fifo_shared(n_producers, total));
        });
        group.bench_function(BenchmarkId::new("array_queue", n_producers), |bencher| {
            bencher.iter_custom(|total| array_queue(n_producers, total));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = push_and_pop, push_to_served
}
criterion_main!(benches);
