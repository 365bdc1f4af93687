//! `shmccl compare --op`: one collective operation, every algorithm over either kind of channel.
//!
//! | module | what |
//! |---|---|
//! | [`measure`] | jobs in which algorithms take turns |
//! | [`report`] | its rows, and what can be asked of them |
//! | [`verdict`] | which algorithm from which size on, direct or proxied, in words |
//! | [`view`], [`csv`], [`svg`] | tables, files |

mod csv;
mod measure;
mod report;
mod svg;
mod verdict;
mod view;

use anyhow::Result;

use super::flags::{CompareArgs, Files};
use super::write_files;
use crate::failure;
use crate::output::{self, Look};
use crate::perf::test::Test;

/// Measures and presents the operation of `test`.
///
/// # Errors
/// Bad flags, a job that fails, wrong data, files that cannot be written.
pub(crate) fn run(args: &CompareArgs, test: Test, files: &Files) -> Result<u8> {
    let report = measure::measure(args, test)?;
    // Files first: whoever reads the table may stop reading.
    write_files(files, &report.to_file(), &csv::text(&report), &svg::text(&report)?)?;
    let printed = output::print(&view::text(Look::of_tables(), &report));
    match report.wrong_rows() {
        0 => printed.map(|()| failure::DONE),
        wrong => anyhow::bail!("wrong data in {wrong} of {} figures", report.rows.len()),
    }
}

#[cfg(test)]
mod tests;
