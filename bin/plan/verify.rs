//! `shmccl plan run`: calls by a plan in processes of its ranks, each held against what its
//! collective is.

use std::path::PathBuf;

use anyhow::Result;
use shmccl::bootstrap::ProxyMode;
use shmccl_harness::case::{CollectiveBuffers, whole_pages};
use shmccl_harness::format::{Extras, SizeRange, TableHead};
use shmccl_harness::jobs::{DeviceJob, LAST_WORDS, Screen};

use super::device::{VARIABLE, VerifyOrder};
use super::flags::VerifyArgs;
use crate::failure::DONE;
use crate::planned::PlannedTest;
use crate::{nccl_table, output};

/// The hidden command that device processes run.
const DEVICE_COMMAND: &str = "plan-device";

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
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let n_ranks = planned.n_ranks();
    let settings = planned.settings(planned.test, n_ranks, &sizes)?;
    let heap_len = CollectiveBuffers::heap_len(largest).saturating_add(whole_pages(settings.heap_len));
    let order = VerifyOrder {
        file: settings.file,
        test: planned.test,
        types: types(&planned)?,
        ops: planned.operators(),
        sizes,
        calls: CALLS,
    };
    planned.check_heap(heap_len, &order.sizes, "--sizes")?;
    let least = order.sizes.iter().copied().min().unwrap_or(0);
    let head = TableHead {
        test: order.test,
        n_ranks,
        sizes: SizeRange { least, most: largest, step: 0, unit: "listed" },
        warmup: 1,
        iters: CALLS,
        check: 1,
    };
    let extras = Extras { percentiles: false, bound: false, heap: false };
    let job = DeviceJob {
        command: DEVICE_COMMAND,
        environment: vec![(VARIABLE, serde_json::to_string(&order)?)],
        ranks: n_ranks,
        heap_len,
        proxy: ProxyMode::Thread,
        timeout: args.timeout,
        // A rank that has found a plan stalled has it checked before it tells.
        grace: 4 * LAST_WORDS,
        is_pinned: true,
        // Calls go by the plan that is verified, and by no other.
        plans: Some(PathBuf::new()),
        is_traced: false,
    };
    output::detach();
    let screen = Screen { note: output::note, backlog: output::backlog };
    let rows = nccl_table::print(head, extras, |on_line| job.run(screen, on_line))?;
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
