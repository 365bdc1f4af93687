//! Where all ranks of a job meet: its barrier, and the comparison of what they are about to do.

use std::sync::Arc;
use std::time::Duration;

use crate::channel::{Fabric, PREPARING, World, occupation_code};
use crate::collective::{Engine, LEFT, Operation, Summary, call_met, call_proposed, can_agree, proposed};
use crate::error::{Error, Result};
use crate::rank::{Rank, RankSet};
use crate::shm::{CellRef, CellSlice};
use crate::sync::{
    AGREEMENT_WORDS, Agreement, AgreementCell, Barrier, BarrierCell, BarrierPurpose, LifeStatus, ParkCell,
    ProgressCell, SleepWord, Stop, Waiting, WaitingIn, Watch,
};
use crate::trace::{Note, Recorder, Verb};

/// One rank's side of the meeting.
#[derive(Debug)]
pub(super) struct JobBarrier {
    fabric: Arc<Fabric>,
    barrier: Barrier<CellSlice<BarrierCell>, CellRef<ParkCell>>,
    agreement: Agreement<CellSlice<AgreementCell>>,
    /// Which ranks have left, once there are words that say so.
    departures: Option<CellSlice<ProgressCell>>,
    /// How often all have met within an operation that was counted already, or is counted elsewhere.
    aside: u64,
    /// What of the program's this is within, while it is.
    within: Option<EnclosingCall>,
}

/// A call of the program's within which ranks meet.
#[derive(Clone, Copy, Debug)]
struct EnclosingCall {
    call: Summary,
    /// How often all had met when it began.
    since: u64,
}

impl JobBarrier {
    pub(super) fn new(fabric: &Arc<Fabric>) -> Self {
        let world: &World = fabric.world();
        let (cells, park) = world.control().barrier();
        let member = fabric.rank().index();
        Self {
            barrier: Barrier::new(cells, park, member, 0),
            agreement: Agreement::new(world.control().agreement(), member),
            departures: None,
            aside: 0,
            within: None,
            fabric: Arc::clone(fabric),
        }
    }

    /// Counts the next meeting as part of the operation that was counted last.
    pub(super) fn count_no_more(&mut self) {
        if self.within.is_none() {
            self.aside = self.aside.wrapping_add(1);
        }
    }

    /// Counts no meeting until [`JobBarrier::end_within`]: this rank has told that it is in `call`, which errors name, here and on others.
    pub(super) fn begin_within(&mut self, call: Summary) {
        self.within.get_or_insert(EnclosingCall { call, since: self.barrier.generation() });
    }

    /// Counts each meeting again.
    pub(super) fn end_within(&mut self) {
        if let Some(EnclosingCall { since, .. }) = self.within.take() {
            self.aside = self.aside.wrapping_add(self.barrier.generation().wrapping_sub(since));
        }
    }

    /// The call of the program's that is in `operation`.
    fn call(&self, operation: Operation) -> Summary {
        self.within.map_or(Summary::new(operation), |within| within.call)
    }

    /// By what word this rank proposes `operation`.
    fn word(&self, operation: Operation) -> u64 {
        proposed(operation, self.within.map(|within| within.call))
    }

    /// Lets waits end when one of those ranks has left the communicator, by these words.
    pub(super) fn watch_departures(&mut self, departures: CellSlice<ProgressCell>) {
        self.departures = Some(departures);
    }

    /// Compares the arguments of a call of all ranks; the last one says whether this rank has failed already.
    ///
    /// After a barrier that timed out there is no agreeing any more. A rank that gives up waiting has proposed already, and whoever
    /// comes later would take it for agreed; so giving up ends the epoch.
    pub(super) fn agree(
        &mut self,
        operation: Operation,
        arguments: [u64; 4],
        engine: Option<&Engine>,
    ) -> Result<()> {
        if self.barrier.has_arrived() {
            // A barrier that timed out is still open: who passes it takes this rank's words for those of the barrier.
            self.revoke();
            // Or it was ended by something else, as that barrier was.
            return self
                .fabric
                .check(operation.name())
                .and(Err(Error::Revoked { by: Some(self.fabric.rank()) }));
        }
        let mut mine = [self.word(operation); AGREEMENT_WORDS];
        mine[1..].copy_from_slice(&arguments);
        self.agreement.propose(self.barrier.generation(), mine);
        self.meet(operation, engine).inspect_err(|_| self.revoke())?;
        let all = self.proposals(operation)?;
        self.fabric.check(operation.name())?;
        let rest = |words: [u64; AGREEMENT_WORDS]| std::array::from_fn(|word| words[word + 1]);
        agreed(operation, arguments, all.into_iter().map(|(rank, words)| (rank, rest(words))))
    }

