//! Combining elements: two sources against a loop written by hand, half precision, many sources,
//! small counts.
//!
//! Throughput counts the bytes of one place, whatever the number of places. `by hand` is the plain
//! loop over slices, compiled for AVX2 where the processor has it, as a user would write it without
//! this library.
#![allow(missing_docs, reason = "criterion's macros generate undocumented functions")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use shmccl::reduce::{DataType, Element, ReduceKernel, ReduceOp, Reducer, Source, SourcePlace, Target};

const SIZES: [usize; 3] = [4 << 10, 256 << 10, 16 << 20];

/// Elements that are numbers, all of them, and stay so when they are added again and again.
fn zeros<T: Element>(count: usize) -> Vec<T> {
    vec![T::zeroed(); count]
}

fn name(len: usize) -> String {
    if len < 1 << 20 { format!("{} KiB", len >> 10) } else { format!("{} MiB", len >> 20) }
}

/// Computes `one[i] = other[i] = one[i] + other[i]`.
#[inline(always)]
fn add_both(one: &mut [f32], other: &mut [f32]) {
    for (one, other) in one.iter_mut().zip(other) {
        *one += *other;
        *other = *one;
    }
}

/// Computes `sum[i] = one[i] + other[i]`.
#[inline(always)]
fn add_into(one: &[f32], other: &[f32], sum: &mut [f32]) {
    for ((one, other), sum) in one.iter().zip(other).zip(sum) {
        *sum = one + other;
    }
}

/// The loops by hand, with the instructions that this processor has.
#[cfg(target_arch = "x86_64")]
mod by_hand {
    #[target_feature(enable = "avx2")]
    fn add_both_avx2(one: &mut [f32], other: &mut [f32]) {
        super::add_both(one, other);
    }

    #[target_feature(enable = "avx2")]
    fn add_into_avx2(one: &[f32], other: &[f32], sum: &mut [f32]) {
        super::add_into(one, other, sum);
    }

    pub(super) fn add_both(one: &mut [f32], other: &mut [f32]) {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, just checked.
            return unsafe { add_both_avx2(one, other) };
        }
        super::add_both(one, other);
    }

    pub(super) fn add_into(one: &[f32], other: &[f32], sum: &mut [f32]) {
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, just checked.
            return unsafe { add_into_avx2(one, other, sum) };
        }
        super::add_into(one, other, sum);
    }
}

#[cfg(not(target_arch = "x86_64"))]
use crate as by_hand;

/// Returns a target, with its old content as a source.
fn in_place<'a, T: Element>(places: &'a mut [Vec<T>]) -> Vec<Target<'a>> {
    places.iter_mut().map(|place| Target::Slice(bytemuck::cast_slice_mut(place))).collect()
}

fn slice<T: Element>(place: &[T]) -> Source<'_> {
    Source::fresh(SourcePlace::Slice(bytemuck::cast_slice(place)))
}

/// Measures two sources of `f32`, both of them targets too, as in a ring.
fn sum_in_place(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sum of f32, both in place");
    let sources = [0, 1].map(|index| Source::fresh(SourcePlace::Target(index)));
    for len in SIZES {
        let count = len / size_of::<f32>();
        let mut places = vec![zeros::<f32>(count), zeros(count)];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("by hand", name(len)), |bencher| {
            let [one, other] = &mut places[..] else { unreachable!("there are two places") };
            bencher.iter(|| by_hand::add_both(black_box(one), black_box(other)));
        });
        for kernel in ReduceKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
            let reducer = Reducer::with_kernel(DataType::F32, &ReduceOp::Sum, 2, kernel).expect("supported");
            let mut targets = in_place(&mut places);
            group.bench_function(BenchmarkId::new(kernel.name(), name(len)), |bencher| {
                bencher
                    .iter(|| reducer.combine(black_box(&sources), &mut targets, count as u64, false).is_ok());
            });
        }
    }
    group.finish();
}

