//! Where all ranks of a job meet: its barrier, and the comparison of what they are about to do.

use std::sync::Arc;

use crate::channel::{EpochMapping, EpochWatch, LongWait, RankContext, WaitKind};
use crate::collective::{
    CallMismatch, CallSignature, Engine, LEFT, Operation, call_met, call_proposed, can_agree, proposed,
};
use crate::error::{Error, Result};
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, CellSlice};
use crate::sync::{
    AGREEMENT_WORDS, Agreement, AgreementCell, Barrier, BarrierCell, BarrierPurpose, ParkCell, ProgressCell,
    Stop, Waiting, WaitingIn, Watch,
};
use crate::trace::{Recorder, TraceSpan, Verb};

/// One rank's side of the meeting.
#[derive(Debug)]
pub(in crate::comm) struct JobBarrier {
    context: Arc<RankContext>,
    barrier: Barrier<CellSlice<BarrierCell>, CellRef<ParkCell>>,
    agreement: Agreement<CellSlice<AgreementCell>>,
    /// The ranks that have left, once there are words that say so.
    pub(in crate::comm) departures: Option<CellSlice<ProgressCell>>,
    /// How often all have met within an operation that was counted already, or is counted
    /// elsewhere.
    aside: u64,
    /// The program's call within which this rank meets the others.
    within: Option<EnclosingCall>,
}

/// A call of the program's within which ranks meet.
#[derive(Clone, Copy, Debug)]
struct EnclosingCall {
    call: CallSignature,
    /// How often all had met when it began.
    since: u64,
}

impl JobBarrier {
    pub(super) fn new(context: &Arc<RankContext>) -> Self {
        let mapped: &EpochMapping = context.mapped();
        let (cells, park) = mapped.control().barrier();
        let member = context.rank().index();
        Self {
            barrier: Barrier::new(cells, park, member, 0),
            agreement: Agreement::new(mapped.control().agreement(), member),
            departures: None,
            aside: 0,
            within: None,
            context: Arc::clone(context),
        }
    }

    /// Counts the next meeting as part of the operation that was counted last.
    pub(in crate::comm) fn count_no_more(&mut self) {
        if self.within.is_none() {
            self.aside = self.aside.wrapping_add(1);
        }
    }

    /// Counts no meeting until [`JobBarrier::end_within`]. Observers see this rank in `call`, which
    /// errors name on all ranks.
    pub(in crate::comm) fn begin_within(&mut self, call: CallSignature) {
        self.within.get_or_insert(EnclosingCall { call, since: self.barrier.generation() });
    }

    /// Counts each meeting again.
    pub(in crate::comm) fn end_within(&mut self) {
        if let Some(EnclosingCall { since, .. }) = self.within.take() {
            self.aside = self.aside.wrapping_add(self.barrier.generation().wrapping_sub(since));
        }
    }

    /// Returns the program's call that is in `operation`.
    fn call(&self, operation: Operation) -> CallSignature {
        self.within.map_or(CallSignature::new(operation), |within| within.call)
    }

    /// Returns the word by which this rank proposes `operation`.
    fn word(&self, operation: Operation) -> u64 {
        proposed(operation, self.within.map(|within| within.call))
    }

    /// Compares the arguments of a call of all ranks. The last argument says whether this rank has
    /// failed already.
    ///
    /// After a barrier that timed out, ranks cannot agree any more. A rank that gives up waiting
    /// has proposed already, and a later rank would take that for agreed. So giving up ends the
    /// epoch.
    pub(in crate::comm) fn agree(
        &mut self,
        operation: Operation,
        arguments: [u64; 4],
        engine: Option<&Engine>,
    ) -> Result<()> {
        if self.barrier.has_arrived() {
            // A barrier that timed out is still open: a rank that passes it takes these words for
            // those of the barrier.
            self.context.abort();
            // Something else may have ended the epoch, as it did that barrier.
            let by_this_one = Error::Revoked { by: Some(self.context.rank()), awaited: None };
            return self.context.check(operation.name()).and(Err(by_this_one));
        }
        let mut mine = [self.word(operation); AGREEMENT_WORDS];
        mine[1..].copy_from_slice(&arguments);
        self.agreement.propose(self.barrier.generation(), mine);
        self.meet(operation, engine).inspect_err(|error| self.context.abort_after(error))?;
        let all = self.proposals(operation)?;
        self.context.check(operation.name())?;
        agreed(operation, &arguments, all.iter().map(|(rank, words)| (*rank, &words[1..])))
    }

    /// Returns the proposals of all ranks for the barrier that was passed last, if they are for the
    /// same call.
    ///
    /// # Errors
    /// [`Error::CallMismatch`], which ends the epoch. All ranks read the same proposals, so each of
    /// them gets it.
    fn proposals(&self, operation: Operation) -> Result<Vec<(Rank, [u64; AGREEMENT_WORDS])>> {
        let theirs = |rank: Rank| (rank, self.agreement.theirs(rank.index()).unwrap_or_default());
        let all: Vec<_> = (0..self.context.mapped().n_ranks()).map(Rank::known).map(theirs).collect();
        let mine = self.word(operation);
        match all.iter().find(|(_, theirs)| !can_agree(mine, theirs[0])) {
            None => Ok(all),
            Some(&(rank, theirs)) => {
                self.context.abort();
                Err(CallMismatch { mine: self.call(operation), rank, theirs: call_proposed(theirs[0]) }
                    .into())
            }
        }
    }

