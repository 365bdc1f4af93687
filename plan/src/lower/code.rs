//! The flat records.

use std::fmt;

use super::sizes::StandsFor;
use crate::collective::Overlap;
use crate::plan::{Buffer, ChannelKind, Code, Operator};
use crate::problem::Place;

/// A plan compiled for one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// The bytes of the message.
    pub message: u64,
    /// The bytes of a chunk.
    pub chunk: usize,
    /// How input and output overlap while the plan runs.
    pub overlap: Overlap,
    /// The code of each rank.
    pub ranks: Vec<RankCode>,
    /// The real message, where a checker has scaled it down.
    pub(super) stands_for: Option<StandsFor>,
}

impl Lowered {
    /// Returns whether this message stands for a longer one.
    pub(crate) fn is_scaled(&self) -> bool {
        self.stands_for.is_some()
    }

    /// Returns the bytes of a chunk of the message that this one stands for.
    pub(crate) fn real_chunk(&self) -> usize {
        self.stands_for.as_ref().map_or(self.chunk, StandsFor::chunk)
    }

    /// Returns where the byte `at` of a buffer is in the message that this one stands for.
    pub(crate) fn real_byte(&self, rank: usize, buffer: Buffer, at: usize) -> usize {
        match (&self.stands_for, buffer) {
            (None, _) => at,
            (Some(real), Buffer::Scratch) => real.in_scratch(rank, at, self.ranks[rank].half),
            (Some(real), _) => real.in_message(at),
        }
    }

    /// Returns how many bytes of the message that this one stands for so many are.
    pub(crate) fn real_len(&self, bytes: usize) -> usize {
        self.stands_for.as_ref().map_or(bytes, |real| real.grown(bytes).max(bytes))
    }

    /// Returns how many steps all blocks take together in a launch.
    #[must_use]
    pub fn steps(&self) -> usize {
        let blocks = self.ranks.iter().flat_map(|rank| &rank.blocks);
        blocks.fold(0, |steps: usize, block| steps.saturating_add(block.count()))
    }

    /// Returns where byte `first` of the payload of an operand lies in its buffer in a launch.
    /// Launches count from 1.
    #[inline]
    #[must_use]
    pub fn place(&self, operand: &Operand, first: usize, launch: u64) -> usize {
        let half = match operand.buffer {
            Buffer::Scratch => self.ranks[operand.rank].half_of(launch),
            _ => 0,
        };
        half + operand.at(first)
    }

    /// Returns how many bytes of payload all blocks read and write together in a launch.
    pub(crate) fn accessed(&self) -> usize {
        let blocks = self.ranks.iter().flat_map(|rank| &rank.blocks);
        blocks.fold(0, |bytes: usize, block| bytes.saturating_add(block.accessed()))
    }
}

/// What one rank runs, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCode {
    /// Where the input is expected.
    pub input: BufferRange,
    /// Where the output is left.
    pub output: BufferRange,
    /// The bytes of each buffer: input, output, scratch. One that lies in another has none.
    pub buffers: [usize; 3],
    /// The distance from the first half of scratch to the second; 0 where there is one.
    pub half: usize,
    /// The counters that the rank waits on.
    pub counters: Vec<Counter>,
    /// The peers of its port channels.
    pub ports: Vec<usize>,
    /// The initial values of its semaphores.
    pub semaphores: Vec<u32>,
    /// How many blocks meet in each of its barriers.
    pub barriers: Vec<usize>,
    /// The thread blocks of the rank.
    pub blocks: Vec<BlockCode>,
}

impl RankCode {
    /// Returns the offset of the half of scratch that a launch uses. Launches count from 1.
    #[must_use]
    pub fn half_of(&self, launch: u64) -> usize {
        if launch.is_multiple_of(2) { self.half } else { 0 }
    }
}

