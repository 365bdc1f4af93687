//! What a trace costs: an operation that is noted against the same one that is not, in the same processes, on the same memory.
//!
//! The launcher has a trace written, to nowhere. Three contenders take turns: noted, not noted, and not noted once more. What the last
//! two lie apart is what this machine cannot tell. A slice is one sample: the mean of the middle half of what it has timed.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use shmccl::collective::Operation;
use shmccl::reduce::ReduceOp;

use super::DeviceBench;
use crate::perf::barrier::AllSync;
use crate::perf::collective::gathering::Gathering;
use crate::perf::collective::layout::CaseLayout;
use crate::perf::collective::settings::{RankAverage, Memory};
use crate::perf::collective::timed_case::{ByLibrary, TimedCase};
use crate::perf::collective::case::{CollectiveBuffers, CaseSpec, CaseData};
use crate::perf::interleave::{Participants, Effort, Field, Measured, Turns, take_turns};
use crate::perf::pair_sync::PairSync;
use crate::perf::contender::{Contender, PingPong};
use crate::perf::stage::PairBuffers;

/// Slices of each, however long they take.
const FEWEST_SLICES: u64 = 15;

/// The contenders, by their places: the first against the second, and the third against the second.
const NOTED: [bool; 3] = [true, false, false];

/// What is held against the second contender, by name.
const AGAINST: [(usize, &str); 2] = [(0, "traced"), (2, "untraced, too")];

/// One of the contenders that share an operation, which is noted or not.
struct Turn<'t, L, S> {
    contender: &'t RefCell<L>,
    set_tracing: S,
    is_noted: bool,
}

impl<L: Contender, S: Fn(&mut L, bool)> Contender for Turn<'_, L, S> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        let mut contender = self.contender.borrow_mut();
        (self.set_tracing)(&mut contender, self.is_noted);
        let mut all = Vec::new();
        let done = contender.slice(ops, &mut all);
        (self.set_tracing)(&mut contender, true);
        samples.extend(midmean(all));
        done
    }

    fn batch(&self) -> u64 {
        self.contender.borrow().batch()
    }
}

impl DeviceBench<'_> {
    pub(crate) fn trace_cost(&mut self, mut pair_sync: Option<&mut PairSync>) -> Result<()> {
        let sizes = self.plan.sizes.clone();
        self.two(pair_sync.as_deref_mut(), &sizes, Self::noted_puts)?;
        sizes.iter().try_for_each(|len| self.noted_sums(pair_sync.as_deref_mut(), *len))
    }

    /// A put with a signal, one way, and the wait for it.
    fn noted_puts(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let channel = self.comm.memory_channel(stage.peer())?;
        let puts =
            RefCell::new(PingPong::of_messages(stage.put(self.comm, channel)?, stage.leads(), stage.len()));
        pair_sync.meet();
        let set_tracing = |_: &mut _, is_noted| self.comm.set_tracing(is_noted);
        let turns = turns(Participants::Two(pair_sync), &puts, set_tracing, self.plan.effort(self.test, None))?;
        let wrong = puts.borrow().wrong();
        let wrong = wrong + pair_sync.share_back(wrong);
        self.tell("put_with_signal", stage.len(), stage.leads(), &turns, wrong)
    }

    /// An all-reduce of buffers in the heap, timed as `shmccl perf all_reduce` does.
    fn noted_sums(&mut self, pair_sync: Option<&mut PairSync>, len: u64) -> Result<()> {
        let (n_ranks, leads) = (self.comm.n_ranks(), self.comm.rank().get() == 0);
        let mut region = |len| self.comm.alloc_region(len, 4096);
        let ground = CollectiveBuffers { send: region(len)?, recv: region(len)?, mail: region(0)?, stage: region(0)? };
        let gathering = Gathering::new(self.comm, RankAverage::Mean, self.plan.one_core)?;
        let gathering = Rc::new(RefCell::new(gathering));
        let mut all_sync = AllSync::new(self.comm)?;
        let task = CaseSpec {
            operation: Operation::AllReduce,
            op: Some(ReduceOp::Sum),
            root: self.comm.rank(),
            layout: CaseLayout::new(Operation::AllReduce, len, size_of::<f32>() as u64, n_ranks.into()),
            in_place: false,
            check: self.plan.check,
        };
        let workload = CaseData::<f32>::new(self.comm, task, ground, Memory::Heap)?;
        let sums = RefCell::new(TimedCase::new(ByLibrary(self.comm), workload, &gathering, len));
        let set_tracing = |sums: &mut TimedCase<_, ByLibrary<'_>>, is_noted| sums.way().0.set_tracing(is_noted);
        let company = match pair_sync {
            Some(pair_sync) if n_ranks == 2 => Participants::Two(pair_sync),
            _ => Participants::All(&mut all_sync),
        };
        let turns = turns(company, &sums, set_tracing, self.plan.effort(self.test, None))?;
        let wrong = sums.borrow().wrong();
        let wrong = gathering.borrow_mut().total(wrong)?;
        drop(sums);
        self.tell("all_reduce", len, leads, &turns, wrong)
    }

    /// Prints what `turns` say of an `operation` on `len` bytes.
    fn tell(&self, operation: &str, len: u64, leads: bool, turns: &Turns, wrong: u64) -> Result<()> {
        for (contender, name) in AGAINST {
            let verdicts = turns.verdict(contender, |samples| samples[1].clone()).into_iter().collect();
            let outcome = Measured { verdicts, operations: turns.operations, wrong };
            self.report(leads, &outcome, Some(len), "untraced", |row| {
                row.variant = Some(format!("{operation}, {name}"));
            })?;
        }
        Ok(())
    }
}

/// The mean of the middle half of `samples`: the clock's ticks may be a hundredth of an operation apart, as medians would be.
fn midmean(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    let quarter = samples.len() / 4;
    let middle = &samples[quarter..samples.len() - quarter];
    (!middle.is_empty()).then(|| middle.iter().sum::<f64>() / middle.len() as f64)
}

/// Lets the same `contender` be noted and not, in turns.
fn turns<L: Contender>(
    company: Participants<'_>,
    contender: &RefCell<L>,
    set_tracing: impl Fn(&mut L, bool),
    effort: Effort,
) -> Result<Turns> {
    let set_tracing = &set_tracing;
    let mut contenders = NOTED.map(|is_noted| Turn { contender, set_tracing, is_noted });
    let mut contenders: Vec<&mut dyn Contender> = contenders.iter_mut().map(|contender| contender as &mut dyn Contender).collect();
    let field = Field { tests: NOTED.len(), fewest_slices: FEWEST_SLICES };
    Ok(take_turns(company, &mut contenders, field, effort)?)
}
