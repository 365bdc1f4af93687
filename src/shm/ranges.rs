//! Sets of bytes: what of a segment has been committed, what of a mapping a program has.

/// Start and end, in bytes.
pub(super) type Range = (u64, u64);

/// Disjoint ranges in ascending order, none touching the next.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    ranges: Vec<Range>,
}

impl Ranges {
    /// Returns an empty set.
    pub(super) const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Walks over the ranges.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().copied()
    }

    /// Returns whether all of `start..end` is in the set.
    pub(super) fn has(&self, start: u64, end: u64) -> bool {
        // The first one that ends behind the start; an earlier one has nothing of it.
        let index = self.ranges.partition_point(|range| range.1 <= start);
        start >= end || self.ranges.get(index).is_some_and(|range| range.0 <= start && end <= range.1)
    }

    /// Returns the parts of `start..end` that are not in the set, in ascending order.
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

    /// Puts `start..end` into the set.
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

    /// Takes `start..end` out of the set.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let left = |&(from, to): &Range| [(from, to.min(start)), (from.max(end), to)];
        self.ranges = self.ranges.iter().flat_map(left).filter(|range| range.0 < range.1).collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_agrees_with_a_table_of_flags(
            steps in prop::collection::vec((0_u64..64, 0_u64..16, prop::bool::weighted(0.7)), 0..16),
            start in 0_u64..64,
            len in 0_u64..32,
        ) {
            let mut set = Ranges::default();
            let mut flags = [false; 128];
            for (from, len, is_added) in steps {
                if is_added { set.add(from, from + len) } else { set.remove(from, from + len) }
                (from..from + len).for_each(|at| flags[usize::try_from(at).unwrap()] = is_added);
            }
            let mut missing = [false; 128];
            for (from, to) in set.missing(start, start + len) {
                prop_assert!(from < to);
                (from..to).for_each(|at| missing[usize::try_from(at).unwrap()] = true);
            }
            let within = |at: u64| (start..start + len).contains(&at);
            for at in 0..128_u64 {
                let index = usize::try_from(at).unwrap();
                let expected = within(at) && !flags[index];
                prop_assert_eq!(missing[index], expected, "at {}", at);
                prop_assert_eq!(set.has(at, at + 1), flags[index], "at {}", at);
                prop_assert_eq!(set.iter().any(|(from, to)| from <= at && at < to), flags[index], "at {}", at);
            }
            prop_assert_eq!(set.has(start, start + len), !missing.contains(&true));
        }
    }
}
