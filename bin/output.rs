//! Where output goes and how it looks: tables to stdout, everything else to stderr, colour and
//! progress on a terminal only. If stdout is for a report, tables go to stderr, too. Commands that
//! supervise others write through threads (`writer.rs`).
//!
//! Tried by its unit tests, `command run::output::` and `environments unread::`.

mod writer;

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use shmccl::launch::{OutputBacklog, OutputStream};

use writer::OutputWriter;

/// Set once stdout belongs to a report.
static STDOUT_IS_TAKEN: OnceLock<()> = OnceLock::new();

/// Sends tables to stderr from now on: stdout is for a report that programs read.
pub(crate) fn take_stdout() {
    STDOUT_IS_TAKEN.get_or_init(|| ());
}

fn is_stdout_taken() -> bool {
    STDOUT_IS_TAKEN.get().is_some()
}

/// The look of the stream that tables go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableLook {
    /// Whether colour may be used. `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` are heeded.
    pub(crate) colour: bool,
    /// Whether the stream is a terminal: tables have rules, and are wrapped to its width.
    pub(crate) terminal: bool,
    /// Characters in a line, if the terminal says so.
    pub(crate) width: Option<usize>,
    /// Lines on the terminal, if it says so.
    pub(crate) height: Option<usize>,
}

impl TableLook {
    /// Returns the look of the stream that tables go to now.
    pub(crate) fn of_tables() -> Self {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let (terminal, colour, term) = match is_stdout_taken() {
            true => (stderr.is_terminal(), has_colour(&stderr), Term::stderr()),
            false => (stdout.is_terminal(), has_colour(&stdout), Term::stdout()),
        };
        // A terminal without lines or columns says nothing.
        let (height, width) = term.size_checked().filter(|_| terminal).unzip();
        let (height, width) = (height.map(usize::from), width.map(usize::from));
        Self { colour, terminal, width, height }
    }

    /// Returns a look without colour and rules.
    pub(crate) fn plain() -> Self {
        Self { colour: false, terminal: false, width: None, height: None }
    }

    /// Paints `text`, where colour may be used.
    pub(crate) fn paint(self, text: &str, colour: AnsiColor) -> String {
        if self.colour {
            let style = Style::new().fg_color(Some(colour.into()));
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }
}

/// Whether colour may be used on `stream`.
pub(crate) fn has_colour(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// Writes text to stdout, or to stderr if stdout is for a report.
///
/// # Errors
/// Returns the errors of stdout, a closed pipe among them.
pub(crate) fn print(text: &str) -> Result<()> {
    if is_stdout_taken() {
        let _ = StderrWriter.write_all(text.as_bytes());
        return Ok(());
    }
    print_report(text.as_bytes())
}

/// Writes a value as a line of JSON, as [`print`] does.
///
/// # Errors
/// Fails as [`print`] does.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string(value)?))
}

/// Writes a report to stdout.
///
/// # Errors
/// Fails as [`print`] does.
pub(crate) fn print_report(content: &[u8]) -> Result<()> {
    if let Some(writers) = detached() {
        writers.stdout.write_and_wait(content);
        return writers.stdout.error().map_or(Ok(()), Err).context(CANNOT_WRITE);
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(content).and_then(|()| stdout.flush()).context(CANNOT_WRITE)
}

/// The context of all errors of stdout.
pub(crate) const CANNOT_WRITE: &str = "cannot write to standard output";

/// Writes one line to stderr. An error of stderr is ignored.
pub(crate) fn note(line: &str) {
    // In one piece, as processes that share a stderr write between pieces.
    let _ = StderrWriter.write_all(format!("{line}\n").as_bytes());
}

/// The threads that write for a command.
struct Writers {
    stdout: OutputWriter,
    stderr: OutputWriter,
}

static DETACHED: OnceLock<Option<Writers>> = OnceLock::new();

/// Lets threads write everything from now on. So the caller goes on, whether somebody reads or not.
/// Where there is no room for threads, the caller writes itself.
pub(crate) fn detach() {
    let start = || {
        Some(Writers {
            stdout: OutputWriter::start(io::stdout())?,
            stderr: OutputWriter::start(io::stderr())?,
        })
    };
    DETACHED.get_or_init(start);
}

fn detached() -> Option<&'static Writers> {
    DETACHED.get()?.as_ref()
}

/// Hands bytes of a rank to the thread that writes them, whatever else it has to write.
pub(crate) fn pass_on(stream: OutputStream, bytes: &[u8]) {
    match (detached(), stream) {
        (Some(writers), OutputStream::Stdout) => writers.stdout.write(bytes),
        (Some(writers), OutputStream::Stderr) => writers.stderr.write(bytes),
        (None, OutputStream::Stdout) => _ = print_report(bytes),
        (None, OutputStream::Stderr) => _ = io::stderr().write_all(bytes),
    }
}

/// Returns how much is written yet of what was passed on.
pub(crate) fn backlog() -> OutputBacklog {
    detached().map_or(OutputBacklog::None, |it| it.stdout.backlog().max(it.stderr.backlog()))
}

/// Returns the error that has ended stdout, or stderr: ranks may go on without a reader of that.
pub(crate) fn failure() -> Option<io::Error> {
    let writers = detached()?;
    let of_stderr = || writers.stderr.error().filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
    writers.stdout.error().or_else(of_stderr)
}

/// Waits until all is written, or nothing was for the time of `patience`, be it before this call.
/// What is left then is lost, which a note says.
pub(crate) fn settle(patience: Option<Duration>) {
    static HAS_GIVEN_UP: OnceLock<()> = OnceLock::new();
    let Some(writers) = detached().filter(|_| HAS_GIVEN_UP.get().is_none()) else { return };
    let lost = writers.stdout.settle(patience) + writers.stderr.settle(patience);
    if lost > 0 {
        HAS_GIVEN_UP.get_or_init(|| ());
        note(&format!("nobody reads the output: its last {lost} bytes are lost"));
    }
}

/// Standard error, written to by a thread where the command has one for it.
pub(crate) struct StderrWriter;

impl Write for StderrWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match detached() {
            Some(writers) => writers.stderr.write_and_wait(bytes),
            None => io::stderr().lock().write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the error line of a command.
pub(crate) fn error(line: &str) {
    let style = if has_colour(&io::stderr()) { AnsiColor::Red.on_default().bold() } else { Style::new() };
    note(&format!("{style}error:{style:#} {line}"));
}

/// Returns a progress bar on stderr over `steps`, hidden if stderr is no terminal. It goes away
/// when dropped.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let target =
        if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(steps), target);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    // It ticks in a thread, and panics where the system refuses one.
    if !bar.is_hidden() && std::thread::Builder::new().spawn(|| ()).is_ok() {
        bar.enable_steady_tick(Duration::from_millis(250));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_used_only_where_the_look_has_it() {
        let look = TableLook { colour: true, ..TableLook::plain() };
        assert!(look.paint("x", AnsiColor::Red).contains('\u{1b}'));
        assert_eq!(TableLook::plain().paint("x", AnsiColor::Red), "x");
    }
}
