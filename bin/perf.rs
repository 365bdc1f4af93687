//! `shmccl perf`: one test after the other, each figure beside the machine's own limit.
//!
//! | module | what |
//! |---|---|
//! | [`plan`], [`jobs`], [`complaints`] | what device processes are told to do; starting them, collecting their rows and their errors |
//! | [`device`] | what they do: a contest for each figure |
//! | [`contest`] | a test and its limits, taking turns in slices; [`lane`]: what takes turns |
//! | [`pair`], [`duet`], [`stage`], [`payload`], [`clock`], [`cores`] | two ranks, how they keep in step, their memory, their data, their clock, their cores |
//! | [`ends`], [`transfer`], [`pulls`], [`completion`], [`rate`], [`barrier`], [`handoff`], [`overlap`] | the tests and their limits |
//! | [`collective`] | collective operations, in nccl-tests' table |
//! | [`matrix`] | every pair of ranks |
//! | [`fifo`], [`launching`] | tests of the launcher's own process |
//! | [`slices`], [`stats`], [`figures`], [`view`], [`spread`] | from samples to rows and the table; a warning where they are far apart |

pub(crate) mod barrier;
pub(crate) mod clock;
pub(crate) mod collective;
mod complaints;
mod completion;
pub(crate) mod contest;
mod cores;
pub(crate) mod device;
mod dither;
mod duet;
mod ends;
mod fifo;
mod figures;
pub(crate) mod flags;
mod handoff;
pub(crate) mod jobs;
pub(crate) mod lane;
mod launching;
pub(crate) mod matrix;
mod overlap;
mod pair;
mod payload;
pub(crate) mod plan;
mod pulls;
mod rate;
pub(crate) mod report;
pub(crate) mod slices;
mod spread;
mod stage;
pub(crate) mod stats;
pub(crate) mod test;
mod transfer;
pub(crate) mod view;

use anyhow::Result;
use shmccl::collective::tuning::Table;

use crate::host::{HostFiles, MachineInfo};
use crate::output::{self, Look};
use crate::perf::flags::PerfArgs;
use crate::perf::report::{PerfReport, PerfRow};
use crate::perf::test::{Test, TestChannel};
use crate::{failure, file};
use plan::Plan;
pub(crate) use spread::note_spread;

/// Milliseconds for a figure where the user does not say how many operations.
const FIGURE_MS: u64 = 120;

/// Milliseconds to go on for at most, where that is too few samples for a 99th percentile.
pub(crate) const PATIENCE_MS: u64 = 10_000;

/// Milliseconds for a figure where per cents matter.
const FINE_FIGURE_MS: u64 = 3000;

/// The size whose operations a trace is to cost next to nothing.
const TRACED_LEN: u64 = 4096;

/// Ranks of the tests that are about how many there are.
const RANK_COUNTS: [u32; 3] = [2, 4, 8];

/// Runs the tests, prints the table, and writes the report where asked.
///
/// # Errors
/// Bad combinations of flags, a job that fails, files that cannot be written.
pub(crate) fn run(args: &PerfArgs) -> Result<u8> {
    let wanted = without_fifo_rate_on_one_core(args)?;
    check_files(args)?;
    for &(test, _) in wanted.iter().filter(|(test, _)| test.is_collective()) {
        collective::table::plan(args, test)?;
    }
    if wanted.iter().any(|(test, _)| test.starts_processes()) {
        Table::load()?;
    }
    let mut report = PerfReport { machine: MachineInfo::detect(), rows: measure(args, wanted)? };
    note_siblings(&mut report);
    // Files first: whoever reads the table may stop reading.
    write_files(args, &report)?;
    let printed = print(&report);
    note_spread(&report.rows);
    match report.wrong_rows() {
        0 => printed.map(|()| failure::DONE),
        wrong => anyhow::bail!("wrong data in {wrong} of {} rows", report.rows.len()),
    }
}

/// Finds out before measuring whether the files can be written.
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

