//! Who has a component in clocks.

use std::collections::BTreeMap;

use crate::lower::{Lowered, StepAction};

/// Numbers blocks, callers and the threads that push to proxies. A thread that pushes has two: how
/// much of it is done, and how much was pushed.
#[derive(Debug)]
pub(super) struct Actors {
    count: usize,
    /// The first block of each rank; the caller comes behind the last.
    blocks: Vec<usize>,
    callers: Vec<usize>,
    /// The first of the two of each rank and lane.
    lanes: Vec<Vec<usize>>,
    lane_of: BTreeMap<(usize, usize, usize), usize>,
}

impl Actors {
    pub(super) fn of(lowered: &Lowered) -> Self {
        let mut actors = Self {
            count: 0,
            blocks: Vec::new(),
            callers: Vec::new(),
            lanes: vec![Vec::new(); lowered.ranks.len()],
            lane_of: BTreeMap::new(),
        };
        for (rank, code) in lowered.ranks.iter().enumerate() {
            actors.blocks.push(actors.count);
            actors.count += code.blocks.len();
            actors.callers.push(actors.count);
            actors.count += 1;
            for (block, code) in code.blocks.iter().enumerate() {
                for step in &code.steps {
                    if matches!(step.action, StepAction::Push { .. } | StepAction::PushSignal { .. }) {
                        actors.add_lane(rank, block, step.slot);
                    }
                }
            }
        }
        actors
    }

    fn add_lane(&mut self, rank: usize, block: usize, slot: usize) {
        let next = self.lanes[rank].len();
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.lane_of.entry((rank, block, slot)) {
            vacant.insert(next);
            self.lanes[rank].push(self.count);
            self.count += 2;
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn block(&self, rank: usize, block: usize) -> usize {
        self.blocks[rank] + block
    }

    pub(super) fn caller(&self, rank: usize) -> usize {
        self.callers[rank]
    }

    /// Returns how many threads of a rank push.
    pub(super) fn lanes(&self, rank: usize) -> usize {
        self.lanes[rank].len()
    }

    pub(super) fn lane(&self, rank: usize, block: usize, slot: usize) -> usize {
        self.lane_of[&(rank, block, slot)]
    }

    /// Returns the component that says how much of a lane is done.
    pub(super) fn lane_done(&self, rank: usize, lane: usize) -> usize {
        self.lanes[rank][lane]
    }

    /// Returns the component that says how much was pushed.
    pub(super) fn lane_pushed(&self, rank: usize, lane: usize) -> usize {
        self.lanes[rank][lane] + 1
    }
}
