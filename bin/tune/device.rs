//! The device side of `shmccl tune`: one operation after the other, at one size after the other.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shmccl::collective::AlgorithmName;
use shmccl::collective::tuning::{BufferKind, Case, built_in};
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::ReduceOp;
use shmccl::{Communicator, Rank};
use shmccl_harness::case::{CaseData, CaseSpec, CollectiveBuffers};
use shmccl_harness::interleave::Contender;
use shmccl_harness::report::Memory;
use shmccl_harness::sync::{AllSync, Gathering, RankAverage};
use shmccl_harness::timed_case::{ByLibrary, TimedCase};

use super::rounds;
use super::spec::{TuneFigure, TunePoint, TuneSpec, VARIABLE};
use crate::output;

/// Runs as a member of a tuning job.
///
/// # Errors
/// Returns the errors of the job.
pub(crate) fn run() -> Result<()> {
    let spec = std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is set by `shmccl tune` only"))?;
    let spec: TuneSpec = serde_json::from_str(&spec).with_context(|| format!("{VARIABLE} holds no spec"))?;
    match join_job()? {
        Some(JoinedAs::Device(mut comm)) => {
            TuningDevice::new(&mut comm, &spec)?.run(&spec)?;
            Ok(comm.finalize()?)
        }
        Some(JoinedAs::Proxy) => Ok(()),
        None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

/// What every measurement uses.
struct TuningDevice<'c> {
    comm: &'c mut Communicator,
    oversubscribed: bool,
    data_buffers: CollectiveBuffers,
    gathering: Rc<RefCell<Gathering>>,
    all_sync: AllSync,
    /// The execution plans that take part.
    plans: Vec<AlgorithmName>,
}

impl<'c> TuningDevice<'c> {
    fn new(comm: &'c mut Communicator, spec: &TuneSpec) -> Result<Self> {
        let elements = spec.points(comm.n_ranks()).iter().map(|point| point.layout.largest()).max();
        let len = elements.unwrap_or(0) * size_of::<f32>() as u64;
        let buffers = CollectiveBuffers::alloc(comm, len, 128, 0)?;
        let oversubscribed = comm.is_oversubscribed()?;
        // An operation has ended when it has ended on every rank.
        let gathering = Rc::new(RefCell::new(Gathering::new(comm, RankAverage::Most, oversubscribed)?));
        let all_sync = AllSync::new(comm)?;
        let plans = spec.plans.iter().cloned().map(AlgorithmName::Plan).collect();
        Ok(Self { comm, oversubscribed, data_buffers: buffers, gathering, all_sync, plans })
    }

    /// Measures all points of the spec, and gives each an equal share of the time that is left.
    fn run(&mut self, spec: &TuneSpec) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(spec.budget_ms);
        let points = spec.points(self.comm.n_ranks());
        for (index, point) in points.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            let to_come = u32::try_from(points.len() - index).unwrap_or(u32::MAX);
            let figure =
                self.measure(*point, left / to_come).with_context(|| format!("in {}", point.operation))?;
            if let Some(figure) = figure {
                output::print_json(&figure)?;
            }
        }
        Ok(())
    }

    /// Measures one point; rank 0 returns the figure.
    fn measure(&mut self, point: TunePoint, time: Duration) -> Result<Option<TuneFigure>> {
        let (n_ranks, oversubscribed, leads) =
            (self.comm.n_ranks(), self.oversubscribed, self.all_sync.leads());
        let TunePoint { operation, buffers, .. } = point;
        let case = Case { operation, n_ranks, oversubscribed, buffers, steps: Vec::new() };
        let built_in = built_in(operation, n_ranks, oversubscribed, point.len);
        let mut algorithms = vec![built_in, built_in];
        algorithms.extend(point.algorithms(n_ranks).into_iter().filter(|other| *other != built_in));
        let mut algorithms: Vec<_> = algorithms.into_iter().map(AlgorithmName::from).collect();
        let mut workload = self.workload(point)?;
        algorithms.extend(self.fitting_plans(&case, &mut workload)?);
        let bytes = point.layout.largest() * size_of::<f32>() as u64;
        let mut trial = TimedCase::new(ByLibrary(&mut *self.comm), workload, &self.gathering, bytes);
        let results = rounds::measure(&mut trial, &mut self.all_sync, &case, algorithms, time)?;
        let wrong = self.gathering.borrow_mut().total(trial.wrong())?;
        let mut results = results.into_iter();
        let (Some(built_in), Some(control)) = (results.next(), results.next()) else { return Ok(None) };
        Ok(leads.then(|| TuneFigure {
            operation: point.operation.name().to_owned(),
            ranks: n_ranks,
            oversubscribed,
            buffers: point.buffers,
            bytes: point.len,
            built_in,
            control,
            others: results.collect(),
            wrong,
        }))
    }

    /// Returns the execution plans that do the operation of `data`, which each has done once.
    fn fitting_plans(&mut self, case: &Case, data: &mut CaseData<f32>) -> Result<Vec<AlgorithmName>> {
        let mut fitting = Vec::new();
        for plan in self.plans.iter().filter(|plan| plan.supports(case.operation)) {
            let AlgorithmName::Plan(name) = plan else { continue };
            rounds::choose(self.comm, case, plan)?;
            let before = self.comm.planned_calls(name);
            data.rewrite()?;
            data.run(self.comm)?;
            if self.comm.planned_calls(name) > before {
                fitting.push(plan.clone());
            }
        }
        Ok(fitting)
    }

    fn workload(&self, point: TunePoint) -> Result<CaseData<f32>> {
        let spec = CaseSpec {
            operation: point.operation,
            op: point.operation.reduces().then_some(ReduceOp::Sum),
            root: Rank::new(0, self.comm.n_ranks())?,
            layout: point.layout,
            in_place: false,
            check: true,
        };
        let memory = match point.buffers {
            BufferKind::Heap => Memory::Heap,
            BufferKind::Ordinary => Memory::Ordinary,
        };
        Ok(CaseData::new(self.comm, spec, self.data_buffers, memory)?)
    }
}
