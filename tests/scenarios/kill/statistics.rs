//! How long it takes until survivors know.

use std::collections::BTreeMap;

use crate::kill::{MODES, PHASES};

/// What is promised of the time from a kill to the survivors' errors, over all phases.
const TOLD: Promise = Promise { p99_ms: 50, max_ms: 1000 };

/// How long something may take that follows a kill: 99 of 100 times, and ever.
pub(crate) struct Promise {
    pub(crate) p99_ms: u64,
    pub(crate) max_ms: u64,
}

impl Promise {
    /// # Panics
    /// Where `strict`, when one of `times` of `what` is longer, or more than one of a hundred
    /// longer than promised for that.
    pub(crate) fn hold(&self, what: &str, times: &[u64], strict: bool) {
        let mut times = times.to_vec();
        let Some([p99, max]) =
            percentile(&mut times, 99).zip(percentile(&mut times, 100)).map(<[u64; 2]>::from)
        else {
            return;
        };
        assert!(!strict || max < self.max_ms * 1_000_000, "{what}: the maximum is {max} ns");
        assert!(!strict || p99 < self.p99_ms * 1_000_000, "{what}: p99 is {p99} ns");
    }
}

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
    /// Where `strict`, when survivors were told later than the project promises; see
    /// [`Promise::hold`].
    pub(crate) fn hold_the_promise(&self, strict: bool) {
        TOLD.hold("all", &self.all(), strict);
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
