//! Agreements of the members of a communicator: calls that move no data of the program's.

use std::sync::Arc;

use shmccl_plan::ExecutionPlan;

use super::Engine;
use super::trace::CallSpan;
use crate::channel::{MemoryChannel, ReservedSlot};
use crate::collective::call::{CallSignature, ChannelKind, Choice, Operation};
use crate::collective::execute::custom::{AlgorithmMismatch, CustomAlgorithm, Registration};
use crate::collective::execute::planned::PlanRunner;
use crate::collective::rendezvous::post::Post;
use crate::collective::strategy::registered::{PlanEntry, operation_of};
use crate::collective::strategy::tuning::{Table, Tuning};
use crate::collective::transport::{NONE_LEFT, NONE_TO_BEGIN_WITH, agree_slots, check_balance};
use crate::error::{Error, Result};

impl Engine {
    /// Waits until all members are in `operation`, and compares `signature`.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    fn announce(&mut self, signature: CallSignature, operation: Operation) -> Result<()> {
        let board = &mut self.members.board;
        let met = board.meet(signature, operation, &[]);
        board.or_revoke(met)
    }

    /// Announces blocks like [`Engine::announce`], tells all members `mine`, and returns the least
    /// of what each has told; to be checked before use.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn announce_least(
        &mut self,
        signature: CallSignature,
        operation: Operation,
        mine: u64,
    ) -> Result<u64> {
        let (board, mut least) = (&mut self.members.board, mine);
        // A member that has posted even blocks is in no other call of a group.
        let told = |post: Post<'_>| if post.announces_blocks() { post.word(0) } else { 1 };
        let met = board.meet_each(signature, operation, &[mine], |post| least = least.min(told(post)));
        board.or_revoke(met)?;
        Ok(least)
    }

    /// Returns when all members have called it for `operation`: a barrier, or one that begins or
    /// ends with it.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn barrier(&mut self, operation: Operation) -> Result<()> {
        self.noted(operation, |engine| engine.announce(CallSignature::new(operation), operation))
    }

    /// Looks, when all members have come to the end, whether they have done the same until then,
    /// and whether each message was received: `balances` are those of all members
    /// ([`Engine::balance`]).
    ///
    /// # Errors
    /// [`Error::CallMismatch`]; [`Error::InvalidArgument`]. All members have the same.
    pub(crate) fn check_end(&self, balances: impl Iterator<Item = u64>) -> Result<()> {
        self.members.board.check_end()?;
        check_balance(balances, NONE_LEFT)
    }

    /// Returns how many messages this member has sent, less those that it has received: see
    /// [`Pipework::balance`]. Those that it has passed over are not received.
    ///
    /// [`Pipework::balance`]: crate::collective::transport::Pipework::balance
    pub(crate) fn balance(&self) -> u64 {
        self.pipework.balance().wrapping_add(self.unexpected.len())
    }

    /// Returns when all members have come to the end: their last call.
    ///
    /// # Errors
    /// Those of [`Engine::run`]; [`Error::InvalidArgument`] on all of them when messages were sent
    /// that nobody has received.
    pub(crate) fn finalize(&mut self) -> Result<()> {
        let told = self.exchange(Operation::Finalize, &[self.balance()])?;
        check_balance(told.iter().map(|words| words[0]), NONE_LEFT)
    }

    /// Tells all members `words`, at most
    /// [`INLINE_WORDS`](crate::collective::rendezvous::post::INLINE_WORDS) of them, and returns
    /// what each has told: as many.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn exchange(&mut self, operation: Operation, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        self.noted(operation, |engine| {
            engine.members.exchange(operation, CallSignature::new(operation), words)
        })
    }

    /// Does `run`, and notes it as `operation`.
    fn noted<T>(&mut self, operation: Operation, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let begun = CallSpan::of_operation(&self.members, operation);
        let done = run(self);
        begun.end(&self.members, Choice::default(), done)
    }

    /// Has all members agree that data move over channels of `kind` from now on, and opens those
    /// that need an agreement. To be called by all of them before they execute a call in such a
    /// manner.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`], [`crate::Error::Os`] and [`crate::Error::FailedElsewhere`] when
    /// some member cannot open the channels, and [`crate::Error::InvalidArgument`] when messages
    /// are left in pipes: all members learn of it, and may try again. Otherwise those of
    /// [`Engine::run`].
    pub(crate) fn choose_channels(&mut self, kind: ChannelKind) -> Result<()> {
        self.noted(Operation::SetChannelKind, |engine| engine.agree_on_channels(kind))
    }

    fn agree_on_channels(&mut self, kind: ChannelKind) -> Result<()> {
        let Self { members, pipework, .. } = self;
        let operation = Operation::SetChannelKind;
        let signature = CallSignature::new(operation).with_choice(Choice { algorithm: None, channel: kind });
        let told = members.exchange(operation, signature, &[pipework.balance()])?;
        check_balance(told.iter().map(|words| words[0]), NONE_TO_BEGIN_WITH)?;
        pipework.open(members, signature, kind)
    }

    /// Has all members open a direct channel to each other one, within `operation` that they have
    /// come to before. A member that is not `ready` has none opened.
    ///
    /// # Errors
    /// What kept this member from being ready; [`Error::Exhausted`] when it has no channel left to
    /// some member; [`Error::FailedElsewhere`] when another one had such an error: nobody has
    /// opened any then. Otherwise those of [`Engine::run`].
    pub(crate) fn open_memory_channels(
        &mut self,
        operation: Operation,
        ready: Result<()>,
    ) -> Result<Vec<MemoryChannel>> {
        let members = &mut self.members;
        let slots = agree_slots::take(members, operation, CallSignature::new(operation), ready)?;
        let open = |slot: ReservedSlot| MemoryChannel::open_at(members.board.context(), slot.take());
        let opened = slots.into_iter().flatten().map(open).collect::<Result<_>>();
        opened.inspect_err(|error| members.board.revoke_after(error))
    }

    /// Compares this member's table with those of the others, if it has one, and goes by it from
    /// now on. Called by all members.
    ///
    /// # Errors
    /// What kept this member from reading its table; [`Error::FailedElsewhere`];
    /// [`Error::TuningMismatch`]; those of [`Engine::run`]. All end the epoch.
    pub(crate) fn tune(&mut self, table: Result<Table>, oversubscribed: bool) -> Result<()> {
        let agreed = self.agree(table, oversubscribed);
        self.selector.set_tuning(agreed.inspect_err(|error| self.members.board.revoke_after(error))?);
        Ok(())
    }

    fn agree(&mut self, table: Result<Table>, oversubscribed: bool) -> Result<Tuning> {
        let mine = table.as_ref().map_or(0, Table::checksum);
        let words = [u64::from(table.is_ok()), mine, u64::from(oversubscribed)];
        let told = self.exchange(Operation::SetTuning, &words)?;
        let table = table?;
        for (words, &rank) in told.iter().zip(self.members.ranks().iter()) {
            match *words.as_slice() {
                [1, theirs, _] if theirs == mine => {}
                [1, theirs, _] => return Err(Error::TuningMismatch { mine, rank, theirs }),
                _ => return Err(Error::FailedElsewhere { operation: "reading the tuning table", rank }),
            }
        }
        Ok(Tuning { table, oversubscribed: told.iter().any(|words| words[2] == 1) })
    }

    /// Has `operation` done by `algorithm` from now on, where the caller has not said by what; by
    /// `None`, as before. Called by all members.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::InvalidArgument`] for what cannot be registered;
    /// [`Error::AlgorithmMismatch`],
    /// which all members get, and nothing has changed; those of [`Engine::run`].
    pub(crate) fn register(
        &mut self,
        operation: Operation,
        algorithm: Option<Arc<dyn CustomAlgorithm>>,
    ) -> Result<()> {
        let mine = Registration::new(operation, algorithm.as_deref())?;
        let told = self.exchange(Operation::RegisterAlgorithm, &mine.words())?;
        for (words, &rank) in told.iter().zip(self.members.ranks().iter()) {
            let theirs = Registration::told(words);
            if theirs != mine {
                return Err(AlgorithmMismatch { mine, rank, theirs }.into());
            }
        }
        self.selector.register(operation, algorithm);
        Ok(())
    }

    /// Has the calls that `plan` fits done by it from now on, where the caller has not said by
    /// what. Called by all members.
    ///
    /// # Errors
    /// Those of [`PlanEntry::new`]; [`Error::Mismatch`], which all members get, when the plans
    /// differ; those of [`PlanRunner::new`] and of [`Engine::run`].
    pub(crate) fn register_plan(&mut self, plan: &Arc<ExecutionPlan>) -> Result<()> {
        let (registered, compiled) = PlanEntry::new(Arc::clone(plan), self.members.n_members())?;
        let mine = u64::from(crc32c::crc32c(format!("{plan:?}").as_bytes()));
        self.check_alike("checksum of a plan", mine)?;
        let runner = PlanRunner::new(&mut self.members, &self.pipework, Arc::clone(plan), &compiled)?;
        self.runners.push(runner);
        self.selector.register_plan(registered);
        Ok(())
    }

    /// Registers those of `plans` that are for as many members, as far as they do calls. Called by
    /// all members.
    ///
    /// # Errors
    /// What kept this member from reading them; [`Error::FailedElsewhere`]; [`Error::Mismatch`] for
    /// different numbers of plans; those of [`Engine::register_plan`]. All end the epoch.
    pub(crate) fn adopt_plans(&mut self, plans: Result<Vec<Arc<ExecutionPlan>>>) -> Result<()> {
        let adopted = self.agree_on_plans(plans);
        adopted.inspect_err(|error| self.members.board.revoke_after(error))
    }

    fn agree_on_plans(&mut self, plans: Result<Vec<Arc<ExecutionPlan>>>) -> Result<()> {
        let mine = plans.as_ref().map_or(0, |plans| plans.len() as u64);
        let told = self.exchange(Operation::RegisterAlgorithm, &[u64::from(plans.is_ok()), mine])?;
        let plans = plans?;
        for (words, &rank) in told.iter().zip(self.members.ranks().iter()) {
            match *words.as_slice() {
                [1, theirs] if theirs == mine => {}
                [1, theirs] => {
                    return Err(Error::Mismatch {
                        what: "number of plans in SHMCCL_PLANS",
                        mine,
                        rank,
                        theirs,
                    });
                }
                _ => return Err(Error::FailedElsewhere { operation: "reading SHMCCL_PLANS", rank }),
            }
        }
        let n_members = self.members.n_members();
        let plans = plans.iter().filter(|plan| plan.ranks.len() == n_members && operation_of(plan).is_some());
        plans.into_iter().try_for_each(|plan| self.register_plan(plan))
    }

    /// Tells all members `mine`, which is the same on all of them.
    fn check_alike(&mut self, what: &'static str, mine: u64) -> Result<()> {
        let told = self.exchange(Operation::RegisterAlgorithm, &[mine])?;
        let different = told.iter().zip(self.members.ranks().iter()).find(|(words, _)| words[0] != mine);
        different.map_or(Ok(()), |(words, &rank)| Err(Error::Mismatch { what, mine, rank, theirs: words[0] }))
    }

    /// Returns how many calls the first plan called `name` has begun, if there is one.
    pub(crate) fn planned_calls(&self, name: &str) -> Option<u64> {
        self.selector.registered(name).map(|index| self.runners[index].launches())
    }

    /// Removes the first plan called `name` that was registered. Called by all members.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is none; [`Error::Mismatch`], which all members get, when
    /// they remove different ones; those of [`Engine::run`].
    pub(crate) fn unregister_plan(&mut self, name: &str) -> Result<()> {
        let needs = "the name of a plan that was registered";
        let index = self.selector.registered(name);
        let index = index.ok_or(Error::Unavailable { operation: "unregister_plan", needs })?;
        self.check_alike("number of a plan", index as u64)?;
        self.selector.unregister_plan(index);
        drop(self.runners.remove(index));
        Ok(())
    }
}
