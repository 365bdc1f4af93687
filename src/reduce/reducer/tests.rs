mod copying;
mod oracle;
mod scaling;
mod streaming;

use proptest::prelude::*;

use super::*;
use crate::reduce::{Complex64, Complex128, Element, Scalar, SourcePlace};
use crate::shm::Mapping;

const COUNTS: [usize; 9] = [0, 1, 7, 8, 9, 63, 64, 65, 1000];
const LONGEST: usize = 1000;
const GUARD: u8 = 0xEE;

/// Bytes of a mixed lot: every other element is any bits at all (NaN, infinite, subnormal,
/// extreme), the rest are small numbers, so that sums stay finite for a while.
fn operand(dtype: DataType, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::new();
    let part = dtype.real_type();
    for index in 0..LONGEST * dtype.size() / part.size() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bits = (state >> 3).to_le_bytes();
        let small = small(part, bits[0]);
        bytes.extend_from_slice(&if index % 2 == 0 { bits } else { small }[..part.size()]);
    }
    bytes
}

/// A number between -32 and 32, by eighths where the type has them.
fn small(dtype: DataType, bits: u8) -> [u8; 8] {
    let number = f32::from(bits.cast_signed()) / 8.0;
    match dtype {
        DataType::F16 => Scalar::new(f16::from_f32(number)).bytes(),
        DataType::Bf16 => Scalar::new(bf16::from_f32(number)).bytes(),
        DataType::F32 => Scalar::new(number).bytes(),
        DataType::F64 => Scalar::new(f64::from(number)).bytes(),
        DataType::F8E4M3 => Scalar::new(F8E4M3::from_f32(number)).bytes(),
        DataType::F8E5M2 => Scalar::new(F8E5M2::from_f32(number)).bytes(),
        _ => i64::from(bits.cast_signed() / 4).to_le_bytes(),
    }
}

fn scalar(dtype: DataType) -> Scalar {
    match dtype.real_type() {
        DataType::I8 => Scalar::new(-3_i8),
        DataType::U8 => Scalar::new(3_u8),
        DataType::I32 => Scalar::new(-3_i32),
        DataType::U32 => Scalar::new(3_u32),
        DataType::I64 => Scalar::new(-3_i64),
        DataType::U64 => Scalar::new(3_u64),
        DataType::F16 => Scalar::new(f16::from_f32(0.3)),
        DataType::Bf16 => Scalar::new(bf16::from_f32(0.3)),
        DataType::F32 => Scalar::new(0.3_f32),
        DataType::F64 => Scalar::new(0.3_f64),
        DataType::F8E4M3 => Scalar::new(F8E4M3::from_f32(0.3)),
        DataType::F8E5M2 => Scalar::new(F8E5M2::from_f32(0.3)),
        DataType::I16 => Scalar::new(-3_i16),
        DataType::U16 => Scalar::new(3_u16),
        other => Scalar::zero(other),
    }
}

/// All operators that are defined on the type.
fn ops(dtype: DataType) -> Vec<ReduceOp> {
    let all = ReduceOp::PLAIN.into_iter().chain([ReduceOp::PreMulSum(scalar(dtype))]);
    all.filter(|op| op.supports(dtype)).collect()
}

fn kernels() -> impl Iterator<Item = ReduceKernel> {
    ReduceKernel::ALL.into_iter().filter(|kernel| kernel.is_supported())
}

/// How the places of a trial lie.
#[derive(Clone, Copy, Debug)]
struct Layout {
    n_targets: usize,
    /// Bytes before the first element of a place; the k-th place has k more.
    offset: usize,
    /// Whether the last source is the first target.
    in_place: bool,
}

const LAYOUTS: [Layout; 6] = [
    Layout { n_targets: 1, offset: 0, in_place: false },
    Layout { n_targets: 1, offset: 0, in_place: true },
    Layout { n_targets: 1, offset: 3, in_place: false },
    Layout { n_targets: 2, offset: 1, in_place: true },
    Layout { n_targets: 2, offset: 0, in_place: false },
    Layout { n_targets: 3, offset: 5, in_place: true },
];

