//! What the members of a communicator tell each other, and agree on, besides operations that move data.

use std::sync::Arc;

use super::Engine;
use crate::channel::{MemoryChannel, ReservedSlot};
use crate::collective::again::Kept;
use crate::collective::algorithm::{ChannelKind, Manner};
use crate::collective::custom::{CustomAlgorithm, Registration};
use crate::collective::noting;
use crate::collective::operation::{Operation, Summary};
use crate::collective::seating;
use crate::collective::tuning::{Choices, Table, Tuning};
use crate::error::{Error, Result};

impl Engine {
    /// Waits until all members are in `call`, which is done by messages, and compares it.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn announce(&mut self, summary: Summary, operation: Operation) -> Result<()> {
        let board = &mut self.team.board;
        let met = board.meet(summary, operation, [0; 2], &[]);
        board.or_revoke(met)
    }

    /// Begins `call` of the caller's, in which members come together several times.
    pub(crate) fn begin_several(&mut self, call: Summary) {
        self.team.board.tell_operation(call);
    }

    /// Ends it: it counts as one.
    pub(crate) fn end_several(&mut self, is_done: bool) {
        self.team.board.tell_end_of_several(is_done);
    }

    /// Counts nothing of what was so far: it was part of an operation that is counted elsewhere, or was not done yet.
    pub(crate) fn count_as_none(&mut self) {
        self.team.board.tell_as_none();
    }

    /// Counts the next coming together as part of the operation that was counted last.
    pub(crate) fn count_no_more(&mut self) {
        self.team.board.set_aside(1);
    }

    /// Returns when all members have called it for `operation`: a barrier, or one that begins or ends with it.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn barrier(&mut self, operation: Operation) -> Result<()> {
        self.noted(operation, |engine| engine.announce(Summary::new(operation), operation))
    }

    /// Looks, when all members have come to the end, whether they have done the same until then, and whether each message was
    /// received: `balances` are those of all members ([`Engine::balance`]).
    ///
    /// # Errors
    /// [`Error::CallMismatch`]; [`Error::InvalidArgument`]. All members have the same.
    pub(crate) fn check_end(&self, balances: impl Iterator<Item = u64>) -> Result<()> {
        self.team.board.check_end()?;
        check_balance(balances, NONE_LEFT)
    }

    /// How many messages this member has sent, less those that it has received: see [`Pipework::balance`].
    ///
    /// [`Pipework::balance`]: crate::collective::pipework::Pipework::balance
    pub(crate) fn balance(&self) -> u64 {
        self.pipework.balance()
    }

    /// Returns when all members have come to the end: their last call.
    ///
    /// # Errors
    /// Those of [`Engine::run`]; [`Error::InvalidArgument`] on all of them when messages were sent that nobody has received.
    pub(crate) fn finalize(&mut self) -> Result<()> {
        let told = self.exchange(Operation::Finalize, &[self.balance()])?;
        check_balance(told.iter().map(|words| words[0]), NONE_LEFT)
    }

    /// Tells all members `words`, at most [`super::board::INLINE_WORDS`] of them, and returns what each has told: as many.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn exchange(&mut self, operation: Operation, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        self.noted(operation, |engine| engine.team.exchange(operation, Summary::new(operation), words))
    }

    /// Does `run`, and notes it as `operation`.
    fn noted<T>(&mut self, operation: Operation, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let begun = noting::begin_operation(&self.team, operation);
        let done = run(self);
        begun.end(&self.team, Manner::default(), done)
    }

    /// Has all members agree that data move over channels of `kind` from now on, and opens those that need an agreement. To be
    /// called by all of them before they execute a call in such a manner.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`], [`crate::Error::Os`] and [`crate::Error::FailedElsewhere`] when some member cannot open the
    /// channels, and [`crate::Error::InvalidArgument`] when messages are left in pipes: all members learn of it, and may try again.
    /// Otherwise those of [`Engine::run`].
    pub(crate) fn choose_channels(&mut self, kind: ChannelKind) -> Result<()> {
        self.noted(Operation::SetChannelKind, |engine| engine.agree_on_channels(kind))
    }

    fn agree_on_channels(&mut self, kind: ChannelKind) -> Result<()> {
        let Self { team, pipework, .. } = self;
        let operation = Operation::SetChannelKind;
        let summary = Summary::new(operation).in_manner(Manner { algorithm: None, channel: kind });
        let told = team.exchange(operation, summary, &[pipework.balance()])?;
        check_balance(told.iter().map(|words| words[0]), NONE_TO_BEGIN_WITH)?;
        pipework.open(team, summary, kind)
    }

    /// Has all members open a direct channel to each other one, within `operation` that they have come to before. A member that is not
    /// `ready` has none opened.
    ///
    /// # Errors
    /// What kept this member from being ready; [`Error::Exhausted`] when it has no channel left to some member;
    /// [`Error::FailedElsewhere`] when another one had such an error: nobody has opened any then. Otherwise those of [`Engine::run`].
    pub(crate) fn open_memory_channels(
        &mut self,
        operation: Operation,
        ready: Result<()>,
    ) -> Result<Vec<MemoryChannel>> {
        let team = &mut self.team;
        let slots = seating::take(team, operation, Summary::new(operation), ready)?;
        let open = |slot: ReservedSlot| MemoryChannel::open_at(team.board.context(), slot.take());
        let opened = slots.into_iter().flatten().map(open).collect::<Result<_>>();
        opened.inspect_err(|_| team.board.revoke())
    }

    /// Compares this member's table with those of the others, if it has one, and goes by it from now on. Called by all members.
    ///
    /// # Errors
    /// What kept this member from reading its table; [`Error::FailedElsewhere`]; [`Error::TuningMismatch`]; those of
    /// [`Engine::run`]. All end the epoch.
    pub(crate) fn tune(&mut self, table: Result<Table>, crowded: bool) -> Result<()> {
        let agreed = self.agree(table, crowded);
        self.again = Kept::default();
        self.tuning = agreed.inspect_err(|_| self.team.board.revoke())?;
        self.choices = Choices::new(&self.tuning, self.team.n_members());
        Ok(())
    }

    fn agree(&mut self, table: Result<Table>, crowded: bool) -> Result<Tuning> {
        let mine = table.as_ref().map_or(0, Table::checksum);
        let words = [u64::from(table.is_ok()), mine, u64::from(crowded)];
        let told = self.exchange(Operation::SetTuning, &words)?;
        let table = table?;
        for (words, &rank) in told.iter().zip(self.team.members().iter()) {
            match *words.as_slice() {
                [1, theirs, _] if theirs == mine => {}
                [1, theirs, _] => return Err(Error::TuningMismatch { mine, rank, theirs }),
                _ => return Err(Error::FailedElsewhere { operation: "reading the tuning table", rank }),
            }
        }
        Ok(Tuning { table, crowded: told.iter().any(|words| words[2] == 1) })
    }

    /// Has `operation` done by `algorithm` from now on, where the caller has not said by what; by `None`, as before. Called by all
    /// members.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what cannot be registered; [`Error::AlgorithmMismatch`], which all members get, and nothing
    /// has changed; those of [`Engine::run`].
    pub(crate) fn register(
        &mut self,
        operation: Operation,
        algorithm: Option<Arc<dyn CustomAlgorithm>>,
    ) -> Result<()> {
        let mine = Registration::new(operation, algorithm.as_deref())?;
        let told = self.exchange(Operation::RegisterAlgorithm, &mine.words())?;
        for (words, &rank) in told.iter().zip(self.team.members().iter()) {
            let theirs = Registration::told(words);
            if theirs != mine {
                return Err(Error::AlgorithmMismatch { mine, rank, theirs });
            }
        }
        self.again = Kept::default();
        self.customs.set(operation, algorithm);
        Ok(())
    }
}

/// What is to hold when all members have come to the end.
const NONE_LEFT: &str = "none when all ranks leave";

/// What is to hold where all members begin a call over pipes.
pub(super) const NONE_TO_BEGIN_WITH: &str = "none when all ranks make a call over the same channels";

/// Refuses what must not find messages left in pipes, after all members have told their `balances` ([`Pipework::balance`]): all of
/// them do.
///
/// [`Pipework::balance`]: crate::collective::pipework::Pipework::balance
pub(super) fn check_balance(balances: impl Iterator<Item = u64>, expected: &'static str) -> Result<()> {
    let name = "the number of messages that were sent and not received";
    match balances.fold(0, u64::wrapping_add) {
        0 => Ok(()),
        value => Err(Error::InvalidArgument { name, value, expected }),
    }
}
