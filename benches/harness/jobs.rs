//! Jobs of device processes that measure: starting them, and making one error of what failing ones
//! say.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use shmccl::Error;
use shmccl::bootstrap::ProxyMode;
use shmccl::collective::PLANS_VARIABLE;
use shmccl::error::DeviceName;
use shmccl::launch::{Launch, Observer, OutputBacklog, OutputLine, OutputStream, Program};

/// How long ranks may take to print their errors once one has failed or was killed. A rank that
/// waits for bare flags never learns of it, and is killed then.
pub const LAST_WORDS: Duration = Duration::from_millis(500);

/// A job of device processes, all of which run a hidden command of this program.
#[derive(Clone, Debug)]
pub struct DeviceJob {
    /// The hidden command.
    pub command: &'static str,
    /// Variables of the environment.
    pub environment: Vec<(&'static str, String)>,
    /// Ranks.
    pub ranks: u32,
    /// The heap of each process.
    pub heap_len: u64,
    /// Where proxies run.
    pub proxy: ProxyMode,
    /// The longest time that any wait may take.
    pub timeout: Duration,
    /// How long ranks may take to print their errors once one has failed.
    pub grace: Duration,
    /// Whether each rank has a core to itself, as far as there are enough.
    pub is_pinned: bool,
    /// The directory of execution plans that calls may go by.
    pub plans: Option<PathBuf>,
    /// Whether a trace is written, to nowhere.
    pub is_traced: bool,
}

/// Where the launcher shows what is no row.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Shows a note.
    pub note: fn(&str),
    /// Returns how much output waits to be shown.
    pub backlog: fn() -> OutputBacklog,
}

impl DeviceJob {
    /// Runs the job, and calls `on_line` for each line that one of its processes prints. Returns
    /// how long it took until all were ready.
    ///
    /// # Errors
    /// The first cause when a process fails; the first error of `on_line`.
    pub fn run(
        self,
        screen: Screen,
        on_line: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Option<Duration>> {
        let (errors, ready_after) = (DeviceErrors::default(), None);
        let mut collector = Collector { ready_after, errors, trouble: None, screen, on_line };
        let outcome = self.launch()?.supervise(&mut collector);
        let Collector { ready_after, errors, trouble, .. } = collector;
        if let Err(error) = outcome {
            return Err(errors.explain(error));
        }
        match trouble {
            Some(error) => Err(error),
            None => Ok(ready_after),
        }
    }

    fn launch(self) -> Result<Launch> {
        let program = Program::this_with([self.command]);
        let launch = Launch::new(self.ranks)?;
        let launch =
            self.environment.into_iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        let launch = match &self.plans {
            Some(directory) => launch.env(PLANS_VARIABLE, directory),
            None => launch,
        };
        let launch = launch
            .program(program.clone())
            .service(program)
            .heap_len(self.heap_len)
            .proxy(self.proxy)
            .timeout(self.timeout)
            .grace(self.grace)
            .pin(self.is_pinned)
            .one_core_each()
            .capture_output(true);
        Ok(if self.is_traced { launch.trace("/dev/null") } else { launch })
    }
}

struct Collector<'a> {
    ready_after: Option<Duration>,
    errors: DeviceErrors,
    trouble: Option<anyhow::Error>,
    screen: Screen,
    on_line: &'a mut dyn FnMut(&str) -> Result<()>,
}

impl Observer for Collector<'_> {
    fn on_loss(&mut self, _device: DeviceName) {}

    fn on_ready(&mut self, after: Duration) {
        self.ready_after = Some(after);
    }

    fn backlog(&self) -> OutputBacklog {
        (self.screen.backlog)()
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        let text = String::from_utf8_lossy(line.text);
        if line.stream == OutputStream::Stderr {
            match text.trim_end().strip_prefix("error: ") {
                Some(error) => self.errors.add(line.device, error),
                None => (self.screen.note)(text.trim_end()),
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
struct DeviceErrors(Vec<(String, Vec<DeviceName>)>);

impl DeviceErrors {
    /// Notes the error line of a device.
    fn add(&mut self, device: DeviceName, text: &str) {
        match self.0.iter_mut().find(|(said, _)| said == text) {
            Some((_, devices)) => devices.push(device),
            None => self.0.push((text.to_owned(), vec![device])),
        }
    }

    /// Makes the error that the job failed with, in the words of the device that is the first
    /// cause, if it printed any. The errors of the others are consequences and left out.
    fn explain(mut self, error: Error) -> anyhow::Error {
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
