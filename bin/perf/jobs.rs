//! The launcher side of measuring: starts device processes for a plan, collects the rows of rank 0,
//! and makes one error of what failing processes say.

use std::time::Duration;

use anyhow::{Context, Result};
use shmccl::bootstrap::ProxyMode;
use shmccl::collective::PLANS_VARIABLE;
use shmccl::error::DeviceName;
use shmccl::heap::layout::HeapShape;
use shmccl::launch::{Launch, Observer, OutputBacklog, OutputLine, OutputStream, Program};
use shmccl::{Error, Rank};

use super::plan::{PerfPlan, VARIABLE};
use super::report::PerfRow;
use super::test::Test;
use crate::failure::UsageError;
use crate::flags::JobArgs;
use crate::host::HostFiles;
use crate::output;

/// The hidden command that device processes run.
pub(crate) const DEVICE_COMMAND: &str = "perf-device";

/// How long ranks may take to print their errors once one has failed or was killed. A rank that
/// waits for bare flags never learns of it, and is killed then.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);

/// Returns the core of each of `n_ranks` ranks; `None` where the scheduler decides.
///
/// # Errors
/// More ranks than there can be.
pub(crate) fn cores(n_ranks: u32, args: &JobArgs) -> Result<Vec<Option<u32>>> {
    let launch = Launch::new(n_ranks)?.proxy(ProxyMode::from(args.proxy));
    let plan = launch.pin(!args.no_pin).one_core_each().plan();
    let core = |rank| Ok(plan.placement(DeviceName::Rank(Rank::new(rank, n_ranks)?)).cpu);
    (0..n_ranks).map(core).collect()
}

/// Returns whether ranks 0 and 1, which measure, have to share a core.
///
/// # Errors
/// None: two ranks are always possible.
pub(crate) fn share_a_core(args: &JobArgs) -> Result<bool> {
    Ok(match cores(2, args)?.as_slice() {
        [Some(first), Some(second)] => first == second,
        _ => HostFiles::new().allowed_cpus().len() < 2,
    })
}

/// Notes on the screen what a shared core of both ranks means for the figures.
pub(crate) fn note_shared_core(one_core: bool) {
    if one_core {
        output::note(
            "one core for two ranks: whoever waits gives way, in the tests and in the limits (\"yielding\")",
        );
    }
}

/// The outcome of a job.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The rows that rank 0 reported.
    pub(crate) rows: Vec<PerfRow>,
    /// Time from the start until all ranks were ready.
    pub(crate) ready_after: Option<Duration>,
}

