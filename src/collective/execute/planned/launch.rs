//! The thread blocks of one rank in one launch, as machines that take a step when they can.

use std::fmt::Write as _;
use std::ops::Range;

use shmccl_plan::lower::{BlockCode, Counter, Cursor, Form, RankCode, Step, StepAction};
use shmccl_plan::plan::ChannelKind;

use super::signals::Signals;
use super::transfer::Mover;
use crate::error::Result;

/// Steps that a block takes in a row. Then peers see its signals, and the rank looks whether the
/// epoch has ended.
const TURN: usize = 1024;

/// Where a block stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    cursor: Cursor,
    /// How much of the payload of a step is done.
    done: usize,
    /// The round of the barrier that the step waits for, once it has arrived.
    round: Option<u64>,
}

impl Task {
    fn finish_step(&mut self, code: &BlockCode) {
        self.cursor.advance(code);
        (self.done, self.round) = (0, None);
    }
}

/// What a round of all blocks has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// All blocks have ended.
    Ended,
    /// Some block has gone on.
    GoesOn,
    /// Every block waits that has not ended.
    Waits,
}

/// A launch of one rank.
pub(super) struct Launch<'a> {
    code: &'a RankCode,
    signals: &'a mut Signals,
    semaphores: &'a mut [u64],
    /// How many have arrived at each barrier so far.
    arrivals: Vec<u64>,
    tasks: &'a mut [Task],
}

impl<'a> Launch<'a> {
    /// Begins a launch, for which `tasks` is any memory.
    pub(super) fn new(
        code: &'a RankCode,
        signals: &'a mut Signals,
        semaphores: &'a mut [u64],
        tasks: &'a mut Vec<Task>,
    ) -> Self {
        tasks.clear();
        tasks.resize(code.blocks.len(), Task::default());
        Self { code, signals, semaphores, arrivals: vec![0; code.barriers.len()], tasks }
    }

    /// Lets each block go on as far as it can: first all of them to where they wait or transfer.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for buffers that are not allocated; [`crate::Error::Revoked`];
    /// those of the proxy.
    pub(super) fn round(&mut self, mover: &Mover<'_>) -> Result<Round> {
        let mut goes_on = false;
        for block in 0..self.tasks.len() {
            goes_on |= self.advance(mover, block)?;
        }
        if goes_on {
            self.publish(mover);
        }
        for block in 0..self.tasks.len() {
            goes_on |= self.transfer(mover, block)?;
        }
        let mut blocks = self.tasks.iter().zip(&self.code.blocks);
        Ok(match goes_on {
            _ if blocks.all(|(task, code)| task.cursor.step(code).is_none()) => Round::Ended,
            true => Round::GoesOn,
            false => Round::Waits,
        })
    }

    /// Lets peers see what blocks have done.
    fn publish(&mut self, mover: &Mover<'_>) {
        self.signals.publish();
        mover.members.board.wake();
    }

    /// Lets a block go on to the next transfer, by [`TURN`] steps at most. Returns whether it went
    /// anywhere.
    fn advance(&mut self, mover: &Mover<'_>, block: usize) -> Result<bool> {
        let code = &self.code.blocks[block];
        let mut goes_on = false;
        for _ in 0..TURN {
            let Some(step) = self.tasks[block].cursor.step(code) else { break };
            let done = self.tasks[block].done;
            if !self.step(mover, block, code, step)? {
                return Ok(goes_on || self.tasks[block].done > done);
            }
            self.tasks[block].finish_step(code);
            goes_on = true;
        }
        Ok(goes_on)
    }

    /// Goes on with the transfer that a block stands at, if any. Returns whether something was
    /// done.
    fn transfer(&mut self, mover: &Mover<'_>, block: usize) -> Result<bool> {
        let (code, task) = (&self.code.blocks[block], &mut self.tasks[block]);
        let Some(Step { action: StepAction::Move(transfer), .. }) = task.cursor.step(code) else {
            return Ok(false);
        };
        if !mover.reaches(code, transfer) {
            return Ok(false);
        }
        let before = task.done;
        let is_done = mover.go_on(code, transfer, task.cursor.iteration(), &mut task.done)?;
        let goes_on = is_done || task.done > before;
        if is_done {
            task.finish_step(code);
            // A peer may wait for the signal that this step sends.
            self.advance(mover, block)?;
        }
        if goes_on {
            self.publish(mover);
        }
        Ok(goes_on)
    }

