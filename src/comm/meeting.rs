//! Where all ranks of a job meet: its barrier, and the comparison of what they are about to do.

use std::sync::Arc;

use super::watch::BarrierWatch;
use crate::channel::{Fabric, World};
use crate::collective::{Engine, Operation, Summary, call_proposed, can_agree, proposed};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice};
use crate::sync::{
    AGREEMENT_WORDS, Agreement, AgreementCell, Barrier, BarrierCell, BarrierPurpose, ParkCell, ProgressCell,
    Waiting,
};
use crate::trace::{Note, Recorder, Verb};

/// One rank's side of the meeting.
#[derive(Debug)]
pub(super) struct Meeting {
    fabric: Arc<Fabric>,
    barrier: Barrier<CellSlice<BarrierCell>, CellRef<ParkCell>>,
    agreement: Agreement<CellSlice<AgreementCell>>,
    /// Which ranks have left, once there are words that say so.
    departures: Option<CellSlice<ProgressCell>>,
    /// How often all have met within an operation that was counted already, or is counted elsewhere.
    aside: u64,
    /// What of the program's this is within, while it is.
    within: Option<Within>,
}

/// A call of the program's within which ranks meet.
#[derive(Clone, Copy, Debug)]
struct Within {
    call: Summary,
    /// How often all had met when it began.
    since: u64,
}

impl Meeting {
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

    /// Counts no meeting until [`Meeting::end_within`]: this rank has told that it is in `call`, which errors name, here and on others.
    pub(super) fn begin_within(&mut self, call: Summary) {
        self.within.get_or_insert(Within { call, since: self.barrier.generation() });
    }

    /// Counts each meeting again.
    pub(super) fn end_within(&mut self) {
        if let Some(Within { since, .. }) = self.within.take() {
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
    /// Those of [`Meeting::meet`].
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
    let now = || watch.beside().or_else(|| watch.astray()).map(differs);
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
