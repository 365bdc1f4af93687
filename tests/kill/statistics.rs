//! How long it takes until survivors know.

use std::collections::BTreeMap;

use crate::{MODES, PHASES};

/// What is promised of the time from a kill to the survivors' errors, over all phases: 99 of 100 come within this.
const P99_NS: u64 = 50_000_000;

/// And all within this.
const MAX_NS: u64 = 1_000_000_000;

/// Times from the kill to the error of each survivor, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    times: BTreeMap<(usize, usize), Vec<u64>>,
    /// Trials in which the victim had ended before it was killed.
    pub(crate) too_late: u32,
}

impl Statistics {
    pub(crate) fn add(&mut self, phase: &str, mode: &str, ns: u64) {
        let place = |names: &[&str], name| names.iter().position(|other| *other == name).unwrap();
        self.times.entry((place(&PHASES, phase), place(&MODES, mode))).or_default().push(ns);
    }

    fn all(&self) -> Vec<u64> {
        self.times.values().flatten().copied().collect()
    }

    /// # Panics
    /// When survivors were told later than the project promises.
    pub(crate) fn hold_the_promise(&self) {
        let mut times = self.all();
        let [p99, max] = [99, 100].map(|percent| percentile(&mut times, percent).unwrap());
        assert!(p99 < P99_NS, "p99 is {p99} ns");
        assert!(max < MAX_NS, "the maximum is {max} ns");
    }
}

impl std::fmt::Display for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{:10} {:13} {:>6} {:>10} {:>10} {:>10}",
            "phase", "mode", "errors", "p50", "p99", "max"
        )?;
        let mut row = |phase: &str, mode: &str, mut times: Vec<u64>| {
            let [p50, p99, max] = percentiles(&mut times).map(|time| time.to_string());
            writeln!(f, "{phase:10} {mode:13} {:>6} {p50:>10} {p99:>10} {max:>10}", times.len())
        };
        for ((phase, mode), times) in &self.times {
            row(PHASES[*phase], MODES[*mode], times.clone())?;
        }
        let after_init =
            self.times.iter().filter(|((phase, _), _)| *phase != 0).flat_map(|(_, times)| times.clone());
        row("all but init", "", after_init.collect())?;
        row("all", "", self.all())?;
        write!(f, "in {} teardowns the victim had ended before it was killed", self.too_late)
    }
}

/// Median, 99th percentile and maximum, in microseconds.
pub(crate) fn percentiles(times: &mut [u64]) -> [String; 3] {
    [50, 99, 100].map(|percent| match percentile(times, percent) {
        None => "-".to_owned(),
        Some(ns) => format!("{:.1}us", ns as f64 / 1000.0),
    })
}

fn percentile(times: &mut [u64], percent: usize) -> Option<u64> {
    times.sort_unstable();
    let last = times.len().checked_sub(1)?;
    Some(times[(times.len() * percent / 100).min(last)])
}
