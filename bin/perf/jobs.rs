//! The launcher side of measuring: starts device processes for a plan and collects the rows that rank 0 prints.

use std::time::Duration;

use anyhow::{Context, Result};
use shmccl::Rank;
use shmccl::bootstrap::ProxyMode;
use shmccl::error::DeviceName;
use shmccl::heap::layout::HeapShape;
use shmccl::launch::{Launch, Observer, OutputLine, OutputStream, Program};

use super::complaints::Complaints;
use super::plan::{Plan, VARIABLE};
use crate::failure::UsageError;
use crate::flags::JobArgs;
use crate::host::HostFiles;
use crate::output;
use crate::perf::report::PerfRow;
use crate::perf::test::Test;

/// The hidden command that device processes run.
pub(crate) const DEVICE_COMMAND: &str = "perf-device";

/// How long ranks may take to say what is wrong with them once one has, or was killed. Who waits over bare flags never hears of it, and is
/// killed then.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The core of each of `n_ranks` ranks; `None` where the scheduler decides.
///
/// # Errors
/// More ranks than there can be.
pub(crate) fn cores(n_ranks: u32, args: &JobArgs) -> Result<Vec<Option<u32>>> {
    let plan = Launch::new(n_ranks)?.pin(!args.no_pin).plan();
    let core = |rank| Ok(plan.placement(DeviceName::Rank(Rank::new(rank, n_ranks)?)).cpu);
    (0..n_ranks).map(core).collect()
}

/// Whether ranks 0 and 1, which measure, have to share a core.
///
/// # Errors
/// None: two ranks are always possible.
pub(crate) fn share_a_core(args: &JobArgs) -> Result<bool> {
    Ok(match cores(2, args)?.as_slice() {
        [Some(first), Some(second)] => first == second,
        _ => HostFiles::new().allowed_cpus().len() < 2,
    })
}

/// Says what it means for the figures that both ranks have to share a core, where they do.
pub(crate) fn note_shared_core(one_core: bool) {
    if one_core {
        output::note(
            "one core for two ranks: whoever waits gives way, in the tests and in the limits (\"yielding\")",
        );
    }
}

/// What became of a job.
#[derive(Debug)]
pub(crate) struct Finished {
    /// What rank 0 reported.
    pub(crate) rows: Vec<PerfRow>,
    /// Time from the start until all ranks were ready.
    pub(crate) ready_after: Option<Duration>,
}

/// Runs `plan` in `ranks` device processes, and calls `on_row` for each row as it comes.
///
/// # Errors
/// The first cause when a process fails; a row that cannot be read.
pub(crate) fn run(
    plan: &Plan,
    ranks: u32,
    args: &JobArgs,
    on_row: &mut dyn FnMut(&PerfRow),
) -> Result<Finished> {
    let mut rows = Vec::new();
    let ready_after = supervise(plan, ranks, args, &mut |line| {
        let row: PerfRow = serde_json::from_str(line).context("reading a row")?;
        on_row(&row);
        rows.push(row);
        Ok(())
    })?;
    Ok(Finished { rows, ready_after })
}

/// Runs `plan` in `ranks` device processes, calls `on_line` for each line that one prints, and returns how long it took until
/// all were ready.
///
/// # Errors
/// The first cause when a process fails; the first error of `on_line`.
pub(crate) fn supervise(
    plan: &Plan,
    ranks: u32,
    args: &JobArgs,
    on_line: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Option<Duration>> {
    let environment = vec![(VARIABLE, serde_json::to_string(plan)?)];
    let is_traced = plan.tests.iter().any(|(test, _)| *test == Test::TraceCost);
    let order = Order { command: DEVICE_COMMAND, environment, heap_len: plan.heap_len(), is_traced };
    carry_out(order, ranks, args, on_line)
}

/// What device processes are started with.
pub(crate) struct Order {
    /// The hidden command of this program that they run.
    pub(crate) command: &'static str,
    /// Variables of their environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The heap of each, where the user does not say.
    pub(crate) heap_len: u64,
    /// Whether a trace is written, to nowhere.
    pub(crate) is_traced: bool,
}

/// The same for any order.
///
/// # Errors
/// Those of [`supervise`].
pub(crate) fn carry_out(
    order: Order,
    ranks: u32,
    args: &JobArgs,
    on_line: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Option<Duration>> {
    let heap_len = args.heap.unwrap_or(order.heap_len);
    let whence = if args.heap.is_some() { "--heap" } else { "--minbytes and --maxbytes ask for too much" };
    HeapShape::new(ranks, heap_len).map_err(|error| UsageError::new(format!("{whence}: {error}")))?;
    let program = Program::new(std::env::current_exe().context("finding this executable")?, [order.command]);
    let launch = order
        .environment
        .into_iter()
        .fold(Launch::new(ranks)?, |launch, (name, value)| launch.env(name, value));
    let launch = launch
        .program(program.clone())
        .service(program)
        .heap_len(heap_len)
        .proxy(ProxyMode::from(args.proxy))
        .timeout(args.timeout)
        .grace(LAST_WORDS)
        .pin(!args.no_pin)
        .capture_output(true);
    let launch = if order.is_traced { launch.trace("/dev/null") } else { launch };
    let mut collector =
        Collector { ready_after: None, complaints: Complaints::default(), trouble: None, on_line };
    let outcome = launch.supervise(&mut collector);
    let Collector { ready_after, complaints, trouble, .. } = collector;
    if let Err(error) = outcome {
        return Err(complaints.explain(error));
    }
    match trouble {
        Some(error) => Err(error),
        None => Ok(ready_after),
    }
}

struct Collector<'a> {
    ready_after: Option<Duration>,
    complaints: Complaints,
    trouble: Option<anyhow::Error>,
    on_line: &'a mut dyn FnMut(&str) -> Result<()>,
}

impl Observer for Collector<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_ready(&mut self, after: Duration) {
        self.ready_after = Some(after);
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        if line.stream == OutputStream::Stderr {
            match text.trim_end().strip_prefix("error: ") {
                Some(complaint) => self.complaints.add(line.device, complaint),
                None => output::note(text.trim_end()),
            }
            return;
        }
        let taken = (self.on_line)(&text).with_context(|| format!("in the output of {}", line.device));
        if let Err(error) = taken {
            self.trouble = self.trouble.take().or(Some(error));
        }
    }
}
