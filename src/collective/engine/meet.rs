//! How the members of a call that is not small come together: each stages ahead what it can, tells where its buffers are, and waits until
//! the others have.

use super::{Engine, Way, by_table};
use crate::collective::call::{Algorithm, Call, CallSignature, ChannelKind, Choice, Operation};
use crate::collective::execute::combine;
use crate::collective::execute::staged::{Prestaged, prestage};
use crate::collective::plan::measured::Route;
use crate::collective::plan::tuning::CommTable;
use crate::collective::rendezvous::buffers;
use crate::collective::rendezvous::members::Members;
use crate::error::Result;

/// What all members know of a call before anything is posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outset {
    pub(super) way: Way,
    /// The most that a member contributes, in bytes.
    pub(super) len: u64,
    /// The route that it takes if it is left to measurement ([`detour`](crate::collective::plan::measured)).
    pub(super) route: Option<Route>,
}

impl Outset {
    /// Which members of `members` have staged ahead, now that all have told where their buffers are.
    pub(super) fn who_has_prestaged(
        self,
        members: &Members,
        call: &Call<'_>,
        table: &CommTable,
    ) -> Prestaged {
        let has = |member| self.prestages(call, table, members.board.post_of(member).places());
        if (0..members.n_members()).all(has) {
            return Prestaged::All;
        }
        if has(members.me()) { Prestaged::MeToo } else { Prestaged::NotMe }
    }

    /// Whether a member whose buffers are at these `places` stages ahead: all members know it of each other.
    fn prestages(self, call: &Call<'_>, table: &CommTable, places: [u64; 2]) -> bool {
        self.stages(call.operation, places, |in_heap| by_table(table, call, self.len, in_heap))
    }

    /// Whether a member whose buffers are at these `places` stages ahead, where the table has this algorithm for such an `operation` in the
    /// heap, or elsewhere.
    fn stages(
        self,
        operation: Operation,
        places: [u64; 2],
        by_table: impl FnOnce(bool) -> Algorithm,
    ) -> bool {
        let in_heap = buffers::is_in_heap(places, operation);
        let is_worked_on = in_heap && buffers::is_in_place(places);
        let takes_scratch = !in_heap || self.route == Some(Route::Second) && !is_worked_on;
        match self.way {
            Way::Eager | Way::OverPipes(..) | Way::Custom(_) => false,
            Way::Short => !is_worked_on,
            Way::ZeroCopy => takes_scratch,
            Way::AsTabled => takes_scratch && by_table(in_heap) == Algorithm::TwoShot,
        }
    }
}

impl Engine {
    /// Stages ahead what will be needed in this member's staging area, where it can tell; tells the other members which call this is, where its
    /// buffers are, the balance of its pipes, what its input is multiplied by, and how long calls took; waits until they have told the same
    /// call, and looks whether it still counts.
    ///
    /// Returns how it is done, as far as this member knows.
    pub(super) fn meet(
        &mut self,
        call: &Call<'_>,
        signature: CallSignature,
        outset: Outset,
    ) -> Result<Choice> {
        let Outset { way, len, .. } = outset;
        let stages = outset.prestages(call, &self.table, buffers::places(call));
        let mut presumed = None;
        if stages || !self.members.board.has_room() {
            // It works or waits before it posts, and tells in what.
            let choice = *presumed.insert(self.presumed(call, len, way));
            self.members.board.report_call(signature.with_choice(choice));
        }
        let begun = self.members.board.begin(call.operation);
        self.members.board.or_revoke(begun)?;
        if stages {
            let staged = self.stage_own(call, outset);
            self.members.board.or_revoke(staged)?;
        }
        let Self { members, pipework, routes, shorts, .. } = self;
        let is_watched = members.is_watched();
        let short = shorts.last_duration(is_watched);
        let words = [pipework.balance(), combine::own_scalar(call), routes.last_duration(is_watched), short];
        members.board.post_first(signature, buffers::places(call), &words);
        // What the others do not wait for.
        let presumed = presumed.unwrap_or_else(|| self.presumed(call, len, way));
        let board = &mut self.members.board;
        board.report_posted(signature.with_choice(presumed), len);
        // Who comes last has waited for nobody, and is about to write where others may have given up.
        let met = board.await_posts(call.operation).and_then(|()| board.check_epoch(call.operation));
        board.or_revoke(met)?;
        if way == Way::Short {
            self.hear_of_shorts(short, words.len() - 1);
        }
        Ok(presumed)
    }

    fn stage_own(&mut self, call: &Call<'_>, outset: Outset) -> Result<()> {
        let Self { members, routes, tuning, .. } = self;
        let stage = || prestage(call, members, tuning.oversubscribed);
        match outset.route {
            Some(Route::Second) => {
                let sharing = members.board.fabric().sharing().min(members.n_members() as u64);
                routes.time_prestage(sharing, stage)
            }
            _ => stage(),
        }
    }

    /// How `call` is done as far as this member knows by itself, for whoever looks on while it waits for the others: unless some of them
    /// have their buffers elsewhere.
    fn presumed(&self, call: &Call<'_>, len: u64, way: Way) -> Choice {
        if way != Way::AsTabled {
            return way.choice();
        }
        let in_heap = buffers::is_in_heap(buffers::places(call), call.operation);
        Choice { algorithm: Some(by_table(&self.table, call, len, in_heap)), channel: ChannelKind::Memory }
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
        for way in [Way::ZeroCopy, Way::AsTabled] {
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
        assert_eq!(staging(Way::ZeroCopy, second, [Algorithm::Ring; 2]), [true, false, true]);
        assert_eq!(staging(Way::Short, None, usual), [true, false, true]);
        for way in
            [Way::Eager, Way::Custom(ChannelKind::Memory), Way::OverPipes(Algorithm::Ring, ChannelKind::Port)]
        {
            assert_eq!(staging(way, second, usual), [false; 3]);
        }
    }
}
