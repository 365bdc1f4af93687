//! Which ranges of a segment have been committed.

/// Start and end, in bytes.
pub(super) type Range = (u64, u64);

/// Disjoint ranges in ascending order, none touching the next.
#[derive(Debug, Default)]
pub(super) struct Committed {
    ranges: Vec<Range>,
}

impl Committed {
    /// Returns the parts of `start..end` that are not committed, in ascending order.
    pub(super) fn missing(&self, start: u64, end: u64) -> Vec<Range> {
        let mut missing = Vec::new();
        let mut at = start;
        for &(from, to) in self.ranges.iter().filter(|&&(from, to)| to > start && from < end) {
            if from > at {
                missing.push((at, from));
            }
            at = at.max(to);
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    /// Notes that `start..end` is committed.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (touching, mut rest): (Vec<Range>, Vec<Range>) =
            self.ranges.iter().partition(|&&(from, to)| from <= end && to >= start);
        let from = touching.iter().map(|range| range.0).min().unwrap_or(start).min(start);
        let to = touching.iter().map(|range| range.1).max().unwrap_or(end).max(end);
        rest.push((from, to));
        rest.sort_unstable();
        self.ranges = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_missing_agrees_with_a_table_of_flags(
            added in prop::collection::vec((0_u64..64, 0_u64..16), 0..12),
            start in 0_u64..64,
            len in 0_u64..32,
        ) {
            let mut committed = Committed::default();
            let mut flags = [false; 128];
            for (from, len) in added {
                committed.add(from, from + len);
                (from..from + len).for_each(|at| flags[usize::try_from(at).unwrap()] = true);
            }
            let mut missing = [false; 128];
            for (from, to) in committed.missing(start, start + len) {
                prop_assert!(from < to);
                (from..to).for_each(|at| missing[usize::try_from(at).unwrap()] = true);
            }
            for at in 0..128_u64 {
                let index = usize::try_from(at).unwrap();
                let expected = (start..start + len).contains(&at) && !flags[index];
                prop_assert_eq!(missing[index], expected, "at {}", at);
            }
        }
    }
}
