//! The waiting loop within one process: each policy where it belongs, and the barrier beside the
//! bare one.
#![allow(missing_docs, reason = "criterion's macros")]

mod pin;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shmccl::{
    shm::HostKernel,
    sync::{
        Barrier, BarrierCell, Kernel, ParkCell, RevokeCell, SemaphoreCell, SemaphoreReceiver,
        SemaphoreSender, WaitPolicy, Waiting, wait_until,
    },
};
use shmccl_limits::flags::{BareBarrier, BareFlag};

use self::pin::pin;

const TIMEOUT: Duration = Duration::from_secs(60);
const PARK_AT_ONCE: WaitPolicy = WaitPolicy { spins: 0, park_after: Duration::ZERO };

/// Runs `side` on one thread for each of `cores`, pinned there, and times the first.
fn timed_on(cores: &[usize], side: impl Fn(usize) + Sync) -> Duration {
    let side = &side;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores.len())
            .map(|member| {
                scope.spawn(move || {
                    pin(cores[member]);
                    let start = Instant::now();
                    side(member);
                    start.elapsed()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap_or_default()
    })
}

fn hand_over(criterion: &mut Criterion) {
    let kernel = HostKernel::detect();
    let mut group = criterion.benchmark_group("hand-over, round trip");
    group.throughput(Throughput::Elements(2));
    let cases = [
        ("spin, two cores", [0, 1], WaitPolicy::DEDICATED),
        ("yield, one core", [0, 0], WaitPolicy::OVERSUBSCRIBED),
        ("sleep, two cores", [0, 1], PARK_AT_ONCE),
        ("sleep, one core", [0, 0], PARK_AT_ONCE),
    ];
    for (name, cores, policy) in cases {
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let cells = [SemaphoreCell::default(), SemaphoreCell::default()];
                let revoke = RevokeCell::default();
                timed_on(&cores, |member| {
                    let mut sender = SemaphoreSender::new(&cells[1 - member], 0);
                    let mut receiver = SemaphoreReceiver::new(&cells[member], 0);
                    let context = Waiting::new(&kernel, &revoke, policy, TIMEOUT);
                    for _ in 0..rounds {
                        sender.signal(&kernel);
                        receiver.wait(&context).unwrap();
                    }
                })
            });
        });
    }
    group.bench_function("bare yield, one core", |b| {
        b.iter_custom(|rounds| {
            let flags = [BareFlag::default(), BareFlag::default()];
            timed_on(&[0, 0], |member| {
                for round in 1..=rounds {
                    flags[1 - member].set(round);
                    // The partner may be a round ahead, but not two.
                    while !flags[member].shows(round) && !flags[member].shows(round + 1) {
                        kernel.yield_now();
                    }
                }
            })
        });
    });
    group.finish();
}

fn barrier(criterion: &mut Criterion) {
    const RANKS: usize = 8;
    let kernel = HostKernel::detect();
    let cores: Vec<_> = (0..RANKS).collect();
    let mut group = criterion.benchmark_group("barrier of 8");
    group.throughput(Throughput::Elements(1));
    group.bench_function("bare, over one counter", |b| {
        b.iter_custom(|rounds| {
            let counter = BareFlag::default();
            timed_on(&cores, |_| {
                let mut barrier = BareBarrier::new(&counter, 8);
                for _ in 0..rounds {
                    barrier.meet();
                }
            })
        });
    });
    group.bench_function("barrier, oversubscribed", |b| {
        b.iter_custom(|rounds| {
            let cells: Vec<_> = (0..RANKS).map(|_| BarrierCell::default()).collect();
            let (park, revoke) = (ParkCell::default(), RevokeCell::default());
            timed_on(&cores, |member| {
                let mut barrier = Barrier::new(&cells[..], &park, member, 0);
                let context = Waiting::new(&kernel, &revoke, WaitPolicy::OVERSUBSCRIBED, TIMEOUT);
                for _ in 0..rounds {
                    barrier.barrier(&context).unwrap();
                }
            })
        });
    });
    group.finish();
}

fn loop_alone(criterion: &mut Criterion) {
    let (kernel, park, revoke) = (HostKernel::detect(), ParkCell::default(), RevokeCell::default());
    let context = Waiting::new(&kernel, &revoke, WaitPolicy::DEDICATED, TIMEOUT);
    let mut group = criterion.benchmark_group("wait loop");
    group.throughput(Throughput::Elements(1));
    group.bench_function("first poll succeeds", |b| {
        b.iter(|| wait_until(&context, &park, || Some(black_box(1))))
    });
    group.bench_function("tenth poll succeeds", |b| {
        b.iter(|| {
            let mut polls = 0;
            wait_until(&context, &park, || {
                polls += 1;
                (black_box(polls) == 10).then_some(polls)
            })
        });
    });
    group.bench_function("heavy barrier", |b| b.iter(|| kernel.heavy_barrier()));
    group.finish();
}

criterion_group!(benches, loop_alone, hand_over, barrier);
criterion_main!(benches);
