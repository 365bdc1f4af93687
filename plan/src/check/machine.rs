//! One run of a plan over abstract data: each cell with what it holds, each actor with what it
//! knows.
//!
//! A block has a *base* clock: what all its threads know. Thread i of it, which handles channel i
//! of operations over several, knows what it has waited for beside that (*slots*). All of it
//! becomes base where threads meet; until then it is *pending*. A proxy has a lane for each thread
//! that pushes: two pushes are ordered only where one thread knows of the other's, since who comes
//! first in the queue is chance otherwise.

mod actors;
mod counters;
mod moves;

use std::collections::{BTreeSet, VecDeque};

use super::clock::Clock;
use super::memory::{CellAccess, CellMemory, CellRange, Origin, Spot};
use super::rule::{Rule, holds};
use super::value::{Expression, Expressions, Value};
use crate::lower::{Cursor, Lowered, Step, StepAction};
use crate::plan::BlockId;
use actors::Actors;
pub(super) use counters::{Chance, CounterId};
use counters::{CounterState, Published, Thread};

/// The most components of clocks that a run holds at once. Tests reach it.
pub(super) const MAX_LIVE: usize = if cfg!(test) { 1 << 16 } else { 1 << 28 };

/// What a run takes for granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// Whether a block is one thread, rather than threads that meet at `nop`s only.
    pub(super) one_thread: bool,
    /// Whether relaxed signals order data.
    pub(super) relaxed_orders: bool,
    /// Whether a launch ends with a flush of all that its rank has pushed.
    pub(super) flushed_end: bool,
    /// How many launches follow each other.
    pub(super) launches: u64,
    /// Where actors begin in the round of turns.
    pub(super) seed: u64,
}

impl Model {
    /// What holds for every executor that keeps the format: threads meet at `nop`s only.
    pub(super) const STRICT: Self =
        Self { one_thread: false, relaxed_orders: true, flushed_end: true, launches: 4, seed: 0 };
}

/// All that changes in a run.
pub(super) struct AbstractMachine<'a> {
    pub(super) lowered: &'a Lowered,
    model: Model,
    /// The bytes of a cell.
    pub(super) cell: usize,
    actors: Actors,
    pub(super) memory: CellMemory,
    pub(super) values: Expressions,
    pub(super) ranks: Vec<AbstractRank>,
    /// What orders signals, semaphores or pushes by chance.
    pub(super) chances: BTreeSet<Chance>,
    /// Whether several threads add to one counter, or take from one.
    pub(super) has_shared_counters: bool,
    /// Whether the run has ended early, as it would take too much memory.
    pub(super) is_cut_short: bool,
    /// The clock that all others came of.
    zero: Clock,
}

/// One rank.
pub(super) struct AbstractRank {
    /// The launch that it is in, or that it begins next.
    pub(super) launch: u64,
    pub(super) is_running: bool,
    caller: Clock,
    position: u32,
    pub(super) signals: Vec<CounterState>,
    pub(super) semaphores: Vec<CounterState>,
    barriers: Vec<BarrierRounds>,
    pub(super) blocks: Vec<AbstractBlock>,
    queue: VecDeque<QueuedPush>,
    lanes: Vec<Lane>,
    /// The cells of the output of each launch.
    pub(super) outputs: Vec<Vec<Value>>,
}

/// A barrier: who has arrived in this round, and what came of the rounds before.
#[derive(Debug)]
struct BarrierRounds {
    arrived: usize,
    gathered: Clock,
    rounds: Vec<Clock>,
}

/// A thread block.
#[derive(Clone)]
pub(super) struct AbstractBlock {
    pub(super) cursor: Cursor,
    position: u32,
    base: Clock,
    /// What it knew as the launch began.
    start: Clock,
    pending: Option<Clock>,
    slots: Vec<Option<Clock>>,
    /// What the packets have told that the operation has waited for.
    awaited: Option<Clock>,
    /// How many cells of the step are done; nothing before its first turn.
    done: Option<usize>,
    /// The round of the barrier that it waits for.
    round: Option<usize>,
}

/// What one thread pushes to the proxy.
struct Lane {
    /// The port of each push, and what holds once it is done.
    done: Vec<(usize, Option<Clock>)>,
}

/// What a proxy does next.
struct QueuedPush {
    lane: usize,
    index: usize,
    port: usize,
    known: Clock,
    origin: Origin,
    launch: u64,
    task: Pushed,
}

enum Pushed {
    Copy { from: Spot, to: Spot, cells: usize },
    Signal { peer: usize, counter: usize, block: usize },
}

