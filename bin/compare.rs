//! `shmccl compare`: direct against proxied. What it found, as tables, sentences, charts and files.
//!
//! Everything here is made from a [`report::CompareReport`], which is numbers only, of puts; [`rivals`] does the same for a
//! collective operation.

mod chart;
pub(crate) mod crossing;
mod csv;
pub(crate) mod flags;
mod measure;
mod panel;
pub(crate) mod report;
mod rivals;
mod svg;
mod verdict;
mod view;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use shmccl::collective::tuning::Table;

use crate::output::{self, Look};
use crate::{failure, file};
use flags::{CompareArgs, Files};

/// Stands below the help.
pub(crate) const HELP: &str = "\
With none of --json, --csv and --svg it writes compare.json, compare.csv and compare.svg in the
current directory; with any of them, just what is named.";

/// Measures and presents.
///
/// # Errors
/// Bad flags, a job that fails, wrong data, files that cannot be written.
pub(crate) fn run(args: &CompareArgs) -> Result<u8> {
    let files = args.files();
    check_files(&files)?;
    Table::load()?;
    match args.op {
        Some(test) => rivals::run(args, test, &files),
        None => of_puts(args, &files),
    }
}

fn of_puts(args: &CompareArgs, files: &Files) -> Result<u8> {
    let report = measure::measure(args)?;
    // Files first: whoever reads the table may stop reading.
    write_files(files, &report.to_file(), &csv::text(&report), &svg::text(&report)?)?;
    let printed = output::print(&view::text(Look::of_tables(), &report));
    match report.wrong_sides() {
        0 => printed.map(|()| failure::DONE),
        wrong => anyhow::bail!("wrong data in {wrong} of {} figures", 2 * report.points.len()),
    }
}

/// Finds out before measuring whether the files can be written.
///
/// # Errors
/// Says which cannot and why.
fn check_files(Files { json, csv, svg }: &Files) -> Result<()> {
    let same = |one: &Option<PathBuf>, other| one.is_some() && one == other;
    if same(json, csv) || same(csv, svg) || same(svg, json) {
        let message = "two of --json, --csv and --svg name the same file; give each its own";
        return Err(failure::UsageError::new(message).into());
    }
    [json, csv, svg].into_iter().flatten().try_for_each(|path| file::check_writable(path))
}

/// Writes the files, and tells which.
///
/// # Errors
/// When one cannot be written.
fn write_files(files: &Files, report: &impl Serialize, csv: &str, svg: &str) -> Result<()> {
    if let Some(path) = &files.json {
        file::write_json(path, report)?;
    }
    for (path, text) in [(&files.csv, csv), (&files.svg, svg)] {
        if let Some(path) = path {
            file::write(path, text.as_bytes())?;
        }
    }
    let names: Vec<_> =
        [&files.json, &files.csv, &files.svg].into_iter().flatten().map(|path| file::name(path)).collect();
    match names.as_slice() {
        [] => {}
        [only] => output::note(&format!("wrote {only}")),
        [first @ .., last] => output::note(&format!("wrote {} and {last}", first.join(", "))),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
