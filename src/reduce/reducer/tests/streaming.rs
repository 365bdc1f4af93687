//! Results stored past the cache: the same bits as any others, wherever lines begin.

use super::*;
use crate::shm::copy::StorePolicy;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Before and behind each target, at least.
const MARGIN: usize = 2 * LINE;

/// A target that begins so many bytes behind the start of a line.
struct Output {
    bytes: Vec<u8>,
    start: usize,
}

impl Output {
    fn new(len: usize, behind_line: usize) -> Self {
        let bytes = vec![GUARD; 2 * MARGIN + LINE + len];
        let to_line = bytes.as_ptr().addr().wrapping_neg() % LINE;
        Self { bytes, start: MARGIN + to_line + behind_line - LINE }
    }

    fn check(&self, expected: &[u8], what: &str) {
        let (before, rest) = self.bytes.split_at(self.start);
        let (result, behind) = rest.split_at(expected.len());
        assert!(result == expected, "{what}");
        assert!(before.iter().chain(behind).all(|&byte| byte == GUARD), "around {what}");
    }
}

fn run_past(reducer: &Reducer, places: &OperandAddresses<'_>) {
    let CombineSteps::Built(kernels) = &reducer.steps else { panic!("an operator of the program's own") };
    kernels.last.run_by(StorePolicy::NonTemporal, places, reducer.terms(&[]));
}

/// Combines past the cache `count` elements of all operands into targets that begin so many bytes
/// behind a line each.
fn check_places(
    reducer: &Reducer,
    operands: &[(Vec<u8>, bool)],
    expected: &[u8],
    behind_line: &[usize],
    count: usize,
) {
    let len = count * reducer.data_type().size();
    let sources: Vec<_> = operands
        .iter()
        .map(|(bytes, fresh)| Source { place: SourcePlace::Slice(bytes), fresh: *fresh })
        .collect();
    let mut outputs: Vec<_> = behind_line.iter().map(|&behind| Output::new(len, behind)).collect();
    let mut targets: Vec<_> =
        outputs.iter_mut().map(|output| Target::Slice(&mut output.bytes[output.start..])).collect();
    with_addresses(&sources, &mut targets, len as u64, |places| run_past(reducer, places)).unwrap();
    for output in &outputs {
        output.check(&expected[..len], &format!("{count} of {:?} at {behind_line:?}", reducer.data_type()));
    }
}

/// None, one, and around vectors, lines and blocks, all of which are powers of two up to 128
/// elements.
fn counts() -> impl Iterator<Item = usize> {
    let around = |power: u32| [(1 << power) - 1, 1 << power, (1 << power) + 1];
    (2..=8).flat_map(around).chain([0, 1, 2, LONGEST - 1, LONGEST])
}

/// Every kernel with targets that begin at each element of a line, then with such as no line can be
/// filled in.
fn check_alignments(dtype: DataType, op: &ReduceOp, n_sources: u64) {
    let operands: Vec<_> = (0..n_sources).map(|k| (operand(dtype, k * 17 + 3), k % 3 != 2)).collect();
    let expected = oracle::reduce(dtype, op, 7, &operands, true);
    for kernel in kernels() {
        let reducer = Reducer::with_kernel(dtype, op, 7, kernel).unwrap();
        for count in counts() {
            for behind in (0..LINE).step_by(dtype.size()) {
                check_places(&reducer, &operands, &expected, &[behind], count);
            }
            for behind in [&[0, 0][..], &[8, 8, 8], &[0, 8], &[1], &[9, 9], &[63, 0, 63]] {
                check_places(&reducer, &operands, &expected, behind, count);
            }
        }
    }
}

#[test]
fn every_type_is_stored_past_the_cache_as_the_oracle_has_it() {
    for dtype in DataType::ALL {
        check_alignments(dtype, &ReduceOp::Sum, 2);
    }
}

#[test]
fn every_operator_is_stored_past_the_cache_as_the_oracle_has_it() {
    for dtype in [DataType::F32, DataType::F16, DataType::I8, DataType::Bool] {
        for op in ops(dtype) {
            check_alignments(dtype, &op, 3);
        }
    }
}

#[test]
fn a_result_past_the_cache_may_take_the_place_of_a_source() {
    let operands = [operand(DataType::I64, 5), operand(DataType::I64, 6)];
    let expected =
        oracle::reduce(DataType::I64, &ReduceOp::Sum, 2, &operands.clone().map(|bytes| (bytes, true)), true);
    let reducer = Reducer::new(DataType::I64, &ReduceOp::Sum, 2).unwrap();
    let [mut both, other] = operands;
    let sources = [SourcePlace::Target(0), SourcePlace::Slice(&other)].map(Source::fresh);
    let len = both.len() as u64;
    let run = |places: &OperandAddresses<'_>| run_past(&reducer, places);
    with_addresses(&sources, &mut [Target::Slice(&mut both)], len, run).unwrap();
    assert!(both == expected);
}

#[test]
fn a_result_past_the_cache_is_the_same_beside_one_in_the_place_of_a_source() {
    let operands = [operand(DataType::F64, 5), operand(DataType::F64, 6)];
    let op = ReduceOp::Avg;
    let expected = oracle::reduce(DataType::F64, &op, 2, &operands.clone().map(|bytes| (bytes, true)), true);
    for (kernel, behind) in kernels().flat_map(|kernel| [0, 8, 1].map(|behind| (kernel, behind))) {
        let reducer = Reducer::with_kernel(DataType::F64, &op, 2, kernel).unwrap();
        let [one, mut staged] = operands.clone();
        let sources = [SourcePlace::Slice(&one), SourcePlace::Target(1)].map(Source::fresh);
        let mut own = Output::new(one.len(), behind);
        let mut targets = [Target::Slice(&mut own.bytes[own.start..]), Target::Slice(&mut staged)];
        reducer.combine_keeping_others(&[], &sources, &mut targets, LONGEST as u64).unwrap();
        own.check(&expected, &format!("{kernel} at {behind}"));
        assert!(staged == expected, "{kernel} at {behind}");
    }
}