/// Runs one combination of `count` elements and compares each target, and the bytes around it, with
/// `expected`.
fn check(
    reducer: &Reducer,
    operands: &[(Vec<u8>, bool)],
    expected: &[u8],
    layout: Layout,
    count: usize,
    finish: bool,
) {
    let combine = |sources: &[Source<'_>], targets: &mut [Target<'_>]| {
        reducer.combine(sources, targets, count as u64, finish)
    };
    check_combination(combine, reducer.data_type(), operands, expected, layout, count);
}

/// The same of a combination of elements `dtype` by `combine`.
fn check_combination(
    combine: impl FnOnce(&[Source<'_>], &mut [Target<'_>]) -> Result<()>,
    dtype: DataType,
    operands: &[(Vec<u8>, bool)],
    expected: &[u8],
    layout: Layout,
    count: usize,
) {
    let len = count * dtype.size();
    let shifted: Vec<Vec<u8>> = operands
        .iter()
        .enumerate()
        .map(|(k, (bytes, _))| [&vec![GUARD; layout.offset + k][..], &bytes[..len]].concat())
        .collect();
    let mut outputs: Vec<Vec<u8>> =
        (0..layout.n_targets).map(|k| vec![GUARD; layout.offset + k + len + 64]).collect();
    let last = operands.len() - 1;
    outputs[0][layout.offset..][..len].copy_from_slice(&operands[last].0[..len]);
    let place = |k: usize| match k {
        _ if k == last && layout.in_place => SourcePlace::Target(0),
        _ => SourcePlace::Slice(&shifted[k][layout.offset + k..]),
    };
    let sources: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(k, (_, fresh))| Source { place: place(k), fresh: *fresh })
        .collect();
    let mut targets: Vec<_> = outputs
        .iter_mut()
        .enumerate()
        .map(|(k, output)| Target::Slice(&mut output[layout.offset + k..]))
        .collect();
    combine(&sources, &mut targets).unwrap();
    for (k, output) in outputs.iter().enumerate() {
        let start = layout.offset + k;
        assert!(output[start..start + len] == expected[..len], "target {k} of {layout:?}, {count} elements");
        assert!(
            output[..start].iter().chain(&output[start + len..]).all(|&byte| byte == GUARD),
            "around {k}"
        );
    }
}

/// Every operator, number of sources, layout, count and kernel for one type.
fn check_type_thoroughly(dtype: DataType) {
    for op in ops(dtype) {
        for n_sources in [1, 2, 3, 8] {
            let operands: Vec<_> =
                (0..n_sources).map(|k: u64| (operand(dtype, k * 31 + 7), k % 3 != 2)).collect();
            for finish in [false, true] {
                let expected = oracle::reduce(dtype, &op, 7, &operands, finish);
                for kernel in kernels() {
                    let reducer = Reducer::with_kernel(dtype, &op, 7, kernel).unwrap();
                    for layout in LAYOUTS {
                        for count in COUNTS {
                            check(&reducer, &operands, &expected, layout, count, finish);
                        }
                    }
                }
            }
        }
    }
}

macro_rules! every_kernel_agrees_with_the_oracle {
    ($($name:ident: $dtype:ident),* $(,)?) => {
        mod every_kernel_agrees_with_the_oracle_on {
            use super::*;
            $(#[test]
            fn $name() {
                check_type_thoroughly(DataType::$dtype);
            })*
        }
    };
}

every_kernel_agrees_with_the_oracle! {
    int8: I8, uint8: U8, int32: I32, uint32: U32, int64: I64, uint64: U64,
    half: F16, bfloat16: Bf16, float: F32, double: F64, fp8_e4m3: F8E4M3, fp8_e5m2: F8E5M2,
    int16: I16, uint16: U16, bool: Bool, complex64: Complex64, complex128: Complex128,
}

