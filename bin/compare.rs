//! `shmccl compare`: direct against proxied, of puts or of a collective operation by every
//! algorithm.
//!
//! | module | what |
//! |---|---|
//! | [`measure`] | takes the figures |
//! | [`series`] | holds them, and answers what can be asked of them |
//! | [`conclusions`], [`crossover`] | where lines cross, and what that means in words |
//! | [`view`], [`chart`], [`csv`], [`svg`] | tables and charts for the screen; files |
//!
//! Tried by its unit tests and `command compare_op::`.

mod chart;
mod conclusions;
mod crossover;
mod csv;
pub(crate) mod flags;
mod measure;
mod series;
mod svg;
mod view;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use shmccl_harness::report::PerfRow;

use crate::flags::ProxyPlace;
use crate::host::MachineInfo;
use crate::output::{self, TableLook};
use crate::{failure, file, tuning};
use conclusions::{Conclusions, Crossovers};
use flags::{CompareArgs, CompareFiles};
use series::{Series, Subject};

/// Ends the help.
pub(crate) const HELP: &str = "\
With none of --json, --csv and --svg it writes compare.json, compare.csv and compare.svg in the
current directory, where it can; with any of them, just what is named.";

/// The file `compare.json`.
#[derive(Debug, Serialize)]
struct CompareJson<'s> {
    machine: &'s MachineInfo,
    proxy: ProxyPlace,
    #[serde(flatten)]
    subject: &'s Subject,
    /// Null when there was too little to conclude from.
    crossover: Option<&'s Crossovers>,
    summary: &'s [String],
    rows: &'s [PerfRow],
}

/// Measures, and presents the results.
///
/// # Errors
/// Bad flags, a failed job, wrong data, and those of writing.
pub(crate) fn run(args: &CompareArgs) -> Result<u8> {
    let mut files = args.files();
    match check_files(&files) {
        // Nobody has asked for these.
        Err(error) if !args.names_files() => {
            output::note(&format!(
                "{}; no file is written: name those that are wanted",
                failure::chain(&error)
            ));
            files = CompareFiles::default();
        }
        checked => checked?,
    }
    // A table that programs would refuse is refused before any process starts.
    tuning::check_and_note()?;
    let series = match args.op {
        Some(test) => measure::operation(args, test)?,
        None => measure::puts(args)?,
    };
    let conclusions = Conclusions::of(&series);
    // Files first: the reader of the table may stop reading.
    write_files(&files, &series, &conclusions)?;
    let printed = output::print(&view::text(TableLook::of_tables(), &series, &conclusions));
    match series.report.wrong_rows() {
        0 => printed.map(|()| failure::DONE),
        wrong => anyhow::bail!("wrong data in {wrong} of {} figures", series.report.rows.len()),
    }
}

/// Checks before measuring whether the files can be written.
///
/// # Errors
/// The file, and the error.
fn check_files(CompareFiles { json, csv, svg }: &CompareFiles) -> Result<()> {
    let same = |one: &Option<PathBuf>, other| one.is_some() && one == other;
    if same(json, csv) || same(csv, svg) || same(svg, json) {
        let message = "two of --json, --csv and --svg name the same file; give each its own";
        return Err(failure::UsageError::new(message).into());
    }
    [json, csv, svg].into_iter().flatten().try_for_each(|path| file::check_writable(path))
}

/// Writes the files, and prints their names.
///
/// # Errors
/// Returns the errors of writing.
fn write_files(files: &CompareFiles, series: &Series, conclusions: &Conclusions) -> Result<()> {
    let CompareFiles { json, csv, svg } = files;
    // All are made before one is written.
    let plot = svg::text(series, conclusions)?;
    if let Some(path) = json {
        file::write_json(path, &CompareJson::of(series, conclusions))?;
    }
    for (path, text) in [(csv, csv::text(series)), (svg, plot)] {
        if let Some(path) = path {
            file::write(path, text.as_bytes())?;
        }
    }
    let names: Vec<_> = [json, csv, svg].into_iter().flatten().map(|path| file::name(path)).collect();
    match names.as_slice() {
        [] => {}
        [only] => output::note(&format!("wrote {only}")),
        [first @ .., last] => output::note(&format!("wrote {} and {last}", first.join(", "))),
    }
    Ok(())
}

impl<'s> CompareJson<'s> {
    fn of(series: &'s Series, conclusions: &'s Conclusions) -> Self {
        Self {
            machine: &series.report.machine,
            proxy: series.proxy,
            subject: &series.subject,
            crossover: conclusions.crossovers.as_ref(),
            summary: &conclusions.summary,
            rows: &series.report.rows,
        }
    }
}

#[cfg(test)]
mod tests;