    /// Returns when all ranks have called it. `engine` knows the ranks that are in an operation
    /// instead.
    ///
    /// # Errors
    /// [`Error::Timeout`] names a missing rank; [`Error::CallMismatch`], [`Error::PeerLost`],
    /// [`Error::Revoked`].
    #[inline]
    pub(in crate::comm) fn meet(&mut self, operation: Operation, engine: Option<&Engine>) -> Result<()> {
        let Some(begun) = self.context.recorder().map(Recorder::now) else {
            return self.pass(operation, engine);
        };
        let sequence = self.barrier.generation().wrapping_add(1);
        let done = self.pass(operation, engine);
        if let Some(recorder) = self.context.recorder() {
            let span = TraceSpan::of(Verb::operation(operation as u8)).numbered(sequence);
            recorder.record(begun, span.failing(done.is_err()));
        }
        done
    }

    #[inline]
    fn pass(&mut self, operation: Operation, engine: Option<&Engine>) -> Result<()> {
        // A proposal passes only with proposals, and a barrier only with barriers.
        let purpose =
            if operation == Operation::Barrier { BarrierPurpose::Meet } else { BarrierPurpose::Hear };
        self.barrier.arrive_to(purpose, self.context.kernel());
        if self.barrier.poll() { Ok(()) } else { self.meet_slowly(operation, engine) }
    }

    /// Returns when all ranks have called it and have made the same calls before. It also returns
    /// when all have come to the barrier that this rank has given up waiting in.
    ///
    /// # Errors
    /// Fails as [`JobBarrier::meet`] does.
    pub(in crate::comm) fn finalize(&mut self, engine: Option<&Engine>) -> Result<()> {
        if self.barrier.has_arrived() {
            return self.meet(Operation::Finalize, engine);
        }
        // No rank ends the epoch by the findings below before this rank has come.
        let has_ended = self.context.mapped().revocation().read().is_some();
        let mut words = [Operation::Finalize as u64; AGREEMENT_WORDS];
        words[1] = engine.map_or(0, Engine::balance);
        self.agreement.propose(self.barrier.generation(), words);
        self.meet(Operation::Finalize, engine)?;
        let all = self.proposals(Operation::Finalize)?;
        match engine {
            // A rank that waited here may have found that this one was in another call, and ended
            // the epoch by that.
            Some(engine) if has_ended => {
                let mine = CallSignature::new(Operation::Finalize);
                let told = engine.members.board.known_mismatch(mine).map_or(Ok(()), Err);
                told.inspect_err(|error| self.context.abort_after(error))
            }
            Some(engine) => {
                let balances = all.iter().map(|(_, words)| words[1]);
                engine.check_end(balances).inspect_err(|error| self.context.abort_after(error))
            }
            None => Ok(()),
        }
    }

    fn meet_slowly(&mut self, operation: Operation, engine: Option<&Engine>) -> Result<()> {
        let context = &self.context;
        let cells = context.mapped().control().barrier().0;
        let target = self.barrier.generation().wrapping_add(1);
        let watch = EpochWatch(BarrierWait {
            context,
            operation,
            number: self.within.is_none().then(|| target.wrapping_sub(self.aside)),
            cells: &cells,
            target,
            departures: self.departures.as_deref(),
            engine,
        });
        let waiting = Waiting::new(context.kernel(), &watch, context.policy(), context.timeout());
        self.barrier.wait(&waiting).map_err(|stop| {
            let missing = self.barrier.missing().and_then(|rank| u32::try_from(rank).ok()).map(Rank::known);
            let error = context.error(&waiting, stop, operation.name(), missing);
            let error = explained(self.call(operation), error, &watch.0);
            if matches!(error, Error::CallMismatch { .. }) {
                // This rank's call has failed, too, and cannot be made again, for whatever reason
                // the epoch ended.
                context.abort();
            }
            error
        })
    }
}

/// Returns the `error` of a wait in the call `mine`. Where different calls ended the epoch, it
/// names these: an earlier disagreement first, then the calls of now.
fn explained(mine: CallSignature, error: Error, watch: &BarrierWait<'_>) -> Error {
    let before = || watch.engine.and_then(|engine| engine.members.board.first_mismatch());
    let differs = |(rank, theirs)| CallMismatch { mine, rank, theirs }.into();
    let now = || watch.with_other_purpose().or_else(|| watch.in_other_call()).map(differs);
    let found = if matches!(error, Error::Revoked { .. }) { before().or_else(now) } else { None };
    found.unwrap_or_else(|| match watch.engine {
        Some(engine) => engine.members.board.explain(mine, error),
        None => error,
    })
}

