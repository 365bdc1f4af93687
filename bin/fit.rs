//! Tables that fit a narrow terminal: columns that matter least are left out, and named below.

use std::ops::Range;

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

    /// With the columns of `right`, which has as many rows, behind those of this one.
    pub(crate) fn beside(mut self, right: Self) -> Self {
        self.head.extend(right.head);
        self.rows.iter_mut().zip(right.rows).for_each(|((texts, _), (more, _))| texts.extend(more));
        self
    }

    /// Lays the table out in as many parts as it takes to fit: each with the first `kept` columns, and the others divided.
    pub(crate) fn in_parts(self, look: Look, kept: usize) -> String {
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

    /// The first `kept` columns and those in `range`.
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
    fn a_table_in_parts_repeats_the_columns_that_tell_rows_apart() {
        let text = grid().in_parts(narrow(17), 1);
        assert_eq!(
            text,
            "test     min\nbarrier    1\nget        1\n\
             test     p50\nbarrier   22\nget        2\n\
             test     min\nbarrier    4\nget        4\n"
        );
        assert_eq!(grid().in_parts(Look::plain(), 1), grid().text(Look::plain(), &[]));
        // Where even one column is too many, there is one in each part.
        assert_eq!(grid().in_parts(narrow(1), 1).lines().count(), 9);
        let bare = Grid { head: vec!["test"], words: 1, rows: vec![] };
        assert_eq!(bare.in_parts(narrow(80), 1), "test\n");
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
