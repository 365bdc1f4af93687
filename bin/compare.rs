//! `shmccl compare`: direct against proxied. What it found, as tables, sentences, charts and files.
//!
//! Everything here is made from a [`report::CompareReport`], which is numbers only, of puts; [`rivals`] does the same for a
//! collective operation.

mod chart;
pub(crate) mod crossing;
mod csv;
mod measure;
mod panel;
pub(crate) mod report;
mod rivals;
mod svg;
mod verdict;
mod view;

use anyhow::Result;
use serde::Serialize;

use crate::args::CompareArgs;
use crate::output::{self, Look};
use crate::{failure, file};

/// Measures and presents.
///
/// # Errors
/// Bad flags, a job that fails, wrong data, files that cannot be written.
pub(crate) fn run(args: &CompareArgs) -> Result<u8> {
    match args.op {
        Some(test) => rivals::run(args, test),
        None => of_puts(args),
    }
}

fn of_puts(args: &CompareArgs) -> Result<u8> {
    check_files(args)?;
    let report = measure::measure(args)?;
    // Files first: whoever reads the table may stop reading.
    write_files(args, &report.to_file(), &csv::text(&report), &svg::text(&report)?)?;
    let printed = output::print(&view::text(Look::of_tables(), &report));
    match report.wrong_sides() {
        0 => printed.map(|()| failure::DONE),
        wrong => anyhow::bail!("wrong data in {wrong} of {} figures", 2 * report.points.len()),
    }
}

/// Finds out before measuring whether the three files can be written.
///
/// # Errors
/// Says which cannot and why.
fn check_files(args: &CompareArgs) -> Result<()> {
    if args.json == args.csv || args.csv == args.svg || args.svg == args.json {
        let message = "two of --json, --csv and --svg name the same file; give each its own";
        return Err(failure::UsageError::new(message).into());
    }
    [&args.json, &args.csv, &args.svg].into_iter().try_for_each(|path| file::check_writable(path))
}

/// Writes the three files.
///
/// # Errors
/// When one cannot be written.
fn write_files(args: &CompareArgs, report: &impl Serialize, csv: &str, svg: &str) -> Result<()> {
    file::write_json(&args.json, report)?;
    file::write(&args.csv, csv.as_bytes())?;
    file::write(&args.svg, svg.as_bytes())?;
    let [json, csv, svg] = [&args.json, &args.csv, &args.svg].map(|path| file::name(path));
    output::note(&format!("wrote {json}, {csv} and {svg}"));
    Ok(())
}

#[cfg(test)]
mod tests;
