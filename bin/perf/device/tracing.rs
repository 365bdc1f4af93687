//! What a trace costs: an operation that is noted against the same one that is not, in the same processes, on the same memory.
//!
//! The launcher has a trace written, to nowhere. Three lanes take turns: noted, not noted, and not noted once more. What the last
//! two lie apart is what this machine cannot tell. A slice is one sample: the mean of the middle half of what it has timed.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use shmccl::collective::Operation;
use shmccl::reduce::ReduceOp;

use super::Bench;
use crate::perf::barrier::Ensemble;
use crate::perf::collective::gathering::Gathering;
use crate::perf::collective::layout::Layout;
use crate::perf::collective::settings::{Average, Memory};
use crate::perf::collective::trial::{ByLibrary, Trial};
use crate::perf::collective::workload::{Ground, Task, Workload};
use crate::perf::contest::{Company, Effort, Field, Outcome, Turns, take_turns};
use crate::perf::duet::Duet;
use crate::perf::lane::{Lane, PingPong};
use crate::perf::stage::Stage;

/// Slices of each, however long they take.
const FEWEST_SLICES: u64 = 15;

/// The lanes, by their places: the first against the second, and the third against the second.
const NOTED: [bool; 3] = [true, false, false];

/// What is held against the second lane, by name.
const AGAINST: [(usize, &str); 2] = [(0, "traced"), (2, "untraced, too")];

/// One of the lanes that share an operation, which is noted or not.
struct Turn<'t, L, S> {
    lane: &'t RefCell<L>,
    set_tracing: S,
    is_noted: bool,
}

impl<L: Lane, S: Fn(&mut L, bool)> Lane for Turn<'_, L, S> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        let mut lane = self.lane.borrow_mut();
        (self.set_tracing)(&mut lane, self.is_noted);
        let mut all = Vec::new();
        let done = lane.slice(ops, &mut all);
        (self.set_tracing)(&mut lane, true);
        samples.extend(midmean(all));
        done
    }

    fn batch(&self) -> u64 {
        self.lane.borrow().batch()
    }
}

impl Bench<'_> {
    pub(super) fn trace_cost(&mut self, mut duet: Option<&mut Duet>) -> Result<()> {
        let sizes = self.plan.sizes.clone();
        self.two(duet.as_deref_mut(), &sizes, Self::noted_puts)?;
        sizes.iter().try_for_each(|len| self.noted_sums(duet.as_deref_mut(), *len))
    }

    /// A put with a signal, one way, and the wait for it.
    fn noted_puts(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        let channel = self.comm.memory_channel(stage.peer())?;
        let puts =
            RefCell::new(PingPong::of_messages(stage.put(self.comm, channel)?, stage.leads(), stage.len()));
        duet.meet();
        let set_tracing = |_: &mut _, is_noted| self.comm.set_tracing(is_noted);
        let turns = turns(Company::Two(duet), &puts, set_tracing, self.plan.effort(self.test, None))?;
        let wrong = puts.borrow().wrong();
        let wrong = wrong + duet.share_back(wrong);
        self.tell("put_with_signal", stage.len(), stage.leads(), &turns, wrong)
    }

    /// An all-reduce of buffers in the heap, timed as `shmccl perf all_reduce` does.
    fn noted_sums(&mut self, duet: Option<&mut Duet>, len: u64) -> Result<()> {
        let (n_ranks, leads) = (self.comm.n_ranks(), self.comm.rank().get() == 0);
        let mut region = |len| self.comm.alloc_region(len, 4096);
        let ground = Ground { send: region(len)?, recv: region(len)?, mail: region(0)?, stage: region(0)? };
        let gathering = Gathering::new(self.comm, Average::Mean, self.plan.one_core)?;
        let gathering = Rc::new(RefCell::new(gathering));
        let mut ensemble = Ensemble::new(self.comm)?;
        let task = Task {
            operation: Operation::AllReduce,
            op: Some(ReduceOp::Sum),
            root: self.comm.rank(),
            layout: Layout::new(Operation::AllReduce, len, size_of::<f32>() as u64, n_ranks.into()),
            in_place: false,
            check: self.plan.check,
        };
        let workload = Workload::<f32>::new(self.comm, task, ground, Memory::Heap)?;
        let sums = RefCell::new(Trial::new(ByLibrary(self.comm), workload, &gathering, len));
        let set_tracing = |sums: &mut Trial<_, ByLibrary<'_>>, is_noted| sums.way().0.set_tracing(is_noted);
        let company = match duet {
            Some(duet) if n_ranks == 2 => Company::Two(duet),
            _ => Company::All(&mut ensemble),
        };
        let turns = turns(company, &sums, set_tracing, self.plan.effort(self.test, None))?;
        let wrong = sums.borrow().wrong();
        let wrong = gathering.borrow_mut().total(wrong)?;
        drop(sums);
        self.tell("all_reduce", len, leads, &turns, wrong)
    }

    /// Prints what `turns` say of an `operation` on `len` bytes.
    fn tell(&self, operation: &str, len: u64, leads: bool, turns: &Turns, wrong: u64) -> Result<()> {
        for (lane, name) in AGAINST {
            let verdicts = turns.verdict(lane, |samples| samples[1].clone()).into_iter().collect();
            let outcome = Outcome { verdicts, operations: turns.operations, wrong };
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

/// Lets the same `lane` be noted and not, in turns.
fn turns<L: Lane>(
    company: Company<'_>,
    lane: &RefCell<L>,
    set_tracing: impl Fn(&mut L, bool),
    effort: Effort,
) -> Result<Turns> {
    let set_tracing = &set_tracing;
    let mut lanes = NOTED.map(|is_noted| Turn { lane, set_tracing, is_noted });
    let mut lanes: Vec<&mut dyn Lane> = lanes.iter_mut().map(|lane| lane as &mut dyn Lane).collect();
    let field = Field { tests: NOTED.len(), fewest_slices: FEWEST_SLICES };
    Ok(take_turns(company, &mut lanes, field, effort)?)
}
