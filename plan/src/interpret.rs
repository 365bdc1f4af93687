//! The slow, obvious reading of [`Lowered`] code: one thread, real bytes, a drawn schedule.
//!
//! It serves as an oracle. The order in which blocks, proxies and callers take turns follows from a
//! seed, and blocks are paused between any two units of a transfer. Ranks go from launch to launch
//! without a barrier, as far as their plan lets them.
//!
//! Tried by `plans interpreted:: mutants::`.

mod memory;
mod schedule;

use std::collections::VecDeque;

use crate::lower::{BlockCode, BlockTransfer, Cursor, Form, Lowered, Operand, OperationSite, StepAction};
use crate::plan::Operator;
use memory::{ByteMemory, ByteSpan};
pub use schedule::SplitMix64;

/// Combines the second bytes into the first.
pub type Combine<'a> = &'a dyn Fn(Operator, &mut [u8], &[u8]);

/// Gives the input of a rank in a launch, which counts from 1.
pub type Inputs<'a> = &'a dyn Fn(usize, u64) -> Vec<u8>;

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpretedRun {
    /// The output of each rank and launch.
    pub outputs: Vec<Vec<Vec<u8>>>,
    /// Who waits for what never comes; empty where all ranks ended.
    pub stuck: Vec<Stuck>,
}

/// A block that waits for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Its rank.
    pub rank: usize,
    /// The block.
    pub block: usize,
    /// The launch that the rank is in.
    pub launch: u64,
    /// The operation that waits.
    pub site: OperationSite,
}

/// Runs a plan for so many launches, on a schedule drawn from `seed`. `unit` is the smallest number
/// of bytes that a block moves before another may take its turn.
#[must_use]
pub fn run(
    lowered: &Lowered,
    unit: usize,
    launches: u64,
    seed: u64,
    inputs: Inputs<'_>,
    combine: Combine<'_>,
) -> InterpretedRun {
    let mut machine = Machine::new(lowered, unit, launches, seed, inputs, combine);
    schedule::run(&mut machine);
    machine.outcome()
}

/// All that changes while a plan runs.
struct Machine<'a> {
    lowered: &'a Lowered,
    unit: usize,
    launches: u64,
    random: SplitMix64,
    inputs: Inputs<'a>,
    combine: Combine<'a>,
    memory: ByteMemory,
    ranks: Vec<RankState>,
}

/// One rank: what others signal to it, and where it stands.
struct RankState {
    /// The launch that it is in, or that it begins next.
    launch: u64,
    is_running: bool,
    signals: Vec<u64>,
    semaphores: Vec<u64>,
    /// How many have arrived at each barrier so far.
    arrivals: Vec<u64>,
    blocks: Vec<BlockState>,
    /// What was pushed and is not done.
    queue: VecDeque<QueuedTrigger>,
    /// How many were pushed, and by port, the number of the latest.
    pushed: u64,
    latest: Vec<u64>,
    outputs: Vec<Vec<u8>>,
}

/// A thread block.
#[derive(Clone, Default)]
struct BlockState {
    cursor: Cursor,
    /// How much of the payload of the step is done.
    done: usize,
    /// The barrier round that the step waits for, once it has arrived.
    arrived: Option<u64>,
}

/// What a proxy does next.
enum QueuedTrigger {
    Copy { from: ByteSpan, to: ByteSpan },
    Signal { peer: usize, counter: usize },
}

/// Who takes a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actor {
    Block(usize, usize),
    Proxy(usize),
    Caller(usize),
}

impl<'a> Machine<'a> {
    fn new(
        lowered: &'a Lowered,
        unit: usize,
        launches: u64,
        seed: u64,
        inputs: Inputs<'a>,
        combine: Combine<'a>,
    ) -> Self {
        let ranks = lowered.ranks.iter().map(|code| RankState {
            launch: 1,
            is_running: false,
            signals: vec![0; code.counters.len()],
            semaphores: code.semaphores.iter().map(|&value| u64::from(value)).collect(),
            arrivals: vec![0; code.barriers.len()],
            blocks: vec![BlockState::default(); code.blocks.len()],
            queue: VecDeque::new(),
            pushed: 0,
            latest: vec![0; code.ports.len()],
            outputs: Vec::new(),
        });
        Self {
            lowered,
            unit: unit.max(1),
            launches,
            random: SplitMix64::new(seed),
            inputs,
            combine,
            memory: ByteMemory::new(lowered),
            ranks: ranks.collect(),
        }
    }

