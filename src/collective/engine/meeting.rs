//! How the members of a call that is not small come together: each stages ahead what it can, tells where its buffers are, and waits until
//! the others have.

use super::{Engine, Way, by_table};
use crate::collective::algorithm::{Algorithm, ChannelKind, Manner};
use crate::collective::call::Call;
use crate::collective::detour::Route;
use crate::collective::operation::{Operation, Summary};
use crate::collective::pipeline::{Ahead, stage_ahead};
use crate::collective::team::Team;
use crate::collective::tuning::Choices;
use crate::collective::{direct, scalars};
use crate::error::Result;

/// What all members know of a call before anything is posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outset {
    pub(super) way: Way,
    /// The most that a member contributes, in bytes.
    pub(super) len: u64,
    /// The route that it takes if it is left to measurement ([`detour`](crate::collective::detour)).
    pub(super) route: Option<Route>,
}

impl Outset {
    /// Which members of `team` have staged ahead, now that all have told where their buffers are.
    pub(super) fn who_is_ahead(self, team: &Team, call: &Call<'_>, choices: &Choices) -> Ahead {
        let has = |member| self.stages_ahead(call, choices, team.board.post_of(member).places());
        if (0..team.n_members()).all(has) {
            return Ahead::All;
        }
        if has(team.me()) { Ahead::MeToo } else { Ahead::NotMe }
    }

    /// Whether a member whose buffers are at these `places` stages ahead: all members know it of each other.
    fn stages_ahead(self, call: &Call<'_>, choices: &Choices, places: [u64; 2]) -> bool {
        self.stages(call.operation, places, |in_heap| by_table(choices, call, self.len, in_heap))
    }

    /// Whether a member whose buffers are at these `places` stages ahead, where the table has this algorithm for such an `operation` in the
    /// heap, or elsewhere.
    fn stages(
        self,
        operation: Operation,
        places: [u64; 2],
        by_table: impl FnOnce(bool) -> Algorithm,
    ) -> bool {
        let in_heap = direct::is_in_heap(places, operation);
        let is_worked_on = in_heap && direct::is_in_place(places);
        let takes_scratch = !in_heap || self.route == Some(Route::Second) && !is_worked_on;
        match self.way {
            Way::Small | Way::Piped(..) | Way::Custom(_) => false,
            Way::Short => !is_worked_on,
            Way::Direct => takes_scratch,
            Way::AsTabled => takes_scratch && by_table(in_heap) == Algorithm::TwoShot,
        }
    }
}

impl Engine {
    /// Stages ahead what will be needed in this member's scratch, where it can tell; tells the other members which call this is, where its
    /// buffers are, the balance of its pipes, what its input is multiplied by, and how long calls took; waits until they have told the same
    /// call, and looks whether it still counts.
    ///
    /// Returns how it is done, as far as this member knows.
    pub(super) fn meet(&mut self, call: &Call<'_>, summary: Summary, outset: Outset) -> Result<Manner> {
        let Outset { way, len, .. } = outset;
        let stages = outset.stages_ahead(call, &self.choices, direct::places(call));
        let mut presumed = None;
        if stages || !self.team.board.has_room() {
            // It works or waits before it posts, and tells in what.
            let manner = *presumed.insert(self.presumed(call, len, way));
            self.team.board.tell_operation(summary.in_manner(manner));
        }
        let begun = self.team.board.begin(call.operation);
        self.team.board.or_revoke(begun)?;
        if stages {
            let staged = self.stage_own(call, outset);
            self.team.board.or_revoke(staged)?;
        }
        let Self { team, pipework, detours, shorts, .. } = self;
        let is_watched = team.is_watched();
        let short = shorts.told(is_watched);
        let words = [pipework.balance(), scalars::own(call), detours.told(is_watched), short];
        team.board.post_first(summary, direct::places(call), &words);
        // What the others do not wait for.
        let presumed = presumed.unwrap_or_else(|| self.presumed(call, len, way));
        let board = &mut self.team.board;
        board.tell_posted(summary.in_manner(presumed), len);
        // Who comes last has waited for nobody, and is about to write where others may have given up.
        let met = board.await_posts(call.operation).and_then(|()| board.check_epoch(call.operation));
        board.or_revoke(met)?;
        if way == Way::Short {
            self.hear_of_shorts(short, words.len() - 1);
        }
        Ok(presumed)
    }

    fn stage_own(&mut self, call: &Call<'_>, outset: Outset) -> Result<()> {
        let Self { team, detours, tuning, .. } = self;
        let stage = || stage_ahead(call, team, tuning.crowded);
        match outset.route {
            Some(Route::Second) => {
                let sharing = team.board.context().sharing().min(team.n_members() as u64);
                detours.time_ahead(sharing, stage)
            }
            _ => stage(),
        }
    }

    /// How `call` is done as far as this member knows by itself, for whoever looks on while it waits for the others: unless some of them
    /// have their buffers elsewhere.
    fn presumed(&self, call: &Call<'_>, len: u64, way: Way) -> Manner {
        if way != Way::AsTabled {
            return way.manner();
        }
        let in_heap = direct::is_in_heap(direct::places(call), call.operation);
        Manner { algorithm: Some(by_table(&self.choices, call, len, in_heap)), channel: ChannelKind::Memory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers apart in the heap, in place there, and apart in ordinary memory.
    const PLACES: [[u64; 2]; 3] = [[0, 4096], [4096, 4096], [u64::MAX, u64::MAX]];

    fn staging(way: Way, route: Option<Route>, by_table: [Algorithm; 2]) -> [bool; 3] {
        let outset = Outset { way, len: 1 << 20, route };
        let tabled = |in_heap: bool| by_table[usize::from(!in_heap)];
        PLACES.map(|places| outset.stages(Operation::AllReduce, places, tabled))
    }

    #[test]
    fn who_will_need_its_scratch_for_certain_stages_ahead_and_nobody_else() {
        let (first, second, usual) = (Some(Route::First), Some(Route::Second), [Algorithm::TwoShot; 2]);
        for way in [Way::Direct, Way::AsTabled] {
            assert_eq!(staging(way, None, usual), [false, false, true]);
            assert_eq!(staging(way, first, usual), [false, false, true]);
            assert_eq!(staging(way, second, usual), [true, false, true]);
        }
        assert_eq!(
            staging(Way::AsTabled, second, [Algorithm::Ring, Algorithm::TwoShot]),
            [false, false, true]
        );
        assert_eq!(
            staging(Way::AsTabled, second, [Algorithm::TwoShot, Algorithm::Ring]),
            [true, false, false]
        );
        assert_eq!(staging(Way::Direct, second, [Algorithm::Ring; 2]), [true, false, true]);
        assert_eq!(staging(Way::Short, None, usual), [true, false, true]);
        for way in
            [Way::Small, Way::Custom(ChannelKind::Memory), Way::Piped(Algorithm::Ring, ChannelKind::Port)]
        {
            assert_eq!(staging(way, second, usual), [false; 3]);
        }
    }
}