#[test]
fn words_are_combined_as_the_oracle_combines_their_elements() {
    for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.size() <= 8) {
        for op in ops(dtype) {
            for n_sources in [1, 2, 3, 64] {
                let operands: Vec<_> =
                    (0..n_sources).map(|k: u64| (operand(dtype, k * 31 + 7), true)).collect();
                let word = |(bytes, _): &(Vec<u8>, bool)| bytemuck::pod_read_unaligned::<u64>(&bytes[..8]);
                let words: Vec<u64> = operands.iter().map(word).collect();
                let expected = oracle::reduce(dtype, &op, 7, &operands, true);
                let result = Reducer::new(dtype, &op, 7).unwrap().combine_words(&words, 8);
                assert_eq!(result.to_ne_bytes(), expected[..8], "{dtype:?} {op:?} {n_sources}");
            }
        }
    }
}

#[test]
fn a_custom_operator_sees_the_elements_of_a_word_and_no_more() {
    let op = ReduceOp::Custom(CustomOp::new::<i8>("digits", |one, other| {
        assert_eq!(one.len(), 3);
        one.iter_mut().zip(other).for_each(|(one, other)| *one = *one * 5 + *other);
    }));
    let words = [1, 2, 3].map(|element| bytemuck::cast::<[i8; 8], u64>([element; 8]));
    let result = Reducer::new(DataType::I8, &op, 3).unwrap().combine_words(&words, 3);
    assert_eq!(result.to_ne_bytes()[..3], [38; 3]);
}

#[test]
fn shared_places_are_combined_like_slices_and_in_place() {
    let mapping = Mapping::boxed(64).unwrap();
    let span = mapping.span(0, 64).unwrap();
    span.copy_in(0, bytemuck::cast_slice(&[1.0_f32, 2.0, 3.0])).unwrap();
    span.copy_in(16, bytemuck::cast_slice(&[10.0_f32, 20.0, 30.0])).unwrap();
    let reducer = Reducer::new(DataType::F32, &ReduceOp::Sum, 2).unwrap();
    let sources = [SourcePlace::Shared(&span, 0), SourcePlace::Shared(&span, 16)].map(Source::fresh);
    let mut out = [0; 12];
    let mut targets = [Target::Shared(&span, 16), Target::Slice(&mut out)];
    reducer.combine(&sources, &mut targets, 3, true).unwrap();
    assert_eq!(out, bytemuck::cast::<_, [u8; 12]>([11.0_f32, 22.0, 33.0]));
    assert_eq!(span.read::<[f32; 3]>(16).unwrap(), [11.0, 22.0, 33.0]);
    assert_eq!(span.read::<[f32; 3]>(0).unwrap(), [1.0, 2.0, 3.0]);
}

/// Two sources at `offsets` of a span of 64 bytes into its byte 16, four elements of four bytes.
fn combine_at(offsets: [u64; 2]) -> Result<()> {
    let mapping = Mapping::boxed(64).unwrap();
    let span = mapping.span(0, 64).unwrap();
    let reducer = Reducer::new(DataType::I32, &ReduceOp::Sum, 2).unwrap();
    let sources = offsets.map(|offset| Source::fresh(SourcePlace::Shared(&span, offset)));
    reducer.combine(&sources, &mut [Target::Shared(&span, 16)], 4, true)
}

#[test]
fn partial_overlap_of_a_source_and_a_target_is_refused_and_other_neighbours_are_not() {
    for offset in [1, 12, 15, 17, 20, 31] {
        assert!(matches!(combine_at([0, offset]), Err(Error::InvalidArgument { .. })), "{offset}");
        assert!(matches!(combine_at([offset, 0]), Err(Error::InvalidArgument { .. })), "{offset}");
    }
    for offset in [0, 16, 32, 48] {
        combine_at([offset, 0]).unwrap();
    }
}

#[test]
fn targets_that_overlap_are_refused() {
    let mapping = Mapping::boxed(64).unwrap();
    let span = mapping.span(0, 64).unwrap();
    let reducer = Reducer::new(DataType::I32, &ReduceOp::Sum, 2).unwrap();
    let source = [Source::fresh(SourcePlace::Shared(&span, 48))];
    let mut targets = [Target::Shared(&span, 0), Target::Shared(&span, 8)];
    assert!(matches!(reducer.combine(&source, &mut targets, 4, true), Err(Error::InvalidArgument { .. })));
    reducer.combine(&source, &mut targets, 2, true).unwrap();
}

