//! A figure of ordinary memory, beside the same operation on buffers in the heap and beside a hand-written loop over such memory.
//!
//! Each of them has buffers of its own, and those of all together do not fit into the caches. So each slice begins with operations
//! that nobody times ([`Trial::settled`]): what is compared is what a program gets that has only these buffers.

use std::cell::RefCell;

use anyhow::Result;
use shmccl::collective::Operation;
use shmccl::reduce::ReduceOp;

use super::turns::race;
use super::{Bench, Limit, Wanted};
use crate::perf::collective::number::{ForType, Number};
use crate::perf::collective::pattern::operator;
use crate::perf::collective::settings::Memory;
use crate::perf::collective::staged::{Cut, Staged};
use crate::perf::collective::trial::{ByLibrary, Trial, Way};
use crate::perf::collective::workload::Workload;
use crate::perf::contest::{FEWEST_SLICES, Field};
use crate::perf::lane::Lane;

/// The figure of elements of some type.
pub(super) struct Beside<'b, 'a, 'w>(pub(super) &'b mut Bench<'a>, pub(super) Wanted<'w>);

impl ForType for Beside<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: Number>(self) -> Result<()> {
        self.0.beside::<T>(self.1)
    }
}

/// One of several lanes that share a trial, which each arranges for itself before a slice, and again after it.
struct Turn<'t, T, W, A> {
    trial: &'t RefCell<Trial<T, W>>,
    arrange: A,
    /// Elements that were wrong in its slices.
    wrong: u64,
}

impl<'t, T, W, A> Turn<'t, T, W, A> {
    fn new(trial: &'t RefCell<Trial<T, W>>, arrange: A) -> Self {
        Self { trial, arrange, wrong: 0 }
    }
}

impl<T: Number, W: Way<T>, A: FnMut(&mut Trial<T, W>)> Lane for Turn<'_, T, W, A> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        let mut trial = self.trial.borrow_mut();
        (self.arrange)(&mut trial);
        let before = trial.wrong();
        trial.slice(ops, samples)?;
        self.wrong += trial.wrong() - before;
        (self.arrange)(&mut trial);
        Ok(())
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl Bench<'_> {
    fn beside<T: Number>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let op = self.operation.reduces().then(|| operator::<T>(wanted.op, self.comm.rank())).transpose()?;
        let task = self.task(wanted, op, size_of::<T>() as u64)?;
        let layout = task.layout;
        let by_hand = self.by_hand(wanted)?;
        let otherwise = self.otherwise(wanted);
        let mut limits = match &by_hand {
            Some(trial) => by_cuts(trial, wanted, &otherwise),
            None => self.limits(wanted)?,
        };
        let on_heap = Workload::<T>::new(self.comm, task.clone(), self.ground, Memory::Heap)?;
        let on_heap = RefCell::new(on_heap);
        let workload = Workload::<T>::new(self.comm, task, self.ground, Memory::Ordinary)?;
        let trial = Trial::new(ByLibrary(self.comm), workload, &self.gathering, wanted.bytes);
        let trial = RefCell::new(trial.settled(Memory::Ordinary));
        let mut test = Turn::new(&trial, |_: &mut _| ());
        let swap = |trial: &mut Trial<T, _>| trial.swap(&mut on_heap.borrow_mut());
        let mut heap = Turn::new(&trial, swap);
        let company = (&mut self.duet, &mut self.ensemble);
        let field = Field { tests: 1, fewest_slices: FEWEST_SLICES };
        let lanes: Vec<&mut dyn Lane> = vec![&mut test, &mut heap];
        let race = race(company, lanes, &mut limits, field, self.plan.effort(self.test, None))?;
        let wrong = trial.borrow().wrong() + on_heap.borrow().wrong;
        let wrong = self.gathering.borrow_mut().total(wrong)?;
        if self.comm.rank().get() == 0 {
            let heap = race.turns().verdict(0, |samples| samples[1].clone());
            let outcome = race.outcome(0, wrong);
            self.report(wanted, layout, &self.settings.algorithm, &limits, outcome, heap.as_ref())?;
        }
        Ok(())
    }

    /// The hand-written loop, where there is one for this operation.
    fn by_hand(&mut self, wanted: Wanted<'_>) -> Result<Option<RefCell<Trial<f32, Staged>>>> {
        if self.operation != Operation::AllReduce {
            return Ok(None);
        }
        let task = self.task(wanted, Some(ReduceOp::Sum), size_of::<f32>() as u64)?;
        let mut workload = Workload::<f32>::new(self.comm, task, self.ground, Memory::Ordinary)?;
        let behind = workload.own().map_or(0, |own| own.behind_line());
        let staged = Staged::new(self.comm, self.ground, behind)?;
        let trial = Trial::new(staged, workload, &self.gathering, wanted.bytes);
        Ok(Some(RefCell::new(trial.settled(Memory::Ordinary))))
    }
}

/// `trial` in each way for what is `wanted`; behind the names stands what it does `otherwise` than the operation.
fn by_cuts<'t>(
    trial: &'t RefCell<Trial<f32, Staged>>,
    wanted: Wanted<'_>,
    otherwise: &str,
) -> Vec<Limit<'t>> {
    let lane = |cut: Cut| {
        let arrange = move |trial: &mut Trial<f32, Staged>| trial.way().cut(cut);
        let lane: Box<dyn Lane + 't> = Box::new(Turn::new(trial, arrange));
        (cut.name() + otherwise, lane)
    };
    Cut::all_of(wanted.bytes, wanted.in_place).into_iter().map(lane).collect()
}
