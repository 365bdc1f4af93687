//! Where one line falls below another for good.

use serde::Serialize;

/// The size from which on the challenger is ahead of the holder, up to the largest size measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "where", rename_all = "snake_case")]
pub(crate) enum Crossover {
    /// At every size measured.
    Always,
    /// At no size measured.
    Never,
    /// At some sizes, but not at the largest.
    Passing {
        /// The smallest size at which it is ahead.
        first_ahead: u64,
        /// The largest.
        last_ahead: u64,
    },
    /// Between two sizes measured.
    Between {
        /// The largest size at which it is not ahead.
        last_behind: u64,
        /// The smallest size from which on it is ahead.
        first_ahead: u64,
        /// Where the lines between the two sizes meet, on logarithmic scales.
        estimate: f64,
    },
}

/// The cost of both sides at one size; less is better.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// The size.
    pub(crate) bytes: u64,
    /// The cost of the holder.
    pub(crate) holder: f64,
    /// The cost of the challenger.
    pub(crate) challenger: f64,
}

impl Crossover {
    /// Returns where the cost of the challenger falls below `share` of that of the holder for good.
    /// Costs come in rising order of size.
    pub(crate) fn below(costs: &[Cost], share: f64) -> Self {
        let ahead = |cost: &Cost| cost.challenger < cost.holder * share;
        match costs.iter().rposition(|cost| !ahead(cost)) {
            None if costs.is_empty() => Self::Never,
            None => Self::Always,
            Some(last) => match costs.get(last + 1) {
                None => Self::passing(&costs.iter().filter(|cost| ahead(cost)).collect::<Vec<_>>()),
                Some(next) => Self::Between {
                    last_behind: costs[last].bytes,
                    first_ahead: next.bytes,
                    estimate: Self::meeting(&costs[last], next),
                },
            },
        }
    }

    /// Returns the lead at sizes in rising order, which do not include the largest.
    fn passing(ahead: &[&Cost]) -> Self {
        match ahead {
            [] => Self::Never,
            [first, .., last] => Self::Passing { first_ahead: first.bytes, last_ahead: last.bytes },
            [only] => Self::Passing { first_ahead: only.bytes, last_ahead: only.bytes },
        }
    }

    /// Returns where the challenger meets the holder between two sizes. Noise never moves it out of
    /// the interval.
    pub(crate) fn meeting(left: &Cost, right: &Cost) -> f64 {
        let lead = |cost: &Cost| (cost.challenger.max(1e-3) / cost.holder.max(1e-3)).ln();
        let (from, to) = (lead(left), lead(right));
        let way = if from > to { (from / (from - to)).clamp(0.0, 1.0) } else { 0.5 };
        let (start, end) = (left.bytes.max(1) as f64, right.bytes.max(1) as f64);
        (start.ln() + (end.ln() - start.ln()) * way).exp().clamp(start, end)
    }

    /// Returns where to draw the mark, if there is one.
    pub(crate) fn mark(self) -> Option<f64> {
        match self {
            Self::Between { estimate, .. } => Some(estimate),
            Self::Always | Self::Never | Self::Passing { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmccl_harness::report::LEVEL;

    fn costs(list: &[(u64, f64, f64)]) -> Vec<Cost> {
        list.iter().map(|&(bytes, holder, challenger)| Cost { bytes, holder, challenger }).collect()
    }

    #[test]
    fn lines_that_never_meet_do_not_cross() {
        assert_eq!(Crossover::below(&[], 1.0), Crossover::Never);
        assert_eq!(Crossover::below(&costs(&[(8, 1.0, 2.0), (64, 1.0, 1.5)]), 1.0), Crossover::Never);
        assert_eq!(Crossover::below(&costs(&[(8, 2.0, 1.0), (64, 2.0, 1.0)]), 1.0), Crossover::Always);
    }

    #[test]
    fn the_crossover_lies_where_lines_meet_on_logarithmic_scales() {
        let Crossover::Between { last_behind, first_ahead, estimate } =
            Crossover::below(&costs(&[(8, 10.0, 100.0), (1024, 10.0, 100.0), (4096, 1000.0, 100.0)]), 1.0)
        else {
            panic!("the lines cross");
        };
        assert_eq!((last_behind, first_ahead), (1024, 4096));
        assert!((estimate - 2048.0).abs() < 1e-6, "{estimate}");
    }

    #[test]
    fn the_last_crossover_counts_when_noise_makes_several() {
        let crossover =
            Crossover::below(&costs(&[(8, 2.0, 1.0), (16, 1.0, 2.0), (32, 2.0, 1.0), (64, 2.0, 1.0)]), 1.0);
        assert!(
            matches!(crossover, Crossover::Between { last_behind: 16, first_ahead: 32, .. }),
            "{crossover:?}"
        );
        assert!(crossover.mark().is_some_and(|mark| (16.0..=32.0).contains(&mark)));
    }

    #[test]
    fn a_lead_that_is_lost_again_is_no_crossover_and_is_told() {
        let lead = |list: &[(u64, f64, f64)]| Crossover::below(&costs(list), 1.0);
        let middle = [(8, 1.0, 2.0), (16, 2.0, 1.0), (32, 1.0, 2.0), (64, 2.0, 1.0), (128, 1.0, 2.0)];
        assert_eq!(lead(&middle), Crossover::Passing { first_ahead: 16, last_ahead: 64 });
        assert_eq!(lead(&middle[1..3]), Crossover::Passing { first_ahead: 16, last_ahead: 16 });
        assert_eq!(lead(&middle).mark(), None);
    }

    #[test]
    fn a_lead_within_the_noise_is_none() {
        let level = costs(&[(8, 1.0, 2.0), (64, 1.0, 0.97)]);
        assert_eq!(Crossover::below(&level, 1.0 - LEVEL), Crossover::Never);
        assert!(matches!(Crossover::below(&level, 1.0), Crossover::Between { first_ahead: 64, .. }));
    }

    #[test]
    fn the_estimate_stays_inside_its_interval_with_a_share() {
        let crossover = Crossover::below(&costs(&[(8, 1.0, 0.99), (64, 1.0, 0.90)]), 0.95);
        assert!(crossover.mark().is_some_and(|mark| (8.0..=64.0).contains(&mark)), "{crossover:?}");
        let zero = Crossover::below(&costs(&[(8, 0.0, 0.0), (64, 1.0, 0.0)]), 0.95);
        assert!(zero.mark().is_some_and(|mark| (8.0..=64.0).contains(&mark)), "{zero:?}");
    }
}
