//! Results for several receivers, in whichever way they reach all of them: the same bits.

use super::*;
use crate::shm::copy::CopyKernel;
use crate::shm::copy::StorePolicy;

/// Longer than what is copied at a time, and not a multiple of that.
const LONG: usize = (300 << 10) + 13;

/// Bytes before and behind each target.
const MARGIN: usize = 64;

/// Two operands of `len` bytes, and what they add up to.
fn operands(len: usize) -> ([Vec<u8>; 2], Vec<u8>) {
    let bytes =
        |factor: usize| (0..len).map(|index| (index * factor / 8).to_le_bytes()[0]).collect::<Vec<_>>();
    let (one, two) = (bytes(7), bytes(31));
    let sum = one.iter().zip(&two).map(|(one, two)| one.wrapping_add(*two)).collect();
    ([one, two], sum)
}

/// Copies results to all targets from the first one, where the processor can.
fn run_and_copy(reducer: &Reducer, places: &OperandAddresses<'_>) {
    let CombineSteps::Built(kernels) = &reducer.steps else { panic!("an operator of the program's own") };
    if CopyKernel::RepMovsb.is_supported() {
        kernels.last.run_and_copy(places, reducer.terms(&[]));
    } else {
        kernels.last.run_by(StorePolicy::Cached, places, reducer.terms(&[]));
    }
}

/// Adds bytes, by copies first and then in whichever way is tried out, into targets that begin so
/// many bytes behind their margins.
fn check(len: usize, behind: &[usize]) {
    let (operands, sum) = operands(len);
    let sources = operands.each_ref().map(|bytes| Source::fresh(SourcePlace::Slice(bytes)));
    let reducer = Reducer::new(DataType::U8, &ReduceOp::Sum, 2).unwrap();
    for attempt in 0..11 {
        let mut memory = vec![vec![GUARD; len + 3 * MARGIN]; behind.len()];
        let starts: Vec<_> = memory
            .iter()
            .zip(behind)
            .map(|(bytes, behind)| MARGIN + bytes.as_ptr().addr().wrapping_neg() % MARGIN + behind)
            .collect();
        let mut targets: Vec<_> = memory
            .iter_mut()
            .zip(&starts)
            .map(|(bytes, &start)| Target::Slice(&mut bytes[start..][..len]))
            .collect();
        if attempt == 0 {
            with_addresses(&sources, &mut targets, len as u64, |places| run_and_copy(&reducer, places))
                .unwrap();
        } else {
            reducer.combine_for_all(&[], &sources, &mut targets, len as u64, len as u64).unwrap();
        }
        for (bytes, &start) in memory.iter().zip(&starts) {
            assert!(bytes[start..][..len] == sum, "{len} at {behind:?}, attempt {attempt}");
            let around = bytes[..start].iter().chain(&bytes[start + len..]);
            assert!(around.copied().all(|byte| byte == GUARD), "around {len} at {behind:?}");
        }
    }
}

#[test]
fn several_receivers_get_the_same_results_whichever_way_is_tried_out() {
    for len in [0, 1, 4095, 4096, 20_000, 128 << 10, (128 << 10) + 1, LONG] {
        for behind in [&[0][..], &[0, 0], &[5, 5, 5, 5], &[0, 1]] {
            check(len, behind);
        }
    }
}

#[test]
fn a_receiver_may_be_named_twice_and_inputs_are_scaled_once() {
    let len = LONG / 4 * 4;
    let mapping = Mapping::boxed(2 * len as u64).unwrap();
    let span = mapping.span(0, 2 * len as u64).unwrap();
    let ones = vec![1_i32; len / 4];
    let sources = [&ones, &ones].map(|ones| Source::fresh(SourcePlace::Slice(bytemuck::cast_slice(ones))));
    let reducer = Reducer::new(DataType::I32, &ReduceOp::PreMulSum(Scalar::new(1_i32)), 2).unwrap();
    for _ in 0..8 {
        span.fill(0, 2 * len as u64, GUARD).unwrap();
        let mut targets = [0, 0, len as u64].map(|at| Target::Shared(&span, at));
        reducer.combine_for_all(&[3, 4], &sources, &mut targets, len as u64 / 4, len as u64 / 4).unwrap();
        let mut found = vec![0_i32; 2 * len / 4];
        span.copy_out(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
        assert!(found.iter().all(|&number| number == 7));
    }
}
