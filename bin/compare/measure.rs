//! Taking the figures of a comparison, by the tests of `shmccl perf`.

use anyhow::{Context, Result};
use shmccl::collective::Operation;
use shmccl_harness::layout::{CaseLayout, blocks, distinct};
use shmccl_harness::lines::DeviceLine;
use shmccl_harness::puts::{PUTS, is_done_by_puts, landing_len};
use shmccl_harness::report::{Memory, PerfRow, RowTimes};
use shmccl_harness::rounds::{in_rounds, rounds_of};
use shmccl_harness::sync::RankAverage;
use shmccl_harness::test::{Test, TestChannel};

use super::flags::CompareArgs;
use super::series::{Series, Subject, is_by_puts};
use crate::host::MachineInfo;
use crate::perf::spec::{CollectiveSettings, PerfSpec};

use crate::perf::report::PerfReport;
use crate::perf::{jobs, note_siblings};
use crate::units::format_size;
use crate::{device_job, output};

/// Milliseconds for a figure of puts where the user does not say how many operations.
const FIGURE_MS: u64 = 120;

/// Milliseconds to go on for at most, where that is too few latencies for a 99th percentile.
const PATIENCE_MS: u64 = 2000;

/// Device processes where the user does not say how many. Of puts one rank puts, and one receives.
const RANKS: u32 = 2;

/// The channels, in the order in which they are measured.
const CHANNELS: [TestChannel; 2] = [TestChannel::Memory, TestChannel::Port];

/// The elements of collective operations, and the operator.
const ELEMENT: &str = "float";
const OPERATOR: &str = "sum";

/// The tests of one job.
type JobTests = &'static [(Test, Option<TestChannel>)];

/// The jobs that measure puts.
///
/// Each channel has its own, so that no proxy is about when the direct one is measured. Overlap has
/// its own as well, since its proxies run elsewhere.
const JOBS: [(&str, JobTests); 3] = [
    ("direct", &[(Test::PutLatency, DIRECT), (Test::PutBandwidth, DIRECT)]),
    ("proxied", &[(Test::PutLatency, PROXIED), (Test::PutBandwidth, PROXIED)]),
    ("overlap", &[(Test::Overlap, PROXIED)]),
];
const DIRECT: Option<TestChannel> = Some(TestChannel::Memory);
const PROXIED: Option<TestChannel> = Some(TestChannel::Port);

/// Measures puts over both channels at every size, in jobs that take turns.
///
/// # Errors
/// Bad sizes, a job that fails.
pub(super) fn puts(args: &CompareArgs) -> Result<Series> {
    let sizes = args.sweep.sizes()?;
    let common = spec(args)?;
    let overlap_left_out = device_job::lack_of_cores(Test::Overlap);
    let jobs = &JOBS[..if overlap_left_out.is_some() { 2 } else { 3 }];
    let figures: usize = jobs.iter().map(|(_, tests)| tests.len() * sizes.len()).sum();
    let progress = output::progress(common.rounds * figures as u64);
    let rows = in_rounds(common.rounds, || {
        let mut rows = Vec::new();
        for (name, tests) in jobs {
            progress.set_message(*name);
            let spec = PerfSpec {
                tests: tests.to_vec(),
                sizes: sizes.clone(),
                figure_ms: FIGURE_MS,
                patience_ms: PATIENCE_MS,
                patient: Some(Test::PutLatency),
                ..common.clone()
            };
            rows.extend(jobs::run(&spec, RANKS, &args.job, &mut |_| progress.inc(1))?.rows);
        }
        Ok(rows)
    })?;
    progress.finish_and_clear();
    let mut report = report(rows);
    let overlap = report.rows.iter().find(|row| row.test == Test::Overlap);
    let overlap_place = overlap.and_then(|row| row.variant.clone());
    let subject = Subject::Puts { overlap_place, overlap_left_out };
    let points = sizes.iter().flat_map(|&bytes| CHANNELS.map(|channel| (bytes, channel)));
    report.rows =
        points.map(|(bytes, channel)| merged(&report.rows, channel, bytes)).collect::<Result<_>>()?;
    Ok(Series { report, proxy: args.job.proxy, subject })
}

