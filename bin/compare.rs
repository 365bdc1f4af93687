//! `shmccl compare`: direct against proxied. What it found, as tables, sentences, charts and files.
//!
//! Everything here is made from a [`report::CompareReport`], which is numbers only.

mod chart;
pub(crate) mod crossing;
mod csv;
pub(crate) mod report;
mod svg;
mod verdict;
mod view;

use anyhow::Result;

use crate::args::CompareArgs;
use crate::file;
use crate::output::{self, Look};
use report::CompareReport;

/// Finds out before measuring whether the three files can be written.
///
/// # Errors
/// Says which cannot and why.
pub(crate) fn check_files(args: &CompareArgs) -> Result<()> {
    [&args.json, &args.csv, &args.svg].into_iter().try_for_each(|path| file::check_writable(path))
}

/// Prints the tables, the charts and what they mean, and writes the three files.
///
/// # Errors
/// When stdout or a file cannot be written.
pub(crate) fn present(args: &CompareArgs, report: &CompareReport) -> Result<()> {
    output::print(&view::text(Look::of_stdout(), report))?;
    file::write_json(&args.json, &report.to_file())?;
    file::write(&args.csv, csv::text(report).as_bytes())?;
    file::write(&args.svg, svg::text(report)?.as_bytes())?;
    let [json, csv, svg] = [&args.json, &args.csv, &args.svg].map(|path| path.display());
    output::note(&format!("wrote {json}, {csv} and {svg}"));
    Ok(())
}

#[cfg(test)]
mod tests;
