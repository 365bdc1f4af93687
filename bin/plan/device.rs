//! The device side of `shmccl plan run`: calls by the plan at each size, out of place and in place,
//! each held against what its collective is.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use shmccl::collective::Operation;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::DataType;
use shmccl::{Communicator, Rank};
use shmccl_harness::case::{CaseData, CaseSpec, CollectiveBuffers, Planned, is_defined};
use shmccl_harness::layout::CaseLayout;
use shmccl_harness::lines::{DeviceLine, RankPlacement};
use shmccl_harness::pattern::{ForType, TestElement, check_operator, operator, with_type};
use shmccl_harness::report::{Memory, PerfRow};
use shmccl_harness::sync::{Gathering, RankAverage};
use shmccl_harness::test::{Test, TestChannel};

use crate::{output, planned};

/// The environment variable that carries the order, as JSON.
pub(super) const VARIABLE: &str = "SHMCCL_PLAN_RUN";

/// The longest short message in bytes, and how many calls such messages have. What chance decides
/// comes out in more calls.
const SHORT: u64 = 8 << 10;
const SHORT_CALLS: u64 = 64;

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
    /// Calls of each kind that are timed, behind one that is not; of short messages there are more.
    pub(super) calls: u64,
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
    // Ranks that give way as they meet may share a core.
    let gathering = Gathering::new(comm, RankAverage::Mean, true)?;
    let mut verifier = Verifier { comm, order, operation, plan, buffers, gathering };
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
    gathering: Gathering,
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
        let Verifier { comm, order, operation, plan, buffers, gathering } = verifier;
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
        let mut times =
            timed_calls(comm, &mut data, gathering, if bytes <= SHORT { SHORT_CALLS } else { order.calls })?;
        let wrong = gathering.total(data.wrong)?;
        if !leads {
            return Ok(());
        }
        let mut row = PerfRow::new(order.test, n_ranks);
        row.channel = Some(TestChannel::Memory);
        row.iterations = times.len() as u64;
        times.sort_unstable_by(f64::total_cmp);
        row.times.p50_ns = times.get(times.len() / 2).copied();
        row.bytes = Some(spec.layout.largest() * data_type.size() as u64);
        row.wrong = spec.check.then_some(wrong);
        row.set_bandwidth(row.bytes.unwrap_or(0));
        row.collective = Some(spec.figures(&row, data_type, op, Memory::Heap));
        output::print_json(&DeviceLine::Figure(Box::new(row)))
    }
}

/// Does a call that is not timed and then `calls` that are, each on data of its own and verified.
/// Returns their times in nanoseconds on rank 0, the mean over ranks of each.
fn timed_calls<T: TestElement>(
    comm: &mut Communicator,
    data: &mut CaseData<T>,
    gathering: &mut Gathering,
    calls: u64,
) -> Result<Vec<f64>> {
    let (mut own, mut times) = (Vec::new(), Vec::new());
    for call in 0..=calls {
        data.rewrite()?;
        gathering.meet()?;
        let start = Instant::now();
        data.run(comm)?;
        let took = start.elapsed();
        data.verify()?;
        if call > 0 {
            own.push(took.as_nanos() as f64);
        }
    }
    gathering.hand_in(&own, &mut times)?;
    Ok(times)
}
