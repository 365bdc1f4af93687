//! Cells of memory: what each holds, and who has touched it since it was last written.

use std::collections::BTreeMap;

use super::clock::Clock;
use super::rule::{Rule, holds};
use super::value::{Expressions, Value};
use crate::lower::{Lowered, OperationSite};
use crate::plan::Buffer;

/// Where an access comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Origin {
    /// An operation of a block: rank, block, index of its site.
    Operation(u32, u32, u32),
    /// The caller of a rank, as it gives the input.
    Input(u32),
    /// The caller of a rank, as it reads the result.
    Result(u32),
}

/// One access of an actor to a range of cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellAccess {
    /// Who, as a component of clocks, and at which of its positions.
    pub(super) actor: usize,
    pub(super) position: u32,
    pub(super) origin: Origin,
    pub(super) launch: u64,
    /// The whole range that the operation touches.
    pub(super) range: CellRange,
    /// The bytes that a thread handles at once.
    pub(super) element: u8,
}

impl CellAccess {
    /// Whether the threads of a block share both accesses in equal ways.
    fn is_shared_as(&self, other: &Self) -> bool {
        (self.range, self.element) == (other.range, other.element)
    }
}

/// Cells of a buffer that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CellRange {
    pub(super) first: usize,
    pub(super) cells: usize,
}

/// The cells of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) rank: usize,
    pub(super) buffer: Buffer,
    pub(super) cell: usize,
}

/// Two accesses in an order that nothing ensures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Hazard {
    ReadAfterWrite,
    WriteAfterWrite,
    WriteAfterRead,
}

/// A race, as it was first seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Race {
    pub(super) hazard: Hazard,
    pub(super) first: CellAccess,
    pub(super) second: CellAccess,
    pub(super) spot: Spot,
    /// How many cells it was seen in, over all launches.
    pub(super) cells: usize,
}

/// What names a race: the two sites and the kind.
pub(super) type RaceKey = (Origin, Origin, Hazard);

/// What a packet holds beside its payload.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) flag: u64,
    /// Which half of the packet of a cell of payload this is.
    pub(super) half: usize,
    pub(super) clock: Clock,
}

/// A cell.
#[derive(Clone, Debug)]
pub(super) struct MemoryCell {
    pub(super) value: Value,
    pub(super) packet: Option<Packet>,
    write: Option<CellAccess>,
    /// The largest flag of packets so far, and whether a packet with it was overwritten by another.
    flag: u64,
    is_written_again: bool,
    reads: Vec<CellAccess>,
}

impl MemoryCell {
    /// Returns whether a packet is there already, as it is: readers find the same, and may have it
    /// from the one that was there, so its clock is what they know.
    fn holds_already(&self, value: Value, packet: Option<&Packet>) -> bool {
        let is_same = |one: &Packet, other: &Packet| one.flag == other.flag && one.half == other.half;
        self.value == value
            && self.packet.as_ref().zip(packet).is_some_and(|(one, other)| is_same(one, other))
    }

    /// Puts something else into the cell.
    fn replace(&mut self, value: Value, packet: Option<Packet>) {
        if let Some(flag) = packet.as_ref().map(|packet| packet.flag) {
            self.is_written_again = flag <= self.flag;
            self.flag = flag.max(self.flag);
        }
        (self.value, self.packet) = (value, packet);
    }
}

/// The most races that are kept apart.
const MAX_RACES: usize = 2000;

/// All cells of all ranks.
#[derive(Debug)]
pub(super) struct CellMemory {
    ranks: Vec<[Vec<MemoryCell>; 3]>,
    pub(super) races: BTreeMap<RaceKey, Race>,
}

impl CellMemory {
    pub(super) fn new(lowered: &Lowered, cell: usize) -> Self {
        let empty = MemoryCell {
            value: Expressions::UNDEFINED,
            packet: None,
            write: None,
            flag: 0,
            is_written_again: false,
            reads: Vec::new(),
        };
        let of_rank =
            |code: &crate::lower::RankCode| code.buffers.map(|bytes| vec![empty.clone(); bytes / cell]);
        Self { ranks: lowered.ranks.iter().map(of_rank).collect(), races: BTreeMap::new() }
    }

