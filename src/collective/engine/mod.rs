//! Runs the collective calls of one communicator: proposes, announces, settles, executes.
//!
//! Tried by `scenarios oracle:: groups:: mismatches:: order:: repeated_words::`.

mod agreements;
mod exchange;
pub(crate) mod group;
pub(crate) mod open;
mod order;
mod trace;
mod word;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::channel::RankContext;
use crate::collective::call::{Algorithm, Call, CallSignature, ChannelKind, Choice, Operation, Request};
use crate::collective::execute::planned::PlanRunner;
use crate::collective::execute::staged::prestage;
use crate::collective::execute::{self, eager, fused};
use crate::collective::message::progress::{self, MessageBatch};
use crate::collective::message::{InPlaceBlock, MessageEnd, UnexpectedMessages};
use crate::collective::region::lease::{Lease, RegionOwner};
use crate::collective::rendezvous::buffers::Buffers;
use crate::collective::rendezvous::members::Members;
use crate::collective::rendezvous::post::LargePost;
use crate::collective::strategy::{CallAttempt, Proposal, Selector, WORD_LEN, Way};
use crate::collective::transport::{OpenPorts, Pipework};
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::ProgressCell;
pub(crate) use trace::CALL_NAMES;
use trace::{CallSpan, Together};
use word::WordRun;

/// Runs the collective calls of one member, one after the other.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) members: Members,
    pipework: Pipework,
    unexpected: UnexpectedMessages,
    /// Of the execution plans, by their numbers.
    runners: Vec<PlanRunner>,
    pub(crate) selector: Selector,
    /// How the call that is being executed is done, for whoever notes it.
    taken: Choice,
    /// The last field, since it lets go of what the others use.
    lease: Lease,
}

impl Drop for Engine {
    /// Lets go of the memory of plans as of the regions: when all members have.
    fn drop(&mut self) {
        self.lease.add(self.runners.drain(..).flat_map(PlanRunner::into_memory));
    }
}

