//! The device side of `shmccl plan run`: calls by the plan at each size, out of place and in place,
//! each held against what its collective is.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shmccl::collective::Operation;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::DataType;
use shmccl::{Communicator, Rank};
use shmccl_harness::case::{CaseData, CaseSpec, CollectiveBuffers, Planned, is_defined};
use shmccl_harness::interleave::{Contender, Effort, FEWEST_SLICES, Participants, interleave};
use shmccl_harness::layout::CaseLayout;
use shmccl_harness::lines::{DeviceLine, RankPlacement};
use shmccl_harness::pattern::{ForType, TestElement, check_operator, operator, with_type};
use shmccl_harness::report::{Memory, row_of};
use shmccl_harness::sync::{AllSync, Gathering, RankAverage};
use shmccl_harness::test::{Test, TestChannel};
use shmccl_harness::timed_case::{ByLibrary, TimedCase};

use crate::{output, planned};

/// The environment variable that carries the order, as JSON.
pub(super) const VARIABLE: &str = "SHMCCL_PLAN_RUN";

/// What device processes are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VerifyOrder {
    /// The plan.
    pub(super) file: PathBuf,
    /// The test of its collective.
    pub(super) test: Test,
    /// Names of element types.
    pub(super) types: Vec<String>,
    /// Names of operators.
    pub(super) ops: Vec<String>,
    /// Sizes in bytes.
    pub(super) sizes: Vec<u64>,
    /// Calls of each kind.
    pub(super) calls: u64,
    /// Whether ranks 0 and 1 share a core.
    pub(super) one_core: bool,
}

/// Runs as a member of the job.
///
/// # Errors
/// Whatever the job fails with; a process that is no member of one.
pub(crate) fn run() -> Result<()> {
    let order =
        std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is set by `shmccl plan run` only"))?;
    let order: VerifyOrder =
        serde_json::from_str(&order).with_context(|| format!("{VARIABLE} holds no order"))?;
    match join_job()? {
        Some(JoinedAs::Device(mut comm)) => {
            verify(&mut comm, &order).with_context(|| format!("in {}", order.test.name()))?;
            Ok(comm.finalize()?)
        }
        Some(JoinedAs::Proxy) => Ok(()),
        None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

fn verify(comm: &mut Communicator, order: &VerifyOrder) -> Result<()> {
    let operation = order.test.operation().context("no collective operation")?;
    output::print_json(&DeviceLine::Placement(RankPlacement::of(comm)))?;
    let plan = planned::register(comm, &order.file)?;
    let buffers = CollectiveBuffers::alloc(comm, order.sizes.iter().copied().max().unwrap_or(0), 0, 0)?;
    let gathering = Gathering::new(comm, RankAverage::Mean, order.one_core)?;
    let (gathering, all) = (Rc::new(RefCell::new(gathering)), AllSync::new(comm)?);
    let mut verifier = Verifier { comm, order, operation, plan, buffers, gathering, all };
    let verified = verifier.calls();
    if let Some(line) = verified.as_ref().err().and_then(DeviceLine::of_stalled) {
        output::print_json(&line)?;
    }
    verified
}

/// What all calls use.
struct Verifier<'a> {
    comm: &'a mut Communicator,
    order: &'a VerifyOrder,
    operation: Operation,
    plan: Planned,
    buffers: CollectiveBuffers,
    gathering: Rc<RefCell<Gathering>>,
    all: AllSync,
}

/// Calls of one kind.
struct VerifiedCalls<'v, 'a> {
    verifier: &'v mut Verifier<'a>,
    data_type: DataType,
    op: &'a str,
    bytes: u64,
    in_place: bool,
}

impl Verifier<'_> {
    /// Does calls of all types, operators that are defined on them, and sizes.
    fn calls(&mut self) -> Result<()> {
        let order = self.order;
        for data_type in &order.types {
            let data_type = data_type.parse()?;
            for op in &order.ops {
                if self.operation.reduces() && check_operator(data_type, op).is_err() {
                    continue;
                }
                for &bytes in &order.sizes {
                    for in_place in [false, true] {
                        let calls = VerifiedCalls { verifier: &mut *self, data_type, op, bytes, in_place };
                        with_type(data_type, calls)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl ForType for VerifiedCalls<'_, '_> {
    type Outcome = Result<()>;

    /// Does the calls, and has rank 0 print their row.
    fn run<T: TestElement>(self) -> Result<()> {
        let Self { verifier, data_type, op, bytes, in_place } = self;
        let Verifier { comm, order, operation, plan, buffers, gathering, all } = verifier;
        let (n_ranks, leads) = (comm.n_ranks(), comm.rank().get() == 0);
        let spec = CaseSpec {
            operation: *operation,
            op: operation.reduces().then(|| operator::<T>(op, comm.rank())).transpose()?,
            root: Rank::new(0, n_ranks)?,
            layout: CaseLayout::new(*operation, bytes, size_of::<T>() as u64, n_ranks.into()),
            in_place,
            check: is_defined(*operation, in_place),
        };
        let mut data = CaseData::<T>::new(comm, spec.clone(), *buffers, Memory::Heap)?.by_plan(Some(plan));
        planned::check(plan, comm, &mut data, || {
            format!("{} of {bytes} bytes of {data_type} ({op})", order.test.name())
        })?;
        let mut calls = TimedCase::new(ByLibrary(comm), data, gathering, bytes);
        let effort = Effort {
            iters: Some(order.calls),
            warmup: Some(1),
            fewest_slices: FEWEST_SLICES,
            ..Effort::default()
        };
        let measured = interleave(Participants::All(all), &mut [&mut calls], &[], effort)?;
        let wrong = gathering.borrow_mut().total(calls.wrong())?;
        if !leads {
            return Ok(());
        }
        let comparison = measured.comparisons.first().context("nothing was measured")?;
        let mut row = row_of(order.test, Some(TestChannel::Memory), n_ranks, comparison, "");
        row.bytes = Some(spec.layout.largest() * data_type.size() as u64);
        row.wrong = spec.check.then_some(wrong);
        row.set_bandwidth(row.bytes.unwrap_or(0));
        row.collective = Some(spec.figures(&row, data_type, op, Memory::Heap));
        output::print_json(&DeviceLine::Figure(Box::new(row)))
    }
}
