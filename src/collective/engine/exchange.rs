//! Exchanges of blocks of the program's own lengths.
//!
//! Where all blocks of a member have one length and lie in the order of the members, it posts what
//! an `all_to_all` would. The signature says that it is an exchange of blocks, and their length.
//! Other members announce the exchange and no length. So none need know of another one's blocks.
//!
//! All wait for all posts before anything moves. If all blocks are even, the call goes on as an
//! `all_to_all`. Otherwise the blocks go by messages, after one post of each member.

use super::Engine;
use super::group::{self, GroupShare};
use super::trace::CallSpan;
use crate::collective::call::{Algorithm, Call, Choice, Operation};
use crate::collective::strategy::{Proposal, Way};
use crate::error::Result;

impl Engine {
    /// Executes `call`, an exchange of blocks.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(super) fn exchange_blocks(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        let Some(proposal) = self.even(call, choice) else {
            return group::run_together(&mut [GroupShare { engine: self, choice, calls: vec![call.take()] }]);
        };
        let begun = CallSpan::of_operation(&self.members, call.told());
        self.taken = Choice::direct(Algorithm::OneShot);
        let done = match proposal.way {
            Way::Eager => self.run_eager(call, proposal.signature, proposal.len),
            _ => self.run_large(call, &proposal),
        };
        if done.is_err() || call.operation == Operation::AllToAll {
            return begun.end(&self.members, self.taken, done);
        }
        group::deliver_posted(&mut GroupShare { engine: self, choice, calls: vec![call.take()] })
    }

    /// Returns how `call` is done if its blocks are even and go as in an `all_to_all`. What is
    /// watched goes by messages, each of which is looked at.
    fn even(&mut self, call: &mut Call<'_>, choice: Choice) -> Option<Proposal> {
        let n_members = self.members.n_members();
        let may_be_even = choice == Choice::default() && n_members > 1 && !self.members.is_watched();
        if !may_be_even || !call.even_out(n_members) {
            return None;
        }
        let proposal = self.selector.propose_even(call);
        if proposal.is_none() {
            call.take_apart();
        }
        proposal
    }
}