    fn actors(&self) -> Vec<Actor> {
        let of_rank = |(rank, code): (usize, &crate::lower::RankCode)| {
            let blocks = (0..code.blocks.len()).map(move |block| Actor::Block(rank, block));
            blocks.chain([Actor::Proxy(rank), Actor::Caller(rank)]).collect::<Vec<_>>()
        };
        self.lowered.ranks.iter().enumerate().flat_map(of_rank).collect()
    }

    /// Lets an actor take one turn. Returns whether it did anything.
    fn turn(&mut self, actor: Actor) -> bool {
        match actor {
            Actor::Block(rank, block) => self.block_turn(rank, block),
            Actor::Proxy(rank) => self.proxy_turn(rank),
            Actor::Caller(rank) => self.caller_turn(rank),
        }
    }

    /// Starts a launch, or ends one whose blocks have ended and whose pushes are done.
    fn caller_turn(&mut self, rank: usize) -> bool {
        let code = &self.lowered.ranks[rank];
        let state = &mut self.ranks[rank];
        if !state.is_running {
            if state.launch > self.launches {
                return false;
            }
            let input = (self.inputs)(rank, state.launch);
            self.memory.write(ByteSpan::of_region(rank, &code.input), &input);
            state.blocks.fill(BlockState::default());
            state.is_running = true;
            return true;
        }
        let mut blocks = state.blocks.iter().zip(&code.blocks);
        if !state.queue.is_empty() || blocks.any(|(task, code)| task.cursor.step(code).is_some()) {
            return false;
        }
        state.outputs.push(self.memory.read(ByteSpan::of_region(rank, &code.output)).to_vec());
        state.launch += 1;
        state.is_running = false;
        true
    }

    fn proxy_turn(&mut self, rank: usize) -> bool {
        match self.ranks[rank].queue.pop_front() {
            None => return false,
            Some(QueuedTrigger::Copy { from, to }) => self.memory.copy(from, to),
            Some(QueuedTrigger::Signal { peer, counter }) => self.ranks[peer].signals[counter] += 1,
        }
        true
    }

    fn block_turn(&mut self, rank: usize, block: usize) -> bool {
        if !self.ranks[rank].is_running {
            return false;
        }
        let lowered = self.lowered;
        let code = &lowered.ranks[rank].blocks[block];
        let task = self.ranks[rank].blocks[block].clone();
        let Some(step) = task.cursor.step(code) else { return false };
        let is_done = match step.action {
            StepAction::Fence | StepAction::Repeat { .. } => true,
            StepAction::Barrier { barrier } => match self.meet(rank, block, barrier) {
                Some(is_done) => is_done,
                None => return false,
            },
            StepAction::Acquire { semaphore } => take(&mut self.ranks[rank].semaphores[semaphore]),
            StepAction::Wait { counter, .. } => take(&mut self.ranks[rank].signals[counter]),
            StepAction::Release { semaphore } => {
                self.ranks[rank].semaphores[semaphore] += 1;
                true
            }
            StepAction::Signal { peer, counter, .. } => {
                self.ranks[peer].signals[counter] += 1;
                true
            }
            StepAction::Move(transfer) | StepAction::Await(transfer) => {
                match self.transfer(rank, block, code, &transfer) {
                    Some(is_done) => is_done,
                    None => return false,
                }
            }
            StepAction::Push { port, transfer } => {
                self.push(rank, code, port, &transfer, task.cursor.iteration());
                true
            }
            StepAction::PushSignal { port, peer, counter } => {
                self.enqueue(rank, port, QueuedTrigger::Signal { peer, counter });
                true
            }
            StepAction::Flush { port } => self.is_flushed(rank, port),
        };
        if is_done {
            let task = &mut self.ranks[rank].blocks[block];
            task.cursor.advance(code);
            (task.done, task.arrived) = (0, None);
        }
        is_done
            || matches!(step.action, StepAction::Move(_) | StepAction::Await(_) | StepAction::Barrier { .. })
    }

