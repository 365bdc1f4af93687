//! The launcher side of a collective test: rows as they come, in nccl-tests' table.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Error, Result, anyhow};
use shmccl_harness::format::{self, Extras, SizeRange, TableHead};
use shmccl_harness::interleave::FEWEST_SLICES;
use shmccl_harness::lines::{DeviceLine, RankPlacement, StalledPlan};
use shmccl_harness::report::{Memory, PerfRow, legend};
use shmccl_harness::test::Test;

use crate::device_job;
use crate::failure::{self, FAILED};
use crate::flags::JobArgs;
use crate::host::MachineInfo;
use crate::output::{self, Look};
use crate::perf::flags::PerfArgs;
use crate::perf::jobs;
use crate::perf::plan::{PATIENCE_MS, PerfPlan};
use crate::planned::PlannedTest;
use crate::table::TextTable;
use crate::units::{format_ns, format_size, or_dash, three_digits};

/// Ranks where the user does not say how many.
const RANKS: u32 = 2;

/// Operations before the clock starts at least, where the user does not say how many: those that
/// find the time of one.
const FEWEST_WARMUP: u64 = 1;

/// Makes the plan of a collective test, and says how many ranks do it.
///
/// # Errors
/// Bad combinations of flags; an execution plan that cannot do it.
pub(crate) fn plan(args: &PerfArgs, test: Test) -> Result<(PerfPlan, u32)> {
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
    let plan = PerfPlan::new(vec![(test, None)], sizes, &args.sweep, &args.job, one_core);
    let patience_ms = if args.collective.percentiles { PATIENCE_MS } else { 0 };
    let plan = PerfPlan { patience_ms, collective: Some(settings), ..plan };
    if let Some(planned) = planned.filter(|_| args.job.heap.is_none()) {
        planned.check_heap(plan.heap_len(), &plan.sizes, "--maxbytes")?;
    }
    Ok((plan, n_ranks))
}

/// Runs the collective test, prints its table as it grows, and returns its rows.
///
/// # Errors
/// Those of [`plan`], a job that fails, a table that cannot be printed.
pub(crate) fn run(args: &PerfArgs, test: Test) -> Result<Vec<PerfRow>> {
    let (plan, n_ranks) = plan(args, test)?;
    let left_out: Vec<_> = args
        .collective_sizes()?
        .into_iter()
        .filter(|size| !plan.sizes.contains(size))
        .map(format_size)
        .collect();
    if !left_out.is_empty() {
        output::note(&format!("left out, as the plan does no such sizes: {}", left_out.join(", ")));
    }
    let is_ordinary = plan.collective.as_ref().is_some_and(|settings| settings.memory == Memory::Ordinary);
    let bound = args.collective.bound;
    let extras = Extras { percentiles: args.collective.percentiles, bound, heap: bound && is_ordinary };
    let (step, unit) = args.step_in_bytes().map_or((args.sweep.stepfactor, "factor"), |step| (step, "bytes"));
    let sizes = SizeRange { least: args.sweep.minbytes, most: args.sweep.maxbytes, step, unit };
    let rows = measure(&plan, n_ranks, &args.job, sizes, args.sweep.check, extras)?;
    if !extras.bound && plan.iters != Some(0) {
        output::note(&limits(&rows));
    }
    Ok(rows)
}

/// Measures as `plan` says, in one collective test, and prints the table as it grows.
///
/// # Errors
/// A job that fails, a table that cannot be printed.
pub(crate) fn measure(
    plan: &PerfPlan,
    n_ranks: u32,
    job: &JobArgs,
    sizes: SizeRange<'_>,
    check: u32,
    extras: Extras,
) -> Result<Vec<PerfRow>> {
    let (test, _) = *plan.tests.first().context("no test is named")?;
    let host = nix::sys::utsname::uname()
        .map_or_else(|_| "this host".to_owned(), |it| it.nodename().to_string_lossy().into_owned());
    let processor = MachineInfo::detect().cpu;
    let head = TableHead {
        test: test.nccl_tests_name(),
        n_ranks,
        sizes,
        warmup: plan.warmup.unwrap_or(FEWEST_WARMUP),
        iters: plan.iters.unwrap_or(FEWEST_SLICES),
        check,
        host: &host,
        processor: &processor,
    };
    let mut table = NcclTable {
        head,
        extras,
        placements: Vec::new(),
        rows: Vec::new(),
        stalled: Vec::new(),
        printed: 0,
        begun: false,
    };
    // A plan that is measured is the only one.
    let is_planned = plan.collective.as_ref().is_some_and(|settings| settings.plan.is_some());
    let plans = if is_planned { Some(PathBuf::new()) } else { job.plans.clone() };
    let job = JobArgs { plans, ..job.clone() };
    jobs::supervise(plan, n_ranks, &job, &mut |line| table.take(DeviceLine::read(line)?))
        .map_err(|error| explained(error, test, &table.stalled))?;
    table.finish()?;
    Ok(table.rows)
}

