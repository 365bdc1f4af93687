//! Counters: signals and semaphores, what they carry, and whose order is chance.

use std::collections::VecDeque;

use super::{Machine, Rank};
use crate::check::clock::{Clock, join_into};
use crate::check::rule::{Rule, holds};

/// The most pairs of blocks that are told to be in an order of chance.
const MAX_CHANCES: usize = 1000;

/// Blocks that signal, or take from, one counter in no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::check) struct Chance {
    pub(in crate::check) rank: usize,
    pub(in crate::check) counter: Count,
    pub(in crate::check) takes: bool,
    pub(in crate::check) blocks: [(usize, usize); 2],
}

/// What is counted: signals or a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::check) enum Count {
    Signals(usize),
    Semaphore(usize),
}

/// A counter, and the clocks that were published with what it counts.
#[derive(Debug, Default)]
pub(in crate::check) struct Counted {
    waiting: VecDeque<Published>,
    /// How many were there before any signal, and how many of these are left.
    initial: usize,
    left: usize,
    /// Who has added last, and taken last, and at which of its positions.
    adder: Option<(Thread, Clock)>,
    taker: Option<Thread>,
}

impl Counted {
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
    pub(super) block: (usize, usize),
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

impl Machine<'_> {
    /// Returns what a thread of a block tells.
    pub(super) fn publish(&self, rank: usize, block: usize, slot: usize, relaxed: bool) -> Published {
        let task = &self.ranks[rank].blocks[block];
        Published { clock: task.known(slot), start: task.start.clone(), relaxed }
    }

    /// Names a thread of a block, as it is now.
    pub(super) fn thread(&self, block: (usize, usize), slot: usize) -> Thread {
        let position = self.ranks[block.0].blocks[block.1].position;
        Thread { actor: self.actors.block(block.0, block.1), position, slot, block }
    }

    /// Adds 1 to a counter of `rank`. Threads that tell the same may come in any order.
    pub(super) fn add(&mut self, by: Thread, rank: usize, counter: Count, published: Published) {
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
        counter: Count,
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
        let by = self.thread((rank, block), slot);
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

impl Rank {
    fn counted(&mut self, counter: Count) -> &mut Counted {
        match counter {
            Count::Signals(index) => &mut self.signals[index],
            Count::Semaphore(index) => &mut self.semaphores[index],
        }
    }
}
