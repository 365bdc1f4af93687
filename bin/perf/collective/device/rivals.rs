//! Algorithms for one operation, against each other and against the machine: they take turns, so that whatever the machine does
//! to one it does to all.

use std::cell::RefCell;

use anyhow::Result;
use shmccl::collective::Algorithm;

use super::turns::race;
use super::{Bench, Wanted};
use crate::perf::collective::number::{ForType, Number};
use crate::perf::collective::pattern::operator;
use crate::perf::collective::trial::{ByLibrary, Trial};
use crate::perf::collective::workload::Workload;
use crate::perf::contest::Field;
use crate::perf::lane::Lane;

/// Slices of each algorithm, however long they take: there are many.
const FEWEST_SLICES: u64 = 9;

/// The figures of all algorithms, of elements of some type.
pub(super) struct Rivalry<'b, 'a, 'w>(pub(super) &'b mut Bench<'a>, pub(super) Wanted<'w>);

impl ForType for Rivalry<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: Number>(self) -> Result<()> {
        self.0.rivals::<T>(self.1)
    }
}

/// One algorithm. All of them share their buffers.
struct Rival<'t, 'c, T> {
    work: &'t RefCell<Trial<T, ByLibrary<'c>>>,
    algorithm: Option<Algorithm>,
    wrong: u64,
}

impl<T: Number> Lane for Rival<'_, '_, T> {
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

impl Bench<'_> {
    fn rivals<T: Number>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let names = &self.settings.rivals;
        let op = self.operation.reduces().then(|| operator::<T>(wanted.op, self.comm.rank())).transpose()?;
        let task = self.task(wanted, op, size_of::<T>() as u64)?;
        let layout = task.layout;
        let mut limits = self.limits(wanted)?;
        let workload = Workload::<T>::new(self.comm, task, self.ground, self.settings.memory)?;
        let work = Trial::new(ByLibrary(self.comm), workload, &self.gathering, wanted.bytes);
        let work = RefCell::new(work.warmed(wanted.bytes));
        let rival = |name: &Option<String>| {
            Ok(Rival { work: &work, algorithm: name.as_deref().map(str::parse).transpose()?, wrong: 0 })
        };
        let mut rivals = names.iter().map(rival).collect::<Result<Vec<_>>>()?;
        let lanes: Vec<&mut dyn Lane> = rivals.iter_mut().map(|rival| rival as &mut dyn Lane).collect();
        let company = (&mut self.duet, &mut self.ensemble);
        let field = Field { tests: names.len(), fewest_slices: FEWEST_SLICES };
        let effort = self.plan.effort(self.test, Some(self.settings.channel));
        let race = race(company, lanes, &mut limits, field, effort)?;
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
