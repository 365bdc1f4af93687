//! Counters: signals and semaphores, what they carry, and whose order is chance.

use std::collections::VecDeque;

use super::{AbstractMachine, AbstractRank};
use crate::check::clock::{Clock, join_into};
use crate::check::rule::{Rule, holds};
use crate::plan::BlockId;

/// The most pairs of blocks that are told to be in an order of chance.
const MAX_CHANCES: usize = 1000;

/// Blocks that signal, or take from, one counter in no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::check) struct Chance {
    pub(in crate::check) rank: usize,
    pub(in crate::check) counter: CounterId,
    pub(in crate::check) takes: bool,
    pub(in crate::check) blocks: [BlockId; 2],
}

/// What is counted: signals or a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::check) enum CounterId {
    Signals(usize),
    Semaphore(usize),
}

/// A counter, and the clocks that were published with what it counts.
#[derive(Debug, Default)]
pub(in crate::check) struct CounterState {
    waiting: VecDeque<Published>,
    /// How many were there before any signal, and how many of these are left.
    initial: usize,
    left: usize,
    /// Who has added last, and taken last, and at which of its positions.
    adder: Option<(Thread, Clock)>,
    taker: Option<Thread>,
}

impl CounterState {
    /// Makes a counter that begins at `initial`.
    pub(super) fn starting_at(initial: usize) -> Self {
        Self { initial, left: initial, ..Self::default() }
    }

    /// Returns how many more were added than taken, beside the initial ones.
    pub(in crate::check) fn surplus(&self) -> isize {
        isize::try_from(self.waiting.len() + self.left).unwrap_or(isize::MAX)
            - isize::try_from(self.initial).unwrap_or(isize::MAX)
    }
}

/// A thread of a block, or of those that push, as it adds to a counter or takes from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    /// Its component of clocks, and how far that was.
    pub(super) actor: usize,
    pub(super) position: u32,
    pub(super) slot: usize,
    pub(super) block: BlockId,
}

impl Thread {
    fn is_other(&self, last: &Self) -> bool {
        (self.actor, self.slot) != (last.actor, last.slot)
    }

    /// Returns whether it comes after another one by chance only, as far as it knows.
    fn follows_by_chance(&self, last: &Self, known: &Clock) -> bool {
        self.is_other(last) && known.of(last.actor) <= last.position
    }
}

/// What a signal carries: what its sender knew, and knew as the launch began.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub(super) clock: Clock,
    pub(super) start: Clock,
    pub(super) relaxed: bool,
}

impl AbstractMachine<'_> {
    /// Adds 1 to a counter of `rank` by a thread of a block, which tells all that it knows.
    pub(super) fn tell(&mut self, by: BlockId, slot: usize, rank: usize, counter: CounterId, relaxed: bool) {
        let task = &self.ranks[by.rank].blocks[by.block];
        let published = Published { clock: task.known(slot), start: task.start.clone(), relaxed };
        self.add(self.thread(by, slot), rank, counter, published);
    }

    /// Names a thread of a block, as it is now.
    pub(super) fn thread(&self, block: BlockId, slot: usize) -> Thread {
        let position = self.ranks[block.rank].blocks[block.block].position;
        Thread { actor: self.actors.block(block.rank, block.block), position, slot, block }
    }

    /// Adds 1 to a counter of `rank`. Threads that tell the same may come in any order.
    pub(super) fn add(&mut self, by: Thread, rank: usize, counter: CounterId, published: Published) {
        let counted = self.ranks[rank].counted(counter);
        let last = counted.adder.replace((by, published.clock.clone()));
        let is_shared = last.as_ref().is_some_and(|(last, _)| by.is_other(last));
        let chance = last.filter(|(last, told)| {
            let is_told = last.actor == by.actor && *told == published.clock;
            !is_told && by.follows_by_chance(last, &published.clock)
        });
        counted.waiting.push_back(published);
        self.has_shared_counters |= is_shared;
        if let Some((last, _)) = chance.filter(|_| holds(Rule::AddersAreOrdered)) {
            self.note(Chance { rank, counter, takes: false, blocks: [last.block, by.block] });
        }
    }

    /// Takes 1 from a counter of `rank`. Returns false where there is none.
    pub(super) fn take(
        &mut self,
        rank: usize,
        block: usize,
        counter: CounterId,
        slot: usize,
        relaxed: bool,
    ) -> bool {
        let counted = self.ranks[rank].counted(counter);
        let taken = match counted.left {
            0 => match counted.waiting.pop_front() {
                None => return false,
                taken => taken,
            },
            _ => {
                counted.left -= 1;
                None
            }
        };
        let by = self.thread(BlockId { rank, block }, slot);
        let task = &mut self.ranks[rank].blocks[block];
        let known = task.known(slot);
        if let Some(published) = taken {
            let weak = !self.model.relaxed_orders && (relaxed || published.relaxed);
            let clock = if weak { published.start } else { published.clock };
            join_into(task.slot(slot), &clock);
            join_into(&mut task.pending, &clock);
            if !holds(Rule::WaitsReachOneThread) {
                task.base.join(&clock);
            }
        }
        let last = self.ranks[rank].counted(counter).taker.replace(by);
        self.has_shared_counters |= last.is_some_and(|last| by.is_other(&last));
        let chance = last.filter(|last| by.follows_by_chance(last, &known));
        if let Some(last) = chance.filter(|_| holds(Rule::TakersAreOrdered)) {
            self.note(Chance { rank, counter, takes: true, blocks: [last.block, by.block] });
        }
        true
    }

    fn note(&mut self, chance: Chance) {
        if self.chances.len() < MAX_CHANCES {
            self.chances.insert(chance);
        }
    }
}

impl AbstractRank {
    fn counted(&mut self, counter: CounterId) -> &mut CounterState {
        match counter {
            CounterId::Signals(index) => &mut self.signals[index],
            CounterId::Semaphore(index) => &mut self.semaphores[index],
        }
    }
}