#[test]
fn places_that_are_too_short_or_too_many_are_refused() {
    let reducer = Reducer::new(DataType::F64, &ReduceOp::Max, 2).unwrap();
    let (bytes, mut out) = ([0; 24], [GUARD; 24]);
    let source = Source::fresh(SourcePlace::Slice(&bytes));
    let mut run =
        |sources: &[Source<'_>], count| reducer.combine(sources, &mut [Target::Slice(&mut out)], count, true);
    for count in [4, u64::MAX / 8, u64::MAX / 8 + 1, u64::MAX] {
        assert!(matches!(run(&[source], count), Err(Error::OutOfRange { .. })), "{count}");
    }
    assert!(matches!(run(&[], 1), Err(Error::InvalidArgument { value: 0, .. })));
    assert!(matches!(run(&[source; 257], 1), Err(Error::InvalidArgument { value: 257, .. })));
    let absent = Source::fresh(SourcePlace::Target(1));
    assert!(matches!(run(&[absent], 1), Err(Error::InvalidArgument { value: 1, .. })));
    assert_eq!(out, [GUARD; 24]);
    assert!(reducer.combine(&[source], &mut [], 1, true).is_err());
}

#[test]
fn as_many_sources_as_there_can_be_ranks_reach_as_many_targets() {
    for n in [8, 9, 64, 65, 128, 256_u32] {
        let reducer = Reducer::new(DataType::U32, &ReduceOp::Sum, n).unwrap();
        let inputs: Vec<[u8; 12]> = (0..n).map(|k| bytemuck::cast([k, 2 * k, 1])).collect();
        let sources: Vec<_> = inputs.iter().map(|input| Source::fresh(SourcePlace::Slice(input))).collect();
        let mut outputs = vec![[0_u8; 12]; n as usize];
        let mut targets: Vec<_> = outputs.iter_mut().map(|output| Target::Slice(output)).collect();
        reducer.combine(&sources, &mut targets, 3, true).unwrap();
        let sum = n * (n - 1) / 2;
        assert!(outputs.iter().all(|&output| bytemuck::cast::<_, [u32; 3]>(output) == [sum, 2 * sum, n]));
    }
}

#[test]
fn an_average_of_as_many_as_there_can_be_ranks_is_that_of_their_numbers() {
    fn average<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(dtype: DataType, n: u32, inputs: &[T]) -> T {
        let reducer = Reducer::new(dtype, &ReduceOp::Avg, n).unwrap();
        let bytes = inputs.iter().map(bytemuck::bytes_of);
        let sources: Vec<_> = bytes.map(|input| Source::fresh(SourcePlace::Slice(input))).collect();
        let mut output = T::zeroed();
        let target = Target::Slice(bytemuck::bytes_of_mut(&mut output));
        reducer.combine(&sources, &mut [target], 1, true).unwrap();
        output
    }
    for n in [64, 65, 127, 128, 129, 255, 256] {
        let inputs = |value: i64| (0..n).map(move |_| value);
        // Sums of short integers wrap; that of one input that is not zero does not.
        let i8s: Vec<_> = (1..n).map(|_| 0).chain([i8::MIN]).collect();
        assert_eq!(i64::from(average(DataType::I8, n, &i8s)), -128 / i64::from(n), "{n}");
        let u8s: Vec<_> = (1..n).map(|_| 0).chain([u8::MAX]).collect();
        assert_eq!(u32::from(average(DataType::U8, n, &u8s)), 255 / n, "{n}");
        let i64s: Vec<_> = inputs(-7).collect();
        assert_eq!(average(DataType::I64, n, &i64s), -7);
        // A power of two near the largest number: multiples of its shares are exact.
        let huge = 2_f32.powi(126);
        let floats: Vec<_> = inputs(1).map(|_| huge).collect();
        assert_eq!(average(DataType::F32, n, &floats), huge, "{n}: scaled before it overflows");
    }
}

#[test]
fn each_of_many_sources_is_scaled_when_it_is_an_original_input() {
    let scaled = ReduceOp::PreMulSum(Scalar::new(10_u64));
    let reducer = Reducer::new(DataType::U64, &scaled, 256).unwrap();
    let ones = 1_u64.to_ne_bytes();
    for fresh in [0_usize, 1, 63, 64, 127, 128, 255] {
        let source = |index| Source { place: SourcePlace::Slice(&ones), fresh: index == fresh };
        let sources: Vec<_> = (0..256).map(source).collect();
        let mut output = [0; 8];
        reducer.combine(&sources, &mut [Target::Slice(&mut output)], 1, true).unwrap();
        assert_eq!(u64::from_ne_bytes(output), 255 + 10, "source {fresh}");
    }
}

#[test]
fn an_operator_for_another_type_is_refused() {
    let custom = ReduceOp::Custom(CustomOp::new::<i32>("first", |_, _| ()));
    let scaled = ReduceOp::PreMulSum(Scalar::new(1.0_f32));
    for (op, dtype) in [(&custom, DataType::U32), (&scaled, DataType::F64)] {
        assert!(matches!(Reducer::new(dtype, op, 2), Err(Error::InvalidArgument { .. })));
    }
    Reducer::new(DataType::I32, &custom, 2).unwrap();
    Reducer::new(DataType::F32, &scaled, 2).unwrap();
    for n_ranks in [0, 257] {
        assert!(Reducer::new(DataType::I32, &ReduceOp::Sum, n_ranks).is_err());
    }
}

#[test]
fn an_operator_that_is_not_defined_on_the_type_is_refused_with_those_that_are() {
    let refused = |dtype, op: &ReduceOp| Reducer::new(dtype, op, 2).map(drop).unwrap_err().to_string();
    for dtype in DataType::ALL {
        let scaled = ReduceOp::PreMulSum(scalar(dtype));
        for op in ReduceOp::PLAIN.iter().chain([&scaled]).filter(|op| !op.supports(dtype)) {
            let told = refused(dtype, op);
            let (head, use_instead) = told.split_once("; use ").unwrap();
            assert_eq!(head, format!("operator {op} is not defined on {dtype}"));
            let words: Vec<_> = use_instead.split([',', ' ']).collect();
            for op in ops(dtype) {
                assert!(words.contains(&op.name()), "{op} is missing: {told}");
            }
            assert!(!words.contains(&op.name()), "{told}");
        }
    }
    let n_ops = |dtype| ops(dtype).len();
    assert_eq!([DataType::I16, DataType::F16, DataType::Bool, DataType::Complex64].map(n_ops), [9, 6, 7, 3]);
    // A complex scalar is of another type than the parts.
    for scalar in [Scalar::new(Complex64 { re: 1.0, im: 0.0 }), Scalar::new(2.0_f64)] {
        let told = refused(DataType::Complex64, &ReduceOp::PreMulSum(scalar));
        assert!(told.contains("expected that of the elements to reduce, or of their real parts"), "{told}");
    }
    assert!(
        refused(DataType::Complex128, &ReduceOp::PreMulSum(Scalar::new(Complex128::default())))
            .contains("real")
    );
}

/// Combines slices of elements of one type.
fn combine<T: Element>(op: &ReduceOp, n_ranks: u32, sources: &[&[T]]) -> Vec<T> {
    let reducer = Reducer::new(T::DATA_TYPE, op, n_ranks).unwrap();
    let mut result = vec![T::zeroed(); sources[0].len()];
    let sources: Vec<_> = sources
        .iter()
        .map(|source| Source::fresh(SourcePlace::Slice(bytemuck::cast_slice(source))))
        .collect();
    let count = result.len() as u64;
    let mut targets = [Target::Slice(bytemuck::cast_slice_mut(&mut result))];
    reducer.combine(&sources, &mut targets, count, true).unwrap();
    result
}

#[test]
fn a_custom_operator_is_called_in_the_order_of_the_sources() {
    // Digits, appended: associative with the length in the upper half, and not commutative.
    let append = CustomOp::new::<u64>("append", |accumulator, other| {
        for (one, other) in accumulator.iter_mut().zip(other) {
            let len = (*one >> 32) + (*other >> 32);
            let digits = (*one & 0xFFFF_FFFF) << (4 * (*other >> 32)) | *other & 0xFFFF_FFFF;
            *one = len << 32 | digits;
        }
    });
    let digit = |digit: u64| vec![1 << 32 | digit; 700_usize];
    let (one, two, three) = (digit(1), digit(2), digit(3));
    let result = combine(&ReduceOp::Custom(append), 3, &[&one, &two, &three]);
    assert_eq!(result, vec![3 << 32 | 0x123_u64; 700]);
}

#[test]
fn halves_are_summed_in_single_precision_and_rounded_once() {
    // In half precision 2048 + 1 is 2048 again, however often.
    let ones = [f16::ONE];
    let sum = combine::<f16>(&ReduceOp::Sum, 4, &[&[f16::from_f32(2048.0)], &ones, &ones, &ones, &ones]);
    assert_eq!(sum, [f16::from_f32(2052.0)]);
    let overflow = combine::<f16>(&ReduceOp::Sum, 2, &[&[f16::MAX], &[f16::MAX]]);
    assert_eq!(overflow, [f16::INFINITY]);
    let saturated = combine(&ReduceOp::Sum, 2, &[&[F8E4M3(0x7E)], &[F8E4M3(0x7E)]]);
    assert_eq!(saturated[0].0, 0x7E);
    let overflow = combine(&ReduceOp::Sum, 2, &[&[F8E5M2(0x7B)], &[F8E5M2(0x7B)]]);
    assert_eq!(overflow[0].0, 0x7C);
}

#[test]
fn any_byte_but_zero_is_true_and_results_are_0_or_1() {
    let (one, other) = ([0, 0, 2, 0xFF].map(Bool), [0, 4, 0, 0xFE].map(Bool));
    let bytes = |op| combine(&op, 2, &[&one[..], &other]).iter().map(|truth| truth.0).collect::<Vec<_>>();
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::BitOr] {
        assert_eq!(bytes(op), [0, 1, 1, 1]);
    }
    for op in [ReduceOp::Prod, ReduceOp::Min, ReduceOp::BitAnd] {
        assert_eq!(bytes(op), [0, 0, 0, 1]);
    }
    assert_eq!(bytes(ReduceOp::BitXor), [0, 1, 1, 0]);
    assert_eq!(combine(&ReduceOp::BitXor, 1, &[&one]).iter().map(|truth| truth.0).max(), Some(1));
}

