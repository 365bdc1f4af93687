//! Rounds: all is measured several times over, by jobs that take turns.
//!
//! Repetitions within a job are alike, and tell nothing of the next run: they have the same pages,
//! the same cores in the same second, the same neighbours on the host. Rounds have others of each.
//! A figure is the median of all rounds, and its spread is where those lie and a little more.

use anyhow::{Result, ensure};

use super::report::{FIGURES, PerfRow};
use crate::stats::median;

/// Rounds of a measurement. Of so many the median of as many others lies between the least and the
/// greatest nineteen times in twenty.
const ROUNDS: u64 = 8;

/// Operations that are worth rounds, where the user says how many.
const WORTH_ROUNDS: u64 = 64 * ROUNDS;

/// What the machine does to two runs is never closer than this share of a figure.
const CLOSEST: f64 = 0.05;

/// Shares are never closer than this: a twentieth of nothing is nothing.
const CLOSEST_SHARE: f64 = 0.01;

/// What runs differ in more than rounds: this share of where rounds lie on either side, by rounds.
const BEYOND: f64 = 2.0;

/// Returns how many rounds `iters` operations are measured in.
pub fn rounds_of(iters: Option<u64>) -> u64 {
    if iters.is_none_or(|iters| iters >= WORTH_ROUNDS) { ROUNDS } else { 1 }
}

/// Measures as many `rounds`, and makes one row of those that all have in the same place.
///
/// # Errors
/// Fails as `measure` does, or where rounds differ in their rows.
pub fn in_rounds(rounds: u64, mut measure: impl FnMut() -> Result<Vec<PerfRow>>) -> Result<Vec<PerfRow>> {
    let mut places: Vec<Vec<PerfRow>> = Vec::new();
    for round in 0..rounds {
        let rows = measure()?;
        ensure!(round == 0 || rows.len() == places.len(), "rounds differ in their rows");
        places.resize_with(rows.len(), Vec::new);
        places.iter_mut().zip(rows).for_each(|(place, row)| place.push(row));
    }
    Ok(places.into_iter().filter_map(merged).collect())
}

/// Makes one row of those of all rounds; `None` of none. What was counted is added up.
fn merged(mut rows: Vec<PerfRow>) -> Option<PerfRow> {
    let mut row = rows.first()?.clone();
    if rows.len() == 1 {
        return Some(row);
    }
    let sum = |of: fn(&PerfRow) -> Option<u64>| rows.iter().map(of).sum::<Option<u64>>();
    row.iterations = sum(|row| Some(row.iterations))?;
    (row.times.samples, row.wrong) = (sum(|row| row.times.samples), sum(|row| row.wrong));
    (row.fifo.pushes, row.fifo.stalls) = (sum(|row| row.fifo.pushes), sum(|row| row.fifo.stalls));
    let siblings: Vec<f64> = rows.iter().filter_map(|row| row.cores.sibling_slices).collect();
    row.cores.sibling_slices =
        (!siblings.is_empty()).then(|| siblings.iter().sum::<f64>() / rows.len() as f64);
    row.spread.clear();
    for (key, of) in FIGURES {
        let mut values: Vec<f64> = rows.iter_mut().filter_map(|row| *of(row)).collect();
        // What most rounds could not tell is not known.
        let middle = median(&mut values).filter(|_| 2 * values.len() > rows.len());
        *of(&mut row) = middle;
        if let (Some(middle), [least, .., greatest]) = (middle, values.as_slice()) {
            let floor = if matches!(key, "overlap" | "stall_share") { CLOSEST_SHARE } else { 0.0 };
            let (closest, beyond) =
                ((middle * CLOSEST).max(floor), (greatest - least) * BEYOND / rows.len() as f64);
            let (low, high) = ((least - beyond).max(0.0), greatest + beyond);
            row.spread
                .insert(key.to_owned(), (low.min((middle - closest).max(0.0)), high.max(middle + closest)));
        }
    }
    if let (Some(figures), Some(gb_per_s)) = (&mut row.collective, row.times.gb_per_s) {
        figures.busbw *= gb_per_s / figures.algbw.max(f64::MIN_POSITIVE);
        figures.algbw = gb_per_s;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Test;

    fn row(p50_ns: f64, p99_ns: Option<f64>) -> PerfRow {
        let mut row = PerfRow { iterations: 10, wrong: Some(1), ..PerfRow::new(Test::PutLatency, 2) };
        (row.times.p50_ns, row.times.p99_ns, row.times.min_ns) = (Some(p50_ns), p99_ns, Some(p50_ns / 2.0));
        row
    }

    /// One figure a round.
    fn merged_of(rows: &[PerfRow]) -> PerfRow {
        let mut rows = rows.iter();
        let merged = in_rounds(rows.len() as u64, || Ok(rows.next().cloned().into_iter().collect())).unwrap();
        merged[0].clone()
    }

    #[test]
    fn a_figure_is_the_median_of_rounds_and_its_spread_is_where_they_lie() {
        let merged = merged_of(&[row(100.0, None), row(130.0, Some(9.0)), row(120.0, None)]);
        assert_eq!((merged.times.p50_ns, merged.spread["p50_ns"]), (Some(120.0), (80.0, 150.0)));
        assert_eq!((merged.iterations, merged.wrong, merged.times.min_ns), (30, Some(3), Some(60.0)));
        // One round of three knows no percentile.
        assert_eq!((merged.times.p99_ns, merged.spread.get("p99_ns")), (None, None));
        assert!(!merged.is_steady("p50_ns") && !merged.is_steady("p99_ns"));
    }

    #[test]
    fn rounds_that_agree_to_the_last_digit_promise_no_such_thing() {
        let merged = merged_of(&[row(100.0, None), row(100.0, None)]);
        assert_eq!(merged.spread["p50_ns"], (95.0, 105.0));
        assert!(merged.is_steady("p50_ns"));
    }

    #[test]
    fn a_share_of_nothing_in_all_rounds_may_be_a_little_in_the_next_run() {
        let mut none = row(100.0, None);
        none.overlap = Some(0.0);
        assert_eq!(merged_of(&[none.clone(), none]).spread["overlap"], (0.0, 0.01));
    }

    #[test]
    fn one_round_is_left_as_it_is() {
        let mut only = row(100.0, None);
        only.spread.insert("p50_ns".to_owned(), (90.0, 130.0));
        assert_eq!(merged_of(&[only.clone()]), only);
        assert_eq!((rounds_of(None), rounds_of(Some(100)), rounds_of(Some(1000))), (ROUNDS, 1, ROUNDS));
    }

    #[test]
    fn rounds_of_other_rows_are_refused() {
        let mut lengths = [1, 2].into_iter();
        let measure = || Ok(vec![row(1.0, None); lengths.next().unwrap_or(0)]);
        assert!(in_rounds(2, measure).is_err());
    }
}
