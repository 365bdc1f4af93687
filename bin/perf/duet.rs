//! Two ranks between two slices: they meet, agree on a number, and probe their cores, over bare flags.

use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::{CellRef, Span};
use shmccl::{Communicator, Result};
use shmccl_limits::flags::BareFlag;

use super::clock::now_ns;
use super::pair::Pair;
use super::slices::UNPROBED;

/// Round trips of a probe.
const PROBE: u64 = 64;

/// Bytes of the board: two flags and a number.
const BOARD: u64 = 3 * FLAG;
const FLAG: u64 = 128;

/// One of the two ranks.
#[derive(Debug)]
pub(crate) struct Duet {
    leads: bool,
    mine: CellRef<BareFlag>,
    theirs: CellRef<BareFlag>,
    number: Span,
    turn: u64,
    one_core: bool,
    yields: bool,
}

impl Duet {
    /// Sets `pair` up. Every rank has to call it, since it allocates; only the two get one.
    pub(crate) fn new(comm: &mut Communicator, pair: Pair) -> Result<Option<Self>> {
        let region = comm.alloc_region(BOARD, FLAG)?;
        comm.span(comm.rank(), region)?.fill(0, BOARD, 0)?;
        comm.barrier()?;
        if !pair.has(comm.rank()) {
            return Ok(None);
        }
        let number = Region::new(HeapOffset::new(region.offset.get() + 2 * FLAG), 8);
        Ok(Some(Self {
            leads: comm.rank() == pair.leader,
            mine: comm.cell(comm.rank(), region.offset)?,
            theirs: comm.cell(pair.peer_of(comm.rank()), region.offset)?,
            number: comm.span(pair.leader, number)?,
            turn: 0,
            one_core: pair.one_core,
            yields: true,
        }))
    }

    /// Says whether something else may need the cores: a proxy, or more ranks. Then waiting gives way.
    pub(crate) fn set_yields(&mut self, yields: bool) {
        self.yields = yields || self.one_core;
    }

    /// Whether this rank keeps the time.
    pub(crate) fn leads(&self) -> bool {
        self.leads
    }

    /// Waits for the other.
    pub(crate) fn meet(&mut self) {
        self.turn += 1;
        self.theirs.set(self.turn);
        if self.yields {
            self.mine.spin_yielding(self.turn);
        } else {
            self.mine.spin(self.turn);
        }
    }

    /// Returns the leader's `value` on both.
    pub(crate) fn share(&mut self, value: u64) -> u64 {
        if self.leads {
            self.number.write(0, value).expect("allocated");
        }
        self.meet();
        let shared = self.number.read(0).expect("allocated");
        self.meet();
        shared
    }

    /// Returns the other rank's `value` on the leader, and 0 on the other.
    pub(crate) fn share_back(&mut self, value: u64) -> u64 {
        if !self.leads {
            self.number.write(0, value).expect("allocated");
        }
        self.meet();
        let theirs = if self.leads { self.number.read(0).expect("allocated") } else { 0 };
        self.meet();
        theirs
    }

    /// Nanoseconds that a bare flag takes one way, on the leader. One core has no other that it could be a sibling of.
    pub(crate) fn probe(&mut self) -> f64 {
        self.meet();
        if self.one_core {
            return UNPROBED;
        }
        let start = now_ns();
        for _ in 0..PROBE {
            self.turn += 1;
            if self.leads {
                self.theirs.set(self.turn);
                self.mine.spin(self.turn);
            } else {
                self.mine.spin(self.turn);
                self.theirs.set(self.turn);
            }
        }
        (now_ns() - start) as f64 / (2 * PROBE) as f64
    }
}
