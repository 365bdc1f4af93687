//! A plan compiled for one size: flat records that an executor steps through, and that the slow
//! interpreter does, too.
//!
//! # What is resolved
//! Chunks are bytes, indices of blocks are ranks, buffers and counters, slices are ranges, and
//! switch groups are their members. An operation over several channels is a [`Step`] for each, in
//! order, with its number as `slot`. An input and an output that overlap are one buffer
//! ([`Overlap`]): a plan that is written in place runs in place, so a call out of place copies its
//! input to where [`RankCode::input`] says, and its result from [`RankCode::output`]. A call in
//! place of a plan that is not stages its input.
//!
//! # What is left for the time of running
//! - **The launch**, from 1 on. It is the flag of packets, and with [`RankCode::half`] other than 0
//!   it picks the half of scratch: odd launches the first, even ones the second. The rank that
//!   accesses decides, near and far.
//! - **The iteration** of a pipeline. [`Cursor`] counts it, [`BlockTransfer::extent`] gives the
//!   bytes of it, and [`Operand::at`] the offset.
//!
//! # What a wait waits for
//! | action | until |
//! |---|---|
//! | `Barrier` | all parties of [`RankCode::barriers`] have arrived; any number of times |
//! | `Acquire` | the semaphore of the rank is above 0; takes 1 |
//! | `Wait` | the counter of the rank has one signal more than were taken; takes 1 |
//! | `Flush` | all that this rank has pushed on the port until now is done |
//! | `Move`, `Await` | every word of its sources in packets has the flag of the launch |
//!
//! Counters and semaphores go on from launch to launch. A counter is one direction of one channel:
//! the rank that waits holds it, and [`RankCode::counters`] says whose signals it counts. Memory
//! and port channels have counters apart from each other. A relaxed signal counts as any other.
//!
//! # Packets
//! A packet stream of b bytes of payload takes 2b bytes: words of 4 bytes of payload and 4 bytes of
//! flag, little end first. The offset of an operand in packets is that of its first word; word k
//! has the payload bytes 4k..4k+4. A transfer goes on as packets come in, from the first byte to
//! the last. A proxy moves packets as plain bytes, so a [`StepAction::Push`] of them says twice the
//! payload.
//!
//! # Order
//! Each step comes after those before it in its block. All that a block pushes to ports goes
//! through one queue of its rank, in that order, and `PushSignal` counts once what was pushed
//! before it on its port is written. A launch ends when all blocks have, and then flushes what is
//! in flight.
//!
//! Tried by `plans musts:: wrapped::`.

mod code;
mod counters;
mod operation;
mod sizes;

use crate::collective::{CollectiveKind, Overlap};
use crate::plan::{BlockOperation, Buffer, ExecutionPlan, RankProgram};
use crate::problem::{Place, Problem};
pub use code::{
    BlockCode, BlockTransfer, BufferRange, Counter, Cursor, Form, Lowered, Operand, OperationSite, RankCode,
    Step, StepAction,
};
pub(crate) use counters::Counters;
use operation::Lowering;
pub(crate) use operation::gcd;
pub(crate) use sizes::{Scaled, Sizes, chunks_of_message, message_of, slices, wrap_of};
pub use sizes::{granule, smallest};

/// Compiles a plan for a message of that many bytes: of the output for allgather, else of the
/// input.
///
/// # Errors
/// All reasons why the plan cannot run at that size.
pub fn lower(plan: &ExecutionPlan, message: u64) -> Result<Lowered, Vec<Problem>> {
    let sizes = Sizes::of_message(plan, message).map_err(|problem| vec![problem])?;
    lower_sized(plan, &sizes)
}

/// Compiles a plan for sizes that were found already.
pub(crate) fn lower_sized(plan: &ExecutionPlan, sizes: &Sizes) -> Result<Lowered, Vec<Problem>> {
    let counters = Counters::of(plan);
    let overlap = overlap(plan, sizes);
    let mut problems = Vec::new();
    let mut ranks = Vec::with_capacity(plan.ranks.len());
    for rank in 0..plan.ranks.len() {
        let mut lowering =
            Lowering { plan, sizes, counters: &counters, overlap, rank, problems: &mut problems };
        ranks.push(lower_rank(&mut lowering));
    }
    if problems.is_empty() {
        let (message, chunk, stands_for) = (sizes.message, sizes.chunk, sizes.stands_for.clone());
        return Ok(Lowered { message, chunk, overlap, ranks, stands_for });
    }
    Err(problems)
}

/// Returns how input and output overlap as the plan is written.
fn overlap(plan: &ExecutionPlan, sizes: &Sizes) -> Overlap {
    let sizes_agree = sizes.ranks.iter().all(|rank| rank.input == rank.output);
    match plan.in_place {
        true => CollectiveKind::of(plan).overlap(sizes_agree),
        false => Overlap::Apart,
    }
}

fn lower_rank(lowering: &mut Lowering<'_>) -> RankCode {
    let program = &lowering.plan.ranks[lowering.rank];
    let sizes = &lowering.sizes.ranks[lowering.rank];
    let region = |buffer, bytes| BufferRange {
        buffer: lowering.overlap.holder(buffer),
        offset: lowering.start_of(lowering.rank, buffer),
        bytes,
    };
    let (input, output) = (region(Buffer::Input, sizes.input), region(Buffer::Output, sizes.output));
    let bytes = |buffer| {
        let ends = [&input, &output]
            .map(|region| usize::from(region.buffer == buffer) * (region.offset + region.bytes));
        ends[0].max(ends[1])
    };
    let buffers = [bytes(Buffer::Input), bytes(Buffer::Output), sizes.scratch];
    let barriers = barrier_ids(program);
    let blocks = (0..program.blocks.len()).map(|block| lowering.block(block, &barriers)).collect();
    RankCode {
        input,
        output,
        buffers,
        half: sizes.half,
        counters: lowering.counters.of_rank(lowering.rank),
        ports: program.port_channels.iter().map(|&peer| peer as usize).collect(),
        semaphores: program.semaphores.clone(),
        barriers: barriers.iter().map(|&(_, parties)| parties as usize).collect(),
        blocks,
    }
}

/// Returns the barriers of a rank, ids and parties, in the order of ids.
fn barrier_ids(program: &RankProgram) -> Vec<(u32, u32)> {
    let mut found = std::collections::BTreeSet::new();
    let mut visit = |operation: &BlockOperation, _: Place| found.extend(operation.barrier);
    for block in &program.blocks {
        crate::problem::each_operation(&block.operations, Place::PLAN, &mut visit);
    }
    found.into_iter().collect()
}