/// Measures two sources of `f32` into memory of its own.
fn sum_out_of_place(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sum of f32, out of place");
    let reducer = Reducer::new(DataType::F32, &ReduceOp::Sum, 2).expect("valid");
    for len in SIZES {
        let count = len / size_of::<f32>();
        let (one, other, mut sum) = (zeros::<f32>(count), zeros::<f32>(count), zeros::<f32>(count));
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("by hand", name(len)), |bencher| {
            bencher.iter(|| by_hand::add_into(black_box(&one), black_box(&other), black_box(&mut sum)));
        });
        let sources = [slice(&one), slice(&other)];
        let mut targets = [Target::Slice(bytemuck::cast_slice_mut(&mut sum))];
        group.bench_function(BenchmarkId::new("reducer", name(len)), |bencher| {
            bencher.iter(|| reducer.combine(black_box(&sources), &mut targets, count as u64, false).is_ok());
        });
    }
    group.finish();
}

/// Measures every type and operator over two sources that fit the first-level cache, the first of
/// them in place.
fn types(criterion: &mut Criterion) {
    const LEN: usize = 4 << 10;
    let mut group = criterion.benchmark_group("types and operators");
    group.throughput(Throughput::Bytes(LEN as u64));
    let other = vec![0_u8; LEN];
    let mut place = vec![0_u8; LEN];
    let sources = [Source::fresh(SourcePlace::Target(0)), Source::fresh(SourcePlace::Slice(&other))];
    for dtype in DataType::ALL {
        for op in ReduceOp::PLAIN.into_iter().filter(|op| op.supports(dtype)) {
            let reducer = Reducer::new(dtype, &op, 3).expect("valid");
            let mut targets = [Target::Slice(&mut place)];
            let count = (LEN / dtype.size()) as u64;
            group.bench_function(BenchmarkId::new(dtype.name(), &op), |bencher| {
                bencher.iter(|| reducer.combine(black_box(&sources), &mut targets, count, true).is_ok());
            });
        }
    }
    group.finish();
}

/// Measures eight sources into one target of their own, as one rank reduces the data of all others.
fn eight_sources(criterion: &mut Criterion) {
    fn bench<T: Element>(criterion: &mut Criterion) {
        let mut group = criterion.benchmark_group(format!("sum of eight, {}", T::DATA_TYPE));
        let reducer = Reducer::new(T::DATA_TYPE, &ReduceOp::Sum, 8).expect("valid");
        for len in SIZES {
            let count = len / size_of::<T>();
            let inputs = vec![zeros::<T>(count); 8];
            let sources: Vec<_> = inputs.iter().map(|input| slice(input)).collect();
            let mut sum = zeros::<T>(count);
            let mut targets = [Target::Slice(bytemuck::cast_slice_mut(&mut sum))];
            group.throughput(Throughput::Bytes(len as u64));
            group.bench_function(name(len), |bencher| {
                bencher
                    .iter(|| reducer.combine(black_box(&sources), &mut targets, count as u64, false).is_ok());
            });
        }
        group.finish();
    }
    bench::<f32>(criterion);
    bench::<f16>(criterion);
}

/// Measures a call with next to nothing to do.
fn small_counts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("small counts of f32");
    let reducer = Reducer::new(DataType::F32, &ReduceOp::Sum, 8).expect("valid");
    let inputs = vec![zeros::<f32>(16); 8];
    let mut sum = zeros::<f32>(16);
    for n_sources in [2, 8] {
        let sources: Vec<_> = inputs[..n_sources].iter().map(|input| slice(input)).collect();
        for count in [1, 2, 7, 8, 16] {
            let mut targets = [Target::Slice(bytemuck::cast_slice_mut(&mut sum))];
            group.throughput(Throughput::Elements(count));
            group.bench_function(BenchmarkId::new(format!("{n_sources} sources"), count), |bencher| {
                bencher.iter(|| {
                    reducer.combine(black_box(&sources), &mut targets, black_box(count), false).is_ok()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, sum_in_place, sum_out_of_place, types, eight_sources, small_counts);
criterion_main!(benches);