impl Engine {
    /// Makes the engine of `ranks` of the job, whose zeroed regions start at `bases`. This rank's
    /// was taken from `host` and goes back there; operations over proxied channels get these from
    /// it, too. The `selector` goes by the same tuning on all members.
    ///
    /// # Errors
    /// Those of [`Members::new`].
    pub(crate) fn new<H: OpenPorts + RegionOwner + 'static>(
        context: &Arc<RankContext>,
        ranks: Arc<[Rank]>,
        bases: Vec<HeapOffset>,
        host: Arc<H>,
        selector: Selector,
    ) -> Result<Self> {
        let (members, lease) = Members::new(context, ranks, bases, host.clone())?;
        let (pipework, unexpected) = (Pipework::new(host), UnexpectedMessages::default());
        let runners = Vec::new();
        Ok(Self { members, pipework, unexpected, runners, selector, taken: Choice::default(), lease })
    }

    /// Returns the words that say which members have left.
    pub(crate) fn departures(&self) -> &CellSlice<ProgressCell> {
        self.lease.departures()
    }

    /// Finds the word that `request` reduces once more, done as `choice` says.
    #[inline]
    pub(crate) fn known(&mut self, request: &Request<'_, '_>, choice: Choice) -> Option<WordRun<'_>> {
        let word = self.selector.known(request, choice)?;
        Some(WordRun { word, members: &mut self.members })
    }

    /// Executes `call` in `choice`.
    ///
    /// # Errors
    /// [`crate::Error::UnsupportedAlgorithm`] when the algorithm cannot do the operation;
    /// [`crate::Error::CallMismatch`] when the members are in different calls;
    /// [`crate::Error::OutOfRange`] for buffers that are not allocated; [`crate::Error::Timeout`],
    /// [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`], [`crate::Error::Revoked`];
    /// [`crate::Error::Panicked`] when an operator of the program's own did. All but those of the
    /// arguments end the epoch.
    #[inline]
    pub(crate) fn run(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        if self.members.board.context().recorder().is_some() {
            return self.run_traced(call, choice);
        }
        self.run_guarded(call, choice)
    }

    #[inline(never)]
    fn run_traced(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        let span = CallSpan::of_call(&self.members, call);
        let simple = Choice { algorithm: None, channel: choice.channel };
        self.taken = if call.operation.has_peer() { simple } else { Choice::direct(Algorithm::OneShot) };
        let done = self.run_guarded(call, choice);
        span.end(&self.members, self.taken, done)
    }

    fn run_guarded(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        if call.has_plain_operator() || call.is_scaled() {
            return self.execute(call, choice);
        }
        // A panic of the operator leaves the same behind as the death of a peer.
        match catch_unwind(AssertUnwindSafe(|| self.execute(call, choice))) {
            Ok(done) => done,
            Err(_) => self.members.board.or_revoke(Err(crate::Error::Panicked)),
        }
    }

    #[inline]
    fn execute(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        if call.operation.has_peer() {
            return self.deliver(call, choice.channel);
        }
        if call.operation.is_by_messages() {
            return self.exchange_blocks(call, choice);
        }
        let proposal = self.selector.propose(call, choice)?;
        match proposal.way {
            Way::Eager => self.run_eager(call, proposal.signature, proposal.len),
            Way::ByPlan(index) => self.run_planned(call, &proposal, index),
            _ => self.run_large(call, &proposal),
        }
    }

    /// Executes `call`, whose data travel with its post.
    #[inline]
    fn run_eager(&mut self, call: &mut Call<'_>, signature: CallSignature, len: u64) -> Result<()> {
        let done = eager::run(&mut self.members, call, signature, len);
        let is_word = len <= WORD_LEN && call.operation == Operation::AllReduce;
        // Every call is looked at where one is: none is repeated without.
        if is_word && done.is_ok() && !self.members.is_watched() {
            self.selector.keep_word(call, signature, len);
        }
        self.members.board.or_revoke(done)
    }

    /// Executes `call` once all members have posted where their buffers are. An exchange of blocks
    /// may turn out to be [one of blocks](Call::take_apart), as in [`eager::run`].
    #[inline(never)]
    fn run_large(&mut self, call: &mut Call<'_>, proposal: &Proposal) -> Result<()> {
        if let Some(kind) = proposal.way.pipes() {
            self.pipework.require(&self.members, kind)?;
        }
        let Self { members, pipework, runners, selector, taken, .. } = self;
        let mut attempt = selector.attempt(proposal);
        let expected = announce_large(members, pipework, call, &mut attempt)?;
        let met = members.board.await_all(call.told());
        members.board.or_revoke(met)?;
        if call.layout.is_some() && members.board.meets_blocks() {
            call.take_apart();
            members.board.report_done();
            return Ok(());
        }
        let strategy = attempt.settled(call, members).inspect_err(|_| members.board.report_refused())?;
        *taken = strategy.choice;
        if *taken != expected {
            members.board.report_choice(proposal.signature.with_choice(*taken));
        }
        let done = execute::run(strategy.execution, members, pipework, runners, call, proposal.signature);
        drop(attempt);
        members.board.conclude(done)
    }

    /// Executes `call` by execution plan number `index`, which may begin before all members have
    /// posted.
    #[inline(never)]
    fn run_planned(&mut self, call: &mut Call<'_>, proposal: &Proposal, index: usize) -> Result<()> {
        let Self { members, pipework, runners, selector, taken, .. } = self;
        let mut attempt = selector.attempt(proposal);
        *taken = announce_large(members, pipework, call, &mut attempt)?;
        let done = runners[index].run(members, call, attempt.compiled(index, call));
        members.board.conclude(done)
    }

    /// Executes a send or a receive over channels of `kind`.
    fn deliver(&mut self, call: &mut Call<'_>, kind: ChannelKind) -> Result<()> {
        call.check_peer(self.members.me())?;
        let mut messages = [MessageEnd::of(call)?];
        let done = progress::run(&mut [self.batch(kind, &mut messages, &[])?]);
        self.members.board.or_revoke(done)?;
        if let Some(receipt) = &call.receipt {
            receipt.status.set(messages[0].status(&self.members)?);
        }
        Ok(())
    }

    /// Returns a batch that delivers `messages`, which share the blocks `in_place`, over channels
    /// of `kind`.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] when nobody has chosen proxied channels before.
    pub(crate) fn batch<'e, 'p, 'a>(
        &'e mut self,
        kind: ChannelKind,
        messages: &'p mut [MessageEnd<'a>],
        in_place: &'p [InPlaceBlock<'a>],
    ) -> Result<MessageBatch<'e, 'p, 'a>> {
        let Self { members, pipework, unexpected, .. } = self;
        pipework.require(members, kind)?;
        Ok(MessageBatch { members, pipework, unexpected, kind, messages, in_place })
    }

    /// Executes `calls`, operations of all members, as one after the other, and together where they
    /// are small and none reads what an earlier one writes.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn run_all(&mut self, calls: &mut [Call<'_>], choice: Choice) -> Result<()> {
        let mut rest = calls;
        // A post that was good for few calls is followed by one with room for not many more. All
        // members know how many were done, and take the same number.
        let mut most = fused::MOST;
        while !rest.is_empty() {
            let mut n_eager = 0;
            while n_eager < rest.len().min(most) && self.can_be_fused(&rest[n_eager], choice)? {
                n_eager += 1;
            }
            let n_fused = fused::fitting(
                &rest[..n_eager],
                self.members.n_members(),
                self.selector.tuning().oversubscribed,
            )?
            .max(1);
            let n_done = self.run_next(&mut rest[..n_fused], choice)?;
            most = if n_done < n_fused { 2 * n_done } else { (2 * most).min(fused::MOST) };
            rest = &mut rest[n_done..];
        }
        Ok(())
    }

    /// Executes the first of `calls`, which can be fused if they are several. Returns how many.
    fn run_next(&mut self, calls: &mut [Call<'_>], choice: Choice) -> Result<usize> {
        if let [call] = calls {
            self.run(call, choice)?;
            return Ok(1);
        }
        let mut begun = Together::begin(&self.members, calls);
        let done = fused::run(&mut self.members, calls, choice);
        if let Ok(n_done) = done {
            begun.keep_first(n_done);
        }
        begun.end(&self.members, Choice::direct(Algorithm::OneShot), done.is_err());
        done.inspect_err(|_| self.members.board.revoke())
    }

    /// Says whether `call` may share a post with others: the same on all members. Nothing holds the
    /// parts of such a post against a checksum.
    fn can_be_fused(&self, call: &Call<'_>, choice: Choice) -> Result<bool> {
        if !call.has_plain_operator() || self.members.checksums {
            return Ok(false);
        }
        self.selector.is_eager(call, choice)
    }

    /// Returns what tells the communicator from all others: the same on all its members, and
    /// ordered.
    pub(crate) fn identity(&self) -> (Rank, HeapOffset) {
        (self.members.ranks()[0], self.members.base(0))
    }
}