#[test]
fn complex_numbers_are_added_scaled_and_averaged_part_by_part() {
    let number = |re, im| Complex64 { re, im };
    let inputs = [&[number(1.0, -2.0)][..], &[number(f32::NAN, 5.0)]];
    let sum = combine(&ReduceOp::Sum, 2, &inputs)[0];
    assert!(sum.re.is_nan() && sum.im == 3.0, "{sum:?}");
    let average = combine(&ReduceOp::Avg, 2, &inputs)[0];
    assert!(average.re.is_nan() && average.im == 1.5, "{average:?}");
    let scaled = combine(&ReduceOp::PreMulSum(Scalar::new(2.0_f32)), 2, &[inputs[0], inputs[0]]);
    assert_eq!(scaled, [number(4.0, -8.0)]);
}

#[test]
fn integers_wrap_and_their_averages_truncate_toward_zero() {
    assert_eq!(combine(&ReduceOp::Sum, 2, &[&[i8::MAX, i8::MIN], &[1, -1]]), [i8::MIN, i8::MAX]);
    assert_eq!(combine(&ReduceOp::Prod, 2, &[&[u32::MAX], &[u32::MAX]]), [1]);
    assert_eq!(combine(&ReduceOp::Avg, 2, &[&[-3, 3, i32::MAX], &[0, 0, 1]]), [-1, 1, i32::MIN / 2]);
}

