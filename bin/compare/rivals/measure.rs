//! Taking the figures: the test of `shmccl perf`, with many ways at once.

use anyhow::{Context, Result};
use shmccl::collective::Operation;

use super::report::RivalReport;
use crate::compare::flags::CompareArgs;
use crate::machine::MachineInfo;
use crate::output;
use crate::perf::collective::layout::{Layout, blocks};
use crate::perf::collective::settings::{Average, Memory, Message, Settings};
use crate::perf::collective::ways::ways;
use crate::perf::plan::Plan;
use crate::perf::report::PerfReport;
use crate::perf::test::{Test, TestChannel};
use crate::perf::{jobs, note_siblings, note_spread};

/// Ranks where the user does not say how many.
const RANKS: u32 = 2;

/// The kinds of channels, in the order in which they are measured.
const CHANNELS: [TestChannel; 2] = [TestChannel::Memory, TestChannel::Port];

/// What elements are, and how they are reduced.
const ELEMENT: &str = "float";
const OPERATOR: &str = "sum";

/// Measures all ways at every size: those over one kind of channel take turns in one job. The others follow in a job of their
/// own, so that no proxy is about when the direct ones are measured: even one that sleeps has devices give way while they wait. So
/// the report compares the two kinds only where the cores were alike in both jobs.
///
/// # Errors
/// Bad sizes, a job that fails.
pub(super) fn measure(args: &CompareArgs, test: Test) -> Result<RivalReport> {
    let operation = test.operation().context("no collective operation")?;
    let n_ranks = args.ranks.unwrap_or(RANKS);
    let sizes = whole_blocks(&args.sweep.sizes()?, operation, n_ranks);
    let one_core = jobs::share_a_core(&args.job)?;
    jobs::note_shared_core(one_core);
    let races = sizes.iter().flat_map(|&bytes| CHANNELS.map(|channel| (bytes, channel)));
    let races: Vec<_> =
        races.map(|(bytes, channel)| (bytes, channel, rivals(operation, channel, n_ranks, bytes))).collect();
    let figures: usize = races.iter().map(|(_, _, rivals)| rivals.len()).sum();
    let progress = output::progress(figures as u64);
    progress.set_message(test.name());
    let mut report = PerfReport { machine: MachineInfo::detect(), rows: Vec::new() };
    for (bytes, channel, rivals) in races {
        let plan = Plan {
            tests: vec![(test, None)],
            sizes: vec![bytes],
            iters: args.sweep.iters,
            warmup: args.sweep.warmup_iters,
            check: args.sweep.check(),
            one_core,
            // The least number of slices takes long enough.
            figure_ms: 0,
            patience_ms: 0,
            patient: None,
            proxy: args.job.proxy,
            collective: Some(settings(operation, channel, &rivals)),
            matrix: None,
        };
        jobs::supervise(&plan, n_ranks, &args.job, &mut |line| {
            if let Message::Figure(row) = Message::read(line)? {
                progress.inc(1);
                report.rows.push(*row);
            }
            Ok(())
        })?;
    }
    progress.finish_and_clear();
    note_siblings(&mut report);
    note_spread(&report.rows);
    Ok(RivalReport { machine: report.machine, proxy: args.job.proxy, test, n_ranks, rows: report.rows })
}

fn settings(operation: Operation, channel: TestChannel, rivals: &[Option<String>]) -> Settings {
    Settings {
        algorithm: None,
        channel,
        types: vec![ELEMENT.to_owned()],
        ops: vec![if operation.reduces() { OPERATOR } else { "none" }.to_owned()],
        roots: if operation.has_root() { vec![0] } else { Vec::new() },
        average: Average::Mean,
        memory: Memory::Heap,
        percentiles: false,
        rivals: rivals.to_vec(),
    }
}

/// What the library does by itself, and every algorithm that does it in its own way.
fn rivals(operation: Operation, channel: TestChannel, n_ranks: u32, bytes: u64) -> Vec<Option<String>> {
    let size = size_of::<f32>() as u64;
    let len = Layout::new(operation, bytes, size, n_ranks.into()).send() * size;
    let named = ways(operation, channel, n_ranks, len).into_iter().map(|way| Some(way.name().to_owned()));
    [None].into_iter().chain(named).collect()
}

/// Sizes of which each rank has a whole number of elements, each once.
fn whole_blocks(sizes: &[u64], operation: Operation, n_ranks: u32) -> Vec<u64> {
    let (send, recv) = blocks(operation, n_ranks.into());
    let unit = send.max(recv).max(1) * size_of::<f32>() as u64;
    let mut sizes: Vec<u64> = sizes.iter().map(|size| size.next_multiple_of(unit)).collect();
    sizes.dedup();
    sizes
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
    fn every_algorithm_that_does_it_in_its_own_way_is_a_rival_of_the_default() {
        let over = |channel, operation, n_ranks, bytes| {
            let rivals = rivals(operation, channel, n_ranks, bytes);
            rivals.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        let named = |operation, n_ranks, bytes| over(TestChannel::Memory, operation, n_ranks, bytes);
        assert_eq!(named(Operation::Gather, 2, 64), ["", "one_shot", "two_shot"]);
        assert_eq!(over(TestChannel::Port, Operation::Gather, 2, 64), ["", "one_shot"]);
        assert_eq!(named(Operation::AllReduce, 3, 64).len(), 9);
        for operation in [Operation::Send, Operation::AllToAllV] {
            assert_eq!(CHANNELS.map(|channel| over(channel, operation, 2, 64)), [[""]; 2]);
        }
        let halving = "halving_doubling".to_owned();
        assert!(named(Operation::ReduceScatter, 4, 64).contains(&halving));
        assert!(!named(Operation::ReduceScatter, 3, 192).contains(&halving));
        let one_shot = "one_shot".to_owned();
        assert!(named(Operation::Broadcast, 2, 8 << 10).contains(&one_shot));
        assert!(!named(Operation::Broadcast, 2, 16 << 10).contains(&one_shot));
    }
}
