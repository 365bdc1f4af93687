//! A warning where what was measured differs too much from itself.

use crate::output;
use crate::perf::report::PerfRow;
use crate::units::{format_size, three_digits};

/// Where a tenth of the slices take this many times as long as another tenth, held against the limit in the same slices, something
/// else than the test has changed meanwhile.
const TOO_WIDE: f64 = 3.0;

/// Of fewer samples nothing else is to be expected.
const LEAST_SAMPLES: u64 = 100;

/// Tells in one line, if there is reason to.
pub(crate) fn note_spread(rows: &[PerfRow]) {
    if let Some(line) = warning(rows) {
        output::note(&line);
    }
}

fn warning(rows: &[PerfRow]) -> Option<String> {
    let settled = rows.iter().filter(|row| row.samples.is_some_and(|samples| samples >= LEAST_SAMPLES));
    let spreads: Vec<_> = settled.filter_map(|row| Some((row, row.ratio_p10?, row.ratio_p90?))).collect();
    let width = |low: f64, high: f64| high / low.max(f64::MIN_POSITIVE);
    let wide = spreads.iter().filter(|(_, low, high)| width(*low, *high) > TOO_WIDE);
    let (row, low, high) = wide.clone().max_by(|a, b| width(a.1, a.2).total_cmp(&width(b.1, b.2)))?;
    let words = [
        Some(row.test.name().to_owned()),
        row.channel.map(|channel| channel.name().to_owned()),
        row.bytes.map(format_size),
    ];
    Some(format!(
        "the machine was busy, or its cores drifted: {} of {} ratios spread more than {TOO_WIDE}-fold, that of {} from {} to {}; measure again",
        wide.count(),
        spreads.len(),
        words.into_iter().flatten().collect::<Vec<_>>().join(" "),
        three_digits(*low),
        three_digits(*high)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::test::{Test, TestChannel};

    fn row(bytes: u64, spread: Option<(f64, f64)>) -> PerfRow {
        let (ratio_p10, ratio_p90) = spread.unzip();
        PerfRow {
            bytes: Some(bytes),
            samples: Some(100),
            channel: Some(TestChannel::Memory),
            ratio_p10,
            ratio_p90,
            ..PerfRow::new(Test::PutLatency, 2)
        }
    }

    #[test]
    fn ratios_that_differ_threefold_are_told_in_one_line_by_the_widest() {
        let calm = [row(8, Some((1.0, 2.9))), row(16, None)];
        assert_eq!(warning(&calm), None);
        let busy = [&calm[..], &[row(32, Some((0.5, 2.0))), row(4096, Some((0.25, 2.5)))]].concat();
        let line = warning(&busy).unwrap();
        assert!(
            line.contains(
                "2 of 3 ratios spread more than 3-fold, that of put_latency memory 4 KiB from 0.250 to 2.50"
            ),
            "{line}"
        );
        assert!(!line.contains('\n'));
        assert!(warning(&[row(8, Some((0.0, 1.0)))]).is_some());
        assert_eq!(warning(&[PerfRow { samples: Some(99), ..row(8, Some((0.0, 1.0))) }]), None);
    }
}
