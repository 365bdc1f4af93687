//! Finds the ranks that hold others up, from which rank waits for which.

use crate::rank::{Rank, RankSet};
use crate::sync::LifeStatus;

/// The state of a rank, as far as others are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitState {
    /// It waits, or has given up waiting, or waited as it died, for these; for itself when it is
    /// for its own proxy.
    Waiting(RankSet),
    /// It lives, and waits for nobody.
    Busy,
    /// Its process was stopped, and does nothing, whatever it waited for.
    Stopped,
    /// It has not come, has left, or is dead.
    Gone,
}

impl WaitState {
    /// Returns the state of a rank that waits for those `awaited`, if it does. The wait of a rank
    /// that is gone still counts. A rank whose process was stopped waits for nothing any more.
    pub(super) fn new(life: LifeStatus, awaited: Option<RankSet>, is_stopped: impl FnOnce() -> bool) -> Self {
        match (life, awaited) {
            // One that was given up while it is stopped is lost, and as much in the way as before.
            _ if matches!(life, LifeStatus::Alive | LifeStatus::Lost) && is_stopped() => Self::Stopped,
            (_, Some(awaited)) => Self::Waiting(awaited),
            (LifeStatus::Alive, None) => Self::Busy,
            _ => Self::Gone,
        }
    }
}

/// Returns the ranks that are awaited, directly or by way of others, and wait for nobody.
pub(super) fn stragglers(ranks: &[WaitState]) -> RankSet {
    let awaited = ranks.iter().fold(RankSet::default(), |all, wait_state| match wait_state {
        WaitState::Waiting(awaited) => all.or(*awaited),
        WaitState::Busy | WaitState::Stopped | WaitState::Gone => all,
    });
    awaited
        .iter()
        .filter(|rank| matches!(ranks.get(rank.index()), Some(WaitState::Busy | WaitState::Stopped)))
        .collect()
}

/// Returns the straggler to name where there is room for one: a stopped one before one that is
/// busy, which may go on in a moment.
pub(super) fn worst_straggler(ranks: &[WaitState]) -> Option<Rank> {
    let is_stopped = |rank: &Rank| ranks.get(rank.index()) == Some(&WaitState::Stopped);
    let all = stragglers(ranks);
    all.iter().find(is_stopped).or_else(|| all.iter().next())
}

/// Returns the ranks that wait in a circle, or for one that does: the order of their calls is to
/// blame.
pub(super) fn wait_cycle(ranks: &[WaitState]) -> RankSet {
    let awaited = |rank: Rank| match ranks.get(rank.index()) {
        Some(WaitState::Waiting(awaited)) => awaited.without(RankSet::from_iter([rank])),
        _ => RankSet::default(),
    };
    let mut left = RankSet::all(u32::try_from(ranks.len()).unwrap_or(0));
    loop {
        let still: RankSet = left.iter().filter(|rank| !awaited(*rank).and(left).is_empty()).collect();
        if still == left {
            return left;
        }
        left = still;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::MAX_RANKS;

    fn waiting(bits: u64) -> WaitState {
        WaitState::Waiting(RankSet::from_words([bits, 0, 0, 0]))
    }

    fn found(ranks: &[WaitState]) -> (u64, u64) {
        (stragglers(ranks).part(0, 64), wait_cycle(ranks).part(0, 64))
    }

    #[test]
    fn who_is_awaited_and_waits_for_nobody_is_a_straggler() {
        assert_eq!(found(&[waiting(0b10), WaitState::Busy, WaitState::Busy]), (0b10, 0));
        assert_eq!(found(&[waiting(0b10), waiting(0b100), WaitState::Busy]), (0b100, 0), "by way of another");
        assert_eq!(found(&[waiting(0b10), WaitState::Gone]), (0, 0));
        assert_eq!(found(&[WaitState::Busy; 3]), (0, 0), "nobody waits");
    }

    #[test]
    fn ranks_that_wait_in_a_circle_are_a_knot_with_all_that_wait_for_them() {
        assert_eq!(found(&[waiting(0b10), waiting(0b1), waiting(0b1), WaitState::Busy]), (0, 0b111));
        assert_eq!(found(&[waiting(0b1), waiting(0b1)]), (0, 0), "one waits for its own proxy");
    }

    #[test]
    fn whoever_is_stopped_is_in_the_way_although_it_waits_or_was_given_up() {
        let awaited = Some(RankSet::from_words([0b10, 0, 0, 0]));
        for life in [LifeStatus::Alive, LifeStatus::Lost] {
            assert_eq!(WaitState::new(life, awaited, || true), WaitState::Stopped);
            assert_eq!(WaitState::new(life, awaited, || false), waiting(0b10));
        }
        assert_eq!(WaitState::new(LifeStatus::Lost, None, || true), WaitState::Stopped);
        assert_eq!(WaitState::new(LifeStatus::Lost, None, || false), WaitState::Gone);
        assert_eq!(WaitState::new(LifeStatus::Left, None, || true), WaitState::Gone);
    }

    #[test]
    fn who_is_stopped_is_named_before_one_that_is_busy() {
        let worst_straggler = |ranks: &[WaitState]| worst_straggler(ranks).map(Rank::get);
        assert_eq!(worst_straggler(&[WaitState::Busy, waiting(0b101), WaitState::Stopped]), Some(2));
        assert_eq!(worst_straggler(&[WaitState::Busy, waiting(0b101), WaitState::Busy]), Some(0));
        assert_eq!(
            worst_straggler(&[WaitState::Busy, waiting(0b1), WaitState::Stopped]),
            Some(0),
            "nobody waits for 2"
        );
        assert_eq!(worst_straggler(&[WaitState::Busy, waiting(0b1000), WaitState::Stopped]), None);
    }

    #[test]
    fn forged_bits_name_nobody_who_is_not_there() {
        assert_eq!(found(&[waiting(u64::MAX), WaitState::Busy]), (0b10, 0));
        assert_eq!(found(&[waiting(u64::MAX); 64]), (0, u64::MAX));
        assert_eq!(found(&[]), (0, 0));
    }

    #[test]
    fn the_last_rank_of_the_largest_job_holds_all_others_up() {
        let everybody = WaitState::Waiting(RankSet::all(MAX_RANKS));
        let mut ranks = [everybody; MAX_RANKS as usize];
        assert_eq!((stragglers(&ranks).len(), wait_cycle(&ranks)), (0, RankSet::all(MAX_RANKS)));
        ranks[255] = WaitState::Busy;
        assert_eq!(stragglers(&ranks), RankSet::from_iter([Rank::known(255)]));
    }
}