    /// Takes a step. Returns false where it has to wait.
    fn step(&mut self, mover: &Mover<'_>, block: usize, code: &BlockCode, step: &Step) -> Result<bool> {
        let members = mover.members;
        match step.action {
            StepAction::Fence | StepAction::Repeat { .. } => Ok(true),
            StepAction::Barrier { barrier } => Ok(self.meet(block, barrier)),
            StepAction::Acquire { semaphore } => Ok(take(&mut self.semaphores[semaphore])),
            StepAction::Release { semaphore } => {
                self.semaphores[semaphore] += 1;
                Ok(true)
            }
            StepAction::Signal { peer, counter, .. } => {
                self.signals.signal(peer, counter);
                Ok(true)
            }
            StepAction::Wait { counter, .. } => {
                let counted = self.code.counters[counter];
                match counted.kind {
                    ChannelKind::Port => self.signals.take_pushed(members, counter, counted.peer),
                    _ => Ok(self.signals.take(counter)),
                }
            }
            StepAction::Await(transfer) | StepAction::Push { transfer, .. }
                if !mover.reaches(code, &transfer) =>
            {
                Ok(false)
            }
            // Done by `transfer`, when all blocks have gone as far as they can without.
            StepAction::Move(_) => Ok(false),
            StepAction::Await(transfer) => {
                let task = &mut self.tasks[block];
                mover.go_on(code, &transfer, task.cursor.iteration(), &mut task.done)
            }
            StepAction::Push { transfer, .. } => {
                let (first, len) = transfer.extent(self.tasks[block].cursor.iteration());
                let (source, target) = (code.sources(&transfer)[0], code.targets(&transfer)[0]);
                let [from, to] = [&source, &target].map(|operand| mover.place(operand, first));
                self.signals.push(target.rank, from, to, len as u64)?;
                Ok(true)
            }
            StepAction::PushSignal { peer, counter, .. } => self.signals.push_signal(members, peer, counter),
            StepAction::Flush { port } => {
                self.signals.flush(self.code.ports[port])?;
                Ok(true)
            }
        }
    }

    /// Arrives at a barrier, and looks whether all blocks have that meet in it.
    fn meet(&mut self, block: usize, barrier: usize) -> bool {
        let (parties, arrivals) = (self.code.barriers[barrier] as u64, &mut self.arrivals[barrier]);
        let round = *self.tasks[block].round.get_or_insert_with(|| {
            *arrivals += 1;
            (*arrivals - 1) / parties
        });
        *arrivals / parties > round
    }

    /// Returns whether a proxy may let a block go on.
    pub(super) fn is_by_proxy(&self) -> bool {
        self.signals.are_by_proxy()
    }

    /// Returns the members whose signals blocks wait for.
    pub(super) fn awaited(&self) -> Vec<usize> {
        let mut members: Vec<_> = self
            .waiting()
            .filter_map(|(_, _, step)| match step.action {
                StepAction::Wait { counter, .. } => Some(self.code.counters[counter].peer),
                _ => None,
            })
            .collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Says which blocks wait, in which operations, and for what, of which so much is there. By
    /// block it has the `numbers` of those in the plan that it stands for.
    pub(super) fn told(&self, me: usize, numbers: &[Range<usize>]) -> String {
        let mut told = String::new();
        for (block, code, step) in self.waiting() {
            let place = code.sites[step.site].place(me, numbers[block].start);
            let separator = if told.is_empty() { "" } else { ", " };
            let alike = match numbers[block].len() - 1 {
                0 => String::new(),
                others => format!(", like the {others} blocks behind it,"),
            };
            let awaited = self.told_of(block, code, step);
            write!(told, "{separator}{place}{alike} waits for {awaited}").expect("a string takes all");
        }
        told
    }

    fn told_of(&self, block: usize, code: &BlockCode, step: &Step) -> String {
        match step.action {
            StepAction::Wait { counter, .. } => {
                let Counter { kind, peer, ordinal } = self.code.counters[counter];
                let had = self.signals.taken(counter);
                let needs = had.wrapping_add(1);
                format!(
                    "signal {needs} of rank {peer} on {kind} channel {ordinal}, of which it has had {had}"
                )
            }
            StepAction::Acquire { semaphore } => {
                format!("semaphore {semaphore}, which has {} and needs 1", self.semaphores[semaphore])
            }
            StepAction::Barrier { barrier } => {
                let parties = self.code.barriers[barrier];
                let there = self.arrivals[barrier] % parties as u64;
                format!("barrier {barrier}, to which {there} of {parties} blocks have come")
            }
            StepAction::Move(transfer) | StepAction::Await(transfer) => {
                let task = &self.tasks[block];
                let (first, bytes) = transfer.extent(task.cursor.iteration());
                let packets = code.sources(&transfer).iter().find(|source| source.form == Form::Packets);
                let at = packets.map_or(0, |source| source.at(first + task.done));
                format!("packets at byte {at} of its scratch, having had {} bytes of {bytes}", task.done)
            }
            _ => "its peer to take signals".to_owned(),
        }
    }

    fn waiting(&self) -> impl Iterator<Item = (usize, &BlockCode, &Step)> {
        let blocks = self.tasks.iter().zip(&self.code.blocks).enumerate();
        blocks.filter_map(|(block, (task, code))| Some((block, code, task.cursor.step(code)?)))
    }
}

fn take(count: &mut u64) -> bool {
    let is_there = *count > 0;
    *count -= u64::from(is_there);
    is_there
}
