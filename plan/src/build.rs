//! Builds plans: the calls of MSCCL++'s DSL, with proof.
//!
//! A [`CollectiveProgram`] holds no global state, and equal calls make equal files. Each side of a
//! channel opens its end: the first from a rank to a peer pairs with the peer's first to it, and so
//! on. A `nop` is put wherever the threads of a block must meet: before an access behind a wait,
//! before a signal behind an access, and between accesses that touch the same bytes.
//! [`CollectiveProgram::finish`] proves the plan, and gives none that is wrong. Each error names
//! the line of the program that made the operation.
//!
//! ```
//! use shmccl_plan::build::CollectiveProgram;
//!
//! let mut program = CollectiveProgram::new("exchange", "allgather", 2).in_place().chunks(1, 2, 0);
//! for rank in 0..2 {
//!     let channel = program.memory_channel(rank, 1 - rank);
//!     let block = program.block(rank);
//!     let own = program.output(rank, rank..rank + 1);
//!     program.relaxed_signal(block, channel)?;
//!     program.relaxed_wait(block, channel)?;
//!     program.put(block, own, program.output(1 - rank, rank..rank + 1))?;
//!     program.signal(block, channel)?;
//!     program.wait(block, channel)?;
//! }
//! let plan = program.finish()?;
//! assert_eq!(plan.ranks.len(), 2);
//! # Ok::<(), shmccl_plan::build::BuildError>(())
//! ```
//!
//! Tried by `plans written:: drawn::` and `test_plan_builder.py`.

mod block;
mod instances;
mod line;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::check::{CheckReport, check};
pub use crate::plan::BlockId;
use crate::plan::{Buffer, ChannelKind, ExecutionPlan, Protocol, RankProgram, RemoteBuffer};
use crate::read::MAX_BLOCKS;
use crate::rules;
use block::Draft;
pub use line::Line;

/// A program that becomes a plan.
#[derive(Clone, Debug)]
pub struct CollectiveProgram {
    plan: ExecutionPlan,
    /// What each block of each rank does so far.
    drafts: Vec<Vec<Draft>>,
    instances: u32,
    made_at: Option<Arc<str>>,
}

/// The end of a channel that one rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelEnd {
    rank: usize,
    kind: ChannelKind,
    index: u32,
}

/// A switch group, as one rank holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwitchGroupId {
    rank: usize,
    index: u32,
}

/// A semaphore between the blocks of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSemaphore {
    rank: usize,
    index: u32,
}

/// A range of chunks of a buffer of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chunks {
    /// Whose buffer.
    pub rank: usize,
    /// Which buffer.
    pub buffer: Buffer,
    /// The first chunk.
    pub index: u32,
    /// How many.
    pub size: u32,
}

/// Why a program is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// A call that has no meaning.
    Call {
        /// What is wrong, and the remedy behind a semicolon.
        what: String,
        /// The line that made it.
        at: Line,
    },
    /// The plan breaks a rule of the format.
    Refused {
        /// What is wrong.
        problems: Vec<String>,
    },
    /// The plan is not right, or was not proved so.
    Unproved {
        /// What was found.
        report: CheckReport,
        /// The lines that made the operations of the first finding.
        at: Vec<Line>,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { what, at } => write!(f, "{at}: {what}"),
            Self::Refused { problems } => {
                write!(f, "the plan breaks a rule of the format: {}", problems.join("; "))
            }
            Self::Unproved { report, at } => {
                write!(f, "the plan is not proved right: ")?;
                if let Some(finding) = report.first_error() {
                    write!(f, "{finding}")?;
                }
                let lines: Vec<_> = at.iter().map(ToString::to_string).collect();
                if lines.is_empty() { Ok(()) } else { write!(f, " (made at {})", lines.join(" and ")) }
            }
        }
    }
}

impl std::error::Error for BuildError {}

