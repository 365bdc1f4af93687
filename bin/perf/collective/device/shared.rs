//! A figure of ordinary memory, beside the same operation on buffers in the heap and beside a hand-written loop over such memory.
//!
//! Each of them has buffers of its own, and those of all together do not fit into the caches. So each slice begins with operations
//! that nobody times ([`TimedCase::settled`]): what is compared is what a program gets that has only these buffers.
//!
//! MERGED:
//! Algorithms for one operation, against each other and against the machine: they take turns, so that whatever the machine does
//! to one it does to all.

use std::cell::RefCell;
use anyhow::Result;
use shmccl::collective::Operation;
use shmccl::reduce::ReduceOp;
use super::turns::race;
use super::{CollectiveBench, Limit, Wanted};
use crate::perf::collective::number::{ForType, TestElement};
use crate::perf::collective::pattern::operator;
use crate::perf::collective::settings::Memory;
use crate::perf::collective::staged::{StagedVariant, StagedLimit};
use crate::perf::collective::timed_case::{ByLibrary, TimedCase, RunCase};
use crate::perf::collective::case::CaseData;
use crate::perf::interleave::{FEWEST_SLICES, Field};
use crate::perf::contender::Contender;
use shmccl::collective::Algorithm;
use super::{CollectiveBench, Wanted};
use crate::perf::collective::timed_case::{ByLibrary, TimedCase};
use crate::perf::interleave::Field;

/// The figure of elements of some type.
pub(crate) struct Beside<'b, 'a, 'w>(pub(crate) &'b mut CollectiveBench<'a>, pub(crate) Wanted<'w>);

impl ForType for Beside<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: TestElement>(self) -> Result<()> {
        self.0.beside::<T>(self.1)
    }
}

/// One of several contenders that share a trial, which each arranges for itself before a slice, and again after it.
struct Turn<'t, T, W, A> {
    trial: &'t RefCell<TimedCase<T, W>>,
    arrange: A,
    /// Elements that were wrong in its slices.
    wrong: u64,
}

impl<'t, T, W, A> Turn<'t, T, W, A> {
    fn new(trial: &'t RefCell<TimedCase<T, W>>, arrange: A) -> Self {
        Self { trial, arrange, wrong: 0 }
    }
}

impl<T: TestElement, W: RunCase<T>, A: FnMut(&mut TimedCase<T, W>)> Contender for Turn<'_, T, W, A> {
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

impl CollectiveBench<'_> {
    fn beside<T: TestElement>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let op = self.operation.reduces().then(|| operator::<T>(wanted.op, self.comm.rank())).transpose()?;
        let task = self.task(wanted, op, size_of::<T>() as u64)?;
        let layout = task.layout;
        let by_hand = self.by_hand(wanted)?;
        let otherwise = self.otherwise(wanted);
        let mut limits = match &by_hand {
            Some(trial) => by_cuts(trial, wanted, &otherwise),
            None => self.limits(wanted)?,
        };
        let on_heap = CaseData::<T>::new(self.comm, task.clone(), self.ground, Memory::Heap)?;
        let on_heap = RefCell::new(on_heap);
        let workload = CaseData::<T>::new(self.comm, task, self.ground, Memory::Ordinary)?;
        let trial = TimedCase::new(ByLibrary(self.comm), workload, &self.gathering, wanted.bytes);
        let trial = RefCell::new(trial.settled(Memory::Ordinary));
        let mut test = Turn::new(&trial, |_: &mut _| ());
        let swap = |trial: &mut TimedCase<T, _>| trial.swap(&mut on_heap.borrow_mut());
        let mut heap = Turn::new(&trial, swap);
        let company = (&mut self.pair_sync, &mut self.all_sync);
        let field = Field { tests: 1, fewest_slices: FEWEST_SLICES };
        let contenders: Vec<&mut dyn Contender> = vec![&mut test, &mut heap];
        let race = race(company, contenders, &mut limits, field, self.plan.effort(self.test, None))?;
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
    fn by_hand(&mut self, wanted: Wanted<'_>) -> Result<Option<RefCell<TimedCase<f32, StagedLimit>>>> {
        if self.operation != Operation::AllReduce {
            return Ok(None);
        }
        let task = self.task(wanted, Some(ReduceOp::Sum), size_of::<f32>() as u64)?;
        let mut workload = CaseData::<f32>::new(self.comm, task, self.ground, Memory::Ordinary)?;
        let behind = workload.own().map_or(0, |own| own.behind_line());
        let staged = StagedLimit::new(self.comm, self.ground, behind)?;
        let trial = TimedCase::new(staged, workload, &self.gathering, wanted.bytes);
        Ok(Some(RefCell::new(trial.settled(Memory::Ordinary))))
    }
}