    /// What all ranks have proposed for the barrier that was passed last, if it is the same call.
    ///
    /// # Errors
    /// [`Error::CallMismatch`]; it ends the epoch. All ranks read the same, so each of them has it.
    fn proposals(&self, operation: Operation) -> Result<Vec<(Rank, [u64; AGREEMENT_WORDS])>> {
        let theirs = |rank: Rank| (rank, self.agreement.theirs(rank.index()).unwrap_or_default());
        let all: Vec<_> = (0..self.fabric.world().n_ranks()).map(Rank::known).map(theirs).collect();
        let mine = self.word(operation);
        match all.iter().find(|(_, theirs)| !can_agree(mine, theirs[0])) {
            None => Ok(all),
            Some(&(rank, theirs)) => {
                self.revoke();
                Err(Error::CallMismatch {
                    mine: self.call(operation),
                    rank,
                    theirs: call_proposed(theirs[0]),
                })
            }
        }
    }

    /// Returns when all ranks have called it. `engine` tells of those that are in an operation instead.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming a rank that is missing, [`Error::CallMismatch`], [`Error::PeerLost`], [`Error::Revoked`].
    #[inline]
    pub(super) fn meet(&mut self, operation: Operation, engine: Option<&Engine>) -> Result<()> {
        let Some(begun) = self.fabric.recorder().map(Recorder::now) else {
            return self.pass(operation, engine);
        };
        let sequence = self.barrier.generation().wrapping_add(1);
        let done = self.pass(operation, engine);
        if let Some(recorder) = self.fabric.recorder() {
            let note = Note::of(Verb::operation(operation as u8)).numbered(sequence);
            recorder.note(begun, note.failing(done.is_err()));
        }
        done
    }

    #[inline]
    fn pass(&mut self, operation: Operation, engine: Option<&Engine>) -> Result<()> {
        // Who proposes something passes with those only that do: a barrier passes by barriers alone.
        let purpose =
            if operation == Operation::Barrier { BarrierPurpose::Meet } else { BarrierPurpose::Hear };
        self.barrier.arrive_to(purpose, self.fabric.kernel());
        if self.barrier.poll() { Ok(()) } else { self.meet_slowly(operation, engine) }
    }

    /// Returns when all ranks have called it, and have made the same calls before; or when all have come to the barrier that this rank
    /// has given up waiting in.
    ///
    /// # Errors
    /// Those of [`JobBarrier::meet`].
    pub(super) fn finalize(&mut self, engine: Option<&Engine>) -> Result<()> {
        if self.barrier.has_arrived() {
            return self.meet(Operation::Finalize, engine);
        }
        // Nobody ends it by what is found below before this rank has come.
        let has_ended = self.fabric.world().revocation().read().is_some();
        let mut words = [Operation::Finalize as u64; AGREEMENT_WORDS];
        words[1] = engine.map_or(0, Engine::balance);
        self.agreement.propose(self.barrier.generation(), words);
        self.meet(Operation::Finalize, engine)?;
        let all = self.proposals(Operation::Finalize)?;
        match engine {
            // Whoever waited here may have found, while this rank was on its way, that it was in another call, and ended it by that.
            Some(engine) if has_ended => {
                let told = engine.told(Summary::new(Operation::Finalize)).map_or(Ok(()), Err);
                told.inspect_err(|_| self.revoke())
            }
            Some(engine) => {
                let balances = all.iter().map(|(_, words)| words[1]);
                engine.check_end(balances).inspect_err(|_| self.revoke())
            }
            None => Ok(()),
        }
    }

    fn meet_slowly(&mut self, operation: Operation, engine: Option<&Engine>) -> Result<()> {
        let fabric = &self.fabric;
        let cells = fabric.world().control().barrier().0;
        let target = self.barrier.generation().wrapping_add(1);
        let watch = BarrierWatch {
            fabric,
            operation,
            number: self.within.is_none().then(|| target.wrapping_sub(self.aside)),
            cells: &cells,
            target,
            departures: self.departures.as_deref(),
            engine,
        };
        let waiting = Waiting::new(fabric.kernel(), &watch, fabric.policy(), fabric.timeout());
        self.barrier.wait(&waiting).map_err(|stop| {
            let missing = self.barrier.missing().and_then(|rank| u32::try_from(rank).ok()).map(Rank::known);
            let error = fabric.error(&waiting, stop, operation.name(), missing);
            let error = explained(self.call(operation), error, &watch);
            if matches!(error, Error::CallMismatch { .. }) {
                // Whoever has ended the epoch: this rank's call has failed, too, and cannot be made again.
                fabric.abort();
            }
            error
        })
    }

    fn revoke(&self) {
        self.fabric.abort();
    }
}