#[test]
fn an_average_of_large_floats_is_finite_and_otherwise_that_of_the_sum_divided_at_the_end() {
    for n in [2, 3, 7, 64] {
        let ranks = |value: f32| vec![vec![value; 3]; n as usize];
        let average = |inputs: &[Vec<f32>]| {
            combine(&ReduceOp::Avg, n, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        let short = |inputs: &[Vec<f32>]| {
            let inputs: Vec<Vec<_>> =
                inputs.iter().map(|one| one.iter().map(|x| bf16::from_f32(*x)).collect()).collect();
            combine(&ReduceOp::Avg, n, &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        let large = bf16::MAX.to_f32();
        assert_eq!(average(&ranks(large)), [large; 3], "{n}");
        assert_eq!(average(&ranks(-large)), [-large; 3], "{n}");
        assert_eq!(short(&ranks(large)), [bf16::MAX; 3], "{n}");
        // The least that there is survives being made smaller.
        let least = bf16::from_bits(1);
        assert_eq!(short(&ranks(least.to_f32())), [least; 3], "{n}");
        let mixed: Vec<_> = (0..n).map(|rank| vec![(rank as f32 + 0.3).sin(), 1e-3, 7e9]).collect();
        let sum = combine(&ReduceOp::Sum, n, &mixed.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(average(&mixed), sum.iter().map(|sum| sum / n as f32).collect::<Vec<_>>(), "{n}");
    }
    assert_eq!(combine(&ReduceOp::Avg, 3, &[&[f64::MAX], &[f64::MAX], &[-f64::MAX]]), [f64::MAX / 3.0]);
}

#[test]
fn minimum_and_maximum_pass_nan_on_and_order_zeros() {
    let (one, other) = ([0.0, -0.0, f32::NAN, 1.0, f32::INFINITY], [-0.0, 0.0, 1.0, -f32::NAN, f32::MAX]);
    let bits = |op| combine(&op, 2, &[&one[..], &other]).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let nan = f32::NAN.to_bits();
    let negative_zero = (-0.0_f32).to_bits();
    assert_eq!(bits(ReduceOp::Min), [negative_zero, negative_zero, nan, nan, f32::MAX.to_bits()]);
    assert_eq!(bits(ReduceOp::Max), [0, 0, nan, nan, f32::INFINITY.to_bits()]);
}

#[test]
fn every_nan_is_stored_as_the_same_one() {
    let signalling = f64::from_bits(0xFFF0_0000_0000_0001);
    for op in ops(DataType::F64).into_iter().filter(|op| op.plain_code().is_some()) {
        let result = combine(&op, 2, &[&[signalling, f64::INFINITY], &[1.0, -f64::NAN]]);
        assert!(result.iter().all(|x| x.to_bits() == f64::NAN.to_bits()), "{op}");
    }
    let difference = combine(&ReduceOp::Sum, 2, &[&[f32::INFINITY], &[f32::NEG_INFINITY]]);
    assert_eq!(difference[0].to_bits(), f32::NAN.to_bits());
}

proptest! {
    #[test]
    fn any_shape_gives_what_the_oracle_gives(
        dtype in prop::sample::select(&DataType::ALL[..]),
        op: prop::sample::Index,
        n_sources in 1..=20_u64,
        n_targets in 1..=10_usize,
        count in 0..=LONGEST,
        offset in 0..64_usize,
        in_place: bool,
        finish: bool,
        seed: u32,
    ) {
        let op = &ops(dtype)[op.index(ops(dtype).len())];
        let operands: Vec<_> =
            (0..n_sources).map(|k| (operand(dtype, u64::from(seed) + k), (u64::from(seed) >> k) & 1 == 0)).collect();
        let expected = oracle::reduce(dtype, op, 5, &operands, finish);
        for kernel in kernels() {
            let reducer = Reducer::with_kernel(dtype, op, 5, kernel).unwrap();
            check(&reducer, &operands, &expected, Layout { n_targets, offset, in_place }, count, finish);
        }
    }
}
