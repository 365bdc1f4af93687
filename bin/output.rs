//! Where output goes and how it looks: tables to stdout, everything else to stderr, colour and
//! progress on a terminal only. If stdout is for a report, tables go to stderr, too.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
pub(crate) struct Look {
    /// Whether colour may be used. `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` are heeded.
    pub(crate) colour: bool,
    /// Whether the stream is a terminal: tables have rules, and are wrapped to its width.
    pub(crate) terminal: bool,
    /// Characters in a line, if the terminal says so.
    pub(crate) width: Option<usize>,
    /// Lines on the terminal, if it says so.
    pub(crate) height: Option<usize>,
}

impl Look {
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
/// Those of stdout, a closed pipe among them.
pub(crate) fn print(text: &str) -> Result<()> {
    if is_stdout_taken() {
        let _ = io::stderr().lock().write_all(text.as_bytes());
        return Ok(());
    }
    print_report(text.as_bytes())
}

/// Writes a report to stdout.
///
/// # Errors
/// Those of [`print`].
pub(crate) fn print_report(content: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(content).and_then(|()| stdout.flush()).context(CANNOT_WRITE)
}

/// The context of all errors of stdout.
pub(crate) const CANNOT_WRITE: &str = "cannot write to standard output";

/// Writes one line to stderr. An error of stderr is ignored.
pub(crate) fn note(line: &str) {
    // In one piece, as processes that share a stderr write between pieces.
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
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
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_used_only_where_the_look_has_it() {
        let look = Look { colour: true, ..Look::plain() };
        assert!(look.paint("x", AnsiColor::Red).contains('\u{1b}'));
        assert_eq!(Look::plain().paint("x", AnsiColor::Red), "x");
    }
}