/// Runs `plan` in `ranks` device processes, and calls `on_row` for each row as it comes.
///
/// # Errors
/// The first cause when a process fails; a row that cannot be read.
pub(crate) fn run(
    plan: &PerfPlan,
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

/// Runs `plan` in `ranks` device processes, and calls `on_line` for each line that one prints.
/// Returns how long it took until all were ready.
///
/// # Errors
/// The first cause when a process fails; the first error of `on_line`.
pub(crate) fn supervise(
    plan: &PerfPlan,
    ranks: u32,
    args: &JobArgs,
    on_line: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Option<Duration>> {
    let environment = vec![(VARIABLE, serde_json::to_string(plan)?)];
    let is_traced = plan.tests.iter().any(|(test, _)| *test == Test::TraceCost);
    let (heap_len, heap_of) = (plan.heap_len(), "--minbytes and --maxbytes ask for too much");
    // A rank that has found a plan stalled has it checked before it tells.
    let is_planned = plan.collective.as_ref().is_some_and(|settings| settings.plan.is_some());
    let grace = if is_planned { 4 * LAST_WORDS } else { LAST_WORDS };
    let order = DeviceCommand { command: DEVICE_COMMAND, environment, heap_len, heap_of, is_traced, grace };
    carry_out(order, ranks, args, on_line)
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

/// Starts device processes like [`supervise`], but for any order.
///
/// # Errors
/// Those of [`supervise`].
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
    let program = Program::this_with([order.command]);
    output::detach();
    let launch = order
        .environment
        .into_iter()
        .fold(Launch::new(ranks)?, |launch, (name, value)| launch.env(name, value));
    let launch = match &args.plans {
        Some(directory) => launch.env(PLANS_VARIABLE, directory),
        None => launch,
    };
    let launch = launch
        .program(program.clone())
        .service(program)
        .heap_len(heap_len)
        .proxy(ProxyMode::from(args.proxy))
        .timeout(args.timeout)
        .grace(order.grace)
        .pin(!args.no_pin)
        .one_core_each()
        .capture_output(true);
    let launch = if order.is_traced { launch.trace("/dev/null") } else { launch };
    let mut collector =
        Collector { ready_after: None, errors: DeviceErrors::default(), trouble: None, on_line };
    let outcome = launch.supervise(&mut collector);
    let Collector { ready_after, errors, trouble, .. } = collector;
    if let Err(error) = outcome {
        return Err(errors.explain(error));
    }
    match trouble {
        Some(error) => Err(error),
        None => Ok(ready_after),
    }
}

struct Collector<'a> {
    ready_after: Option<Duration>,
    errors: DeviceErrors,
    trouble: Option<anyhow::Error>,
    on_line: &'a mut dyn FnMut(&str) -> Result<()>,
}

impl Observer for Collector<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_ready(&mut self, after: Duration) {
        self.ready_after = Some(after);
    }

    fn backlog(&self) -> OutputBacklog {
        output::backlog()
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        if line.stream == OutputStream::Stderr {
            match text.trim_end().strip_prefix("error: ") {
                Some(error) => self.errors.add(line.device, error),
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

/// Error lines of device processes, each with the devices that have printed it.
#[derive(Debug, Default)]
pub(crate) struct DeviceErrors(Vec<(String, Vec<DeviceName>)>);

impl DeviceErrors {
    /// Notes the error line of a device.
    pub(crate) fn add(&mut self, device: DeviceName, text: &str) {
        match self.0.iter_mut().find(|(said, _)| said == text) {
            Some((_, devices)) => devices.push(device),
            None => self.0.push((text.to_owned(), vec![device])),
        }
    }

    /// Makes the error that the job failed with, in the words of the device that is the first
    /// cause, if it printed any. The errors of the others are consequences and left out.
    pub(crate) fn explain(mut self, error: Error) -> anyhow::Error {
        let Error::DeviceFailed { device: cause, .. } = &error else { return error.into() };
        let Some((text, devices)) = self.0.iter_mut().find(|(_, devices)| devices.contains(cause)) else {
            return error.into();
        };
        devices.sort_by_key(|device| match device {
            DeviceName::Rank(rank) => rank.get(),
            DeviceName::Proxy => u32::MAX,
        });
        anyhow::anyhow!("{}: {text}", names(devices))
    }
}

/// Writes `rank 3`, `ranks 0, 1 and 2`, or `rank 0 and the proxy service`.
fn names(devices: &[DeviceName]) -> String {
    let ranks = devices.iter().filter(|device| matches!(device, DeviceName::Rank(_))).count();
    let name = |(index, device): (usize, &DeviceName)| match device {
        DeviceName::Rank(rank) if ranks > 1 && index == 0 => format!("ranks {rank}"),
        DeviceName::Rank(rank) if ranks > 1 => rank.to_string(),
        other => other.to_string(),
    };
    let mut names: Vec<String> = devices.iter().enumerate().map(name).collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmccl::Rank;
    use shmccl::error::ExitCause;

    fn rank(rank: u32) -> DeviceName {
        DeviceName::Rank(Rank::new(rank, 64).unwrap())
    }

    fn failed(device: DeviceName) -> Error {
        Error::DeviceFailed { device, cause: ExitCause::Code(1) }
    }

    #[test]
    fn what_all_ranks_say_is_told_once_with_who_said_it() {
        let mut errors = DeviceErrors::default();
        for device in [rank(2), rank(0), rank(1)] {
            errors.add(device, "out of device memory");
        }
        assert_eq!(errors.explain(failed(rank(2))).to_string(), "ranks 0, 1 and 2: out of device memory");
    }

    #[test]
    fn consequences_are_left_out_and_a_cause_that_said_nothing_is_named_as_it_ended() {
        let errors = || {
            let mut errors = DeviceErrors::default();
            errors.add(rank(0), "rank 1 was lost");
            errors.add(rank(1), "out of device memory");
            errors
        };
        assert_eq!(errors().explain(failed(rank(1))).to_string(), "rank 1: out of device memory");
        assert_eq!(errors().explain(failed(rank(2))).to_string(), "rank 2 exited with code 1");
        let interrupted = Error::Interrupted { signal: 2 };
        assert_eq!(errors().explain(interrupted).to_string(), "interrupted by SIGINT");
    }

    #[test]
    fn the_service_process_is_named_behind_the_ranks() {
        assert_eq!(names(&[rank(4), DeviceName::Proxy]), "rank 4 and the proxy service");
        assert_eq!(names(&[rank(4), rank(7), DeviceName::Proxy]), "ranks 4, 7 and the proxy service");
    }
}
