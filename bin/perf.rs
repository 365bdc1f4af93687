//! `shmccl perf`: one test after the other, each figure beside the machine's own limit.
//!
//! How contenders take turns, and what comes of it, is in [`shmccl_harness`].
//!
//! | module | what |
//! |---|---|
//! | [`flags`] | what can be asked for |
//! | [`spec`] | what device processes are told |
//! | [`jobs`] | starting device processes, collecting their rows |
//! | [`device`], [`bench`] | what device processes do: one test after the other |
//! | [`buffers`], [`links`] | the memory of two ranks, and how messages travel |
//! | [`ping_pong`], [`gets`], [`transfer`], [`rate`] | tests of a pair of ranks, and their limits |
//! | [`verbs`], [`atomic_rate`] | tests of verbs by rank and offset |
//! | [`proxy`], [`trace_cost`] | tests of proxies and traces |
//! | [`barrier`], [`collective`], [`matrix`] | tests of all ranks |
//! | [`fifo`], [`launching`] | tests of the launcher's own process |
//! | [`report`], [`view`] | the report and the table |
//!
//! Tried by its unit tests and `command nccl_tests:: p2p::`.

mod atomic_rate;
pub(crate) mod barrier;
mod bench;
mod buffers;
pub(crate) mod collective;
pub(crate) mod device;
mod fifo;
pub(crate) mod flags;
mod gets;
pub(crate) mod jobs;
mod launching;
mod links;
mod matrix;
mod ping_pong;
mod proxy;
mod rate;
pub(crate) mod report;
pub(crate) mod spec;
mod trace_cost;
mod transfer;
mod verbs;
mod view;

use anyhow::Result;
use indicatif::ProgressBar;
use shmccl_harness::report::PerfRow;
use shmccl_harness::rounds::{in_rounds, rounds_of};
use shmccl_harness::test::{Test, TestChannel};

use crate::host::MachineInfo;
use crate::output::{self, TableLook};
use crate::perf::flags::PerfArgs;
use crate::perf::report::PerfReport;
use crate::{device_job, failure, file, tuning};
use spec::{PATIENCE_MS, PerfSpec};

/// Milliseconds for a figure where per cents matter.
const FINE_FIGURE_MS: u64 = 3000;

/// The size at which the cost of a trace is measured by default.
const TRACED_LEN: u64 = 4096;

/// Ranks of the tests that are about how many there are.
const RANK_COUNTS: [u32; 3] = [2, 4, 8];

/// Runs the tests, prints the table, and writes the report where asked.
///
/// # Errors
/// Bad combinations of flags, a job that fails, files that cannot be written.
pub(crate) fn run(args: &PerfArgs) -> Result<u8> {
    check_files(args)?;
    let wanted = what_cores_can_show(args)?;
    for &(test, _) in wanted.iter().filter(|(test, _)| test.is_collective()) {
        collective::table::spec(args, test)?;
    }
    if wanted.iter().any(|(test, _)| test.starts_processes()) {
        tuning::check_and_note()?;
    }
    let (collective, others) = wanted.into_iter().partition::<Vec<_>, _>(|(test, _)| test.is_collective());
    let one_core = device_job::share_a_core(&args.job)?;
    device_job::note_shared_core(one_core);
    let progress = output::progress(rounds_of(args.sweep.iters) * others.len() as u64);
    let mut rows = in_rounds(rounds_of(args.sweep.iters), || measure(args, &others, &progress))?;
    progress.finish_and_clear();
    for (test, _) in collective {
        rows.extend(collective::table::run(args, test)?);
    }
    let mut report = PerfReport { machine: MachineInfo::detect(), rows };
    note_siblings(&mut report);
    // Files first: a reader of the table may stop reading.
    write_files(args, &report)?;
    let printed = print(&report);
    match report.wrong_rows() {
        0 => printed.map(|()| failure::DONE),
        wrong => anyhow::bail!("wrong data in {wrong} of {} rows", report.rows.len()),
    }
}

/// Checks before measuring that the files can be written.
///
/// # Errors
/// Says which cannot and why.
fn check_files(args: &PerfArgs) -> Result<()> {
    if args.json.is_some() && args.json == args.matrix.svg {
        let message = "--json and --svg name the same file; give each its own";
        return Err(failure::UsageError::new(message).into());
    }
    [&args.json, &args.matrix.svg].into_iter().flatten().try_for_each(|path| file::check_writable(path))
}

fn write_files(args: &PerfArgs, report: &PerfReport) -> Result<()> {
    if let Some(path) = &args.json {
        file::write_json(path, report)?;
    }
    if let Some(path) = &args.matrix.svg {
        file::write(path, matrix::svg(report)?.as_bytes())?;
    }
    Ok(())
}

