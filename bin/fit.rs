//! Tables that fit a narrow terminal: columns that matter least are left out, and named below.

use anstyle::AnsiColor;
use comfy_table::Cell;

use crate::output::{self, Look};

/// Blanks behind a column.
const GAP: usize = 2;

/// The same where a rule stands under the head, which parts columns by one more.
const GAP_WITH_RULE: usize = 3;

/// A table as text, before it is laid out.
#[derive(Clone, Debug)]
pub(crate) struct Grid<'a> {
    /// The names of the columns.
    pub(crate) head: Vec<&'a str>,
    /// How many columns, from the first, hold words and not figures.
    pub(crate) words: usize,
    /// A text for every column, and whether the row is to stand out.
    pub(crate) rows: Vec<(Vec<String>, bool)>,
}

impl Grid<'_> {
    /// Whether its lines are as long as `look` has room for, or shorter.
    pub(crate) fn fits(&self, look: Look) -> bool {
        let gap = if look.terminal { GAP_WITH_RULE } else { GAP };
        let needed: usize = (0..self.head.len()).map(|column| self.width_of(column) + gap).sum();
        look.width.is_none_or(|width| needed <= width)
    }

    fn width_of(&self, column: usize) -> usize {
        let texts = self.rows.iter().map(|(texts, _)| texts[column].as_str());
        texts.chain([self.head[column]]).map(|text| text.chars().count()).max().unwrap_or(0)
    }

    /// Lays the table out; where the terminal is too narrow for it, without columns of `expendable`, from the first on, and
    /// with a line that names them.
    pub(crate) fn text(mut self, look: Look, expendable: &[&str]) -> String {
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
        let table = output::table(look, &self.head, self.words, rows);
        if dropped.is_empty() {
            return table;
        }
        let names = format!("(left out: {})", dropped.join(", "));
        let fits = look.width.is_none_or(|width| names.chars().count() <= width);
        let note = if fits { names } else { format!("({} columns left out)", dropped.len()) };
        format!("{table}{}\n", look.paint(&note, AnsiColor::BrightBlack))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid<'static> {
        let row = |texts: [&str; 4]| (texts.map(str::to_owned).to_vec(), false);
        Grid {
            head: vec!["test", "min", "p50", "min"],
            words: 1,
            rows: vec![row(["barrier", "1", "22", "4"]), row(["get", "1", "2", "4"])],
        }
    }

    fn narrow(width: usize) -> Look {
        Look { width: Some(width), ..Look::plain() }
    }

    #[test]
    fn a_table_that_fits_or_is_piped_keeps_its_columns() {
        let whole = "test     min  p50  min\nbarrier    1   22    4\nget        1    2    4\n";
        assert_eq!(grid().text(narrow(24), &["min"]), whole);
        assert_eq!(grid().text(Look::plain(), &["min"]), whole);
    }

    #[test]
    fn no_line_is_wrapped_on_a_terminal_that_has_just_enough_room() {
        let look = Look { terminal: true, ..narrow(28) };
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
