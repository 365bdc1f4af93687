//! Scalars of several ranks: each input is multiplied by that of its own.

use super::*;

/// A scaled sum of each of `n` ranks, by scalars that differ as far as the type has so many.
fn scaled_sums(dtype: DataType, n: usize) -> Vec<ReduceOp> {
    let scalar = |rank: usize| match dtype.real_type() {
        DataType::I8 => Scalar::new(i8::try_from(rank % 23).unwrap() - 11),
        DataType::U8 => Scalar::new(u8::try_from(rank).unwrap()),
        DataType::I32 => Scalar::new(-70_001 * i32::try_from(rank).unwrap()),
        DataType::U32 => Scalar::new(70_001 * u32::try_from(rank).unwrap()),
        DataType::I64 => Scalar::new(-0x123_4567_89AB * i64::try_from(rank).unwrap()),
        DataType::U64 => Scalar::new(0x123_4567_89AB * rank as u64),
        DataType::F16 => Scalar::new(f16::from_f32(fraction(rank))),
        DataType::Bf16 => Scalar::new(bf16::from_f32(fraction(rank))),
        DataType::F32 => Scalar::new(fraction(rank)),
        DataType::F64 => Scalar::new(f64::from(fraction(rank)) / 3.0),
        DataType::F8E4M3 => Scalar::new(F8E4M3::from_f32(fraction(rank))),
        DataType::F8E5M2 => Scalar::new(F8E5M2::from_f32(fraction(rank))),
        DataType::I16 => Scalar::new(-301 * i16::try_from(rank).unwrap()),
        DataType::U16 => Scalar::new(301 * u16::try_from(rank).unwrap()),
        other => unreachable!("{other} has no scalars"),
    };
    (0..n).map(|rank| ReduceOp::PreMulSum(scalar(rank))).collect()
}

/// Numbers that are no powers of two, so that products are rounded, and both signs.
fn fraction(rank: usize) -> f32 {
    let sign = if rank.is_multiple_of(2) { 0.3 } else { -0.3 };
    f32::from(u8::try_from(rank + 1).unwrap()) * sign
}

/// The types of which there are scaled sums.
fn scaled_types() -> impl Iterator<Item = DataType> {
    DataType::ALL.into_iter().filter(|dtype| *dtype != DataType::Bool)
}

/// What the ranks tell each other of `ops`.
fn scalars(dtype: DataType, ops: &[ReduceOp]) -> Vec<u64> {
    ops.iter().map(|op| Reducer::new(dtype, op, 2).unwrap().scalar()).collect()
}

fn check_type(dtype: DataType, n_sources: usize, counts: &[usize]) {
    let operands: Vec<_> = (0..n_sources as u64).map(|k| (operand(dtype, k * 31 + 7), k % 5 != 2)).collect();
    let ops = scaled_sums(dtype, n_sources);
    let (expected, scalars) = (oracle::reduce_each(dtype, &ops, 7, &operands, true), scalars(dtype, &ops));
    for kernel in kernels() {
        // The last rank combines.
        let reducer = Reducer::with_kernel(dtype, &ops[n_sources - 1], 7, kernel).unwrap();
        for (&count, layout) in counts.iter().flat_map(|count| LAYOUTS.map(|layout| (count, layout))) {
            let combine = |sources: &[Source<'_>], targets: &mut [Target<'_>]| {
                reducer.combine_scaled(&scalars, sources, targets, count as u64)
            };
            check_combination(combine, dtype, &operands, &expected, layout, count);
            let combine = |sources: &[Source<'_>], targets: &mut [Target<'_>]| {
                reducer.combine_keeping_others(&scalars, sources, targets, count as u64)
            };
            check_combination(combine, dtype, &operands, &expected, layout, count);
        }
    }
}

#[test]
fn each_input_is_multiplied_by_the_scalar_of_its_rank() {
    for dtype in scaled_types() {
        for n_sources in [1, 2, 3, 8, 9] {
            check_type(dtype, n_sources, &COUNTS);
        }
        check_type(dtype, 64, &[0, 65, LONGEST]);
    }
}

#[test]
fn without_scalars_of_others_all_are_multiplied_by_that_of_the_reducer() {
    for dtype in scaled_types() {
        let op = ReduceOp::PreMulSum(scalar(dtype));
        let operands = [operand(dtype, 5), operand(dtype, 6)].map(|bytes| (bytes, true));
        let expected = oracle::reduce(dtype, &op, 2, &operands, true);
        let reducer = Reducer::new(dtype, &op, 2).unwrap();
        let combine = |sources: &[Source<'_>], targets: &mut [Target<'_>]| {
            reducer.combine_scaled(&[], sources, targets, LONGEST as u64)
        };
        check_combination(combine, dtype, &operands, &expected, LAYOUTS[0], LONGEST);
    }
}

#[test]
fn operators_that_multiply_nothing_have_no_scalar() {
    for op in ReduceOp::PLAIN {
        assert_eq!(Reducer::new(DataType::I32, &op, 2).unwrap().scalar(), 0);
    }
}

#[test]
#[should_panic(expected = "2 scalars of 3 sources")]
fn scalars_of_other_ranks_than_those_that_give_inputs_are_refused() {
    let op = ReduceOp::PreMulSum(Scalar::new(2_u8));
    let sources = [Source::fresh(SourcePlace::Slice(&[1])); 3];
    let mut target = [0];
    let reducer = Reducer::new(DataType::U8, &op, 3).unwrap();
    let _ = reducer.combine_scaled(&[2, 3], &sources, &mut [Target::Slice(&mut target)], 1);
}
