//! Decides when faults hit, and keeps the list of those that have.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{FaultHit, FaultKind, Faults, OPERATIONS, STEP, TRIGGER, WRITES, When};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::atomic::AtomicU64;

/// The most hits that are listed.
const LISTED: usize = 1000;

/// Something that a fault may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultPoint {
    /// An operation of this name.
    Operation(&'static str),
    /// A trigger, before it is executed.
    Trigger,
    /// Bytes of this kind that were just written.
    Write(&'static str),
    /// A step of a checkpoint.
    Step,
}

impl FaultPoint {
    /// Returns whether it counts where `what` is counted. A put is an operation and is written as
    /// well: which is meant the fault knows.
    fn counts_as(self, kind: FaultKind, what: &str) -> bool {
        match self {
            Self::Operation(name) => kind != FaultKind::Corrupt && (what == OPERATIONS || what == name),
            Self::Trigger => kind != FaultKind::Corrupt && what == TRIGGER,
            Self::Step => what == STEP,
            Self::Write(name) => kind == FaultKind::Corrupt && (what == WRITES || what == name),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Operation(name) | Self::Write(name) => name,
            Self::Trigger => TRIGGER,
            Self::Step => STEP,
        }
    }
}

/// A fault that hits now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawnFault {
    pub(crate) hit: FaultHit,
    /// How long a delay takes.
    pub(crate) time: Duration,
    /// Drawn for whatever is left open: any number.
    pub(crate) random: u64,
}

/// The faults of one rank, wherever they strike in this process.
#[derive(Debug)]
pub(crate) struct Injector {
    plan: Faults,
    rank: Rank,
    /// Whether the rank is a thread among others of this process, which are not to die with it.
    is_thread: bool,
    /// The words of the first epoch, where the launcher looks for hits whatever epoch the rank is
    /// in.
    first: Option<CellSlice<AtomicU64>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many there were of what each fault counts.
    counts: Vec<u64>,
    hits: Vec<FaultHit>,
    /// The fault that has killed the rank, where it is a thread.
    killed_by: Option<FaultHit>,
}

impl Injector {
    /// Has `rank` suffer what `plan` says of it; `None` when that is nothing.
    pub(crate) fn new(plan: &Faults, rank: Rank, is_thread: bool) -> Option<Self> {
        let concerns = |fault: &super::Fault| fault.rank.is_none_or(|only| only == rank.get());
        if !plan.faults.iter().any(concerns) {
            return None;
        }
        let state = State { counts: vec![0; plan.faults.len()], ..State::default() };
        Some(Self { plan: plan.clone(), rank, is_thread, first: None, state: Mutex::new(state) })
    }

    /// Tells in `words`, those of the rank's first epoch, also when the rank is in another one.
    pub(crate) fn telling(self, words: CellSlice<AtomicU64>) -> Self {
        Self { first: Some(words), ..self }
    }

    /// Tells of `hit` in the words `here`, those of the epoch that the rank is in, and in its
    /// first.
    pub(crate) fn tell(&self, hit: FaultHit, here: &[AtomicU64]) {
        // One of the rank's threads at a time.
        let _state = self.state();
        hit.tell(here);
        let first = self.first.as_deref().filter(|first| !std::ptr::eq(first.as_ptr(), here.as_ptr()));
        if let Some(first) = first {
            hit.tell(first);
        }
    }

    /// Returns whether a kill is to leave the process alive.
    pub(crate) fn is_thread(&self) -> bool {
        self.is_thread
    }

    /// Counts `event`, and returns the faults that hit it.
    ///
    /// # Errors
    /// [`Error::FaultInjected`] when the rank was killed before.
    pub(crate) fn draw(&self, event: FaultPoint) -> Result<Vec<DrawnFault>> {
        let mut state = self.state();
        if let (Some(hit), FaultPoint::Operation(_) | FaultPoint::Step) = (state.killed_by, event) {
            return Err(Error::FaultInjected { hit });
        }
        let State { counts, hits, .. } = &mut *state;
        let mut drawn = Vec::new();
        for ((clause, fault), count) in (0_u64..).zip(&self.plan.faults).zip(counts) {
            let counted = fault.counts();
            if fault.rank.is_some_and(|only| only != self.rank.get()) || !event.counts_as(fault.kind, counted)
            {
                continue;
            }
            *count += 1;
            let random = self.random(clause, *count);
            let is_hit = match fault.when {
                When::At(number) => number == *count,
                When::OneIn(n) => random.is_multiple_of(n),
            };
            if is_hit {
                let Self { rank, plan: Faults { seed, .. }, .. } = *self;
                let hit =
                    FaultHit { kind: fault.kind, rank, counted, number: *count, at: event.name(), seed };
                drawn.push(DrawnFault { hit, time: fault.time.unwrap_or_default(), random: mixed(random) });
                if hits.len() < LISTED {
                    hits.push(hit);
                }
            }
        }
        Ok(drawn)
    }

