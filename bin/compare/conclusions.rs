//! What the numbers mean, in plain English: whether a proxy pays, from which size on, and which
//! algorithm is best.

pub(super) mod algorithms;
mod puts;

use serde::Serialize;
use shmccl_harness::report::LEVEL;

use super::crossover::Crossover;
use super::series::{Series, Subject, is_thin};
use crate::units::{format_size, percent};
use algorithms::AlgorithmCrossovers;
use puts::PutCrossovers;

/// Fewer sizes show no trend.
const FEWEST_SIZES: usize = 3;

/// What a series shows.
#[derive(Clone, Debug)]
pub(super) struct Conclusions {
    /// Where lines cross; `None` when there are too few samples to conclude anything.
    pub(super) crossovers: Option<Crossovers>,
    /// What that means, in sentences.
    pub(super) summary: Vec<String>,
}

/// Where lines cross, as `compare.json` has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Crossovers {
    /// Conclusions about puts.
    Puts(PutCrossovers),
    /// Conclusions about the algorithms of a collective operation.
    Algorithms(AlgorithmCrossovers),
}

impl Conclusions {
    /// Draws the conclusions from a series.
    pub(super) fn of(series: &Series) -> Self {
        if series.report.rows.is_empty() {
            return Self { crossovers: None, summary: vec!["Nothing was measured.".to_owned()] };
        }
        if let Some(reason) = too_few(series) {
            return Self { crossovers: None, summary: vec![reason] };
        }
        let (summary, crossovers) = match &series.subject {
            Subject::Puts { .. } => {
                let found = PutCrossovers::of(series);
                (found.summary(series), Crossovers::Puts(found))
            }
            Subject::Operation { .. } => {
                let found = AlgorithmCrossovers::of(series);
                (found.summary(series), Crossovers::Algorithms(found))
            }
        };
        Self { crossovers: Some(crossovers), summary }
    }

    /// Returns the size to mark for a crossover of puts.
    pub(super) fn mark_of_puts(&self, which: fn(&PutCrossovers) -> Option<Crossover>) -> Option<f64> {
        match &self.crossovers {
            Some(Crossovers::Puts(found)) => which(found)?.mark(),
            _ => None,
        }
    }

    /// Returns where the quickest proxied algorithm overtakes the quickest direct one, where any
    /// size can show that.
    pub(super) fn overtaking(&self) -> Option<Crossover> {
        match &self.crossovers {
            Some(Crossovers::Algorithms(found)) => found.proxied,
            _ => None,
        }
    }
}

/// Says what to measure more of, where there is too little to conclude from.
fn too_few(series: &Series) -> Option<String> {
    let (sizes, rows) = (series.sizes(), &series.report.rows);
    let (thin, all) = match series.subject {
        Subject::Puts { .. } => {
            (sizes.iter().filter(|bytes| series.at(**bytes).any(is_thin)).count(), sizes.len())
        }
        Subject::Operation { .. } => (rows.iter().filter(|row| is_thin(row)).count(), rows.len()),
    };
    let remedy = match (sizes.len() < FEWEST_SIZES, 2 * thin > all) {
        (false, false) => return None,
        (true, false) => format!("measure {FEWEST_SIZES} sizes at least (-b, -e, -f)"),
        (false, true) => {
            "let it do more operations (-n), or as many as it finds time for (without -n)".to_owned()
        }
        (true, true) => format!("measure {FEWEST_SIZES} sizes at least (-b, -e, -f), each more often (-n)"),
    };
    Some(format!("Too few samples to conclude anything: {remedy}."))
}

/// Says where direct and proxied are level; nothing where they never are.
fn level_in_words(level: Crossover) -> Option<String> {
    match level {
        Crossover::Always => Some("the two are level at every size".to_owned()),
        Crossover::Between { first_ahead, .. } => Some(format!(
            "from {} on the two are level (within {})",
            format_size(first_ahead),
            percent(LEVEL)
        )),
        Crossover::Passing { first_ahead, last_ahead } => {
            Some(format!("the two are level at some sizes {}", between(first_ahead, last_ahead)))
        }
        Crossover::Never => None,
    }
}

/// Writes a range of sizes in words.
fn between(first: u64, last: u64) -> String {
    if first == last {
        format!("(at {})", format_size(first))
    } else {
        format!("(from {} to {})", format_size(first), format_size(last))
    }
}
