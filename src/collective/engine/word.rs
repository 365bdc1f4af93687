//! Runs the reduction of a word that the selector knows.

use super::trace::CallSpan;
use crate::collective::call::{Algorithm, Choice, Operation};
use crate::collective::rendezvous::members::Members;
use crate::collective::strategy::KnownWord;
use crate::error::Result;

/// A word that is to be reduced once more.
#[derive(Debug)]
pub(crate) struct WordRun<'e> {
    pub(crate) word: &'e KnownWord,
    pub(crate) members: &'e mut Members,
}

impl WordRun<'_> {
    /// Executes the call.
    ///
    /// # Errors
    /// Those of [`crate::collective::rendezvous::board::CallBoard::await_post`], which end the
    /// epoch.
    // Not in line: the result goes straight to where the caller's goes. To copy it costs as much as
    // all the rest.
    #[inline(never)]
    pub(crate) fn run(self) -> Result<()> {
        if !self.members.board.context().is_plain() {
            return self.run_watched();
        }
        self.run_plain()
    }

    #[inline(always)]
    fn run_plain(self) -> Result<()> {
        let Self { word, members } = self;
        match word.run(members) {
            Ok(()) => Ok(()),
            failed => members.board.or_revoke(failed),
        }
    }

    /// Executes the call of a rank that has failed in one before, or notes what it does.
    #[inline(never)]
    fn run_watched(self) -> Result<()> {
        let context = self.members.board.context();
        context.can_call(Operation::AllReduce.name())?;
        if context.recorder().is_some() { self.run_noted() } else { self.run_plain() }
    }

    #[inline(never)]
    fn run_noted(self) -> Result<()> {
        let Self { word, members } = self;
        let begun = CallSpan::of_word(members, word.len);
        let done = word.run(members);
        let done = begun.end(members, Choice::direct(Algorithm::OneShot), done);
        members.board.or_revoke(done)
    }
}