/// Stages what will be needed in this member's staging area, where it can tell, and posts `call`.
///
/// Returns how the call is done, as far as this member knew before.
fn announce_large(
    members: &mut Members,
    pipework: &Pipework,
    call: &Call<'_>,
    attempt: &mut CallAttempt<'_>,
) -> Result<Choice> {
    let &Proposal { signature, len, prestages, .. } = attempt.proposal;
    let mut expected = None;
    if prestages || !members.board.has_room() {
        // It works or waits before it posts, and tells in what.
        let choice = *expected.insert(attempt.expected(call));
        members.board.report_call(signature.with_choice(choice));
    }
    let begun = members.board.begin(call.told());
    members.board.or_revoke(begun)?;
    let posted = attempt.posted(members, |oversubscribed| prestage(call, members, oversubscribed));
    let last_duration = posted.inspect_err(|error| members.board.revoke_after(error))?;
    let (buffers, balance, scalar) = (Buffers::of(call), pipework.balance(), call.scalar());
    let post = LargePost { buffers, balance, scalar, last_duration };
    members.board.post_large(signature, post);
    // The others do not wait for the rest.
    let expected = expected.unwrap_or_else(|| attempt.expected(call));
    members.board.report_posted(signature.with_choice(expected), len);
    Ok(expected)
}