    /// Arrives, or looks whether all have. Returns nothing where the block can only wait.
    fn meet(&mut self, rank: usize, block: usize, barrier: usize) -> Option<bool> {
        let parties = self.lowered.ranks[rank].barriers[barrier] as u64;
        let state = &mut self.ranks[rank];
        let round = state.blocks[block].arrived;
        let Some(round) = round else {
            state.blocks[block].arrived = Some(state.arrivals[barrier] / parties);
            state.arrivals[barrier] += 1;
            return Some(false);
        };
        (state.arrivals[barrier] / parties > round).then_some(true)
    }

    /// Moves some units of a transfer. Returns nothing where it can only wait.
    fn transfer(
        &mut self,
        rank: usize,
        block: usize,
        code: &BlockCode,
        transfer: &BlockTransfer,
    ) -> Option<bool> {
        let launch = self.ranks[rank].launch;
        let task = &self.ranks[rank].blocks[block];
        let (first, bytes) = transfer.extent(task.cursor.iteration());
        let most = (bytes - task.done).div_ceil(self.unit);
        let wanted = if most > 1 { 1 + self.random.below(most) } else { most };
        let mut done = task.done;
        for _ in 0..wanted {
            let piece = self.unit.min(bytes - done);
            if !self.piece(launch, code, transfer, first + done, piece) {
                break;
            }
            done += piece;
        }
        let task = &mut self.ranks[rank].blocks[block];
        if done == task.done && bytes > done {
            return None;
        }
        task.done = done;
        Some(done == bytes)
    }

    /// Moves the bytes from `first` of the payload on. Returns false where packets are missing.
    fn piece(
        &mut self,
        launch: u64,
        code: &BlockCode,
        transfer: &BlockTransfer,
        first: usize,
        bytes: usize,
    ) -> bool {
        let mut value: Option<Vec<u8>> = None;
        for source in code.sources(transfer) {
            let span = self.span(source, first, bytes, launch);
            let Some(read) = self.memory.load(span, source.form, launch) else { return false };
            match &mut value {
                Some(value) => (self.combine)(transfer.operator, value, &read),
                None => value = Some(read),
            }
        }
        let value = value.unwrap_or_default();
        for target in code.targets(transfer) {
            let span = self.span(target, first, bytes, launch);
            self.memory.store(span, target.form, launch, &value);
        }
        true
    }

    fn push(
        &mut self,
        rank: usize,
        code: &BlockCode,
        port: usize,
        transfer: &BlockTransfer,
        iteration: usize,
    ) {
        let launch = self.ranks[rank].launch;
        let (first, bytes) = transfer.extent(iteration);
        let [from, to] = [code.sources(transfer), code.targets(transfer)]
            .map(|side| self.span(&side[0], first, bytes, launch));
        self.enqueue(rank, port, QueuedTrigger::Copy { from, to });
    }

    fn enqueue(&mut self, rank: usize, port: usize, trigger: QueuedTrigger) {
        let state = &mut self.ranks[rank];
        state.pushed += 1;
        state.latest[port] = state.pushed;
        state.queue.push_back(trigger);
    }

    fn is_flushed(&self, rank: usize, port: usize) -> bool {
        let state = &self.ranks[rank];
        state.pushed - state.queue.len() as u64 >= state.latest[port]
    }

    /// Returns where a part of an operand lies. The launch of who accesses picks the half.
    fn span(&self, operand: &Operand, first: usize, bytes: usize, launch: u64) -> ByteSpan {
        let first = self.lowered.place(operand, first, launch);
        let bytes = if operand.form == Form::Packets { 2 * bytes } else { bytes };
        ByteSpan { rank: operand.rank, buffer: operand.buffer, first, bytes }
    }

    fn outcome(self) -> InterpretedRun {
        let mut stuck = Vec::new();
        for (rank, state) in self.ranks.iter().enumerate().filter(|(_, state)| state.is_running) {
            for (block, task) in state.blocks.iter().enumerate() {
                let code = &self.lowered.ranks[rank].blocks[block];
                if let Some(step) = task.cursor.step(code) {
                    stuck.push(Stuck { rank, block, launch: state.launch, site: code.sites[step.site] });
                }
            }
        }
        InterpretedRun { outputs: self.ranks.into_iter().map(|rank| rank.outputs).collect(), stuck }
    }
}

fn take(count: &mut u64) -> bool {
    let is_there = *count > 0;
    *count -= u64::from(is_there);
    is_there
}