impl CollectiveProgram {
    /// Begins a program of so many ranks. Its buffers have no chunks yet.
    #[must_use]
    pub fn new(name: &str, collective: &str, ranks: usize) -> Self {
        let plan = ExecutionPlan {
            name: name.to_owned(),
            collective: collective.to_owned(),
            protocol: Protocol::Simple,
            in_place: false,
            reuse_resources: false,
            double_scratch: false,
            alignment: 16,
            threads_per_block: 1024,
            min_message: 0,
            max_message: u64::MAX,
            ranks: vec![RankProgram::default(); ranks],
        };
        let drafts = (0..ranks).map(|_| Vec::new()).collect();
        Self { plan, drafts, instances: 1, made_at: None }
    }

    /// Lets input and output overlap.
    #[must_use]
    pub fn in_place(mut self) -> Self {
        self.plan.in_place = true;
        self
    }

    /// Lets scratch hold packets, in two halves that launches use by turns.
    #[must_use]
    pub fn packets(mut self) -> Self {
        self.plan.protocol = Protocol::LowLatency;
        self.plan.double_scratch = true;
        self
    }

    /// Lets chunks of scratch wrap.
    #[must_use]
    pub fn reuse_resources(mut self) -> Self {
        self.plan.reuse_resources = true;
        self
    }

    /// Sets the chunks of input, output and scratch of all ranks.
    #[must_use]
    pub fn chunks(mut self, input: u32, output: u32, scratch: u32) -> Self {
        for rank in &mut self.plan.ranks {
            (rank.input_chunks, rank.output_chunks, rank.scratch_chunks) = (input, output, scratch);
        }
        self
    }

    /// Sets the chunks of scratch of one rank.
    pub fn set_scratch(&mut self, rank: usize, chunks: u32) {
        self.plan.ranks[rank].scratch_chunks = chunks;
    }

    /// Sets the smallest and the largest message, in bytes.
    #[must_use]
    pub fn limits(mut self, least: u64, most: u64) -> Self {
        (self.plan.min_message, self.plan.max_message) = (least, most);
        self
    }

    /// Replicates the program so many times, each time over a part of each chunk.
    #[must_use]
    pub fn instances(mut self, count: u32) -> Self {
        self.instances = count.max(1);
        self
    }

    /// Names chunks of an input.
    #[must_use]
    pub fn input(&self, rank: usize, chunks: Range<usize>) -> Chunks {
        Chunks::new(rank, Buffer::Input, chunks)
    }

    /// Names chunks of an output.
    #[must_use]
    pub fn output(&self, rank: usize, chunks: Range<usize>) -> Chunks {
        Chunks::new(rank, Buffer::Output, chunks)
    }

    /// Names chunks of scratch.
    #[must_use]
    pub fn scratch(&self, rank: usize, chunks: Range<usize>) -> Chunks {
        Chunks::new(rank, Buffer::Scratch, chunks)
    }

    /// Adds a thread block to a rank.
    pub fn block(&mut self, rank: usize) -> BlockId {
        self.drafts[rank].push(Draft::default());
        BlockId { rank, block: self.drafts[rank].len() - 1 }
    }

    /// Opens the next memory channel from a rank to a peer. It pairs with the peer's next one to
    /// the rank.
    pub fn memory_channel(&mut self, rank: usize, peer: usize) -> ChannelEnd {
        self.channel(ChannelKind::Memory, rank, peer)
    }

    /// Opens the next port channel from a rank to a peer.
    pub fn port_channel(&mut self, rank: usize, peer: usize) -> ChannelEnd {
        self.channel(ChannelKind::Port, rank, peer)
    }

    fn channel(&mut self, kind: ChannelKind, rank: usize, peer: usize) -> ChannelEnd {
        let program = &mut self.plan.ranks[rank];
        let channels = match kind {
            ChannelKind::Port => &mut program.port_channels,
            _ => &mut program.memory_channels,
        };
        channels.push(block::narrow(peer));
        ChannelEnd { rank, kind, index: block::narrow(channels.len() - 1) }
    }

    /// Joins a buffer of several ranks, as `rank` sees it. The order of ranks is that of reduction.
    pub fn group(&mut self, rank: usize, ranks: &[usize], buffer: Buffer) -> SwitchGroupId {
        let ranks = ranks.iter().map(|&rank| block::narrow(rank)).collect();
        let groups = &mut self.plan.ranks[rank].switch_groups;
        groups.push(crate::plan::SwitchGroup { buffer, ranks });
        SwitchGroupId { rank, index: block::narrow(groups.len() - 1) }
    }

