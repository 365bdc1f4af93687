//! `shmccl plan run`: calls by a plan in processes of its ranks, each held against what its
//! collective is.

use anyhow::Result;
use shmccl_harness::format::{Extras, SizeRange};
use shmccl_harness::report::Memory;
use shmccl_harness::sync::RankAverage;
use shmccl_harness::test::TestChannel;

use super::flags::VerifyArgs;
use crate::device_job;
use crate::failure::DONE;
use crate::flags::{JobArgs, ProxyPlace};
use crate::output;
use crate::perf::collective::table;
use crate::perf::plan::{CollectiveSettings, PerfPlan};
use crate::planned::PlannedTest;

/// The types of elements.
const TYPES: [&str; 3] = ["int32", "float", "half"];

/// The types of elements of plans that cut all of these.
const SHORT_TYPES: [&str; 2] = ["int8", "uint8"];

/// Calls of each kind.
const CALLS: u64 = 5;

/// Runs the command.
///
/// # Errors
/// A plan of no operation; sizes that do not fit it; a job that fails; wrong data.
pub(crate) fn run(args: &VerifyArgs) -> Result<u8> {
    let planned = PlannedTest::read(&args.file)?;
    let sizes = match args.sizes.as_slice() {
        [] => planned.usual_sizes()?,
        sizes => {
            planned.check_sizes(sizes, "--sizes")?;
            sizes.to_vec()
        }
    };
    let job =
        JobArgs { proxy: ProxyPlace::Thread, heap: None, timeout: args.timeout, no_pin: false, plans: None };
    let collective = CollectiveSettings {
        algorithm: None,
        plan: Some(planned.settings(planned.test, planned.n_ranks(), &sizes)?),
        channel: TestChannel::Memory,
        types: types(&planned)?,
        ops: planned.operators(),
        roots: Vec::new(),
        average: RankAverage::Mean,
        memory: Memory::Heap,
        percentiles: false,
        algorithms: Vec::new(),
    };
    let range = sizes.iter().copied().min().zip(sizes.iter().copied().max()).unwrap_or_default();
    let plan = PerfPlan {
        tests: vec![(planned.test, None)],
        sizes,
        iters: Some(CALLS),
        warmup: Some(1),
        one_core: device_job::share_a_core(&job)?,
        collective: Some(collective),
        ..PerfPlan::of_nothing()
    };
    planned.check_heap(plan.heap_len(), &plan.sizes, "--sizes")?;
    let extras = Extras { percentiles: false, bound: false, heap: false };
    let sizes = SizeRange { least: range.0, most: range.1, step: 0, unit: "listed" };
    let rows = table::measure(&plan, planned.n_ranks(), &job, sizes, 1, extras)?;
    match rows.iter().filter(|row| row.wrong.is_some_and(|wrong| wrong > 0)).count() {
        0 => Ok(DONE),
        wrong => anyhow::bail!("wrong data in {wrong} of {} rows", rows.len()),
    }
}

/// Returns types of elements that the plan does not cut, and notes which ones it would.
fn types(planned: &PlannedTest) -> Result<Vec<String>> {
    let [types, cut] = planned.split_types(&TYPES)?;
    let [short, _] = planned.split_types(&SHORT_TYPES)?;
    let types = if types.is_empty() { short } else { types };
    if !cut.is_empty() {
        let (types, cut) = (types.join(" and "), cut.join(" and "));
        output::note(&format!("run with {types} alone: the plan's `buffer_alignment` cuts {cut}"));
    }
    Ok(types)
}
