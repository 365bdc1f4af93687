//! The semaphore within one process: what each call costs alone, and a ping-pong between two cores
//! beside the bare flag's, which is the least it can take.
#![allow(missing_docs, reason = "criterion's macros")]

mod pin;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shmccl::{
    shm::HostKernel,
    sync::{RevokeCell, SemaphoreCell, SemaphoreReceiver, SemaphoreSender, WaitPolicy, Waiting},
};
use shmccl_limits::flags::BareFlag;

use self::pin::pin;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Times `rounds` round trips between two threads on two cores.
fn two_sided(rounds: u64, side: impl Fn(bool, u64) + Sync) -> Duration {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            side(false, rounds);
        });
        let here = scope.spawn(|| {
            pin(0);
            let start = Instant::now();
            side(true, rounds);
            start.elapsed()
        });
        here.join().unwrap()
    })
}

fn calls(criterion: &mut Criterion) {
    let kernel = HostKernel::detect();
    let mut group = criterion.benchmark_group("semaphore call");
    group.throughput(Throughput::Elements(1));
    let cell = SemaphoreCell::default();
    let mut sender = SemaphoreSender::new(&cell, 0);
    group.bench_function("signal, nobody asleep", |b| b.iter(|| sender.signal(black_box(&kernel))));
    let fenced = kernel.without_membarrier();
    group.bench_function("signal, without membarrier", |b| b.iter(|| sender.signal(black_box(&fenced))));
    group.bench_function("signal, stateless", |b| b.iter(|| cell.signal_next(black_box(&kernel))));
    let empty = SemaphoreCell::default();
    let mut receiver = SemaphoreReceiver::new(&empty, 0);
    group.bench_function("poll, nothing there", |b| b.iter(|| black_box(receiver.poll())));
    let full = SemaphoreCell::new(u64::MAX / 2);
    let mut receiver = SemaphoreReceiver::new(&full, 0);
    let revoke = RevokeCell::default();
    let context = Waiting::new(&kernel, &revoke, WaitPolicy::DEDICATED, TIMEOUT);
    group.bench_function("wait, already there", |b| b.iter(|| receiver.wait(&context)));
    group.finish();
}

fn ping_pong(criterion: &mut Criterion) {
    let kernel = HostKernel::detect();
    let mut group = criterion.benchmark_group("ping-pong, round trip");
    group.throughput(Throughput::Elements(2));
    group.bench_function("bare flag", |b| {
        b.iter_custom(|rounds| {
            let flags = [BareFlag::default(), BareFlag::default()];
            two_sided(rounds, |first, rounds| {
                let (mine, theirs) = (&flags[usize::from(first)], &flags[usize::from(!first)]);
                for round in 1..=rounds {
                    if !first {
                        mine.spin(round);
                    }
                    theirs.set(round);
                    if first {
                        mine.spin(round);
                    }
                }
            })
        });
    });
    group.bench_function("semaphore", |b| {
        b.iter_custom(|rounds| {
            let (cells, revoke) =
                ([SemaphoreCell::default(), SemaphoreCell::default()], RevokeCell::default());
            two_sided(rounds, |first, rounds| {
                let mut sender = SemaphoreSender::new(&cells[usize::from(!first)], 0);
                let mut receiver = SemaphoreReceiver::new(&cells[usize::from(first)], 0);
                let context = Waiting::new(&kernel, &revoke, WaitPolicy::DEDICATED, TIMEOUT);
                for _ in 0..rounds {
                    if !first {
                        receiver.wait(&context).unwrap();
                    }
                    sender.signal(&kernel);
                    if first {
                        receiver.wait(&context).unwrap();
                    }
                }
            })
        });
    });
    group.finish();
}

criterion_group!(benches, calls, ping_pong);
criterion_main!(benches);
