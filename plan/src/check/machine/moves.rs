//! Transfers: by blocks, cell by cell, and by proxies.

use super::{AbstractMachine, CounterId, Published, Pushed, QueuedPush, Thread, TurnProgress};
use crate::check::clock::{Clock, join_into};
use crate::check::memory::{CellAccess, CellRange, Origin, Packet, Spot};
use crate::check::rule::{Rule, holds};
use crate::check::value::{Expression, Expressions, Value};
use crate::lower::{BlockTransfer, Form, Operand, Step};
use crate::plan::BlockId;

/// Narrows an index that is known to be small.
pub(super) fn small(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// One cell of a transfer, as an iteration covers it.
#[derive(Clone, Copy)]
struct CoveredCell {
    /// The first byte of the payload that is covered, and how many cells are.
    first: usize,
    cells: usize,
    /// Which of them it is.
    index: usize,
}

/// What a block does with the cells of a transfer.
struct Moving {
    access: CellAccess,
    /// What it knows beside packets.
    base: Clock,
    launch: u64,
    /// What the packets of this cell carry.
    packets: Vec<Clock>,
    /// The last view with packets, and what it came from, as most cells have the same.
    view: Option<(Vec<Clock>, Clock, Clock)>,
    /// What all packets so far have told.
    learned: Option<Clock>,
}

impl AbstractMachine<'_> {
    /// Moves cells of a transfer until packets are missing.
    pub(super) fn transfer(
        &mut self,
        rank: usize,
        block: usize,
        step: &Step,
        transfer: &BlockTransfer,
    ) -> TurnProgress {
        let code = &self.lowered.ranks[rank].blocks[block];
        let site = code.sites[step.site];
        let actor = self.actors.block(rank, block);
        let state = &mut self.ranks[rank];
        let task = &mut state.blocks[block];
        let is_new = task.done.is_none();
        if is_new {
            task.position += 1;
            task.awaited = None;
        }
        let (first, bytes) = transfer.extent(task.cursor.iteration());
        let (begun, cells) = (task.done.unwrap_or(0), bytes / self.cell);
        let element = if site.code.is_of_packets() { 8 } else { 16 };
        let origin = Origin::Operation(small(rank), small(block), small(step.site));
        let mut moving = Moving {
            access: CellAccess {
                actor,
                position: task.position,
                origin,
                launch: state.launch,
                range: CellRange::default(),
                element,
            },
            base: task.base.clone(),
            launch: state.launch,
            packets: Vec::new(),
            view: None,
            learned: None,
        };
        let mut done = begun;
        while done < cells
            && self.move_cell(code, transfer, CoveredCell { first, cells, index: done }, &mut moving)
        {
            done += 1;
        }
        let task = &mut self.ranks[rank].blocks[block];
        task.done = Some(done);
        if let Some(learned) = moving.learned {
            join_into(&mut task.pending, &learned);
            join_into(&mut task.awaited, &learned);
        }
        match done {
            _ if done == cells => TurnProgress::Done,
            _ if done > begun => TurnProgress::Some,
            _ => TurnProgress::None,
        }
    }

    /// Moves one cell. Returns false where a packet is missing.
    fn move_cell(
        &mut self,
        code: &crate::lower::BlockCode,
        transfer: &BlockTransfer,
        at: CoveredCell,
        moving: &mut Moving,
    ) -> bool {
        moving.packets.clear();
        for source in code.sources(transfer).iter().filter(|source| source.form == Form::Packets) {
            let (spot, _) = self.place(source, at, moving.launch);
            for half in 0..2 {
                let cell = self.memory.cell(Spot { cell: spot.cell + half, ..spot });
                match &cell.packet {
                    Some(packet) if packet.flag == moving.launch || !holds(Rule::PacketsHaveFlags) => {
                        moving.packets.push(packet.clock.clone())
                    }
                    _ => return false,
                }
            }
        }
        let (view, told) = moving.view_of_packets();
        let mut value: Option<Value> = None;
        for source in code.sources(transfer) {
            let read = self.read_operand(source, at, moving, &view);
            value = Some(match value {
                Some(before) => {
                    let operator = transfer.operator;
                    self.values.of(Expression::Combined { operator, first: before, second: read })
                }
                None => read,
            });
        }
        let value = value.unwrap_or(Expressions::UNDEFINED);
        for target in code.targets(transfer) {
            let (spot, range) = self.place(target, at, moving.launch);
            let access = CellAccess { range, ..moving.access };
            match target.form {
                Form::Plain => self.memory.write(spot, &access, &view, value, None),
                Form::Packets => {
                    for half in 0..2 {
                        let packet = Packet { flag: moving.launch, half, clock: told.clone() };
                        let spot = Spot { cell: spot.cell + half, ..spot };
                        self.memory.write(spot, &access, &view, value, Some(packet));
                    }
                }
            }
        }
        true
    }

    fn read_operand(&mut self, source: &Operand, at: CoveredCell, moving: &Moving, view: &Clock) -> Value {
        let (spot, range) = self.place(source, at, moving.launch);
        let access = CellAccess { range, ..moving.access };
        if source.form == Form::Plain {
            return self.memory.read(spot, &access, view, false);
        }
        let halves = [0, 1].map(|half| {
            let spot = Spot { cell: spot.cell + half, ..spot };
            let is_torn = self.memory.cell(spot).packet.as_ref().is_none_or(|packet| packet.half != half);
            (self.memory.read(spot, &access, &moving.base, true), is_torn)
        });
        match halves {
            [(one, false), (other, false)] if one == other => one,
            [(one, _), _] if !holds(Rule::PacketsAreWhole) => one,
            _ => Expressions::UNDEFINED,
        }
    }

    /// Returns where a cell of an operand lies, and the range of all its cells.
    fn place(&self, operand: &Operand, at: CoveredCell, launch: u64) -> (Spot, CellRange) {
        let start = self.lowered.place(operand, at.first, launch) / self.cell;
        let per_cell = if operand.form == Form::Packets { 2 } else { 1 };
        let spot = Spot { rank: operand.rank, buffer: operand.buffer, cell: start + per_cell * at.index };
        (spot, CellRange { first: start, cells: per_cell * at.cells })
    }

    /// Makes the copy that a proxy is asked for.
    pub(super) fn pushed_copy(&self, rank: usize, block: usize, transfer: &BlockTransfer) -> Pushed {
        let code = &self.lowered.ranks[rank].blocks[block];
        let state = &self.ranks[rank];
        let (first, bytes) = transfer.extent(state.blocks[block].cursor.iteration());
        let cells = bytes / self.cell;
        let place = |operand| self.place(operand, CoveredCell { first, cells, index: 0 }, state.launch).0;
        Pushed::Copy { from: place(&code.sources(transfer)[0]), to: place(&code.targets(transfer)[0]), cells }
    }

    /// Hands something to the proxy. The thread knows from then on what it has pushed.
    pub(super) fn push(&mut self, rank: usize, block: usize, step: &Step, port: usize, pushed: Pushed) {
        let lane = self.actors.lane(rank, block, step.slot);
        let component = self.actors.lane_pushed(rank, lane);
        let state = &mut self.ranks[rank];
        let task = &mut state.blocks[block];
        let mut known = task.known(step.slot);
        if is_forward(self.lowered, rank, block, step)
            && let Some(awaited) = &task.awaited
        {
            // The operation has waited for all packets before a thread pushes them.
            known.join(awaited);
        }
        let index = state.lanes[lane].done.len();
        state.lanes[lane].done.push((port, None));
        let origin = Origin::Operation(small(rank), small(block), small(step.site));
        let launch = state.launch;
        state.queue.push_back(QueuedPush {
            lane,
            index,
            port,
            known: known.clone(),
            origin,
            launch,
            task: pushed,
        });
        known.reach(component, small(index + 1));
        join_into(task.slot(step.slot), &known);
        join_into(&mut task.pending, &known);
    }

    /// Waits until nothing of a port is queued. Returns whether that is so.
    pub(super) fn flush(&mut self, rank: usize, block: usize, slot: usize, port: usize) -> bool {
        let state = &mut self.ranks[rank];
        if state.queue.iter().any(|trigger| trigger.port == port) {
            return false;
        }
        let task = &mut state.blocks[block];
        let known = task.known(slot);
        for (lane, pushed) in state.lanes.iter().enumerate() {
            let count = known.of(self.actors.lane_pushed(rank, lane)) as usize;
            let mut of_port = pushed.done[..count].iter().rev().filter(|(of, _)| *of == port);
            if let Some((_, Some(done))) = of_port.next() {
                join_into(task.slot(slot), done);
                join_into(&mut task.pending, done);
            }
        }
        true
    }

    /// Lets the proxy of a rank do one thing.
    pub(super) fn proxy_turn(&mut self, rank: usize) -> bool {
        let Some(trigger) = self.ranks[rank].queue.pop_front() else { return false };
        let actor = self.actors.lane_done(rank, trigger.lane);
        let position = small(trigger.index + 1);
        let mut view = trigger.known;
        for (lane, pushed) in self.ranks[rank].lanes.iter().enumerate() {
            let mut count = view.of(self.actors.lane_pushed(rank, lane)) as usize;
            if !holds(Rule::PushesOvertake) {
                count = count.max(pushed.done.iter().take_while(|(_, done)| done.is_some()).count());
            }
            if let Some((_, Some(done))) = count.checked_sub(1).map(|last| &pushed.done[last]) {
                view.join(done);
            }
        }
        view.reach(actor, position);
        let access = CellAccess {
            actor,
            position,
            origin: trigger.origin,
            launch: trigger.launch,
            range: CellRange::default(),
            element: 0,
        };
        match trigger.task {
            Pushed::Copy { from, to, cells } => self.copy(from, to, cells, &access, &view),
            Pushed::Signal { peer, counter, block } => {
                let published = Published { clock: view.clone(), start: view.clone(), relaxed: false };
                let actor = self.actors.lane_pushed(rank, trigger.lane);
                let by =
                    Thread { actor, position: small(trigger.index), slot: 0, block: BlockId { rank, block } };
                self.add(by, peer, CounterId::Signals(counter), published);
            }
        }
        self.ranks[rank].lanes[trigger.lane].done[trigger.index].1 = Some(view);
        true
    }

    /// Copies cells as they are, packets too.
    fn copy(&mut self, from: Spot, to: Spot, cells: usize, access: &CellAccess, view: &Clock) {
        for cell in 0..cells {
            let (from, to) = (Spot { cell: from.cell + cell, ..from }, Spot { cell: to.cell + cell, ..to });
            self.memory.read(from, access, view, false);
            let held = self.memory.cell(from);
            let packet = held.packet.clone().map(|packet| Packet { clock: view.clone(), ..packet });
            let value = held.value;
            self.memory.write(to, access, view, value, packet);
        }
    }
}

/// Returns whether a push sends on packets that its operation has waited for.
fn is_forward(lowered: &crate::lower::Lowered, rank: usize, block: usize, step: &Step) -> bool {
    lowered.ranks[rank].blocks[block].sites[step.site].code == crate::plan::Code::ReadPutPackets
}

impl Moving {
    /// Returns the view of the cell with what its packets carry, and what it tells in packets.
    fn view_of_packets(&mut self) -> (Clock, Clock) {
        if let Some((from, view, told)) = &self.view {
            let mut pairs = from.iter().zip(&self.packets);
            if from.len() == self.packets.len() && pairs.all(|(one, other)| one.is_same(other)) {
                return (view.clone(), told.clone());
            }
        }
        let mut view = self.base.clone();
        self.packets.iter().for_each(|clock| view.join(clock));
        if !self.packets.is_empty() {
            join_into(&mut self.learned, &view);
        }
        let mut told = view.clone();
        told.reach(self.access.actor, self.access.position);
        self.view = Some((self.packets.clone(), view.clone(), told.clone()));
        (view, told)
    }
}