impl<'a> AbstractMachine<'a> {
    pub(super) fn new(lowered: &'a Lowered, cell: usize, model: Model) -> Self {
        let actors = Actors::of(lowered);
        let zero = Clock::zero(actors.count());
        let task = || AbstractBlock {
            cursor: Cursor::default(),
            position: 0,
            base: zero.clone(),
            start: zero.clone(),
            pending: None,
            slots: Vec::new(),
            awaited: None,
            done: None,
            round: None,
        };
        let meeting = || BarrierRounds { arrived: 0, gathered: zero.clone(), rounds: Vec::new() };
        let ranks = lowered.ranks.iter().enumerate().map(|(rank, code)| AbstractRank {
            launch: 1,
            is_running: false,
            caller: zero.clone(),
            position: 0,
            signals: code.counters.iter().map(|_| CounterState::starting_at(0)).collect(),
            semaphores: code
                .semaphores
                .iter()
                .map(|&initial| CounterState::starting_at(initial as usize))
                .collect(),
            barriers: code.barriers.iter().map(|_| meeting()).collect(),
            blocks: code.blocks.iter().map(|_| task()).collect(),
            queue: VecDeque::new(),
            lanes: (0..actors.lanes(rank)).map(|_| Lane { done: Vec::new() }).collect(),
            outputs: Vec::new(),
        });
        let ranks = ranks.collect();
        let memory = CellMemory::new(lowered, cell);
        Self {
            lowered,
            model,
            cell,
            actors,
            memory,
            values: Expressions::new(),
            ranks,
            chances: BTreeSet::new(),
            has_shared_counters: false,
            is_cut_short: false,
            zero,
        }
    }

    /// Runs until nothing moves: each block until it waits, then proxies and callers.
    pub(super) fn run(&mut self) {
        let mut order: Vec<(usize, usize)> = (0..self.ranks.len())
            .flat_map(|rank| (0..self.ranks[rank].blocks.len()).map(move |block| (rank, block)))
            .collect();
        let mut random = crate::interpret::SplitMix64::new(self.model.seed);
        let mut has_moved = true;
        while has_moved {
            has_moved = false;
            if self.model.seed > 0 {
                for last in (1..order.len()).rev() {
                    order.swap(last, random.below(last + 1));
                }
            }
            for &(rank, block) in &order {
                while self.block_turn(rank, block) {
                    has_moved = true;
                    if self.zero.live() > MAX_LIVE {
                        self.is_cut_short = true;
                        return;
                    }
                }
            }
            for rank in 0..self.ranks.len() {
                while self.proxy_turn(rank) {
                    has_moved = true;
                }
                has_moved |= self.caller_turn(rank);
            }
        }
    }

    /// Begins a launch, or ends one.
    fn caller_turn(&mut self, rank: usize) -> bool {
        match self.ranks[rank].is_running {
            false if self.ranks[rank].launch > self.model.launches => return false,
            false => self.begin(rank),
            true if self.has_ended(rank) => self.end(rank),
            true => return false,
        }
        true
    }

    fn has_ended(&self, rank: usize) -> bool {
        let state = &self.ranks[rank];
        let mut blocks = state.blocks.iter().zip(&self.lowered.ranks[rank].blocks);
        let is_drained = state.queue.is_empty() || !self.model.flushed_end;
        is_drained && blocks.all(|(task, code)| task.cursor.step(code).is_none())
    }

    fn begin(&mut self, rank: usize) {
        let region = self.lowered.ranks[rank].input;
        let launch = self.ranks[rank].launch;
        let range = CellRange { first: region.offset / self.cell, cells: region.bytes / self.cell };
        let access = self.caller_access(rank, Origin::Input(moves::small(rank)), range);
        let known = self.ranks[rank].caller.clone();
        for cell in 0..range.cells {
            let leaf = Expression::Input {
                rank: moves::small(rank),
                launch: u32::try_from(launch).unwrap_or(u32::MAX),
                cell: moves::small(cell),
            };
            let value = self.values.of(leaf);
            let spot = Spot { rank, buffer: region.buffer, cell: range.first + cell };
            self.memory.write(spot, &access, &known, value, None);
        }
        if !holds(Rule::LaunchesOverlap) {
            for other in 0..self.ranks.len() {
                for block in 0..self.ranks[other].blocks.len() {
                    let known = self.ranks[other].blocks[block]
                        .base
                        .joined(self.ranks[other].blocks[block].pending.as_ref());
                    self.ranks[rank].caller.join(&known);
                }
                let known = self.ranks[other].caller.clone();
                self.ranks[rank].caller.join(&known);
            }
        }
        let state = &mut self.ranks[rank];
        for task in &mut state.blocks {
            task.cursor = Cursor::default();
            task.base.join(&state.caller);
            task.start = task.base.clone();
        }
        state.is_running = true;
    }

    fn end(&mut self, rank: usize) {
        let actors = &self.actors;
        let state = &mut self.ranks[rank];
        for (block, task) in state.blocks.iter_mut().enumerate() {
            task.fence(actors.block(rank, block));
            state.caller.join(&task.base);
        }
        if self.model.flushed_end {
            for done in state.lanes.iter().filter_map(|lane| lane.done.last()?.1.as_ref()) {
                state.caller.join(done);
            }
        }
        let region = self.lowered.ranks[rank].output;
        let range = CellRange { first: region.offset / self.cell, cells: region.bytes / self.cell };
        let access = self.caller_access(rank, Origin::Result(moves::small(rank)), range);
        let known = self.ranks[rank].caller.clone();
        let mut read = |cell| {
            let spot = Spot { rank, buffer: region.buffer, cell: range.first + cell };
            self.memory.read(spot, &access, &known, false)
        };
        let output = (0..range.cells).map(&mut read).collect();
        let state = &mut self.ranks[rank];
        state.outputs.push(output);
        state.launch += 1;
        state.is_running = false;
    }

