//! How long it takes until device processes are up: started, met, mapped into each other, ready.

use anyhow::Result;

use super::jobs;
use super::plan::Plan;
use super::stats::Times;
use crate::args::{JobArgs, Test};
use crate::row::Row;

/// Jobs that are started for one figure, unless the user says how many.
const JOBS: u64 = 20;

/// Starts `ranks` processes that do nothing, again and again.
///
/// # Errors
/// Whatever keeps a job from starting.
pub(crate) fn measure(ranks: u32, iters: Option<u64>, args: &JobArgs) -> Result<Row> {
    let plan =
        Plan { tests: Vec::new(), sizes: Vec::new(), iters: None, warmup: None, check: true, figure_ms: 0 };
    let mut times = Times::new();
    for _ in 0..iters.unwrap_or(JOBS) {
        let finished = jobs::run(&plan, ranks, args, &mut |_| {})?;
        if let Some(ready_after) = finished.ready_after {
            times.record(ready_after.as_secs_f64() * 1e9);
        }
    }
    let mut row = Row::new(Test::Launch, ranks);
    row.set_times(times.summary());
    Ok(row)
}
