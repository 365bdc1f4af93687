//! Where output goes and how it looks: tables to stdout, everything else to stderr, colour and progress on a terminal only. Where a
//! report is asked for on stdout, tables go to stderr, too.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Set once stdout belongs to a report.
static STDOUT_IS_TAKEN: OnceLock<()> = OnceLock::new();

/// From now on tables go to stderr: stdout is for a report that programs read.
pub(crate) fn take_stdout() {
    STDOUT_IS_TAKEN.get_or_init(|| ());
}

fn is_stdout_taken() -> bool {
    STDOUT_IS_TAKEN.get().is_some()
}

/// How the stream that tables go to wants its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Whether colour may be used. `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` are heeded.
    pub(crate) colour: bool,
    /// Whether a person looks at it: rules under the head, and wrapping to the width of the terminal.
    pub(crate) terminal: bool,
    /// How many characters fit in a line, where there is an end to it and the terminal says where.
    pub(crate) width: Option<usize>,
    /// How many lines fit on it, where it says so.
    pub(crate) height: Option<usize>,
}

impl Look {
    /// What the stream that tables go to is now.
    pub(crate) fn of_tables() -> Self {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let (terminal, colour) = if is_stdout_taken() {
            (stderr.is_terminal(), has_colour(&stderr))
        } else {
            (stdout.is_terminal(), has_colour(&stdout))
        };
        let term = if is_stdout_taken() { Term::stderr() } else { Term::stdout() };
        // One that says it has no lines or no columns says nothing.
        let (height, width) = term.size_checked().filter(|_| terminal).unzip();
        let (height, width) = (height.map(usize::from), width.map(usize::from));
        Self { colour, terminal, width, height }
    }

    /// Neither colour nor rules.
    pub(crate) fn plain() -> Self {
        Self { colour: false, terminal: false, width: None, height: None }
    }

    /// `text` in a colour, where colour may be used.
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

/// Writes text to stdout, or to stderr where a report has taken that.
///
/// # Errors
/// That stdout cannot be written, and what the stream says; a closed pipe among it.
pub(crate) fn print(text: &str) -> Result<()> {
    if is_stdout_taken() {
        let _ = io::stderr().lock().write_all(text.as_bytes());
        return Ok(());
    }
    print_report(text.as_bytes())
}

/// Writes a report to stdout, whoever has taken it.
///
/// # Errors
/// Those of [`print`].
pub(crate) fn print_report(content: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(content).and_then(|()| stdout.flush()).context(CANNOT_WRITE)
}

/// What fails when stdout takes no more.
pub(crate) const CANNOT_WRITE: &str = "cannot write to standard output";

/// Writes one line to stderr. A closed stderr is not worth failing for.
pub(crate) fn note(line: &str) {
    // In one piece: processes that share a stderr write between pieces.
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// Writes the one line with which a command fails.
pub(crate) fn error(line: &str) {
    let style = if has_colour(&io::stderr()) { AnsiColor::Red.on_default().bold() } else { Style::new() };
    note(&format!("{style}error:{style:#} {line}"));
}

/// What is left free behind each column of a table.
const GAP: u16 = 2;

/// How many characters a table on a terminal takes beside the words in its columns, which end in a rule's junction each but for the last.
pub(crate) fn room_between(columns: usize) -> usize {
    columns * (usize::from(GAP) + 1) - columns.min(1)
}

/// A table with `head`, the first `left` columns left-aligned and the others right-aligned.
pub(crate) fn table(
    look: Look,
    head: &[&str],
    left: usize,
    rows: impl IntoIterator<Item = Vec<Cell>>,
) -> String {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    let style = if look.terminal { TableStyle::new().header_separator(rule) } else { TableStyle::new() };
    table.load_style(style).set_header(head.iter().map(Cell::new)).add_rows(rows);
    // One whose width nobody knows is not to be asked for it again.
    let is_wrapped = look.terminal && look.width.is_some();
    table.set_content_arrangement(if is_wrapped {
        ContentArrangement::Dynamic
    } else {
        ContentArrangement::Disabled
    });
    if let Some(width) = look.width {
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    }
    if look.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP));
        column.set_cell_alignment(if index < left { CellAlignment::Left } else { CellAlignment::Right });
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A progress bar on stderr over `steps`, or nothing when stderr is no terminal. It goes away when dropped or finished.
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

    fn cells(words: &[&str]) -> Vec<Cell> {
        words.iter().map(Cell::new).collect()
    }

    #[test]
    fn a_piped_table_is_plain_text_in_columns() {
        let text =
            table(Look::plain(), &["size", "p50"], 1, [cells(&["8 B", "134 ns"]), cells(&["4 KiB", "1 us"])]);
        assert_eq!(text, "size      p50\n8 B    134 ns\n4 KiB    1 us\n");
    }

    #[test]
    fn long_text_is_never_wrapped_when_piped() {
        let long = "word ".repeat(100);
        let text = table(Look::plain(), &["a"], 1, [cells(&[long.trim()])]);
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn colour_is_used_only_where_the_look_has_it() {
        let look = Look { colour: true, ..Look::plain() };
        assert!(look.paint("x", AnsiColor::Red).contains('\u{1b}'));
        assert_eq!(Look::plain().paint("x", AnsiColor::Red), "x");
    }
}
