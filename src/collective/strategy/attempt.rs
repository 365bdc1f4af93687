//! One call that does not travel with its post, from its proposal to its end.
//!
//! | step | when | then |
//! |---|---|---|
//! | [`Selector::attempt`] | it was proposed | |
//! | [`CallAttempt::posted`] | before the post | this member tells how long its last call took |
//! | [`CallAttempt::settled`] | all have posted | the clock runs, if the call is measured |
//! | drop | it was executed | its time is kept |

use std::time::Instant;

use super::trials::Route;
use super::{Proposal, Selector, Strategy};
use crate::collective::call::{Call, Choice};
use crate::collective::execute::planned::CompiledPlan;
use crate::collective::rendezvous::buffers::Buffers;
use crate::collective::rendezvous::members::Members;
use crate::error::Result;

/// A call on its way.
#[derive(Debug)]
pub(crate) struct CallAttempt<'p> {
    selector: &'p mut Selector,
    pub(crate) proposal: &'p Proposal,
    /// Since when it is executed, if that is measured.
    begun: Option<Instant>,
}

impl Selector {
    /// Begins the call that was proposed.
    pub(crate) fn attempt<'p>(&'p mut self, proposal: &'p Proposal) -> CallAttempt<'p> {
        CallAttempt { selector: self, proposal, begun: None }
    }
}

impl CallAttempt<'_> {
    /// Returns how the call is done as far as this member knows by itself, for onlookers while it
    /// waits for the others: some of them may have their buffers elsewhere.
    pub(crate) fn expected(&self, call: &Call<'_>) -> Choice {
        let reachable = Buffers::of(call).are_reachable(call.operation);
        self.selector.settled_way(self.proposal, call, reachable).choice()
    }

    /// Has this member `stage` what it does before it posts, if it does; whether some rank of the
    /// job shares its core is handed on. Returns how long the last measured call took the member,
    /// which it posts.
    ///
    /// # Errors
    /// Those of `stage`.
    pub(crate) fn posted(
        &mut self,
        members: &Members,
        stage: impl FnOnce(bool) -> Result<()>,
    ) -> Result<u64> {
        let Self { selector: Selector { routes, tuning, .. }, proposal, .. } = self;
        if proposal.prestages {
            let begun = (proposal.foreseen == Some(Route::Second)).then(Instant::now);
            stage(tuning.oversubscribed)?;
            routes.keep_prestage(begun, members.board.context().sharing().min(members.n_members() as u64));
        }
        Ok(routes.last_duration(members.is_watched()))
    }

    /// Settles how `call` is done, now that all `members` have posted: to be executed right away.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when messages are left in pipes, for all members alike.
    pub(crate) fn settled(&mut self, call: &Call<'_>, members: &Members) -> Result<Strategy<'_>> {
        let posts = |member| members.board.post_of(member);
        let strategy = self.selector.settle(self.proposal, call, members.me(), posts)?;
        self.begun = strategy.is_measured.then(Instant::now);
        Ok(strategy)
    }

    /// Returns execution plan number `index`, the proposed one, as it was compiled for `call`.
    pub(crate) fn compiled(&mut self, index: usize, call: &Call<'_>) -> &CompiledPlan {
        self.selector.registered.compiled(index, call, self.selector.n_members)
    }
}

impl Drop for CallAttempt<'_> {
    fn drop(&mut self) {
        self.selector.routes.keep_duration(self.begun);
    }
}
