//! Runs the collective calls of one communicator: picks the way, tells the others, goes.

use std::sync::Arc;

use super::call::Call;
use super::operation::{Operation, Summary};
use super::region::MAIL_LEN;
use super::team::Team;
use super::{direct, small, staged};
use crate::channel::Fabric;
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::Rank;

/// What runs the collective calls of one member, one after the other.
#[derive(Debug)]
pub(crate) struct Engine {
    team: Team,
}

impl Engine {
    /// The engine of `members`, ranks of the job, whose zeroed regions start at `bases`.
    ///
    /// # Errors
    /// Those of [`Team::new`].
    pub(crate) fn new(fabric: &Arc<Fabric>, members: Arc<[Rank]>, bases: Vec<HeapOffset>) -> Result<Self> {
        Ok(Self { team: Team::new(fabric, members, bases)? })
    }

    /// Executes `call`.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] when the members are in different calls; [`crate::Error::OutOfRange`] for buffers
    /// that are not allocated; [`crate::Error::Timeout`], [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`],
    /// [`crate::Error::Revoked`].
    pub(crate) fn run(&mut self, call: &mut Call<'_>) -> Result<()> {
        let summary = call.summary();
        if small::input_len(call, self.team.n_members())? <= MAIL_LEN {
            small::run(&mut self.team, call, summary)
        } else {
            self.run_large(call, summary)
        }
    }

    fn run_large(&mut self, call: &mut Call<'_>, summary: Summary) -> Result<()> {
        let team = &mut self.team;
        team.board.begin(call.operation)?;
        team.board.post(summary, direct::places(call), &[]);
        team.board.await_posts(call.operation)?;
        if direct::applies(team, call.operation) {
            direct::run(team, call)
        } else {
            staged::run(team, call, summary)
        }
    }

    /// Returns when all members have called it.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn barrier(&mut self) -> Result<()> {
        self.exchange(Operation::Barrier, &[]).map(drop)
    }

    /// Tells all members `words`, at most [`super::board::INLINE_WORDS`] of them, and returns what each has told: as many.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn exchange(&mut self, operation: Operation, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        let team = &mut self.team;
        team.board.begin(operation)?;
        team.board.post(Summary::new(operation), [0; 2], words);
        team.board.await_posts(operation)?;
        let told = |member| (0..words.len()).map(|index| team.board.post_of(member).data(index)).collect();
        Ok((0..team.n_members()).map(told).collect())
    }
}