/// Returns what a job has failed of: blocks of an execution plan that wait, on whatever ranks, or
/// else `error`. A rank that learns of a stalled plan from another one may end before that one.
fn explained(error: Error, test: Test, stalled: &[StalledPlan]) -> Error {
    let Some(first) = stalled.first().filter(|_| failure::exit_code(&error) == FAILED) else { return error };
    let mut told = vec![format!("in {}: {} timed out", test.name(), first.plan)];
    let blocks: BTreeSet<_> = stalled.iter().map(|rank| rank.blocks.as_str()).collect();
    let causes: BTreeSet<_> = stalled.iter().map(|rank| rank.cause.as_str()).collect();
    told.push([blocks, causes].into_iter().flatten().collect::<Vec<_>>().join("; "));
    anyhow!(told.join(": "))
}

/// A table that grows.
struct NcclTable<'a> {
    head: TableHead<'a>,
    extras: Extras,
    placements: Vec<RankPlacement>,
    rows: Vec<PerfRow>,
    /// What ranks tell of a plan that has not ended.
    stalled: Vec<StalledPlan>,
    /// Rows of [`NcclTable::rows`] that stand in the table.
    printed: usize,
    begun: bool,
}

impl NcclTable<'_> {
    /// Takes a line of a device process, and prints what can be printed.
    fn take(&mut self, message: DeviceLine) -> Result<()> {
        match message {
            DeviceLine::Placement(placement) => self.placements.push(placement),
            DeviceLine::Figure(row) => self.rows.push(*row),
            DeviceLine::Stalled(rank) => self.stalled.push(rank),
        }
        if !self.begun && self.placements.len() == self.head.n_ranks as usize {
            self.begun = true;
            self.placements.sort_unstable();
            output::print(&self.head.text(&self.placements, self.extras))?;
        }
        if self.begun { self.print() } else { Ok(()) }
    }

    /// Prints the sizes that are complete: out of place, and then in place.
    fn print(&mut self) -> Result<()> {
        while let Some([apart, in_place]) = self.rows.get(self.printed..self.printed + 2) {
            output::print(&format::row(apart, in_place, self.extras))?;
            self.printed += 2;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.print()?;
        output::print(&format::foot(self.head.test, &self.rows))
    }
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
    let table = grid.text(Look::plain(), &[]);
    let legend = legend(&table);
    table + &legend
}

#[cfg(test)]
mod tests {
    use shmccl::error::{DeviceName, ExitCause};
    use shmccl::{Error as JobError, Rank};

    use super::*;

    fn stalled(rank: u32) -> StalledPlan {
        StalledPlan {
            plan: "plan:credits".to_owned(),
            blocks: format!("rank {rank} block 0 operation 1 (wait) waits"),
            cause: "no launch of the plan ends".to_owned(),
        }
    }

    #[test]
    fn blocks_that_wait_are_told_whichever_rank_ends_first_and_all_of_them() {
        let revoked = || anyhow!("rank 0: in all_gather: the communicator was revoked by rank 1");
        let told = explained(revoked(), Test::AllGather, &[stalled(1)]).to_string();
        assert_eq!(
            told,
            "in all_gather: plan:credits timed out: rank 1 block 0 operation 1 (wait) waits; \
             no launch of the plan ends"
        );
        let both = explained(revoked(), Test::AllGather, &[stalled(1), stalled(0)]).to_string();
        assert!(both.contains(": rank 0 block 0 operation 1 (wait) waits; rank 1 block 0 "), "{both}");
        assert_eq!(both.matches("no launch of the plan ends").count(), 1, "{both}");
    }

    #[test]
    fn a_job_without_a_stalled_plan_and_one_that_was_interrupted_keep_their_errors() {
        let device = DeviceName::Rank(Rank::new(1, 2).unwrap());
        let failed = JobError::DeviceFailed { device, cause: ExitCause::Code(1) };
        assert_eq!(explained(failed.into(), Test::AllGather, &[]).to_string(), "rank 1 exited with code 1");
        let interrupted = JobError::Interrupted { signal: 2 };
        let told = explained(interrupted.into(), Test::AllGather, &[stalled(0)]);
        assert_eq!(told.to_string(), "interrupted by SIGINT");
    }
}