/// The `error` of a wait in the call `mine`; or, where the epoch was ended because ranks are in different calls, which these are. What
/// they have disagreed on before goes before what they are in now.
fn explained(mine: Summary, error: Error, watch: &BarrierWatch<'_>) -> Error {
    let before = || watch.engine.and_then(Engine::disagreement);
    let differs = |(rank, theirs)| Error::CallMismatch { mine, rank, theirs };
    let now = || watch.with_other_purpose().or_else(|| watch.in_other_call()).map(differs);
    let found = if matches!(error, Error::Revoked { .. }) { before().or_else(now) } else { None };
    found.unwrap_or_else(|| match watch.engine {
        Some(engine) => engine.explain(mine, error),
        None => error,
    })
}

/// Whether all ranks have called `operation` with the arguments that this one has, and it has failed on none of them.
///
/// # Errors
/// [`Error::Mismatch`], [`Error::FailedElsewhere`].
pub(super) fn agreed(
    operation: Operation,
    mine: [u64; 4],
    theirs: impl Iterator<Item = (Rank, [u64; 4])> + Clone,
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
    match theirs.into_iter().find(|(_, theirs)| theirs[FAILED] != 0) {
        Some((rank, _)) => Err(Error::FailedElsewhere { operation: operation.name(), rank }),
        None => Ok(()),
    }
}

/// Watches the epoch, and the lives of the ranks that are missing from generation `target`.
#[derive(Debug)]
pub(super) struct BarrierWatch<'a> {
    pub(super) fabric: &'a Fabric,
    /// What this rank is in.
    pub(super) operation: Operation,
    /// Which of the caller's operations that is; `None` within one of which this rank has told.
    pub(super) number: Option<u64>,
    pub(super) cells: &'a CellSlice<BarrierCell>,
    pub(super) target: u64,
    /// Which ranks have left the communicator, where that can be told.
    pub(super) departures: Option<&'a [ProgressCell]>,
    /// What tells whether ranks are in an operation instead.
    pub(super) engine: Option<&'a Engine>,
}

impl BarrierWatch<'_> {
    /// A rank that has arrived for something else than this one, and what that is.
    ///
    /// Where `mine` tells that this rank is to hear what others propose, and theirs that they only meet, or the other way
    /// round, nobody passes; so all find each other here, and what they find stays.
    pub(super) fn with_other_purpose(&self) -> Option<(Rank, Summary)> {
        let mine = self.cells[self.fabric.rank().index()].purpose(self.target);
        let differs =
            |cell: &BarrierCell| cell.purpose(self.target).is_some_and(|theirs| Some(theirs) != mine);
        let (rank, _) = Rank::of_each(self.cells.iter()).find(|(_, cell)| differs(cell))?;
        let proposals = self.fabric.world().control().agreement();
        Some((rank, call_met(&proposals[rank.index()], self.target.wrapping_sub(1))))
    }

    /// A rank that is in an operation which this one has not come to, and what it does there.
    pub(super) fn in_other_call(&self) -> Option<(Rank, Summary)> {
        // The cell is read after the post: who arrived and went on is not astray.
        self.engine?.gone_on().find(|(rank, _)| !self.cells[rank.index()].has_reached(self.target))
    }

    /// The wait, as this rank tells of it: for all who have not arrived.
    fn wait(&self) -> WaitingIn {
        let ranks = Rank::of_each(self.cells.iter());
        let missing = ranks.filter(|(_, cell)| !cell.has_reached(self.target)).map(|(rank, _)| rank);
        WaitingIn {
            call: self.number.map(|number| (Summary::new(self.operation).words(), number)),
            kind: if self.number.is_none() { occupation_code(PREPARING) } else { 0 },
            step: 0,
            awaited: missing.collect::<RankSet>().bits(),
        }
    }
}

impl Watch for BarrierWatch<'_> {
    fn check(&self) -> Option<Stop> {
        let world = self.fabric.world();
        if let Some(stop) = world.revocation().check() {
            return Some(stop);
        }
        let gone = |(rank, cell): (u32, &BarrierCell)| {
            let rank = Rank::known(rank);
            let left = self.departures.is_some_and(|words| words[rank.index()].has_reached(LEFT));
            let gone = left || matches!(world.life(rank).status(), LifeStatus::Lost | LifeStatus::Left);
            // The cell is read after those words: who arrived and then left is not missed.
            (gone && !cell.has_reached(self.target)).then_some(Stop::PeerLost(rank))
        };
        (0..).zip(&**self.cells).find_map(gone).or_else(|| {
            let (rank, theirs) = self.with_other_purpose().or_else(|| self.in_other_call())?;
            if let Some(engine) = self.engine {
                engine.convict(rank, Summary::new(self.operation), theirs);
            }
            self.fabric.abort();
            world.revocation().check()
        })
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        Some(self.fabric.world().revocation().bell())
    }

    fn begin(&self, since: Duration) {
        self.fabric.activity().begin_wait(&self.wait(), since);
    }

    fn end(&self, since: Duration, stop: Option<Stop>) {
        self.fabric.tell_end(&self.wait(), since, stop);
    }
}