/// Prints the rows that were not printed as they came: matrices by themselves, all others in one table.
fn print(report: &PerfReport) -> Result<()> {
    let look = Look::of_tables();
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

/// Tells the machine's description what the slices have seen of its cores.
pub(crate) fn note_siblings(report: &mut PerfReport) {
    let shares: Vec<f64> = report.rows.iter().filter_map(|row| row.sibling_slices).collect();
    if !shares.is_empty() {
        report.machine.saw_siblings(shares.iter().sum::<f64>() / shares.len() as f64);
    }
}

fn measure(args: &PerfArgs, wanted: Vec<(Test, Vec<TestChannel>)>) -> Result<Vec<PerfRow>> {
    let one_core = jobs::share_a_core(&args.job)?;
    jobs::note_shared_core(one_core);
    let progress = output::progress(wanted.len() as u64);
    let mut rows = Vec::new();
    for (test, channels) in wanted {
        progress.set_message(test.name());
        match test {
            Test::FifoRate => rows.extend(fifo::measure(
                plan(args, Vec::new())?.effort(Test::FifoRate, None),
                args.job.timeout,
            )?),
            Test::Launch => {
                for ranks in counts(args) {
                    rows.push(launching::measure(ranks, args.sweep.iters, &args.job)?);
                }
            }
            Test::Barrier => {
                for ranks in counts(args) {
                    rows.extend(job(args, test, None, ranks)?);
                }
            }
            Test::P2p => {
                for channel in channels {
                    rows.extend(matrix::run(args, channel, plan(args, Vec::new())?, &progress)?);
                }
            }
            Test::TraceCost => rows.extend(trace_cost(args)?),
            _ if test.is_collective() => rows.extend(collective::table::run(args, test)?),
            _ if channels.is_empty() => rows.extend(job(args, test, None, args.ranks.unwrap_or(2))?),
            _ => {
                for channel in channels {
                    rows.extend(job(args, test, Some(channel), args.ranks.unwrap_or(2))?);
                }
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// What to run. The producers of `fifo_rate` and its limit spin, each on a core of its own: without a second core it is left
/// out where all tests are asked for.
///
/// # Errors
/// Wrong usage, and `fifo_rate` by name on a single core.
fn without_fifo_rate_on_one_core(args: &PerfArgs) -> Result<Vec<(Test, Vec<TestChannel>)>> {
    let mut wanted = args.plan()?;
    if HostFiles::new().allowed_cpus().len() < 2 {
        const REASON: &str =
            "fifo_rate needs two cores, one to push and one to serve; this process may use one";
        if args.tests.contains(&Test::FifoRate) {
            anyhow::bail!(REASON);
        }
        if wanted.iter().any(|(test, _)| *test == Test::FifoRate) {
            output::note(&format!("left out: {REASON}"));
        }
        wanted.retain(|(test, _)| *test != Test::FifoRate);
    }
    Ok(wanted)
}

fn counts(args: &PerfArgs) -> Vec<u32> {
    args.ranks.map_or_else(|| RANK_COUNTS.to_vec(), |ranks| vec![ranks])
}

fn job(args: &PerfArgs, test: Test, channel: Option<TestChannel>, ranks: u32) -> Result<Vec<PerfRow>> {
    let plan = plan(args, vec![(test, channel)])?;
    Ok(jobs::run(&plan, ranks, &args.job, &mut |_| {})?.rows)
}

/// At one size, where the user does not say which.
fn trace_cost(args: &PerfArgs) -> Result<Vec<PerfRow>> {
    let mut plan = plan(args, vec![(Test::TraceCost, None)])?;
    plan.figure_ms = FINE_FIGURE_MS;
    if !["minbytes", "maxbytes"].iter().any(|flag| args.given.contains(flag)) {
        plan.sizes = vec![TRACED_LEN];
    }
    Ok(jobs::run(&plan, args.ranks.unwrap_or(2), &args.job, &mut |_| {})?.rows)
}

fn plan(args: &PerfArgs, tests: Vec<(Test, Option<TestChannel>)>) -> Result<Plan> {
    Ok(Plan {
        tests,
        sizes: args.sweep.sizes()?,
        iters: args.sweep.iters,
        warmup: args.sweep.warmup_iters,
        check: args.sweep.check(),
        one_core: jobs::share_a_core(&args.job)?,
        figure_ms: FIGURE_MS,
        patience_ms: PATIENCE_MS,
        patient: None,
        proxy: args.job.proxy,
        collective: None,
        matrix: None,
    })
}