/// Puts together what the tests found for one channel at one size. Times are those of the latency.
fn merged(rows: &[PerfRow], channel: TestChannel, bytes: u64) -> Result<PerfRow> {
    let find = |test: Test| {
        let row =
            rows.iter().find(|row| (row.test, row.channel, row.bytes) == (test, Some(channel), Some(bytes)));
        row.with_context(|| format!("{} over {} at {bytes} B was not reported", test.name(), channel.name()))
    };
    let (latency, bandwidth, overlap) =
        (find(Test::PutLatency)?, find(Test::PutBandwidth)?, find(Test::Overlap).ok());
    let others = bandwidth.spread.iter().chain(overlap.iter().flat_map(|row| &row.spread));
    let new = others.filter(|(key, _)| *key == "gb_per_s" || !latency.spread.contains_key(*key));
    let spread = latency.spread.iter().chain(new).map(|(key, spread)| (key.clone(), *spread)).collect();
    let wrong = [latency.wrong, bandwidth.wrong, overlap.and_then(|row| row.wrong)];
    Ok(PerfRow {
        times: RowTimes { gb_per_s: bandwidth.times.gb_per_s, ..latency.times.clone() },
        device_cpu_ns: bandwidth.device_cpu_ns,
        overlap: overlap.and_then(|row| row.overlap),
        fifo: bandwidth.fifo.clone(),
        spread,
        wrong: wrong.into_iter().flatten().reduce(|sum, wrong| sum + wrong),
        ..latency.clone()
    })
}

/// Rounds of all algorithms of an operation, which are many.
const ROUNDS_OF_ALGORITHMS: u64 = 4;

/// The most memory that puts may land in on all ranks together. Of longer data that are reduced no
/// program would put a whole copy to every rank.
const MOST_LANDING: u64 = 1 << 30;

/// Measures the collective operation of `test` by all algorithms at every size, and by puts of a
/// program's own.
///
/// Algorithms over one channel take turns in one job. Those over the other channel follow in a job
/// of their own, so that no proxy is about when the direct ones are measured: even one that sleeps
/// makes devices give way while they wait. So the two channels are compared only where the cores
/// were alike in both jobs.
///
/// # Errors
/// Bad sizes, a job that fails.
pub(super) fn operation(args: &CompareArgs, test: Test) -> Result<Series> {
    let operation = test.operation().context("no collective operation")?;
    let n_ranks = args.ranks.unwrap_or(RANKS);
    let sizes = whole_blocks(&args.sweep.sizes()?, operation, n_ranks);
    let common = spec(args)?;
    let rounds = common.rounds.min(ROUNDS_OF_ALGORITHMS);
    let common = PerfSpec { tests: vec![(test, None)], rounds, ..common };
    let jobs: Vec<PerfSpec> = sizes
        .iter()
        .flat_map(|&bytes| CHANNELS.map(|channel| (bytes, channel)))
        .map(|(bytes, channel)| spec_of_job(&common, operation, channel, n_ranks, bytes, args.job.heap))
        .collect();
    let figures: usize = jobs.iter().map(|spec| ways(spec).len()).sum();
    let progress = output::progress(common.rounds * figures as u64);
    progress.set_message(test.name());
    let mut without_room = Vec::new();
    let mut rows = in_rounds(common.rounds, || {
        let mut rows = Vec::new();
        for spec in &jobs {
            let before = rows.len();
            jobs::supervise(spec, n_ranks, &args.job, &mut |line| {
                if let DeviceLine::Figure(row) = DeviceLine::read(line)? {
                    progress.inc(1);
                    rows.push(*row);
                }
                Ok(())
            })?;
            if has_puts(ways(spec)) && !rows[before..].iter().any(is_by_puts) {
                // Rounds have the same rows, whatever room this one had.
                let bytes = Some(spec.sizes[0]);
                without_room.push(bytes);
                rows.push(PerfRow { variant: Some(PUTS.to_owned()), bytes, ..PerfRow::new(test, n_ranks) });
            }
        }
        Ok(rows)
    })?;
    progress.finish_and_clear();
    rows.retain(|row| !is_by_puts(row) || !without_room.contains(&row.bytes));
    if is_done_by_puts(operation) {
        note_left_out(&sizes, &rows);
    }
    let subject = Subject::Operation { test, n_ranks };
    Ok(Series { report: report(rows), proxy: args.job.proxy, subject })
}

