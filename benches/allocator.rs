//! The symmetric heap's allocator: an allocation and its return, in an empty heap and behind many
//! small holes.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shmccl::heap::{Allocator, Region};

const HEAP: u64 = 1 << 36;

/// Makes a heap whose first `holes` free runs are too small for anything but one granule.
fn fragmented(holes: usize) -> Allocator {
    let mut heap = Allocator::new(HEAP).unwrap();
    let regions: Vec<Region> = (0..2 * holes).map(|_| heap.allocate(64, 64).unwrap()).collect();
    for region in regions.iter().step_by(2) {
        heap.free(*region).unwrap();
    }
    heap
}

fn allocate_and_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocator/allocate_and_free");
    group.throughput(Throughput::Elements(1));
    for holes in [0, 16, 256, 4096] {
        let mut heap = fragmented(holes);
        group.bench_function(BenchmarkId::new("past_holes", holes), |b| {
            b.iter(|| {
                let region = heap.allocate(black_box(1 << 20), 4096).unwrap();
                heap.free(black_box(region)).unwrap();
            });
        });
        group.bench_function(BenchmarkId::new("into_first_hole", holes), |b| {
            b.iter(|| {
                let region = heap.allocate(black_box(64), 64).unwrap();
                heap.free(black_box(region)).unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, allocate_and_free);
criterion_main!(benches);
