//! How long it takes until device processes are up: started, met, mapped into each other, ready.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::Effort;
use shmccl_harness::report::{PerfRow, row_of};
use shmccl_harness::slices::{Slices, UNPROBED};
use shmccl_harness::stats::ENOUGH_FOR_P99;
use shmccl_harness::test::Test;

use crate::flags::JobArgs;
use crate::perf::jobs;
use crate::perf::spec::PerfSpec;

/// Starts jobs of `ranks` processes that do one all_reduce, again and again. Between them it starts
/// as many processes that have nothing to do with each other: the limit.
///
/// # Errors
/// Whatever keeps a job from starting.
pub(crate) fn measure(ranks: u32, effort: Effort, args: &JobArgs) -> Result<PerfRow> {
    let spec = PerfSpec::of_nothing();
    let mut slices = Slices::of_means(1);
    let [fewest, most] = effort.iters.map_or([effort.fewest_slices, ENOUGH_FOR_P99], |iters| [iters; 2]);
    let (started, mut jobs) = (Instant::now(), 0);
    while jobs < fewest || jobs < most && started.elapsed() < effort.patience {
        jobs += 1;
        let finished = jobs::run(&spec, ranks, args, &mut |_| {})?;
        let ready_after = finished.ready_after.context("a job that was never ready")?;
        slices.push(UNPROBED, &[ready_after.as_secs_f64() * 1e9], &[bare_processes(ranks)?]);
    }
    let comparison = slices.compare().context("nothing was measured")?;
    let mut row = row_of(Test::Launch, None, ranks, &comparison, "spawn to first output of bare processes");
    row.iterations = jobs;
    Ok(row)
}

/// Measures the nanoseconds from the start of `count` processes of this executable until each of
/// them has printed something: until all run, as all ranks do when they are ready.
fn bare_processes(count: u32) -> Result<f64> {
    let this = std::env::current_exe().context("finding this executable")?;
    let start = now_ns();
    let spawn =
        |_| Command::new(&this).arg("--version").stdin(std::io::pipe()?.0).stdout(Stdio::piped()).spawn();
    let mut started = (0..count).map(spawn).collect::<std::io::Result<Vec<Child>>>();
    let heard = started.iter_mut().flatten().try_for_each(|child| {
        let stdout = child.stdout.as_mut().expect("it is piped");
        stdout.read_exact(&mut [0])
    });
    let took = now_ns() - start;
    let children = started.context("starting a bare process")?;
    // All are reaped, also where one could not be heard. It is of no account how they have ended.
    children.into_iter().for_each(|child| _ = child.wait_with_output());
    heard.context("hearing of a bare process")?;
    Ok(took as f64)
}