/// Says at which sizes there is nothing of puts, if there are any.
fn note_left_out(sizes: &[u64], rows: &[PerfRow]) {
    let has_puts = |bytes: u64| rows.iter().any(|row| is_by_puts(row) && row.bytes == Some(bytes));
    let left_out: Vec<_> =
        sizes.iter().filter(|&&bytes| !has_puts(bytes)).map(|&bytes| format_size(bytes)).collect();
    if !left_out.is_empty() {
        output::note(&format!(
            "puts left out at {}: no room to land in (--heap, memory, or {} on all ranks)",
            left_out.join(", "),
            format_size(MOST_LANDING)
        ));
    }
}

/// Returns the job of all ways over `channel` at a size. It has no puts where a `heap` that the
/// user has given has no room for what they bring.
fn spec_of_job(
    common: &PerfSpec,
    operation: Operation,
    channel: TestChannel,
    n_ranks: u32,
    bytes: u64,
    heap: Option<u64>,
) -> PerfSpec {
    let mut ways = algorithms(operation, channel, n_ranks, bytes);
    let of_ways = |ways: &[Option<String>]| {
        let landing = if has_puts(ways) { landing_len(operation, n_ranks, bytes) } else { 0 };
        // No time is given: the least number of slices takes long enough.
        PerfSpec {
            sizes: vec![bytes],
            collective: Some(settings(operation, channel, ways.to_vec(), landing)),
            ..common.clone()
        }
    };
    let spec = of_ways(&ways);
    if heap.is_none_or(|heap| heap >= spec.heap_len()) {
        return spec;
    }
    ways.retain(|way| way.as_deref() != Some(PUTS));
    of_ways(&ways)
}

/// Returns the ways of a job, by their names.
fn ways(spec: &PerfSpec) -> &[Option<String>] {
    spec.collective.as_ref().map_or(&[], |settings| &settings.algorithms)
}

fn has_puts(ways: &[Option<String>]) -> bool {
    ways.iter().any(|way| way.as_deref() == Some(PUTS))
}

fn settings(
    operation: Operation,
    channel: TestChannel,
    algorithms: Vec<Option<String>>,
    landing_len: u64,
) -> CollectiveSettings {
    CollectiveSettings {
        algorithm: None,
        plan: None,
        channel,
        types: vec![ELEMENT.to_owned()],
        ops: vec![if operation.reduces() { OPERATOR } else { "none" }.to_owned()],
        roots: if operation.has_root() { vec![0] } else { Vec::new() },
        average: RankAverage::Mean,
        memory: Memory::Heap,
        percentiles: false,
        algorithms,
        landing_len,
    }
}

/// Returns the choice of the library, which has no name, every algorithm that does the operation in
/// its own way, and puts of a program's own, which no channel carries.
fn algorithms(operation: Operation, channel: TestChannel, n_ranks: u32, bytes: u64) -> Vec<Option<String>> {
    let size = size_of::<f32>() as u64;
    let len = CaseLayout::new(operation, bytes, size, n_ranks.into()).send() * size;
    let named = distinct(operation, channel, n_ranks, len).into_iter().map(|way| Some(way.name().to_owned()));
    let landing_of_all = landing_len(operation, n_ranks, bytes).saturating_mul(n_ranks.into());
    let has_puts =
        channel == TestChannel::Memory && is_done_by_puts(operation) && landing_of_all <= MOST_LANDING;
    let puts = has_puts.then(|| Some(PUTS.to_owned()));
    [None].into_iter().chain(named).chain(puts).collect()
}

