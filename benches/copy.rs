//! Copies into a mapped segment: every kernel, and what the engine chooses.
//!
//! `into_segment`: one copy again and again without a reader, like a put that is not awaited.
//! `until_read`: the source is new each time, and a thread on another core reads the result, as a
//! peer does. The second mapping of the segment stands for the peer's.
#![allow(missing_docs, reason = "criterion's macros generate undocumented functions")]

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use shmccl::shm::{Backing, CacheHint, CopyKernel, Identity, Mapping, Segment, Span};
use shmccl::sync::atomic::Ordering;

/// The words of the hand-over lie at 0 and at CONTROL, the payload behind.
const CONTROL: u64 = 4096;
const PAYLOAD: u64 = 2 * CONTROL;
const LARGEST: usize = 64 << 20;
const SIZES: [usize; 8] = [8, 256, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, LARGEST];
const STOP: u64 = u64::MAX;

/// A kernel, or the engine's own choice.
type Way = Option<CopyKernel>;

fn ways() -> impl Iterator<Item = Way> {
    let kernels = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported());
    std::iter::once(None).chain(kernels.map(Some))
}

fn name(way: Way) -> &'static str {
    way.map_or("chosen", CopyKernel::name)
}

fn copy(way: Way, source: &Span, target: &Span, cache_hint: CacheHint) {
    match way {
        None => source.copy_to(0, target, 0, source.len(), cache_hint),
        Some(kernel) => source.copy_with(kernel, target),
    }
    .expect("the target is long enough and the kernel supported");
}

/// Bytes of this process alone.
fn private(len: usize) -> Span {
    let mapping = Mapping::boxed(len as u64).expect("memory");
    let span = mapping.span(0, mapping.len()).expect("the whole of it");
    span.fill(0, span.len(), 1).expect("within");
    span
}

fn part(span: &Span, offset: u64, len: usize) -> Span {
    span.part(offset, len as u64).expect("within")
}

fn segment() -> Segment {
    let len = LARGEST as u64 + PAYLOAD;
    let segment = Segment::create(&Backing::Anonymous, len, Identity::default()).expect("a segment");
    segment.commit(0, len).expect("memory for the segment");
    segment
}

fn map(segment: &Segment) -> Span {
    let mapping = segment.map().expect("addresses for the segment");
    let span = mapping.span(0, mapping.len()).expect("the whole of it");
    // No page is to be touched for the first time while it is measured.
    span.fill(0, span.len(), 0).expect("within");
    span
}

/// Pins the calling thread to the n-th processor that it may use, if there are so many.
fn pin(n: usize) {
    let allowed = sched_getaffinity(Pid::from_raw(0)).expect("an affinity mask");
    let mut nth = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu) == Ok(true));
    let mut set = CpuSet::new();
    if nth.nth(n).is_some_and(|cpu| set.set(cpu).is_ok()) {
        sched_setaffinity(Pid::from_raw(0), &set).expect("to be pinned where one may run");
    }
}

fn into_segment(criterion: &mut Criterion) {
    let segment = segment();
    let target = map(&segment);
    let source = private(LARGEST);
    let mut group = criterion.benchmark_group("into_segment");
    for size in SIZES {
        group.throughput(Throughput::Bytes(size as u64));
        for way in ways() {
            group.bench_with_input(BenchmarkId::new(name(way), size), &size, |bencher, &size| {
                let (source, target) = (part(&source, 0, size), part(&target, PAYLOAD, size));
                bencher.iter(|| copy(way, black_box(&source), &target, CacheHint::Bypass));
            });
        }
    }
}

fn until_read(criterion: &mut Criterion) {
    let segment = segment();
    let target = map(&segment);
    let source = private(LARGEST);
    let mut group = criterion.benchmark_group("until_read");
    std::thread::scope(|scope| {
        let peer = map(&segment);
        scope.spawn(move || {
            pin(1);
            read_what_arrives(&peer);
        });
        let mut sent = 0;
        for size in SIZES {
            group.throughput(Throughput::Bytes(size as u64));
            for way in ways() {
                group.bench_with_input(BenchmarkId::new(name(way), size), &size, |bencher, &size| {
                    let source = part(&source, 0, size);
                    bencher.iter_custom(|times| {
                        (0..times).map(|_| round(way, &target, &source, &mut sent)).sum()
                    });
                });
            }
        }
        target.atomic_u64(0).expect("control word").store(STOP, Ordering::Release);
    });
}

/// Times one fresh copy, from its start until the peer has read it.
fn round(way: Way, target: &Span, source: &Span, sent: &mut u64) -> Duration {
    // The number of the round above the length, so that equal lengths differ.
    *sent += 1 << 32;
    let word = *sent | source.len();
    source.fill(0, source.len(), word.to_be_bytes()[3]).expect("within");
    let payload = target.part(PAYLOAD, source.len()).expect("within");
    let start = Instant::now();
    copy(way, source, &payload, CacheHint::Keep);
    target.atomic_u64(0).expect("control word").store(word, Ordering::Release);
    let answer = target.atomic_u64(CONTROL).expect("control word");
    while answer.load(Ordering::Acquire) != word {
        spin_loop();
    }
    start.elapsed()
}

/// Reads as many bytes as each word says, and answers with the word, like a peer.
fn read_what_arrives(span: &Span) {
    let go = span.atomic_u64(0).expect("control word");
    let answer = span.atomic_u64(CONTROL).expect("control word");
    let mut buffer = [0_u8; 4096];
    let mut last = 0;
    loop {
        let word = go.load(Ordering::Acquire);
        if word == STOP {
            return;
        }
        if word == last {
            spin_loop();
            continue;
        }
        let len = word & u64::from(u32::MAX);
        for offset in (0..len).step_by(buffer.len()) {
            let part = usize::try_from(len - offset).map_or(buffer.len(), |rest| rest.min(buffer.len()));
            span.copy_out(PAYLOAD + offset, &mut buffer[..part]).expect("within the segment");
            black_box(&buffer);
        }
        last = word;
        answer.store(word, Ordering::Release);
    }
}

fn all(criterion: &mut Criterion) {
    pin(0);
    into_segment(criterion);
    until_read(criterion);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200));
    targets = all
}
criterion_main!(benches);