    /// Makes a semaphore between the blocks of a rank.
    pub fn semaphore(&mut self, rank: usize, initial: u32) -> BlockSemaphore {
        let semaphores = &mut self.plan.ranks[rank].semaphores;
        semaphores.push(initial);
        BlockSemaphore { rank, index: block::narrow(semaphores.len() - 1) }
    }

    /// Ends the program, and proves it.
    ///
    /// # Errors
    /// What is wrong with the plan.
    pub fn finish(self) -> Result<ExecutionPlan, BuildError> {
        let lines = self.instances == 1;
        let drafts: Vec<Vec<_>> =
            self.drafts.iter().map(|rank| rank.iter().map(|draft| draft.lines.clone()).collect()).collect();
        let plan = self.finish_unproved()?;
        let report = check(&plan, None).map_err(refused)?;
        if report.is_clean() {
            return Ok(plan);
        }
        let line = |place: &crate::Place| {
            let (rank, block, (operation, _)) = (place.rank?, place.block?, place.operation?);
            drafts.get(rank)?.get(block)?.get(operation).cloned().filter(|_| lines)
        };
        let at = report
            .first_error()
            .map_or(Vec::new(), |finding| finding.places.iter().filter_map(line).collect());
        Err(BuildError::Unproved { report, at })
    }

    /// Ends the program without a proof. The plan keeps the rules of the format.
    ///
    /// # Errors
    /// Rules that the plan breaks.
    pub fn finish_unproved(mut self) -> Result<ExecutionPlan, BuildError> {
        for (rank, drafts) in std::mem::take(&mut self.drafts).into_iter().enumerate() {
            self.plan.ranks[rank].blocks = drafts.into_iter().map(Draft::finish).collect();
        }
        let blocks = self.plan.ranks.iter().map(|rank| rank.blocks.len()).max().unwrap_or(0);
        if blocks.saturating_mul(self.instances as usize) > MAX_BLOCKS {
            let instances = self.instances;
            let what = format!("{blocks} blocks a rank, {instances} times; give {MAX_BLOCKS} in all at most");
            return Err(refused(vec![crate::Problem::new(crate::Place::PLAN, what)]));
        }
        let plan = instances::replicate(self.plan, self.instances);
        let (mut problems, mut warnings) = (Vec::new(), Vec::new());
        rules::check(&plan, &mut problems, &mut warnings);
        if problems.is_empty() { Ok(plan) } else { Err(refused(problems)) }
    }

    /// Returns the index of a remote buffer of a rank, which is added where it is new.
    fn remote_buffer(&mut self, rank: usize, of: &Chunks, kind: ChannelKind) -> u32 {
        let buffers = &mut self.plan.ranks[rank].remote_buffers;
        let is_same = |buffer: &RemoteBuffer| buffer.rank as usize == of.rank && buffer.buffer == of.buffer;
        let index = buffers.iter().position(is_same).unwrap_or_else(|| {
            buffers.push(RemoteBuffer {
                rank: block::narrow(of.rank),
                buffer: of.buffer,
                access: Vec::new(),
            });
            buffers.len() - 1
        });
        if !buffers[index].access.contains(&kind) {
            buffers[index].access.push(kind);
        }
        block::narrow(index)
    }
}

fn refused(problems: Vec<crate::Problem>) -> BuildError {
    BuildError::Refused { problems: problems.iter().map(ToString::to_string).collect() }
}

impl Chunks {
    fn new(rank: usize, buffer: Buffer, chunks: Range<usize>) -> Self {
        let size = block::narrow(chunks.end.saturating_sub(chunks.start));
        Self { rank, buffer, index: block::narrow(chunks.start), size }
    }

    /// Returns `size` chunks from the `first` of these on.
    #[must_use]
    pub fn part(self, first: u32, size: u32) -> Self {
        Self { index: self.index + first, size, ..self }
    }
}