/// Rounds sizes up to a whole number of elements on each rank, and returns each once.
fn whole_blocks(sizes: &[u64], operation: Operation, n_ranks: u32) -> Vec<u64> {
    let (send, recv) = blocks(operation, n_ranks.into());
    let unit = send.max(recv).max(1) * size_of::<f32>() as u64;
    let mut sizes: Vec<u64> = sizes.iter().map(|size| size.next_multiple_of(unit)).collect();
    sizes.dedup();
    sizes
}

/// Returns what all jobs of a comparison have in common. Says so if ranks have to share a core.
fn spec(args: &CompareArgs) -> Result<PerfSpec> {
    let one_core = device_job::share_a_core(&args.job)?;
    device_job::note_shared_core(one_core);
    Ok(PerfSpec {
        iters: args.sweep.iters,
        warmup: args.sweep.warmup_iters,
        check: args.sweep.check(),
        one_core,
        proxy: args.job.proxy,
        rounds: rounds_of(args.sweep.iters),
        ..PerfSpec::of_nothing()
    })
}

/// Makes a report of what was measured.
fn report(rows: Vec<PerfRow>) -> PerfReport {
    let mut report = PerfReport { machine: MachineInfo::detect(), rows };
    note_siblings(&mut report);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_is_rounded_to_nothing_and_none_is_measured_twice() {
        assert_eq!(whole_blocks(&[1, 8, 64], Operation::AllReduce, 3), [4, 8, 64]);
        for operation in [Operation::AllGather, Operation::AllToAllV] {
            assert_eq!(whole_blocks(&[1, 8, 64], operation, 4), [16, 64]);
        }
        assert_eq!(whole_blocks(&[1, 8, 64], Operation::Send, 4), [4, 8, 64]);
    }

    #[test]
    fn every_algorithm_that_does_it_in_its_own_way_is_held_against_the_default() {
        let over = |channel, operation, n_ranks, bytes| {
            let algorithms = algorithms(operation, channel, n_ranks, bytes);
            algorithms.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        let named = |operation, n_ranks, bytes| over(TestChannel::Memory, operation, n_ranks, bytes);
        assert_eq!(named(Operation::Gather, 2, 64), ["", "one_shot", "two_shot", "puts"]);
        assert_eq!(over(TestChannel::Port, Operation::Gather, 2, 64), ["", "one_shot"]);
        assert_eq!(named(Operation::AllReduce, 3, 64).len(), 10);
        for operation in [Operation::Send, Operation::AllToAllV] {
            assert_eq!(CHANNELS.map(|channel| over(channel, operation, 2, 64)), [[""]; 2]);
        }
        let halving = "halving_doubling".to_owned();
        assert!(named(Operation::ReduceScatter, 4, 64).contains(&halving));
        assert!(!named(Operation::ReduceScatter, 3, 192).contains(&halving));
        let has_puts =
            |operation, n_ranks, bytes| named(operation, n_ranks, bytes).contains(&PUTS.to_owned());
        assert!(has_puts(Operation::AllReduce, 4, 32 << 20) && has_puts(Operation::AllGather, 64, 1 << 30));
        assert!(!has_puts(Operation::AllReduce, 8, 64 << 20) && !has_puts(Operation::Scan, 2, 64));
        let one_shot = "one_shot".to_owned();
        assert!(named(Operation::Broadcast, 2, 8 << 10).contains(&one_shot));
        assert!(!named(Operation::Broadcast, 2, 16 << 10).contains(&one_shot));
    }

    #[test]
    fn puts_are_left_out_where_the_heap_that_the_user_gives_has_no_room_for_them() {
        let job = |bytes, heap| {
            let common = PerfSpec::of_nothing();
            spec_of_job(&common, Operation::AllReduce, TestChannel::Memory, 3, bytes, heap)
        };
        assert!(has_puts(ways(&job(64 << 20, None))) && has_puts(ways(&job(64 << 20, Some(1 << 30)))));
        let tight = job(64 << 20, Some(256 << 20));
        assert!(!has_puts(ways(&tight)) && tight.heap_len() <= 256 << 20, "{tight:?}");
        assert_eq!(ways(&tight).len() + 1, ways(&job(64 << 20, None)).len());
        assert!(has_puts(ways(&job(1 << 20, Some(256 << 20)))));
    }
}
