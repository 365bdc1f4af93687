//! Which of two ways an all-reduce of 4 to 8 KiB between two ranks with a core each goes:
//! [eager](crate::collective::execute::eager), or by two shots as longer ones do.
//!
//! An eager call moves twice as many lines, and stores them where the peer has read, but has one
//! hand-over and not three. Which is quicker depends on whether the cores share a cache.
//!
//! A member has to know before it posts, when nobody has told it anything of this call. So the way
//! follows from the calls before, which go in *runs* of three on one way. With the third of a run
//! each member posts how long the second one took it. When both posts are read, both members pick
//! the way of the next run. The shorter time counts, since the member that came later has waited
//! for nobody.
//!
//! All such calls of a communicator are judged together, whatever their types and wherever their
//! buffers lie. A program that makes very different ones in turn may stay on the slower way until
//! the next trial.

use std::time::Instant;

use super::measured::{UNTRIED, cost, since};
use super::trials::{Lengths, Route, RouteTrials};

/// Calls of a run.
const RUN: u8 = 3;

/// The call of a run that is timed: the first one finds in the cache what the other way has left
/// there.
const TIMED: u8 = 1;

/// What both members know.
#[derive(Debug)]
pub(crate) struct EagerTrial {
    /// Of runs.
    trials: RouteTrials,
    /// Which call of its run is the next one.
    turn: u8,
    /// How many nanoseconds the timed call took this member, and how many bytes it contributed.
    last_duration: u64,
    len: u64,
}

impl Default for EagerTrial {
    fn default() -> Self {
        let trials = RouteTrials::new(Lengths { first: 4, other: 3, counting: 2 });
        Self { trials, turn: 0, last_duration: 0, len: 1 }
    }
}

impl EagerTrial {
    /// Returns whether the next call goes with its announcement.
    pub(crate) fn is_eager(&self) -> bool {
        self.trials.route() == Route::First
    }

    /// Returns what this member posts with it; `is_watched` where it counts or checks what it
    /// posts: then nothing is tried out.
    pub(crate) fn last_duration(&self, is_watched: bool) -> u64 {
        if is_watched { UNTRIED } else { self.last_duration }
    }

    /// Begins the next call; when, if that is to be told.
    pub(crate) fn begin(&self) -> Option<Instant> {
        (self.turn == TIMED).then(Instant::now)
    }

    /// Ends the call, of `len` bytes, that has `begun`.
    pub(crate) fn end(&mut self, begun: Option<Instant>, len: u64) {
        if let Some(begun) = begun {
            self.last_duration = since(begun).min(UNTRIED - 1);
            self.len = len;
        }
    }

    /// Takes in what the members have `told` with the call that is under way.
    pub(crate) fn note(&mut self, told: [u64; 2]) {
        if told.contains(&UNTRIED) {
            *self = Self::default();
            return;
        }
        self.turn += 1;
        if self.turn == RUN {
            self.turn = 0;
            let [one, other] = told;
            self.trials.note(self.trials.route(), cost(one.min(other), self.len));
            self.trials.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `n` calls on both members, which take what `cost_of` says and a delay that only one of
    /// them has; tells how many were mailed.
    fn live(members: &mut [EagerTrial; 2], n: usize, cost_of: impl Fn(bool) -> u64) -> usize {
        let mut mailed = 0;
        for call in 0..n {
            let [one, other] = [0, 1].map(|member| members[member].is_eager());
            assert_eq!(one, other, "both go the same way");
            mailed += usize::from(one);
            let told = [0, 1].map(|member| members[member].last_duration(false));
            for (index, member) in members.iter_mut().enumerate() {
                let turn = member.turn;
                member.note(told);
                if turn == TIMED {
                    let late = if call % 2 == index { 5000 } else { 0 };
                    (member.last_duration, member.len) = (cost_of(one) + late, 8192);
                }
            }
        }
        mailed
    }

    fn costs(mailed: u64, staged: u64) -> impl Fn(bool) -> u64 {
        move |is_eager| if is_eager { mailed } else { staged }
    }

    #[test]
    fn both_members_take_the_quicker_way_after_a_few_runs_and_change_it_when_cores_turn() {
        let mut members = [EagerTrial::default(), EagerTrial::default()];
        live(&mut members, 24, costs(1500, 1100));
        assert_eq!(live(&mut members, 60, costs(1500, 1100)), 0);
        live(&mut members, 60, costs(1750, 2600));
        assert_eq!(live(&mut members, 60, costs(1750, 2600)), 60);
    }

    #[test]
    fn within_twenty_calls_both_ways_are_gone_as_the_oracle_counts_on() {
        let mut members = [EagerTrial::default(), EagerTrial::default()];
        assert_eq!(live(&mut members, 20, costs(1000, 2000)), 12);
    }

    #[test]
    fn nothing_is_tried_out_where_a_member_says_so() {
        let mut trial = EagerTrial::default();
        for _ in 0..100 {
            assert!(trial.is_eager());
            trial.note([trial.last_duration(true), 100]);
        }
    }

    #[test]
    fn only_one_call_of_a_run_is_timed() {
        let mut trial = EagerTrial::default();
        let mut is_timed = || {
            let begun = trial.begin();
            trial.note([1, 1]);
            trial.end(begun, 8192);
            begun.is_some()
        };
        assert_eq!([(); 6].map(|()| is_timed()), [false, true, false, false, true, false]);
    }
}
