//! Two ranks between two slices: they meet, agree on a number, and probe their cores, over bare flags.
//!
//! MERGED:
//! The two ranks that measure while all others sleep.
//!
//! MERGED:
//! All ranks between operations: they meet over bare flags, and put their times together.

use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::{CellRef, Span};
use shmccl::{Communicator, Result};
use shmccl_limits::flags::BareFlag;
use super::clock::now_ns;
use super::pair::RankPair;
use super::slices::UNPROBED;
use shmccl::{Rank, Result};
use shmccl::{Communicator, Rank, Result};
use shmccl_limits::flags::{BareBarrier, BareFlag};
use shmccl_limits::stopwatch::Stopwatch;
use super::super::barrier::fresh;
use super::super::ends::{FlagEnd, MessageLink};
use super::settings::RankAverage;

/// Round trips of a probe.
const PROBE: u64 = 64;

/// Bytes of the board: two flags and a number.
const BOARD: u64 = 3 * FLAG;
const FLAG: u64 = 128;

/// One of the two ranks.
#[derive(Debug)]
pub(crate) struct PairSync {
    leads: bool,
    mine: CellRef<BareFlag>,
    theirs: CellRef<BareFlag>,
    number: Span,
    turn: u64,
    one_core: bool,
    yields: bool,
}

impl PairSync {
    /// Sets `pair` up. Every rank has to call it, since it allocates; only the two get one.
    pub(crate) fn new(comm: &mut Communicator, pair: RankPair) -> Result<Option<Self>> {
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

/// Who keeps the time, and with whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankPair {
    /// Keeps the time, and sends first.
    pub(crate) leader: Rank,
    /// Does what the leader says.
    pub(crate) other: Rank,
    /// Whether both share a core.
    pub(crate) one_core: bool,
}

impl RankPair {
    /// Two of `n_ranks` ranks.
    ///
    /// # Errors
    /// A number that is no rank.
    pub(crate) fn new(leader: u32, other: u32, n_ranks: u32, one_core: bool) -> Result<Self> {
        Ok(Self { leader: Rank::new(leader, n_ranks)?, other: Rank::new(other, n_ranks)?, one_core })
    }

    /// Whether `rank` is one of the two.
    pub(crate) fn has(self, rank: Rank) -> bool {
        rank == self.leader || rank == self.other
    }

    /// Whom `rank` measures with; the leader, for ranks that do not.
    pub(crate) fn peer_of(self, rank: Rank) -> Rank {
        if rank == self.leader { self.other } else { self.leader }
    }
}

/// How many times of a slice a rank can hand in; later ones are not counted.
const MOST_TIMES: u64 = 4096;

/// Where all ranks meet.
#[derive(Debug)]
enum Gate {
    /// Two, each waiting for the other's flag: one and another by turns, so that who shows the next is not held up by whoever still
    /// looks at the last.
    Pair { flags: [FlagEnd; 2], turn: u64 },
    /// A counter, polled between yields.
    All(BareBarrier<CellRef<BareFlag>>),
}

/// A rank among all.
#[derive(Debug)]
pub(crate) struct Gathering {
    gate: Gate,
    /// Where each rank hands in its times.
    ledgers: Vec<Span>,
    rank: usize,
    average: RankAverage,
    one_by_one: bool,
    stopwatch: Option<Stopwatch>,
}

impl Gathering {
    /// Sets all ranks up. Collective. Two ranks that have `one_core` between them give way while they wait.
    ///
    /// # Errors
    /// No memory; ranks that do not come.
    pub(crate) fn new(comm: &mut Communicator, average: RankAverage, one_core: bool) -> Result<Self> {
        let ledger = comm.alloc_region(MOST_TIMES * 8, 128)?;
        let ranks = (0..comm.n_ranks()).map(|rank| Rank::new(rank, comm.n_ranks()));
        let ledgers = ranks.map(|rank| comm.span(rank?, ledger)).collect::<Result<_>>()?;
        let gate = match comm.n_ranks() {
            2 => Gate::Pair { flags: [flags(comm, one_core)?, flags(comm, one_core)?], turn: 0 },
            n_ranks => {
                let region = fresh(comm, 128)?;
                let counter = comm.cell(Rank::new(0, n_ranks)?, region.offset)?;
                Gate::All(BareBarrier::new(counter, n_ranks))
            }
        };
        Ok(Self { gate, ledgers, rank: comm.rank().index(), average, one_by_one: false, stopwatch: None })
    }