    /// Makes the next access of the caller of a rank.
    fn caller_access(&mut self, rank: usize, origin: Origin, range: CellRange) -> CellAccess {
        let actor = self.actors.caller(rank);
        let state = &mut self.ranks[rank];
        state.position += 1;
        state.caller.reach(actor, state.position);
        CellAccess { actor, position: state.position, origin, launch: state.launch, range, element: 16 }
    }

    /// Lets a block take a step, or a part of it. Returns whether it did anything.
    fn block_turn(&mut self, rank: usize, block: usize) -> bool {
        let lowered = self.lowered;
        let code = &lowered.ranks[rank].blocks[block];
        if !self.ranks[rank].is_running {
            return false;
        }
        let Some(&step) = self.ranks[rank].blocks[block].cursor.step(code) else { return false };
        let (actor, block_id) = (self.actors.block(rank, block), BlockId { rank, block });
        let is_done = match step.action {
            StepAction::Fence | StepAction::Repeat { .. } => {
                self.ranks[rank].blocks[block].fence(actor);
                true
            }
            StepAction::Barrier { barrier } => match self.meet(rank, block, barrier) {
                TurnProgress::Done => true,
                progress => return progress == TurnProgress::Some,
            },
            StepAction::Signal { peer, counter, relaxed } => {
                self.tell(block_id, step.slot, peer, CounterId::Signals(counter), relaxed);
                true
            }
            StepAction::Release { semaphore } => {
                self.tell(block_id, step.slot, rank, CounterId::Semaphore(semaphore), false);
                true
            }
            StepAction::Wait { counter, relaxed } => {
                self.take(rank, block, CounterId::Signals(counter), step.slot, relaxed)
            }
            StepAction::Acquire { semaphore } => {
                self.take(rank, block, CounterId::Semaphore(semaphore), step.slot, false)
            }
            StepAction::Move(transfer) | StepAction::Await(transfer) => {
                match self.transfer(rank, block, &step, &transfer) {
                    TurnProgress::Done => true,
                    progress => return progress == TurnProgress::Some,
                }
            }
            StepAction::Push { port, transfer } => {
                let task = self.pushed_copy(rank, block, &transfer);
                self.push(rank, block, &step, port, task);
                true
            }
            StepAction::PushSignal { port, peer, counter } => {
                self.push(rank, block, &step, port, Pushed::Signal { peer, counter, block });
                true
            }
            StepAction::Flush { port } => self.flush(rank, block, step.slot, port),
        };
        if is_done {
            self.advance(rank, block, &step);
        }
        is_done
    }

    fn advance(&mut self, rank: usize, block: usize, step: &Step) {
        let code = &self.lowered.ranks[rank].blocks[block];
        let actor = self.actors.block(rank, block);
        let before = self.ranks[rank].blocks[block].cursor;
        let task = &mut self.ranks[rank].blocks[block];
        task.cursor.advance(code);
        (task.done, task.round) = (None, None);
        let next = task.cursor.step(code);
        let is_same = next.is_some_and(|next| next.site == step.site) && task.cursor.index() > before.index();
        if self.model.one_thread && !is_same {
            task.fence(actor);
        }
    }

    /// Arrives at a barrier, or looks whether all have.
    fn meet(&mut self, rank: usize, block: usize, barrier: usize) -> TurnProgress {
        let parties = self.lowered.ranks[rank].barriers[barrier];
        let actor = self.actors.block(rank, block);
        let state = &mut self.ranks[rank];
        let (task, meeting) = (&mut state.blocks[block], &mut state.barriers[barrier]);
        if let Some(round) = task.round {
            let Some(known) = meeting.rounds.get(round) else { return TurnProgress::None };
            task.base.join(known);
            return TurnProgress::Done;
        }
        task.fence(actor);
        task.round = Some(meeting.rounds.len());
        meeting.gathered.join(&task.base);
        meeting.arrived += 1;
        if meeting.arrived == parties {
            meeting.rounds.push(meeting.gathered.clone());
            meeting.arrived = 0;
        }
        TurnProgress::Some
    }
}

/// Returns how many components the clocks of a plan have.
pub(super) fn actors_of(lowered: &Lowered) -> usize {
    Actors::of(lowered).count()
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnProgress {
    None,
    Some,
    Done,
}

impl AbstractBlock {
    /// Lets all threads know what each knows.
    fn fence(&mut self, actor: usize) {
        self.position += 1;
        if let Some(pending) = self.pending.take() {
            self.base.join(&pending);
        }
        self.base.reach(actor, self.position);
        self.slots.clear();
    }

    /// Returns what a thread knows.
    fn known(&self, slot: usize) -> Clock {
        self.base.joined(self.slots.get(slot).and_then(Option::as_ref))
    }

    fn slot(&mut self, slot: usize) -> &mut Option<Clock> {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        &mut self.slots[slot]
    }
}