/// Checks that all ranks have called `operation` with the arguments of this one, and that it has
/// failed on none.
///
/// # Errors
/// [`Error::Mismatch`], [`Error::FailedElsewhere`].
pub(in crate::comm) fn agreed<'w>(
    operation: Operation,
    mine: &[u64],
    mut theirs: impl Iterator<Item = (Rank, &'w [u64])> + Clone,
) -> Result<()> {
    const FAILED: usize = 3;
    let names: &[&str] = match operation {
        Operation::Free => &["the offset of what is freed", "the length of what is freed, in bytes"],
        _ => &[
            "the length of an allocation, in bytes",
            "the alignment of an allocation",
            "the offset of an allocation",
        ],
    };
    for (rank, theirs) in theirs.clone() {
        // Where an allocation failed, there is no offset to compare.
        let compared = if mine[FAILED] != 0 || theirs[FAILED] != 0 { 2 } else { names.len() };
        if let Some(word) = (0..compared).find(|&word| mine[word] != theirs[word]) {
            let (what, mine, theirs) = (names[word], mine[word], theirs[word]);
            return Err(Error::Mismatch { what, mine, rank, theirs });
        }
    }
    match theirs.find(|(_, theirs)| theirs[FAILED] != 0) {
        Some((rank, _)) => Err(Error::FailedElsewhere { operation: operation.name(), rank }),
        None => Ok(()),
    }
}

/// Watches the epoch, and the lives of the ranks that are missing from generation `target`.
#[derive(Debug)]
pub(super) struct BarrierWait<'a> {
    pub(super) context: &'a RankContext,
    /// The operation that this rank is in.
    pub(super) operation: Operation,
    /// The number of the caller's operation; `None` within one that observers see already.
    pub(super) number: Option<u64>,
    pub(super) cells: &'a CellSlice<BarrierCell>,
    pub(super) target: u64,
    /// The ranks that have left the communicator, where there are words that say so.
    pub(super) departures: Option<&'a [ProgressCell]>,
    /// The engine, which knows the ranks that are in an operation instead.
    pub(super) engine: Option<&'a Engine>,
}

impl BarrierWait<'_> {
    /// Returns a rank that has arrived for another purpose than this one, and its call.
    ///
    /// Nobody passes where one rank is to read proposals and another one only meets. So all find
    /// each other here, and what they find stays.
    pub(super) fn with_other_purpose(&self) -> Option<(Rank, CallSignature)> {
        let mine = self.cells[self.context.rank().index()].purpose(self.target);
        let differs =
            |cell: &BarrierCell| cell.purpose(self.target).is_some_and(|theirs| Some(theirs) != mine);
        let (rank, _) = Rank::of_each(self.cells.iter()).find(|(_, cell)| differs(cell))?;
        let proposals = self.context.mapped().control().agreement();
        Some((rank, call_met(&proposals[rank.index()], self.target.wrapping_sub(1))))
    }

    /// Returns a rank in an operation that this rank has not entered, and its call.
    pub(super) fn in_other_call(&self) -> Option<(Rank, CallSignature)> {
        // The cell is read after the post: a rank that arrived and went on is not in another call.
        self.engine?
            .members
            .board
            .gone_on()
            .find(|(rank, _)| !self.cells[rank.index()].has_reached(self.target))
    }
}

impl LongWait for BarrierWait<'_> {
    fn context(&self) -> &RankContext {
        self.context
    }

    fn stop(&self) -> Option<Stop> {
        let mapped = self.context.mapped();
        if let Some(stop) = mapped.revocation().check() {
            return Some(stop);
        }
        let gone = |(rank, cell): (u32, &BarrierCell)| {
            let rank = Rank::known(rank);
            let left = self.departures.is_some_and(|words| words[rank.index()].has_reached(LEFT));
            let gone = left || mapped.life(rank).status().is_gone();
            // The cell is read after those words: a rank that arrived and then left is not missed.
            (gone && !cell.has_reached(self.target)).then_some(Stop::PeerLost(rank))
        };
        (0..).zip(&**self.cells).find_map(gone).or_else(|| {
            let (rank, theirs) = self.with_other_purpose().or_else(|| self.in_other_call())?;
            if let Some(engine) = self.engine {
                engine.members.board.end_by_mismatch(rank, CallSignature::new(self.operation), theirs);
            }
            self.context.abort();
            mapped.revocation().check()
        })
    }

    /// Returns the wait as observers see it: for all ranks that have not arrived.
    fn seen(&self) -> WaitingIn {
        let ranks = Rank::of_each(self.cells.iter());
        let missing = ranks.filter(|(_, cell)| !cell.has_reached(self.target)).map(|(rank, _)| rank);
        WaitingIn {
            call: self.number.map(|number| (CallSignature::new(self.operation).words(), number)),
            kind: if self.number.is_none() { WaitKind::Prepare as u64 } else { 0 },
            step: 0,
            awaited: missing.collect::<RankSet>(),
        }
    }
}