/// `trial` in each way for what is `wanted`; behind the names stands what it does `otherwise` than the operation.
fn by_cuts<'t>(
    trial: &'t RefCell<TimedCase<f32, StagedLimit>>,
    wanted: Wanted<'_>,
    otherwise: &str,
) -> Vec<Limit<'t>> {
    let contender = |cut: StagedVariant| {
        let arrange = move |trial: &mut TimedCase<f32, StagedLimit>| trial.way().cut(cut);
        let contender: Box<dyn Contender + 't> = Box::new(Turn::new(trial, arrange));
        (cut.name() + otherwise, contender)
    };
    StagedVariant::all_of(wanted.bytes, wanted.in_place).into_iter().map(contender).collect()
}

/// Slices of each algorithm, however long they take: there are many.
const FEWEST_SLICES: u64 = 9;

/// The figures of all algorithms, of elements of some type.
pub(crate) struct Rivalry<'b, 'a, 'w>(pub(crate) &'b mut CollectiveBench<'a>, pub(crate) Wanted<'w>);

impl ForType for Rivalry<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: TestElement>(self) -> Result<()> {
        self.0.rivals::<T>(self.1)
    }
}

/// One algorithm. All of them share their buffers.
struct Rival<'t, 'c, T> {
    work: &'t RefCell<TimedCase<T, ByLibrary<'c>>>,
    algorithm: Option<Algorithm>,
    wrong: u64,
}

impl<T: TestElement> Contender for Rival<'_, '_, T> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        let mut work = self.work.borrow_mut();
        work.way().0.set_algorithm(self.algorithm);
        let before = work.wrong();
        work.slice(ops, samples)?;
        self.wrong += work.wrong() - before;
        Ok(())
    }

    fn batch(&self) -> u64 {
        self.work.borrow().batch()
    }

    fn per_sample(&self) -> u64 {
        self.work.borrow().per_sample()
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl CollectiveBench<'_> {
    fn rivals<T: TestElement>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let names = &self.settings.rivals;
        let op = self.operation.reduces().then(|| operator::<T>(wanted.op, self.comm.rank())).transpose()?;
        let task = self.task(wanted, op, size_of::<T>() as u64)?;
        let layout = task.layout;
        let mut limits = self.limits(wanted)?;
        let workload = CaseData::<T>::new(self.comm, task, self.ground, self.settings.memory)?;
        let work = TimedCase::new(ByLibrary(self.comm), workload, &self.gathering, wanted.bytes);
        let work = RefCell::new(work.warmed(wanted.bytes));
        let rival = |name: &Option<String>| {
            Ok(Rival { work: &work, algorithm: name.as_deref().map(str::parse).transpose()?, wrong: 0 })
        };
        let mut rivals = names.iter().map(rival).collect::<Result<Vec<_>>>()?;
        let contenders: Vec<&mut dyn Contender> = rivals.iter_mut().map(|rival| rival as &mut dyn Contender).collect();
        let company = (&mut self.pair_sync, &mut self.all_sync);
        let field = Field { tests: names.len(), fewest_slices: FEWEST_SLICES };
        let effort = self.plan.effort(self.test, Some(self.settings.channel));
        let race = race(company, contenders, &mut limits, field, effort)?;
        let wrong: Vec<u64> = rivals.iter().map(|rival| rival.wrong).collect();
        for (test, (name, wrong)) in names.iter().zip(wrong).enumerate() {
            let wrong = self.gathering.borrow_mut().total(wrong)?;
            if self.comm.rank().get() == 0 {
                self.report(wanted, layout, name, &limits, race.outcome(test, wrong), None)?;
            }
        }
        Ok(())
    }
}
