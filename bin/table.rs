//! Tables as text. Those that do not fit a narrow terminal leave out the columns that matter least,
//! and name them below.

use std::ops::Range;

use anstyle::AnsiColor;
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

use crate::output::TableLook;

/// Blanks behind a column.
const GAP: u16 = 2;

/// A table as text, before it is laid out.
#[derive(Clone, Debug)]
pub(crate) struct TextTable<'a> {
    /// The names of the columns.
    pub(crate) head: Vec<&'a str>,
    /// Columns, from the first, that hold words and not figures.
    pub(crate) words: usize,
    /// A text for every column, and whether the row stands out.
    pub(crate) rows: Vec<(Vec<String>, bool)>,
}

impl TextTable<'_> {
    /// Whether its lines have room in `look`.
    pub(crate) fn fits(&self, look: TableLook) -> bool {
        // A rule under the head parts columns by one more.
        let gap = usize::from(GAP) + usize::from(look.terminal);
        let needed: usize = (0..self.head.len()).map(|column| self.width_of(column) + gap).sum();
        look.width.is_none_or(|width| needed <= width)
    }

    fn width_of(&self, column: usize) -> usize {
        let texts = self.rows.iter().map(|(texts, _)| texts[column].as_str());
        texts.chain([self.head[column]]).map(|text| text.chars().count()).max().unwrap_or(0)
    }

    /// Lays the table out. If it does not fit, columns of `expendable` are left out, the first one
    /// first, and a line names them.
    pub(crate) fn text(mut self, look: TableLook, expendable: &[&str]) -> String {
        let mut dropped = Vec::new();
        for name in expendable {
            if self.fits(look) {
                break;
            }
            let before = self.head.len();
            self.drop_column(name);
            if self.head.len() < before {
                dropped.push(*name);
            }
        }
        let rows = self.rows.iter().map(|(texts, stands_out)| {
            let cell = |text| {
                if *stands_out { Cell::new(text).fg(comfy_table::Color::Red) } else { Cell::new(text) }
            };
            texts.iter().map(cell).collect()
        });
        let table = lay_out(look, &self.head, self.words, rows);
        if dropped.is_empty() {
            return table;
        }
        let names = format!("(left out: {})", dropped.join(", "));
        let fits = look.width.is_none_or(|width| names.chars().count() <= width);
        let note = if fits { names } else { format!("({} columns left out)", dropped.len()) };
        format!("{table}{}\n", look.paint(&note, AnsiColor::BrightBlack))
    }

    /// Appends the columns of `right`, which has as many rows.
    pub(crate) fn beside(mut self, right: Self) -> Self {
        self.head.extend(right.head);
        self.rows.iter_mut().zip(right.rows).for_each(|((texts, _), (more, _))| texts.extend(more));
        self
    }

    /// Lays the table out in as many parts as it takes to fit. Each has the first `kept` columns,
    /// and a share of the others.
    pub(crate) fn in_parts(self, look: TableLook, kept: usize) -> String {
        let mut parts = String::new();
        let mut rest = kept..self.head.len();
        while parts.is_empty() || !rest.is_empty() {
            let fitting =
                (rest.start + 1..=rest.end).rev().find(|end| self.part(kept, rest.start..*end).fits(look));
            let end = fitting.unwrap_or(rest.end.min(rest.start + 1));
            parts += &self.part(kept, rest.start..end).text(look, &[]);
            rest.start = end;
        }
        parts
    }

    /// Returns the first `kept` columns and those in `range`.
    fn part(&self, kept: usize, range: Range<usize>) -> Self {
        let row = |(texts, stands_out): &(Vec<String>, bool)| {
            ([&texts[..kept], &texts[range.clone()]].concat(), *stands_out)
        };
        Self {
            head: [&self.head[..kept], &self.head[range.clone()]].concat(),
            words: self.words.min(kept),
            rows: self.rows.iter().map(row).collect(),
        }
    }

    /// Leaves out all columns of that name.
    pub(crate) fn drop_column(&mut self, name: &str) {
        while let Some(column) = self.head.iter().position(|head| *head == name) {
            self.head.remove(column);
            self.words -= usize::from(column < self.words);
            for (texts, _) in &mut self.rows {
                texts.remove(column);
            }
        }
    }
}

