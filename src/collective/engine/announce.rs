//! How the members of a call that is not eager come together: each stages what it can, posts where its buffers are, and waits until the
//! others have.

use super::Engine;
use crate::collective::call::{Call, CallSignature, Choice};
use crate::collective::execute::combine;
use crate::collective::execute::staged::prestage;
use crate::collective::plan::Proposal;
use crate::collective::rendezvous::buffers::Buffers;
use crate::collective::rendezvous::post::LargePost;
use crate::error::Result;

impl Engine {
    /// Stages what will be needed in this member's staging area, where it can tell; posts which call this is; waits until all members have
    /// posted the same call, and looks whether it still counts.
    ///
    /// Returns how the call is done, as far as this member knew before.
    pub(super) fn announce_large(
        &mut self,
        call: &Call<'_>,
        signature: CallSignature,
        proposal: &Proposal,
    ) -> Result<Choice> {
        let mut expected = None;
        if proposal.prestages || !self.members.board.has_room() {
            // It works or waits before it posts, and tells in what.
            let choice = *expected.insert(self.planner.expected(proposal, call));
            self.members.board.report_call(signature.with_choice(choice));
        }
        let begun = self.members.board.begin(call.operation);
        self.members.board.or_revoke(begun)?;
        if proposal.prestages {
            let staged = self.stage_own(call, proposal);
            self.members.board.or_revoke(staged)?;
        }
        let Self { members, pipework, planner, .. } = self;
        let is_watched = members.is_watched();
        let post = LargePost {
            buffers: Buffers::of(call),
            balance: pipework.balance(),
            scalar: combine::own_scalar(call),
            last_duration: planner.last_duration(is_watched),
            last_short_duration: planner.eager_trial().last_duration(is_watched),
        };
        members.board.post_large(signature, post);
        // What the others do not wait for.
        let expected = expected.unwrap_or_else(|| planner.expected(proposal, call));
        let board = &mut members.board;
        board.report_posted(signature.with_choice(expected), proposal.len);
        // Who comes last has waited for nobody, and is about to write where others may have given up.
        let met = board.await_posts(call.operation).and_then(|()| board.check_epoch(call.operation));
        board.or_revoke(met)?;
        Ok(expected)
    }

    fn stage_own(&mut self, call: &Call<'_>, proposal: &Proposal) -> Result<()> {
        let Self { members, planner, .. } = self;
        let sharing = members.board.context().sharing().min(members.n_members() as u64);
        let oversubscribed = planner.tuning().oversubscribed;
        planner.time_prestage(proposal, sharing, || prestage(call, members, oversubscribed))
    }
}