/// A range of a buffer of the own rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferRange {
    /// The buffer that holds it.
    pub buffer: Buffer,
    /// The first byte of the range.
    pub offset: usize,
    /// How many bytes the range has.
    pub bytes: usize,
}

/// One direction of a channel: signals of `peer`, on the `ordinal`-th channel of this kind between
/// the two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Counter {
    /// The kind of channel.
    pub kind: ChannelKind,
    /// The rank that signals.
    pub peer: usize,
    /// Which channel between the two.
    pub ordinal: usize,
}

/// The code of a thread block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockCode {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The operands of all transfers.
    pub operands: Vec<Operand>,
    /// The operations that steps come from.
    pub sites: Vec<OperationSite>,
}

impl BlockCode {
    /// Returns how often a launch takes each step.
    #[must_use]
    pub fn repeats(&self) -> Vec<usize> {
        let mut repeats = vec![1; self.steps.len()];
        for (index, step) in self.steps.iter().enumerate() {
            if let StepAction::Repeat { first, iterations } = step.action {
                repeats[first..index].fill(iterations);
            }
        }
        repeats
    }

    /// Returns how many steps a launch takes, with all iterations.
    fn count(&self) -> usize {
        self.repeats().into_iter().fold(0, usize::saturating_add)
    }

    /// Returns how many bytes of payload a launch reads and writes.
    fn accessed(&self) -> usize {
        let of_step = |(step, times): (&Step, usize)| match step.action {
            StepAction::Move(transfer) | StepAction::Await(transfer) | StepAction::Push { transfer, .. } => {
                let operands = transfer.bytes.saturating_mul(transfer.sources + transfer.targets);
                // The iterations of a pipeline share what they cover.
                if transfer.unit == 0 { operands.saturating_mul(times) } else { operands }
            }
            _ => 0,
        };
        self.steps.iter().zip(self.repeats()).map(of_step).fold(0, usize::saturating_add)
    }

    /// Returns the sources of a transfer, in the order of reduction.
    #[must_use]
    pub fn sources(&self, transfer: &BlockTransfer) -> &[Operand] {
        &self.operands[transfer.operands..transfer.operands + transfer.sources]
    }

    /// Returns the targets of a transfer.
    #[must_use]
    pub fn targets(&self, transfer: &BlockTransfer) -> &[Operand] {
        let first = transfer.operands + transfer.sources;
        &self.operands[first..first + transfer.targets]
    }
}

/// An operation of the plan that steps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperationSite {
    /// The index of the operation in the block.
    pub operation: usize,
    /// The index in the pipeline at `operation`, if it is in one.
    pub inner: Option<usize>,
    /// Its name.
    pub code: Code,
}

impl OperationSite {
    /// Names the operation within its block.
    #[must_use]
    pub fn place(self, rank: usize, block: usize) -> Place {
        let operation = Some((self.operation, self.inner));
        Place { operation, code: Some(self.code), ..Place::block(rank, block) }
    }
}

impl fmt::Display for OperationSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner {
            Some(inner) => write!(f, "operation {}.{inner} ({})", self.operation, self.code),
            None => write!(f, "operation {} ({})", self.operation, self.code),
        }
    }
}

