//! Taking the figures of a comparison: the tests of `shmccl perf`, once per channel.

use anyhow::{Context, Result};

use super::report::{CompareReport, Point, Side};
use crate::compare::flags::CompareArgs;
use crate::machine::MachineInfo;
use crate::output;
use crate::perf::plan::Plan;
use crate::perf::report::{PerfReport, PerfRow};
use crate::perf::test::{Test, TestChannel};
use crate::perf::{jobs, note_siblings, note_spread};

/// Milliseconds for a figure where the user does not say how many operations.
const FIGURE_MS: u64 = 120;

/// Milliseconds to go on for at most, where that is too few latencies for a 99th percentile.
const PATIENCE_MS: u64 = 2000;

/// Device processes: one puts, one receives.
const RANKS: u32 = 2;

/// What is measured in one job.
type Tests = &'static [(Test, Option<TestChannel>)];

/// A job for each channel, so that no proxy is about when the direct one is measured; and one for overlap, whose proxies
/// run elsewhere.
const JOBS: [(&str, Tests); 3] = [
    (
        "direct",
        &[(Test::PutLatency, Some(TestChannel::Memory)), (Test::PutBandwidth, Some(TestChannel::Memory))],
    ),
    (
        "proxied",
        &[(Test::PutLatency, Some(TestChannel::Port)), (Test::PutBandwidth, Some(TestChannel::Port))],
    ),
    ("overlap", &[(Test::Overlap, Some(TestChannel::Memory)), (Test::Overlap, Some(TestChannel::Port))]),
];

/// Measures both channels at every size.
///
/// # Errors
/// Bad sizes, a job that fails.
pub(crate) fn measure(args: &CompareArgs) -> Result<CompareReport> {
    let sizes = args.sweep.sizes()?;
    let one_core = jobs::share_a_core(&args.job)?;
    jobs::note_shared_core(one_core);
    let progress = output::progress((JOBS.len() * 2 * sizes.len()) as u64);
    let mut report = PerfReport { machine: MachineInfo::detect(), rows: Vec::new() };
    for (name, tests) in JOBS {
        progress.set_message(name);
        let plan = Plan {
            tests: tests.to_vec(),
            sizes: sizes.clone(),
            iters: args.sweep.iters,
            warmup: args.sweep.warmup_iters,
            check: args.sweep.check(),
            one_core,
            figure_ms: FIGURE_MS,
            patience_ms: PATIENCE_MS,
            patient: Some(Test::PutLatency),
            proxy: args.job.proxy,
            collective: None,
            matrix: None,
        };
        report.rows.extend(jobs::run(&plan, RANKS, &args.job, &mut |_| progress.inc(1))?.rows);
    }
    progress.finish_and_clear();
    note_siblings(&mut report);
    note_spread(&report.rows);
    let point = |&bytes: &u64| {
        let side = |channel| side(&report.rows, channel, bytes);
        Ok(Point { bytes, direct: side(TestChannel::Memory)?, proxied: side(TestChannel::Port)? })
    };
    let points = sizes.iter().map(point).collect::<Result<_>>()?;
    let overlap_place = report
        .rows
        .iter()
        .find(|row| row.test == Test::Overlap && row.variant.is_some())
        .and_then(|row| row.variant.clone());
    Ok(CompareReport { machine: report.machine, proxy: args.job.proxy, overlap_place, points })
}

/// Puts together what the tests found for one channel at one size.
fn side(rows: &[PerfRow], channel: TestChannel, bytes: u64) -> Result<Side> {
    let find = |test: Test| {
        let row =
            rows.iter().find(|row| (row.test, row.channel, row.bytes) == (test, Some(channel), Some(bytes)));
        row.with_context(|| format!("{} over {} at {bytes} B was not reported", test.name(), channel.name()))
    };
    let (latency, bandwidth, overlap) =
        (find(Test::PutLatency)?, find(Test::PutBandwidth)?, find(Test::Overlap)?);
    let time = |ns: Option<f64>| ns.context("a row without times");
    let wrong = [latency, bandwidth, overlap].map(|row| row.wrong);
    Ok(Side {
        iterations: latency.iterations,
        samples: latency.samples,
        puts_per_sample: latency.operations_per_sample,
        min_ns: time(latency.min_ns)?,
        p50_ns: time(latency.p50_ns)?,
        p99_ns: latency.p99_ns,
        max_ns: time(latency.max_ns)?,
        gb_per_s: time(bandwidth.gb_per_s)?,
        device_cpu_ns: bandwidth.device_cpu_ns,
        device_cpu_spread: bandwidth.device_cpu_p10_ns.zip(bandwidth.device_cpu_p90_ns),
        overlap: overlap.overlap,
        fifo_depth: bandwidth.fifo_depth,
        fifo_depth_p50: bandwidth.fifo_depth_p50,
        pushes: bandwidth.pushes,
        stalls: bandwidth.stalls,
        limit: latency.limit.clone(),
        limit_p50_ns: latency.limit_p50_ns,
        ratio: latency.ratio,
        wrong: wrong.into_iter().flatten().reduce(|sum, wrong| sum + wrong),
    })
}