/// Returns the characters between and behind the columns of a table on a terminal. All columns but
/// the last end in the junction of a rule.
pub(crate) fn room_between(columns: usize) -> usize {
    columns * (usize::from(GAP) + 1) - columns.min(1)
}

/// Lays out a table with `head`. The first `left` columns are left-aligned, the others
/// right-aligned.
pub(crate) fn lay_out(
    look: TableLook,
    head: &[&str],
    left: usize,
    rows: impl IntoIterator<Item = Vec<Cell>>,
) -> String {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    let style = if look.terminal { TableStyle::new().header_separator(rule) } else { TableStyle::new() };
    table.load_style(style).set_header(head.iter().map(Cell::new)).add_rows(rows);
    // A terminal without a known width must not be asked again.
    let is_wrapped = look.terminal && look.width.is_some();
    let arrangement = if is_wrapped { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
    table.set_content_arrangement(arrangement);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(words: &[&str]) -> Vec<Cell> {
        words.iter().map(Cell::new).collect()
    }

    #[test]
    fn a_piped_table_is_plain_text_in_columns() {
        let text = lay_out(
            TableLook::plain(),
            &["size", "p50"],
            1,
            [cells(&["8 B", "134 ns"]), cells(&["4 KiB", "1 us"])],
        );
        assert_eq!(text, "size      p50\n8 B    134 ns\n4 KiB    1 us\n");
    }

    #[test]
    fn long_text_is_never_wrapped_when_piped() {
        let long = "word ".repeat(100);
        let text = lay_out(TableLook::plain(), &["a"], 1, [cells(&[long.trim()])]);
        assert_eq!(text.lines().count(), 2);
    }

    fn grid() -> TextTable<'static> {
        let row = |texts: [&str; 4]| (texts.map(str::to_owned).to_vec(), false);
        TextTable {
            head: vec!["test", "min", "p50", "min"],
            words: 1,
            rows: vec![row(["barrier", "1", "22", "4"]), row(["get", "1", "2", "4"])],
        }
    }

    fn narrow(width: usize) -> TableLook {
        TableLook { width: Some(width), ..TableLook::plain() }
    }

    #[test]
    fn a_table_that_fits_or_is_piped_keeps_its_columns() {
        let whole = "test     min  p50  min\nbarrier    1   22    4\nget        1    2    4\n";
        assert_eq!(grid().text(narrow(24), &["min"]), whole);
        assert_eq!(grid().text(TableLook::plain(), &["min"]), whole);
    }

    #[test]
    fn a_table_in_parts_repeats_the_columns_that_tell_rows_apart() {
        let text = grid().in_parts(narrow(17), 1);
        assert_eq!(
            text,
            "test     min\nbarrier    1\nget        1\n\
             test     p50\nbarrier   22\nget        2\n\
             test     min\nbarrier    4\nget        4\n"
        );
        assert_eq!(grid().in_parts(TableLook::plain(), 1), grid().text(TableLook::plain(), &[]));
        // Where even one column is too many, there is one in each part.
        assert_eq!(grid().in_parts(narrow(1), 1).lines().count(), 9);
        let bare = TextTable { head: vec!["test"], words: 1, rows: vec![] };
        assert_eq!(bare.in_parts(narrow(80), 1), "test\n");
    }

    #[test]
    fn no_line_is_wrapped_on_a_terminal_that_has_just_enough_room() {
        let look = TableLook { terminal: true, ..narrow(28) };
        let text = grid().text(look, &["min"]);
        assert!(text.lines().next().unwrap().contains("min"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 28), "{text}");
    }

    #[test]
    fn a_table_that_does_not_fit_leaves_out_what_matters_least_and_says_so() {
        let text = grid().text(narrow(23), &["max", "min", "p50"]);
        assert_eq!(text, "test     p50\nbarrier   22\nget        2\n(left out: min)\n");
    }
}