/// Prints the rows that were not printed as they came: matrices by themselves, all others in one
/// table.
fn print(report: &PerfReport) -> Result<()> {
    let look = TableLook::of_tables();
    let rows = |wanted: fn(Test) -> bool| {
        let rows = report.rows.iter().filter(|row| wanted(row.test)).cloned().collect();
        PerfReport { rows, ..report.clone() }
    };
    let (others, matrices) = (rows(Test::is_in_table), rows(|test| test == Test::P2p));
    let mut texts = Vec::new();
    if !others.rows.is_empty() {
        texts.push(view::text(look, &others));
    }
    if !matrices.rows.is_empty() {
        texts.push(matrix::text(look, &matrices));
    }
    if texts.is_empty() { Ok(()) } else { output::print(&texts.join("\n")) }
}

/// Notes in the description of the machine what the slices have seen of its cores.
pub(crate) fn note_siblings(report: &mut PerfReport) {
    let shares: Vec<f64> = report.rows.iter().filter_map(|row| row.cores.sibling_slices).collect();
    if !shares.is_empty() {
        report.machine.saw_siblings(shares.iter().sum::<f64>() / shares.len() as f64);
    }
}

/// Measures a round of all tests that are not collective.
fn measure(
    args: &PerfArgs,
    wanted: &[(Test, Vec<TestChannel>)],
    progress: &ProgressBar,
) -> Result<Vec<PerfRow>> {
    let mut rows = Vec::new();
    for &(test, ref channels) in wanted {
        progress.set_message(test.name());
        match test {
            Test::FifoRate => rows.extend(fifo::measure(
                spec(args, Vec::new())?.effort(Test::FifoRate, None),
                args.job.timeout,
            )?),
            Test::Launch => {
                for ranks in counts(args) {
                    let effort = spec(args, Vec::new())?.effort(test, None);
                    rows.push(launching::measure(ranks, effort, &args.job)?);
                }
            }
            Test::Barrier => {
                for ranks in counts(args) {
                    rows.extend(job(args, test, None, ranks)?);
                }
            }
            Test::P2p => {
                for &channel in channels {
                    rows.extend(matrix::run(args, channel, spec(args, Vec::new())?, progress)?);
                }
            }
            Test::TraceCost => rows.extend(trace_cost(args)?),
            _ if channels.is_empty() => rows.extend(job(args, test, None, args.ranks.unwrap_or(2))?),
            _ => {
                for &channel in channels {
                    rows.extend(job(args, test, Some(channel), args.ranks.unwrap_or(2))?);
                }
            }
        }
        progress.inc(1);
    }
    Ok(rows)
}

/// Returns what to run. Tests that show nothing on so few cores are left out where all tests are
/// asked for.
///
/// # Errors
/// Wrong usage, and such a test by name.
fn what_cores_can_show(args: &PerfArgs) -> Result<Vec<(Test, Vec<TestChannel>)>> {
    let mut shown = Vec::new();
    for (test, channels) in args.selected()? {
        match device_job::lack_of_cores(test) {
            None => shown.push((test, channels)),
            Some(reason) if args.tests.contains(&test) => anyhow::bail!(reason),
            Some(reason) => output::note(&format!("left out: {reason}")),
        }
    }
    Ok(shown)
}

fn counts(args: &PerfArgs) -> Vec<u32> {
    args.ranks.map_or_else(|| RANK_COUNTS.to_vec(), |ranks| vec![ranks])
}

fn job(args: &PerfArgs, test: Test, channel: Option<TestChannel>, ranks: u32) -> Result<Vec<PerfRow>> {
    let spec = spec(args, vec![(test, channel)])?;
    Ok(jobs::run(&spec, ranks, &args.job, &mut |_| {})?.rows)
}

/// Measures the cost of a trace, at one size where the user does not say which.
fn trace_cost(args: &PerfArgs) -> Result<Vec<PerfRow>> {
    let mut spec = spec(args, vec![(Test::TraceCost, None)])?;
    spec.figure_ms = FINE_FIGURE_MS;
    if !["minbytes", "maxbytes"].iter().any(|flag| args.given.contains(flag)) {
        spec.sizes = vec![TRACED_LEN];
    }
    Ok(jobs::run(&spec, args.ranks.unwrap_or(2), &args.job, &mut |_| {})?.rows)
}

fn spec(args: &PerfArgs, tests: Vec<(Test, Option<TestChannel>)>) -> Result<PerfSpec> {
    let one_core = device_job::share_a_core(&args.job)?;
    let spec = PerfSpec::new(tests, args.sweep.sizes()?, &args.sweep, &args.job, one_core);
    Ok(PerfSpec { patience_ms: PATIENCE_MS, rounds: rounds_of(args.sweep.iters), ..spec })
}
