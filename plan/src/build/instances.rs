//! A plan several times over, each over a part of every chunk.

use crate::plan::{Block, BlockOperation, ExecutionPlan, RankProgram, Reference};

/// Replicates a plan: block b of instance k of n becomes b * n + k, as channels and semaphores do,
/// and chunks x of size z become those from x * n + k * z on. All operands move.
pub(super) fn replicate(plan: ExecutionPlan, count: u32) -> ExecutionPlan {
    if count <= 1 {
        return plan;
    }
    let ranks = plan.ranks.iter().map(|rank| replicated(rank, count)).collect();
    ExecutionPlan { ranks, ..plan }
}

fn replicated(rank: &RankProgram, count: u32) -> RankProgram {
    let times = count as usize;
    let each = |list: &[u32]| list.iter().flat_map(|&one| std::iter::repeat_n(one, times)).collect();
    let blocks =
        rank.blocks.iter().flat_map(|block| (0..count).map(move |instance| moved(block, count, instance)));
    RankProgram {
        input_chunks: rank.input_chunks.saturating_mul(count),
        output_chunks: rank.output_chunks.saturating_mul(count),
        scratch_chunks: rank.scratch_chunks.saturating_mul(count),
        blocks: blocks.collect(),
        memory_channels: each(&rank.memory_channels),
        port_channels: each(&rank.port_channels),
        switch_groups: rank.switch_groups.clone(),
        remote_buffers: rank.remote_buffers.clone(),
        semaphores: each(&rank.semaphores),
    }
}

fn moved(block: &Block, count: u32, instance: u32) -> Block {
    let each = |list: &[u32]| list.iter().map(|&id| id * count + instance).collect();
    Block {
        operations: block.operations.iter().map(|of| operation(of, count, instance)).collect(),
        memory_channels: each(&block.memory_channels),
        port_channels: each(&block.port_channels),
        ..block.clone()
    }
}

fn operation(of: &BlockOperation, count: u32, instance: u32) -> BlockOperation {
    // Past all chunks, which breaks a rule.
    let moved =
        |of: &Reference| of.index.saturating_mul(count).saturating_add(instance.saturating_mul(of.size));
    let reference = |of: &Reference| Reference { index: moved(of), ..*of };
    let mut moved = of.clone();
    moved.sources = of.sources.iter().map(reference).collect();
    moved.targets = of.targets.iter().map(reference).collect();
    moved.semaphores = of.semaphores.iter().map(|&id| id * count + instance).collect();
    moved.barrier =
        of.barrier.map(|(id, parties)| (id.saturating_mul(count).saturating_add(instance), parties));
    if let Some(pipeline) = &mut moved.pipeline {
        pipeline.operations = pipeline.operations.iter().map(|of| operation(of, count, instance)).collect();
    }
    moved
}
