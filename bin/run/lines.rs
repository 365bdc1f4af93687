//! Prints the output of ranks line by line, each behind the name of its rank.

use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use shmccl::error::{DeviceName, ExitCause};
use shmccl::launch::{Observer, OutputBacklog, OutputLine, OutputStream};
use shmccl::observe::{Job, Report};

use crate::output;

/// The colours of neighbouring ranks; neither black nor white, which may be the background.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Yellow,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::BrightRed,
];

/// The shortest time between two reports about losses.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Prints lines to the stream that they came from, with a colour per rank where the stream may have
/// colour.
#[derive(Debug)]
pub(super) struct Lines {
    colour_stdout: bool,
    colour_stderr: bool,
    /// Whether the job was interrupted before its output was closed.
    interrupted: bool,
    job: u64,
    /// Whether the stragglers were reported already, and when they were looked for. A look reads
    /// all processes of the host.
    has_told: bool,
    looked: Option<Instant>,
}

impl Lines {
    pub(super) fn new(job: u64) -> Self {
        Self {
            colour_stdout: output::has_colour(&io::stdout()),
            colour_stderr: output::has_colour(&io::stderr()),
            interrupted: false,
            job,
            has_told: false,
            looked: None,
        }
    }

    /// Whether the job was interrupted because its output was closed.
    pub(super) fn have_ended_the_job(&self) -> bool {
        !self.interrupted && output::failure().is_some()
    }
}

impl Observer for Lines {
    /// Reports what all ranks are doing when the first one is lost after a timeout. Later the
    /// others would have gone on.
    fn on_loss(&mut self, _device: DeviceName) {
        if self.has_told || self.looked.is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS) {
            return;
        }
        self.looked = Some(Instant::now());
        if let Some(report) = whereabouts(self.job).filter(Report::has_timed_out) {
            self.has_told = true;
            output::note(&report.to_string());
        }
    }

    fn on_quit(&mut self) {
        match whereabouts(self.job) {
            Some(report) => output::note(&report.to_string()),
            None => output::note("nothing can be told of this job"),
        }
    }

    fn on_stale_name(&mut self, name: &str, creator: u64) {
        output::note(&format!("removing /dev/shm/{name}, whose process {creator} was killed"));
    }

    fn on_hang(&mut self, device: DeviceName, silent: Duration, is_killed: bool) {
        let fate = if is_killed { "is killed" } else { "is left as it is, and lost to the others" };
        output::note(&format!("{device} has given no heartbeat for {} ms: it {fate}", silent.as_millis()));
    }

    fn on_restart(&mut self, device: DeviceName, cause: ExitCause, left: u32) {
        output::note(&format!("{device} {cause}; started again ({left} more times at most)"));
    }

    fn on_restart_failed(&mut self, device: DeviceName, error: &shmccl::Error) {
        let mut line = format!("{device} cannot be started again: {error}");
        let mut cause = error.source();
        while let Some(told) = cause {
            line = format!("{line}: {told}");
            cause = told.source();
        }
        output::note(&line);
    }

    fn on_output(&mut self, line: OutputLine<'_>) {
        let colour = match line.stream {
            OutputStream::Stdout => self.colour_stdout,
            OutputStream::Stderr => self.colour_stderr,
        };
        output::pass_on(line.stream, &prefixed(&line, colour));
    }

    fn backlog(&self) -> OutputBacklog {
        output::backlog()
    }

    fn on_interrupt(&mut self) {
        self.interrupted = output::failure().is_none();
    }

    /// Ends the job once its output is closed, as ranks without a prefix would end.
    fn wants_end(&mut self) -> bool {
        output::failure().is_some()
    }
}

/// Returns a report on a job of this process, with ranks that are left or have come back.
fn whereabouts(job: u64) -> Option<Report> {
    Job::newest().into_iter().find(|found| found.goes_by(job))?.report().ok()
}

/// Returns the line as it is printed: `[rank 3] text`.
fn prefixed(line: &OutputLine<'_>, colour: bool) -> Vec<u8> {
    let (name, ansi) = match line.device {
        DeviceName::Rank(rank) => (format!("[rank {rank}]"), COLOURS[rank.index() % COLOURS.len()]),
        DeviceName::Proxy => ("[proxy]".to_owned(), AnsiColor::BrightBlack),
    };
    let style = if colour { Style::new().fg_color(Some(ansi.into())) } else { Style::new() };
    let mut text = format!("{style}{name}{style:#} ").into_bytes();
    text.extend_from_slice(line.text);
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use shmccl::Rank;

    use super::*;

    fn line(device: DeviceName, text: &[u8]) -> OutputLine<'_> {
        OutputLine { device, stream: OutputStream::Stdout, text }
    }

    #[test]
    fn lines_carry_their_rank_and_their_bytes_as_they_are() {
        let rank = DeviceName::Rank(Rank::new(63, 64).unwrap());
        assert_eq!(prefixed(&line(rank, b"a\xff\tb "), false), b"[rank 63] a\xff\tb \n");
        assert_eq!(prefixed(&line(DeviceName::Proxy, b""), false), b"[proxy] \n");
    }

    #[test]
    fn neighbouring_ranks_differ_in_colour_and_the_text_has_none() {
        let coloured = |rank| prefixed(&line(DeviceName::Rank(Rank::new(rank, 64).unwrap()), b"x"), true);
        assert!(coloured(0).ends_with(b"\x1b[0m x\n"), "{:?}", coloured(0));
        assert_ne!(coloured(0)[..5], coloured(1)[..5]);
    }
}
