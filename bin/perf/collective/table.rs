//! The launcher side of a collective test: rows as they come, in nccl-tests' table.

use std::path::PathBuf;

use anyhow::Result;
use shmccl_harness::format::{Extras, SizeRange, TableHead};
use shmccl_harness::interleave::FEWEST_SLICES;
use shmccl_harness::report::{Memory, PerfRow, legend};
use shmccl_harness::test::Test;

use crate::flags::JobArgs;
use crate::output::{self, TableLook};
use crate::perf::flags::PerfArgs;
use crate::perf::jobs;
use crate::perf::spec::{PATIENCE_MS, PerfSpec};
use crate::planned::PlannedTest;
use crate::table::TextTable;
use crate::units::{format_ns, format_size, or_dash, three_digits};
use crate::{device_job, nccl_table};

/// Ranks where the user does not say how many.
const RANKS: u32 = 2;

/// Operations before the clock starts at least, where the user does not say how many: those that
/// find the time of one.
const FEWEST_WARMUP: u64 = 1;

/// Makes the spec of a collective test, and says how many ranks do it.
///
/// # Errors
/// Bad combinations of flags; an execution plan that cannot do it.
pub(crate) fn spec(args: &PerfArgs, test: Test) -> Result<(PerfSpec, u32)> {
    let planned = args.planned()?;
    let n_ranks = args.ranks.or_else(|| planned.as_ref().map(PlannedTest::n_ranks)).unwrap_or(RANKS);
    let mut sizes = args.collective_sizes()?;
    let mut settings = args.settings(test, n_ranks)?;
    if let Some(planned) = &planned {
        sizes = planned.fitting(sizes)?;
        settings.plan = Some(planned.settings(test, n_ranks, &sizes)?);
        settings.types = planned.fitting_types(&settings.types)?;
        settings.ops = planned.fitting_operators(&settings.ops)?;
    }
    let one_core = device_job::share_a_core(&args.job)?;
    let spec = PerfSpec::new(vec![(test, None)], sizes, &args.sweep, &args.job, one_core);
    let patience_ms = if args.collective.percentiles { PATIENCE_MS } else { 0 };
    let spec = PerfSpec { patience_ms, collective: Some(settings), ..spec };
    if let Some(planned) = planned.filter(|_| args.job.heap.is_none()) {
        planned.check_heap(spec.heap_len(), &spec.sizes, "--maxbytes")?;
    }
    Ok((spec, n_ranks))
}

/// Runs the collective test, prints its table as it grows, and returns its rows.
///
/// # Errors
/// Fails as [`spec`] does, where the job fails, and where the table cannot be printed.
pub(crate) fn run(args: &PerfArgs, test: Test) -> Result<Vec<PerfRow>> {
    let (spec, n_ranks) = spec(args, test)?;
    let left_out: Vec<_> = args
        .collective_sizes()?
        .into_iter()
        .filter(|size| !spec.sizes.contains(size))
        .map(format_size)
        .collect();
    if !left_out.is_empty() {
        output::note(&format!("left out, as the plan does no such sizes: {}", left_out.join(", ")));
    }
    let is_ordinary = spec.collective.as_ref().is_some_and(|settings| settings.memory == Memory::Ordinary);
    let bound = args.collective.bound;
    let extras = Extras { percentiles: args.collective.percentiles, bound, heap: bound && is_ordinary };
    let (step, unit) = args.step_in_bytes().map_or((args.sweep.stepfactor, "factor"), |step| (step, "bytes"));
    let sizes = SizeRange { least: args.sweep.minbytes, most: args.sweep.maxbytes, step, unit };
    let head = TableHead {
        test,
        n_ranks,
        sizes,
        warmup: spec.warmup.unwrap_or(FEWEST_WARMUP),
        iters: spec.iters.unwrap_or(FEWEST_SLICES),
        check: args.sweep.check,
    };
    // A plan that is measured is the only one.
    let is_planned = spec.collective.as_ref().is_some_and(|settings| settings.plan.is_some());
    let plans = if is_planned { Some(PathBuf::new()) } else { args.job.plans.clone() };
    let job = JobArgs { plans, ..args.job.clone() };
    let rows = nccl_table::print(head, extras, |on_line| jobs::supervise(&spec, n_ranks, &job, on_line))?;
    if !extras.bound && spec.iters != Some(0) {
        output::note(&limits(&rows));
    }
    Ok(rows)
}

/// Writes the rows beside the machine's limits, and beside the operation in the heap where
/// measured.
fn limits(rows: &[PerfRow]) -> String {
    let heap = |row: &PerfRow| {
        row.collective.as_ref().and_then(|figures| figures.heap_p50_ns.zip(figures.heap_ratio))
    };
    let with_heap = rows.iter().any(|row| heap(row).is_some());
    let line = |row: &PerfRow| {
        let (kind, place) = row.collective.as_ref().map_or_else(Default::default, |figures| {
            let place = if figures.in_place { "in place" } else { "out of place" };
            (format!("{} {}", figures.data_type, figures.redop), place)
        });
        let mut texts = vec![
            row.test.name().to_owned(),
            kind,
            place.to_owned(),
            row.limit.name.clone().unwrap_or_default(),
            or_dash(row.bytes, format_size),
            or_dash(row.told("p50_ns", format_ns), |told| told),
            or_dash(row.limit.p50_ns, format_ns),
            or_dash(row.told_ratio(""), |told| told),
            or_dash(row.ratio_spread(), |told| told),
        ];
        if with_heap {
            let (p50, ratio) = heap(row).unzip();
            texts.extend([or_dash(p50, format_ns), or_dash(ratio, three_digits)]);
        }
        (texts, row.wrong.is_some_and(|wrong| wrong > 0))
    };
    let mut head =
        vec!["test", "type", "place", "limit", "size", "p50", "limit p50", "time/limit", "(spread)"];
    if with_heap {
        head.extend(["heap p50", "time/heap"]);
    }
    let grid = TextTable { head, words: 4, rows: rows.iter().map(line).collect() };
    let table = grid.text(TableLook::plain(), &[]);
    let legend = legend(&table);
    table + &legend
}