    /// The same, for operations that are timed one by one however few bytes they move.
    pub(crate) fn timing_one_by_one(self, one_by_one: bool) -> Self {
        Self { one_by_one, ..self }
    }

    /// The same, for operations that are so short that batches of them are timed: each of a batch has its own time, by `stopwatch`.
    pub(crate) fn timing_within_batches(self, stopwatch: Option<Stopwatch>) -> Self {
        Self { stopwatch, ..self }
    }

    /// By what each operation of a batch is timed, if it is.
    pub(crate) fn stopwatch(&self) -> Option<Stopwatch> {
        self.stopwatch
    }

    /// Whether operations are timed one by one by the system's clock.
    pub(crate) fn times_one_by_one(&self) -> bool {
        self.one_by_one
    }

    /// Waits for all others.
    #[inline]
    pub(crate) fn meet(&mut self) -> Result<()> {
        match &mut self.gate {
            Gate::Pair { flags, turn } => {
                *turn += 1;
                let flags = &mut flags[usize::from(*turn % 2 == 1)];
                flags.send(*turn)?;
                flags.receive(*turn)
            }
            Gate::All(barrier) => {
                barrier.meet();
                Ok(())
            }
        }
    }

    /// Puts the `times` of all ranks together into `samples` of rank 0. All ranks have equally many.
    ///
    /// # Errors
    /// None while the job lasts.
    pub(crate) fn hand_in(&mut self, times: &[f64], samples: &mut Vec<f64>) -> Result<()> {
        let most = usize::try_from(MOST_TIMES).unwrap_or(usize::MAX);
        let times = &times[..times.len().min(most)];
        self.ledgers[self.rank].copy_in(0, bytemuck::cast_slice(times))?;
        self.meet()?;
        if self.rank == 0 {
            let mut all = vec![vec![0.0_f64; times.len()]; self.ledgers.len()];
            for (ledger, column) in self.ledgers.iter().zip(&mut all) {
                ledger.copy_out(0, bytemuck::cast_slice_mut(column))?;
            }
            let row = |index: usize| all.iter().map(|column| column[index]).collect::<Vec<_>>();
            samples.extend((0..times.len()).map(|index| self.average.of(&row(index))));
        }
        self.meet()
    }

    /// The sum of what all ranks have counted, on rank 0; 0 elsewhere.
    ///
    /// # Errors
    /// None while the job lasts.
    pub(crate) fn total(&mut self, count: u64) -> Result<u64> {
        self.ledgers[self.rank].write(0, count)?;
        self.meet()?;
        let total = match self.rank {
            0 => self.ledgers.iter().map(|ledger| ledger.read::<u64>(0)).sum::<Result<u64>>()?,
            _ => 0,
        };
        self.meet()?;
        Ok(total)
    }
}

/// A bare flag for each of two ranks. Collective.
///
/// # Errors
/// No memory; ranks that do not come.
pub(crate) fn flags(comm: &mut Communicator, one_core: bool) -> Result<FlagEnd> {
    let Region { offset, .. } = fresh(comm, 128)?;
    let cell = |comm: &Communicator, rank: Rank, offset: HeapOffset| comm.cell(rank, offset);
    Ok(FlagEnd {
        mine: cell(comm, comm.rank(), offset)?,
        theirs: cell(comm, comm.right(), offset)?,
        yields: one_core,
    })
}
