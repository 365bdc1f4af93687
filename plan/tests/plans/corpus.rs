//! The files of `tests/plans`, and what their manifest says.

use std::path::{Path, PathBuf};

use shmccl_plan::collective::CollectiveKind;
use shmccl_plan::interpret::{self, InterpretedRun};
use shmccl_plan::plan::Operator;
use shmccl_plan::{ExecutionPlan, lower, read};

/// A plan of the corpus.
pub(crate) struct Listed {
    /// The folder and the name, without the suffix.
    pub(crate) name: String,
    pub(crate) plan: ExecutionPlan,
    pub(crate) smallest: u64,
    pub(crate) verdict: String,
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans")
}

/// Whether the long forms of tests are asked for.
pub(crate) fn is_long() -> bool {
    std::env::var("SHMCCL_LONG").is_ok_and(|long| long == "1")
}

pub(crate) fn load(name: &str) -> ExecutionPlan {
    let read = read::read_file(&folder().join(format!("{name}.json")));
    read.unwrap_or_else(|refusal| panic!("{:#?}", refusal)).plan
}

/// Returns the rows of the manifest, from one folder or from all.
pub(crate) fn listed(of: &[&str]) -> Vec<Listed> {
    let manifest = std::fs::read_to_string(folder().join("MANIFEST.md")).unwrap();
    let mut section = String::new();
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            section = name.to_owned();
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let Some(smallest) = cells.get(11).and_then(|cell| cell.parse().ok()) else { continue };
        if of.contains(&section.as_str()) {
            let name = format!("{section}/{}", cells[1]);
            let plan = load(&name);
            found.push(Listed { plan, name, smallest, verdict: cells[14].to_owned() });
        }
    }
    assert!(!found.is_empty(), "{of:?}");
    found
}

/// Returns a byte that no other place, rank or launch is likely to hold.
fn byte(rank: usize, launch: u64, index: usize) -> u8 {
    let mut random = interpret::SplitMix64::new((rank as u64) << 40 | launch << 32 | index as u64);
    random.draw().to_le_bytes()[3]
}

fn input(rank: usize, launch: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| byte(rank, launch, index)).collect()
}

pub(crate) fn combine(operator: Operator, into: &mut [u8], from: &[u8]) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = match operator {
            Operator::Sum => a.wrapping_add(*b),
            Operator::Min => *a.min(&mut b.clone()),
            Operator::Max => *a.max(&mut b.clone()),
        };
    }
}

/// Runs a plan with bytes that tell ranks, launches and places apart.
pub(crate) fn run(plan: &ExecutionPlan, message: u64, launches: u64, seed: u64) -> InterpretedRun {
    let lowered = lower(plan, message).unwrap_or_else(|problems| panic!("{problems:?}"));
    let sizes: Vec<_> = lowered.ranks.iter().map(|rank| rank.input.bytes).collect();
    let inputs = |rank: usize, launch| input(rank, launch, sizes[rank]);
    interpret::run(&lowered, plan.alignment, launches, seed, &inputs, &combine)
}

/// Says what is wrong with the outputs of a run, if anything.
pub(crate) fn fault(plan: &ExecutionPlan, outcome: &InterpretedRun, launches: u64) -> Option<String> {
    if let Some(stuck) = outcome.stuck.first() {
        return Some(format!("rank {} block {} hangs in {}", stuck.rank, stuck.block, stuck.site));
    }
    let ranks = plan.ranks.len();
    let bytes = outcome.outputs[0][0].len();
    for (index, launch) in (1..=launches).enumerate() {
        let got: Vec<_> = outcome.outputs.iter().map(|rank| &rank[index]).collect();
        if CollectiveKind::of(plan) == CollectiveKind::SendRecv {
            let mut left: Vec<_> = (0..ranks).map(|rank| input(rank, launch, bytes)).collect();
            for (rank, output) in got.iter().enumerate() {
                match left.iter().position(|input| input == *output) {
                    Some(index) => drop(left.swap_remove(index)),
                    None => return Some(format!("rank {rank} launch {launch} has the input of nobody")),
                }
            }
            continue;
        }
        for (rank, output) in got.iter().enumerate() {
            if let Some(wanted) = expected(plan, rank, launch, bytes)
                && let Some(index) = (0..bytes).find(|&index| output[index] != wanted[index])
            {
                return Some(format!("rank {rank} launch {launch} is wrong from byte {index} on"));
            }
        }
    }
    None
}

/// Returns what the collective leaves at a rank, if the format says so.
fn expected(plan: &ExecutionPlan, rank: usize, launch: u64, bytes: usize) -> Option<Vec<u8>> {
    let ranks = plan.ranks.len();
    let sum = |first: usize| -> Vec<u8> {
        let mut sum = vec![0; bytes];
        for peer in 0..ranks {
            let part: Vec<_> = (first..first + bytes).map(|index| byte(peer, launch, index)).collect();
            combine(Operator::Sum, &mut sum, &part);
        }
        sum
    };
    Some(match CollectiveKind::of(plan) {
        CollectiveKind::AllReduce => sum(0),
        CollectiveKind::ReduceScatter => sum(rank * bytes),
        CollectiveKind::AllGather => (0..ranks).flat_map(|peer| input(peer, launch, bytes / ranks)).collect(),
        CollectiveKind::AllToAll => (0..ranks)
            .flat_map(|peer| {
                let part = bytes / ranks;
                (0..part).map(move |index| byte(peer, launch, rank * part + index))
            })
            .collect(),
        CollectiveKind::SendRecv | CollectiveKind::Other => return None,
    })
}
