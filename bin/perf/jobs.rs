//! The launcher side of measuring: starts device processes for a spec, and collects the rows of
//! rank 0.

use std::time::Duration;

use anyhow::{Context, Result};
use shmccl_harness::jobs::LAST_WORDS;
use shmccl_harness::report::PerfRow;
use shmccl_harness::test::Test;

use super::spec::{PerfSpec, VARIABLE};
use crate::device_job::{DeviceCommand, carry_out};
use crate::flags::JobArgs;

/// The hidden command that device processes run.
pub(crate) const DEVICE_COMMAND: &str = "perf-device";

/// The outcome of a job.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The rows that rank 0 reported.
    pub(crate) rows: Vec<PerfRow>,
    /// Time from the start until all ranks were ready.
    pub(crate) ready_after: Option<Duration>,
}

/// Runs `spec` in `ranks` device processes, and calls `on_row` for each row as it comes.
///
/// # Errors
/// The first cause when a process fails; a row that cannot be read.
pub(crate) fn run(
    spec: &PerfSpec,
    ranks: u32,
    args: &JobArgs,
    on_row: &mut dyn FnMut(&PerfRow),
) -> Result<Finished> {
    let mut rows = Vec::new();
    let ready_after = supervise(spec, ranks, args, &mut |line| {
        let row: PerfRow = serde_json::from_str(line).context("reading a row")?;
        on_row(&row);
        rows.push(row);
        Ok(())
    })?;
    Ok(Finished { rows, ready_after })
}

/// Runs `spec` in `ranks` device processes, and calls `on_line` for each line that one prints.
/// Returns how long it took until all were ready.
///
/// # Errors
/// The first cause when a process fails; the first error of `on_line`.
pub(crate) fn supervise(
    spec: &PerfSpec,
    ranks: u32,
    args: &JobArgs,
    on_line: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Option<Duration>> {
    let environment = vec![(VARIABLE, serde_json::to_string(spec)?)];
    let is_traced = spec.tests.iter().any(|(test, _)| *test == Test::TraceCost);
    let (heap_len, heap_of) = (spec.heap_len(), "--minbytes and --maxbytes ask for too much");
    // A rank that has found a plan stalled has it checked before it tells.
    let is_planned = spec.collective.as_ref().is_some_and(|settings| settings.plan.is_some());
    let grace = if is_planned { 4 * LAST_WORDS } else { LAST_WORDS };
    let order = DeviceCommand { command: DEVICE_COMMAND, environment, heap_len, heap_of, is_traced, grace };
    carry_out(order, ranks, args, on_line)
}