/// One step of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: StepAction,
    /// Which of the channels of its operation this is, from 0 on.
    pub slot: usize,
    /// The operation of the step, as an index of [`BlockCode::sites`].
    pub site: usize,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// Lets the threads of the block meet; nothing for a block that is one thread.
    Fence,
    /// Meets the other parties of a barrier of the rank.
    Barrier {
        /// Which one.
        barrier: usize,
    },
    /// Waits for a semaphore of the rank, and takes 1.
    Acquire {
        /// Which one.
        semaphore: usize,
    },
    /// Adds 1 to a semaphore of the rank.
    Release {
        /// Which one.
        semaphore: usize,
    },
    /// Adds 1 to a counter of a peer.
    Signal {
        /// The peer.
        peer: usize,
        /// Which of its counters.
        counter: usize,
        /// Whether the plan asks for no order of data.
        relaxed: bool,
    },
    /// Waits for a signal.
    Wait {
        /// Which counter of the own rank.
        counter: usize,
        /// Whether the plan asks for no order of data.
        relaxed: bool,
    },
    /// Combines the sources and writes the result to all targets.
    Move(BlockTransfer),
    /// Waits for the packets of the source; there are no targets.
    Await(BlockTransfer),
    /// Hands a copy of plain bytes, from one source to one target, to the proxy.
    Push {
        /// Which port channel of the own rank.
        port: usize,
        /// The copy.
        transfer: BlockTransfer,
    },
    /// Hands a signal to the proxy.
    PushSignal {
        /// Which port channel of the own rank.
        port: usize,
        /// Its peer.
        peer: usize,
        /// Which counter of the peer.
        counter: usize,
    },
    /// Waits until all that this rank has pushed on a port is done.
    Flush {
        /// Which port channel of the own rank.
        port: usize,
    },
    /// Goes back to `first` until all iterations of a pipeline are done. [`Cursor`] hides it.
    Repeat {
        /// The first step of the pipeline.
        first: usize,
        /// How often its steps run.
        iterations: usize,
    },
}

/// A movement of bytes from sources to targets of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTransfer {
    /// How several sources are combined, in their order: ((a op b) op c).
    pub operator: Operator,
    /// The first operand, as an index of [`BlockCode::operands`].
    pub operands: usize,
    /// How many sources.
    pub sources: usize,
    /// How many targets, behind the sources.
    pub targets: usize,
    /// The bytes of payload of each operand.
    pub bytes: usize,
    /// The bytes of an iteration of a pipeline; 0 where the transfer covers all each time.
    pub unit: usize,
}

impl BlockTransfer {
    /// Returns which bytes of the payload an iteration covers: the first, and how many.
    #[must_use]
    pub fn extent(&self, iteration: usize) -> (usize, usize) {
        if self.unit == 0 {
            return (0, self.bytes);
        }
        let first = iteration.saturating_mul(self.unit).min(self.bytes);
        (first, self.unit.min(self.bytes - first))
    }
}

/// Where a transfer reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Whose buffer.
    pub rank: usize,
    /// Which buffer.
    pub buffer: Buffer,
    /// Plain bytes or packets.
    pub form: Form,
    /// The first byte, in the first half of scratch.
    pub offset: usize,
    /// Where the bytes of a pipeline begin again.
    pub wrap: usize,
}

impl Operand {
    /// Returns the offset of byte `first` of the payload.
    #[must_use]
    pub fn at(&self, first: usize) -> usize {
        match self.form {
            Form::Plain => self.offset + first % self.wrap,
            Form::Packets => self.offset + 2 * first,
        }
    }
}

/// How payload lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// The payload is as it is.
    Plain,
    /// The payload is in words with a flag beside it.
    Packets,
}

/// Where a block stands in its code, for one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    next: usize,
    iteration: usize,
}

impl Cursor {
    /// Returns the step that is next, or nothing at the end.
    #[must_use]
    pub fn step<'a>(&self, code: &'a BlockCode) -> Option<&'a Step> {
        code.steps.get(self.next)
    }

    /// Returns the index of the step that is next.
    #[must_use]
    pub fn index(&self) -> usize {
        self.next
    }

    /// Returns the iteration of the pipeline that the step is in; 0 outside.
    #[must_use]
    pub fn iteration(&self) -> usize {
        self.iteration
    }

    /// Goes on behind the step that is done.
    pub fn advance(&mut self, code: &BlockCode) {
        self.next += 1;
        while let Some(Step { action: StepAction::Repeat { first, iterations }, .. }) =
            code.steps.get(self.next)
        {
            self.iteration += 1;
            if self.iteration < *iterations {
                self.next = *first;
                return;
            }
            self.iteration = 0;
            self.next += 1;
        }
    }
}
