//! The device side of `shmccl tune`: one race after the other.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shmccl::collective::tuning::{BufferKind, Table};
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Rank};

use super::plan::Course;
use super::plan::Figure;
use super::plan::Plan;
use super::plan::VARIABLE;
use super::race::race;
use crate::output;
use crate::perf::collective::case::{CaseData, CaseSpec, CollectiveBuffers};
use crate::perf::collective::timed_case::{ByLibrary, TimedCase};
use crate::perf::interleave::Contender;
use crate::perf::report::Memory;
use crate::perf::sync::RankAverage;
use crate::perf::sync::{AllSync, Gathering};

/// Runs as a member of a tuning job.
///
/// # Errors
/// Whatever the job fails with.
pub(crate) fn run() -> Result<()> {
    let plan = std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is set by `shmccl tune` only"))?;
    let plan: Plan = serde_json::from_str(&plan).with_context(|| format!("{VARIABLE} holds no plan"))?;
    match join_job()? {
        Some(JoinedAs::Device(mut comm)) => {
            Track::new(&mut comm, &plan)?.run(&plan)?;
            Ok(comm.finalize()?)
        }
        Some(JoinedAs::Proxy) => Ok(()),
        None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

/// Where races take place.
struct Track<'c> {
    comm: &'c mut Communicator,
    oversubscribed: bool,
    data_buffers: CollectiveBuffers,
    gathering: Rc<RefCell<Gathering>>,
    all_sync: AllSync,
}

impl<'c> Track<'c> {
    fn new(comm: &'c mut Communicator, plan: &Plan) -> Result<Self> {
        let elements = plan.courses(comm.n_ranks()).iter().map(|course| course.layout.largest()).max();
        let len = elements.unwrap_or(0) * size_of::<f32>() as u64;
        let buffers = CollectiveBuffers::alloc(comm, len, 128, 0)?;
        let oversubscribed = comm.is_oversubscribed()?;
        // An operation is over when it is over everywhere.
        let gathering = Rc::new(RefCell::new(Gathering::new(comm, RankAverage::Most, oversubscribed)?));
        let all_sync = AllSync::new(comm)?;
        Ok(Self { comm, oversubscribed, data_buffers: buffers, gathering, all_sync })
    }

    /// All races of the plan, with as much time for each as is left for all.
    fn run(&mut self, plan: &Plan) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(plan.budget_ms);
        let courses = plan.courses(self.comm.n_ranks());
        for (index, course) in courses.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let to_come = u32::try_from(courses.len() - index).unwrap_or(u32::MAX);
            let figure =
                self.race(*course, left / to_come).with_context(|| format!("in {}", course.operation))?;
            if let Some(figure) = figure {
                output::print(&format!("{}\n", serde_json::to_string(&figure)?))?;
            }
        }
        Ok(())
    }

    /// One race; the figure on rank 0.
    fn race(&mut self, course: Course, time: Duration) -> Result<Option<Figure>> {
        let (n_ranks, oversubscribed, leads) =
            (self.comm.n_ranks(), self.oversubscribed, self.all_sync.leads());
        let built_in =
            Table::default().algorithm(course.operation, n_ranks, oversubscribed, course.buffers, course.len);
        let mut algorithms = vec![built_in, built_in];
        algorithms.extend(course.algorithms(n_ranks).into_iter().filter(|other| *other != built_in));
        let workload = self.workload(course)?;
        let bytes = course.layout.largest() * size_of::<f32>() as u64;
        let mut work = TimedCase::new(ByLibrary(&mut *self.comm), workload, &self.gathering, bytes);
        let entrants = race(&mut work, &mut self.all_sync, &algorithms, time)?;
        let wrong = self.gathering.borrow_mut().total(work.wrong())?;
        let mut entrants = entrants.into_iter();
        let (Some(built_in), Some(control)) = (entrants.next(), entrants.next()) else { return Ok(None) };
        Ok(leads.then(|| Figure {
            operation: course.operation.name().to_owned(),
            ranks: n_ranks,
            oversubscribed,
            buffers: course.buffers,
            bytes: course.len,
            built_in,
            control,
            others: entrants.collect(),
            wrong,
        }))
    }

    fn workload(&self, course: Course) -> Result<CaseData<f32>> {
        let spec = CaseSpec {
            operation: course.operation,
            op: course.operation.reduces().then_some(ReduceOp::Sum),
            root: Rank::new(0, self.comm.n_ranks())?,
            layout: course.layout,
            in_place: false,
            check: true,
        };
        let memory = match course.buffers {
            BufferKind::Heap => Memory::Heap,
            BufferKind::Ordinary => Memory::Ordinary,
        };
        Ok(CaseData::new(self.comm, spec, self.data_buffers, memory)?)
    }
}
