//! Whom the others wait for: told from who waits for whom.

use super::world::World;
use crate::process;
use crate::rank::{Rank, RankSet};
use crate::sync::LifeStatus;

/// What a rank is doing, as far as others are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It waits, or has given up waiting, or waited as it died, for these; for itself when it is for its own proxy.
    Waiting(RankSet),
    /// It lives, and waits for nobody.
    Busy,
    /// Its process was stopped, and does nothing, whatever it waited for.
    Stopped,
    /// It has not come, has left, or is dead.
    Gone,
}

impl Standing {
    /// That of a rank that waits for those who are `awaited`, if it does. What one waited for that is gone still counts; one whose
    /// process was stopped waits for nothing any more.
    pub(crate) fn new(life: LifeStatus, awaited: Option<RankSet>, is_stopped: impl FnOnce() -> bool) -> Self {
        match (life, awaited) {
            // One that was given up while it is stopped is lost, and as much in the way as before.
            _ if matches!(life, LifeStatus::Alive | LifeStatus::Lost) && is_stopped() => Self::Stopped,
            (_, Some(awaited)) => Self::Waiting(awaited),
            (LifeStatus::Alive, None) => Self::Busy,
            _ => Self::Gone,
        }
    }
}

/// Who is awaited, directly or by way of others, and waits for nobody.
pub(crate) fn stragglers(ranks: &[Standing]) -> RankSet {
    let awaited = ranks.iter().fold(0, |all, standing| match standing {
        Standing::Waiting(awaited) => all | awaited.bits(),
        Standing::Busy | Standing::Stopped | Standing::Gone => all,
    });
    RankSet::from_bits(awaited)
        .iter()
        .filter(|rank| matches!(ranks.get(rank.index()), Some(Standing::Busy | Standing::Stopped)))
        .collect()
}

/// The straggler to name where there is room for one: a stopped one before one that is busy, which may go on in a moment.
fn worst(ranks: &[Standing]) -> Option<Rank> {
    let is_stopped = |rank: &Rank| ranks.get(rank.index()) == Some(&Standing::Stopped);
    let all = stragglers(ranks);
    all.iter().find(is_stopped).or_else(|| all.iter().next())
}

/// Who waits in a circle, or for somebody who does: nobody is to blame then but the order of their calls.
pub(crate) fn knot(ranks: &[Standing]) -> RankSet {
    let awaited = |rank: Rank| match ranks.get(rank.index()) {
        Some(Standing::Waiting(awaited)) => awaited.without(RankSet::from_iter([rank])),
        _ => RankSet::default(),
    };
    let mut left = RankSet::all(u32::try_from(ranks.len()).unwrap_or(0));
    loop {
        let still: RankSet = left.iter().filter(|rank| awaited(*rank).and(left).len() > 0).collect();
        if still == left {
            return left;
        }
        left = still;
    }
}

impl World {
    /// What `rank` is doing, as it tells itself, unless its process was stopped.
    fn standing(&self, rank: Rank) -> Standing {
        let (life, activity) = (self.life(rank), self.activity(rank).read());
        let is_stopped = || life.thread().and_then(process::of_thread).is_some_and(process::is_stopped);
        let awaited = activity.is_waiting().then(|| RankSet::from_bits(activity.awaited));
        Standing::new(life.status(), awaited, is_stopped)
    }

    /// The straggler to name, if there is one: the first that was stopped, or else the first.
    #[cold]
    pub(crate) fn straggler(&self) -> Option<Rank> {
        let ranks: Vec<_> = (0..self.n_ranks()).map(Rank::known).map(|rank| self.standing(rank)).collect();
        worst(&ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(bits: u64) -> Standing {
        Standing::Waiting(RankSet::from_bits(bits))
    }

    fn found(ranks: &[Standing]) -> (u64, u64) {
        (stragglers(ranks).bits(), knot(ranks).bits())
    }

    #[test]
    fn who_is_awaited_and_waits_for_nobody_is_a_straggler() {
        assert_eq!(found(&[waiting(0b10), Standing::Busy, Standing::Busy]), (0b10, 0));
        assert_eq!(found(&[waiting(0b10), waiting(0b100), Standing::Busy]), (0b100, 0), "by way of another");
        assert_eq!(found(&[waiting(0b10), Standing::Gone]), (0, 0));
        assert_eq!(found(&[Standing::Busy; 3]), (0, 0), "nobody waits");
    }

    #[test]
    fn ranks_that_wait_in_a_circle_are_a_knot_with_all_that_wait_for_them() {
        assert_eq!(found(&[waiting(0b10), waiting(0b1), waiting(0b1), Standing::Busy]), (0, 0b111));
        assert_eq!(found(&[waiting(0b1), waiting(0b1)]), (0, 0), "one waits for its own proxy");
    }

    #[test]
    fn whoever_is_stopped_is_in_the_way_although_it_waits_or_was_given_up() {
        let awaited = Some(RankSet::from_bits(0b10));
        for life in [LifeStatus::Alive, LifeStatus::Lost] {
            assert_eq!(Standing::new(life, awaited, || true), Standing::Stopped);
            assert_eq!(Standing::new(life, awaited, || false), waiting(0b10));
        }
        assert_eq!(Standing::new(LifeStatus::Lost, None, || true), Standing::Stopped);
        assert_eq!(Standing::new(LifeStatus::Lost, None, || false), Standing::Gone);
        assert_eq!(Standing::new(LifeStatus::Left, None, || true), Standing::Gone);
    }

    #[test]
    fn who_is_stopped_is_named_before_one_that_is_busy() {
        let worst = |ranks: &[Standing]| worst(ranks).map(Rank::get);
        assert_eq!(worst(&[Standing::Busy, waiting(0b101), Standing::Stopped]), Some(2));
        assert_eq!(worst(&[Standing::Busy, waiting(0b101), Standing::Busy]), Some(0));
        assert_eq!(worst(&[Standing::Busy, waiting(0b1), Standing::Stopped]), Some(0), "nobody waits for 2");
        assert_eq!(worst(&[Standing::Busy, waiting(0b1000), Standing::Stopped]), None);
    }

    #[test]
    fn forged_bits_name_nobody_who_is_not_there() {
        assert_eq!(found(&[waiting(u64::MAX), Standing::Busy]), (0b10, 0));
        assert_eq!(found(&[waiting(u64::MAX); 64]), (0, u64::MAX));
        assert_eq!(found(&[]), (0, 0));
    }
}