    /// Takes note that the rank, a thread, was killed: its later operations fail.
    pub(crate) fn record_kill(&self, hit: FaultHit) {
        self.state().killed_by.get_or_insert(hit);
    }

    /// Returns the faults that have hit, in this order.
    pub(crate) fn fault_hits(&self) -> Vec<FaultHit> {
        self.state().hits.clone()
    }

    fn random(&self, clause: u64, count: u64) -> u64 {
        [clause, self.rank.get().into(), count]
            .into_iter()
            .fold(mixed(self.plan.seed), |random, word| mixed(random ^ word))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Counts and lists only: a panic leaves nothing half done that matters.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a number that depends on `word` alone, as if it were drawn (splitmix64).
fn mixed(word: u64) -> u64 {
    let mut word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injector(plan: &str, rank: u32) -> Option<Injector> {
        Injector::new(&plan.parse().unwrap(), Rank::known(rank), true)
    }

    /// The numbers of those among `count` events that are struck.
    fn drawn(injector: &Injector, event: FaultPoint, count: u64) -> Vec<u64> {
        (1..=count).filter(|_| !injector.draw(event).unwrap().is_empty()).collect()
    }

    #[test]
    fn a_fault_strikes_the_operation_of_its_number_on_its_rank_and_no_other() {
        let faults = injector("kill:rank=1,at=3;delay:at=2,of=put,time=1ms", 1).unwrap();
        let (put, wait) = (FaultPoint::Operation("put"), FaultPoint::Operation("wait"));
        let names = [put, wait, wait, put, put].map(|event| {
            faults.draw(event).unwrap().iter().map(|drawn| drawn.hit.to_string()).collect::<Vec<_>>()
        });
        assert_eq!(names[2], ["kill at operation 3, wait (seed 0)"]);
        assert_eq!(names[3], ["delay at put 2 (seed 0)"]);
        assert_eq!(names.iter().flatten().count(), 2);
        assert_eq!(faults.fault_hits().len(), 2);
        assert!(injector("kill:rank=1,at=3", 0).is_none());
        let other = injector("kill:rank=1,at=3;delay:at=2,of=put,time=1ms", 0).unwrap();
        assert_eq!(drawn(&other, wait, 10), [0_u64; 0]);
    }

    #[test]
    fn draws_depend_on_the_seed_the_rank_and_the_number_only() {
        let drawn = |plan, rank| drawn(&injector(plan, rank).unwrap(), FaultPoint::Trigger, 10_000);
        let first = drawn("seed=7;drop:one_in=10", 0);
        assert!((800..1200).contains(&first.len()), "{} of 10000", first.len());
        assert_eq!(first, drawn("seed=7;drop:one_in=10", 0));
        assert_ne!(first, drawn("seed=8;drop:one_in=10", 0));
        assert_ne!(first, drawn("seed=7;drop:one_in=10", 1));
        assert_ne!(first, drawn("seed=7;fail:at=1;drop:one_in=10", 0)[1..]);
        assert_eq!(drawn("drop:one_in=1", 0).len(), 10_000);
    }

    #[test]
    fn operations_triggers_and_writes_are_counted_apart() {
        let faults = injector("corrupt:at=1;kill:at=1,of=put;drop:at=1", 0).unwrap();
        let hit = |event| faults.draw(event).unwrap().first().map(|drawn| drawn.hit.to_string());
        assert_eq!(hit(FaultPoint::Operation("wait")), None);
        assert_eq!(hit(FaultPoint::Write("put")).unwrap(), "corrupt at write 1, put (seed 0)");
        assert_eq!(hit(FaultPoint::Operation("put")).unwrap(), "kill at put 1 (seed 0)");
        assert_eq!(hit(FaultPoint::Trigger).unwrap(), "drop at trigger 1 (seed 0)");
        assert_eq!(hit(FaultPoint::Write("trigger")), None, "the second one");
    }

    #[test]
    fn a_thread_that_was_killed_can_do_nothing_more() {
        let faults = injector("kill:at=1", 0).unwrap();
        let hit = faults.draw(FaultPoint::Operation("wait")).unwrap()[0].hit;
        faults.record_kill(hit);
        let error = faults.draw(FaultPoint::Operation("put")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 0 was killed by an injected fault: kill at operation 1, wait (seed 0)"
        );
    }
}