    pub(super) fn cell(&self, spot: Spot) -> &MemoryCell {
        &self.ranks[spot.rank][spot.buffer as usize][spot.cell]
    }

    /// Reads a cell in the view of an actor. A read of packets waits for its write, and so does
    /// not check it, but where a packet with the same flag was there before: it may find that one.
    /// The view of such a read is what was known before its packets came.
    pub(super) fn read(&mut self, spot: Spot, access: &CellAccess, view: &Clock, of_packets: bool) -> Value {
        let cell = &mut self.ranks[spot.rank][spot.buffer as usize][spot.cell];
        let waits = of_packets && !(cell.is_written_again && holds(Rule::PacketsComeOnce));
        let race = cell.write.filter(|write| !waits && !is_ordered(write, access, view));
        let same = |read: &&mut CellAccess| read.actor == access.actor && read.is_shared_as(access);
        match cell.reads.iter_mut().find(same) {
            Some(read) => *read = *access,
            None if of_packets && !holds(Rule::PacketsAreRead) => {}
            None => cell.reads.push(*access),
        }
        let is_torn = cell.packet.is_some() && !of_packets && holds(Rule::PacketsAreNotPlain);
        let value = if is_torn { Expressions::UNDEFINED } else { cell.value };
        if let Some(first) = race {
            self.note(Hazard::ReadAfterWrite, first, *access, spot);
        }
        value
    }

    /// Writes a cell in the view of an actor.
    pub(super) fn write(
        &mut self,
        spot: Spot,
        access: &CellAccess,
        view: &Clock,
        value: Value,
        packet: Option<Packet>,
    ) {
        let cell = &mut self.ranks[spot.rank][spot.buffer as usize][spot.cell];
        let overwritten = cell.write.filter(|write| !is_ordered(write, access, view));
        cell.write = Some(*access);
        let mut unordered = Vec::new();
        if !cell.holds_already(value, packet.as_ref()) {
            cell.replace(value, packet);
            unordered.extend(cell.reads.iter().filter(|read| !is_ordered(read, access, view)));
            cell.reads.clear();
        }
        if let Some(first) = overwritten {
            self.note(Hazard::WriteAfterWrite, first, *access, spot);
        }
        for read in unordered {
            self.note(Hazard::WriteAfterRead, read, *access, spot);
        }
    }

    fn note(&mut self, hazard: Hazard, first: CellAccess, second: CellAccess, spot: Spot) {
        let is_hazard = match hazard {
            Hazard::ReadAfterWrite => holds(Rule::ReadAfterWrite),
            Hazard::WriteAfterWrite => holds(Rule::WriteAfterWrite),
            Hazard::WriteAfterRead => holds(Rule::WriteAfterRead),
        };
        let is_ignored = |access: &CellAccess| match access.origin {
            Origin::Operation(..) => false,
            Origin::Input(_) => !holds(Rule::CallersWrite),
            Origin::Result(_) => !holds(Rule::CallersRead),
        };
        if !is_hazard || is_ignored(&first) || is_ignored(&second) {
            return;
        }
        let key = (first.origin, second.origin, hazard);
        if let Some(race) = self.races.get_mut(&key) {
            race.cells += 1;
        } else if self.races.len() < MAX_RACES {
            self.races.insert(key, Race { hazard, first, second, spot, cells: 1 });
        }
    }
}

/// Returns whether an access comes after an earlier one in every execution. The threads of a block
/// share an operation in equal ways, so one thread does both accesses to an element of equal
/// ranges.
fn is_ordered(earlier: &CellAccess, later: &CellAccess, view: &Clock) -> bool {
    view.of(earlier.actor) >= earlier.position
        || (earlier.actor == later.actor && (earlier.is_shared_as(later) || !holds(Rule::ThreadsMeet)))
}

impl Origin {
    /// Returns the site of an operation.
    pub(super) fn site(self, lowered: &Lowered) -> Option<(usize, usize, OperationSite)> {
        match self {
            Self::Operation(rank, block, site) => {
                let (rank, block) = (rank as usize, block as usize);
                Some((rank, block, lowered.ranks[rank].blocks[block].sites[site as usize]))
            }
            Self::Input(_) | Self::Result(_) => None,
        }
    }
}
