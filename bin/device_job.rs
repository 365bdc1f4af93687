//! Jobs of device processes that measure, as flags say how they start.

use std::time::Duration;

use anyhow::Result;
use shmccl::Rank;
use shmccl::bootstrap::ProxyMode;
use shmccl::error::DeviceName;
use shmccl::heap::layout::HeapShape;
use shmccl::launch::Launch;
use shmccl_harness::cores::allowed_cpus;
use shmccl_harness::jobs::{DeviceJob, Screen};
use shmccl_harness::test::Test;

use crate::failure::UsageError;
use crate::flags::JobArgs;
use crate::output;

/// Returns the core of each of `n_ranks` ranks; `None` where the scheduler decides.
///
/// # Errors
/// More ranks than there can be.
pub(crate) fn cores(n_ranks: u32, args: &JobArgs) -> Result<Vec<Option<u32>>> {
    let launch = Launch::new(n_ranks)?.proxy(ProxyMode::from(args.proxy));
    let pinning = launch.pin(!args.no_pin).one_core_each().pinning();
    let core = |rank| Ok(pinning.placement(DeviceName::Rank(Rank::new(rank, n_ranks)?)).cpu);
    (0..n_ranks).map(core).collect()
}

/// Returns whether ranks 0 and 1, which measure, have to share a core.
///
/// # Errors
/// None: two ranks are always possible.
pub(crate) fn share_a_core(args: &JobArgs) -> Result<bool> {
    Ok(match cores(2, args)?.as_slice() {
        [Some(first), Some(second)] => first == second,
        _ => allowed_cpus().len() < 2,
    })
}

/// Says which cores `test` lacks, where this process has too few for it to show anything.
pub(crate) fn lack_of_cores(test: Test) -> Option<String> {
    let (needed, words) = match test {
        Test::FifoRate => (2, "two cores, one to push and one to serve"),
        Test::Overlap => (3, "three cores, one for the proxy beside those of two devices"),
        _ => return None,
    };
    let cores = allowed_cpus().len();
    let told = || format!("{} needs {words}; this process may use {cores}", test.name());
    (cores < needed).then(told)
}

/// Notes on the screen what a shared core of both ranks means for the figures.
pub(crate) fn note_shared_core(one_core: bool) {
    if one_core {
        output::note(
            "one core for two ranks: whoever waits gives way, in the tests and in the limits (\"yielding\")",
        );
    }
}

/// The command, environment and heap of device processes.
pub(crate) struct DeviceCommand {
    /// The hidden command of this program that the processes run.
    pub(crate) command: &'static str,
    /// Variables of the environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The heap of each process, where the user does not say.
    pub(crate) heap_len: u64,
    /// What asks for so much.
    pub(crate) heap_of: &'static str,
    /// Whether a trace is written, to nowhere.
    pub(crate) is_traced: bool,
    /// How long ranks may take to print their errors once one has failed.
    pub(crate) grace: Duration,
}

/// Runs a command in `ranks` device processes, and calls `on_line` for each line that one prints.
/// Returns how long it took until all were ready.
///
/// # Errors
/// More heap than there can be; the first cause when a process fails; the first error of `on_line`.
pub(crate) fn carry_out(
    order: DeviceCommand,
    ranks: u32,
    args: &JobArgs,
    on_line: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Option<Duration>> {
    let heap_len = args.heap.unwrap_or(order.heap_len);
    let whence = if args.heap.is_some() { "--heap" } else { order.heap_of };
    HeapShape::new(ranks, heap_len).map_err(|error| UsageError::new(format!("{whence}: {error}")))?;
    args.check_plans()?;
    output::detach();
    let job = DeviceJob {
        command: order.command,
        environment: order.environment,
        ranks,
        heap_len,
        proxy: args.proxy.into(),
        timeout: args.timeout,
        grace: order.grace,
        is_pinned: !args.no_pin,
        plans: args.plans.clone(),
        is_traced: order.is_traced,
    };
    job.run(Screen { note: output::note, backlog: output::backlog }, on_line)
}
