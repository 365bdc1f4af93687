//! How ranks keep in step between operations, over bare flags: a pair of them ([`PairSync`]), all
//! of them ([`AllSync`]), and all of them with their times ([`Gathering`]).

use serde::{Deserialize, Serialize};
use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::{CellRef, Span};
use shmccl::{Communicator, Rank, Result};
use shmccl_limits::flags::{BareBarrier, BareFlag};
use shmccl_limits::stopwatch::Stopwatch;

use crate::clock::now_ns;
use crate::slices::UNPROBED;

/// Round trips of a probe.
const PROBE: u64 = 64;

/// Bytes from one flag to the next: a pair of cache lines.
const FLAG: u64 = 128;

/// Bytes of two flags and a number.
const PAIR_STATE: u64 = 3 * FLAG;

/// The two ranks that measure while all others sleep.
#[derive(Clone, Copy, Debug)]
pub struct RankPair {
    /// Keeps the time, and sends first.
    pub leader: Rank,
    /// Does what the leader says.
    pub other: Rank,
    /// Whether both share a core.
    pub one_core: bool,
}

impl RankPair {
    /// Makes a pair of two of `n_ranks` ranks.
    ///
    /// # Errors
    /// A number that is no rank.
    pub fn new(leader: u32, other: u32, n_ranks: u32, one_core: bool) -> Result<Self> {
        Ok(Self { leader: Rank::new(leader, n_ranks)?, other: Rank::new(other, n_ranks)?, one_core })
    }

    /// Returns whether `rank` is one of the two.
    pub fn has(self, rank: Rank) -> bool {
        rank == self.leader || rank == self.other
    }

    /// Returns the rank that `rank` measures with; the leader, for ranks that do not measure.
    pub fn peer_of(self, rank: Rank) -> Rank {
        if rank == self.leader { self.other } else { self.leader }
    }
}

/// One rank of a pair: meets the other, agrees with it on numbers, and probes the cores.
#[derive(Debug)]
pub struct PairSync {
    leads: bool,
    flags: FlagEnd,
    number: Span,
    turn: u64,
    one_core: bool,
}

impl PairSync {
    /// Sets `pair` up. Collective, since it allocates; returns a value on the two ranks only.
    pub fn new(comm: &mut Communicator, pair: RankPair) -> Result<Option<Self>> {
        let region = zeroed(comm, PAIR_STATE)?;
        if !pair.has(comm.rank()) {
            return Ok(None);
        }
        let number = Region::new(HeapOffset::new(region.offset.get() + 2 * FLAG), 8);
        Ok(Some(Self {
            leads: comm.rank() == pair.leader,
            flags: FlagEnd::new(comm, pair.peer_of(comm.rank()), region, true)?,
            number: comm.span(pair.leader, number)?,
            turn: 0,
            one_core: pair.one_core,
        }))
    }

    /// Sets whether something else may need the cores: a proxy, or more ranks. Waits then yield.
    pub fn set_yields(&mut self, yields: bool) {
        self.flags.yields = yields || self.one_core;
    }

    /// Returns whether this rank keeps the time.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Waits for the other rank.
    pub fn meet(&mut self) {
        self.turn += 1;
        self.flags.set(self.turn);
        self.flags.wait(self.turn);
    }

    /// Returns the leader's `value` on both ranks.
    pub fn share(&mut self, value: u64) -> u64 {
        self.share_of(self.leads, value)
    }

    /// Returns the other rank's `value` on the leader, and 0 on the other.
    pub fn share_back(&mut self, value: u64) -> u64 {
        let theirs = self.share_of(!self.leads, value);
        if self.leads { theirs } else { 0 }
    }

    /// Returns on both ranks the `value` of the one that `tells` it.
    fn share_of(&mut self, tells: bool, value: u64) -> u64 {
        if tells {
            self.number.write(0, value).expect("allocated");
        }
        self.meet();
        let shared = self.number.read(0).expect("allocated");
        self.meet();
        shared
    }

    /// Measures the nanoseconds that a bare flag takes one way, on the leader. Ranks that share a
    /// core have no other core to probe.
    pub fn probe(&mut self) -> f64 {
        self.meet();
        if self.one_core {
            return UNPROBED;
        }
        let start = now_ns();
        for _ in 0..PROBE {
            self.turn += 1;
            if self.leads {
                self.flags.set(self.turn);
                self.flags.mine.spin(self.turn);
            } else {
                self.flags.mine.spin(self.turn);
                self.flags.set(self.turn);
            }
        }
        (now_ns() - start) as f64 / (2 * PROBE) as f64
    }
}

/// The limit of a signal: one bare flag each way.
#[derive(Debug)]
pub struct FlagEnd {
    /// The flag that the peer sets.
    pub mine: CellRef<BareFlag>,
    /// The flag that the peer waits for.
    pub theirs: CellRef<BareFlag>,
    /// Whether a wait gives way between two looks, since both ranks share a core.
    pub yields: bool,
}

impl FlagEnd {
    /// Returns the end of this rank: `region` holds the flag of each of two ranks at its start.
    fn new(comm: &Communicator, peer: Rank, region: Region, yields: bool) -> Result<Self> {
        let [mine, theirs] = [comm.rank(), peer].map(|rank| comm.cell(rank, region.offset));
        Ok(Self { mine: mine?, theirs: theirs?, yields })
    }

    /// Sets the peer's flag to `number`.
    #[inline]
    pub fn set(&self, number: u64) {
        self.theirs.set(number);
    }

    /// Waits until this rank's flag shows `number`.
    #[inline]
    pub fn wait(&self, number: u64) {
        if self.yields {
            self.mine.spin_yielding(number);
        } else {
            self.mine.spin(number);
        }
    }

    /// Waits until the other rank has come to turn number `turn`, too.
    pub fn meet(&self, turn: u64) {
        self.theirs.set(turn);
        self.mine.spin_yielding(turn);
    }
}

/// One of all ranks: meets the others, and agrees with them on numbers.
#[derive(Debug)]
pub struct AllSync {
    leads: bool,
    n_ranks: u32,
    barrier: BareBarrier<CellRef<BareFlag>>,
    number: Span,
}

impl AllSync {
    /// Sets all ranks up. Collective.
    pub fn new(comm: &mut Communicator) -> Result<Self> {
        let region = zeroed(comm, 2 * FLAG)?;
        let leader = Rank::new(0, comm.n_ranks())?;
        let number = Region::new(HeapOffset::new(region.offset.get() + FLAG), 8);
        Ok(Self {
            leads: comm.rank() == leader,
            n_ranks: comm.n_ranks(),
            barrier: BareBarrier::new(comm.cell(leader, region.offset)?, comm.n_ranks()),
            number: comm.span(leader, number)?,
        })
    }

    /// Returns whether this is rank 0.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Returns the number of ranks.
    pub fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Returns the leader's `value` on every rank.
    pub fn share(&mut self, value: u64) -> Result<u64> {
        if self.leads {
            self.number.write(0, value)?;
        }
        self.barrier.meet();
        let shared = self.number.read(0)?;
        self.barrier.meet();
        Ok(shared)
    }
}

/// Allocates flags that show zero. Collective.
pub fn zeroed(comm: &mut Communicator, len: u64) -> Result<Region> {
    let region = comm.alloc_region(len, FLAG)?;
    comm.span(comm.rank(), region)?.fill(0, len, 0)?;
    comm.barrier()?;
    Ok(region)
}

/// Allocates a bare flag for each of two ranks. Collective.
///
/// # Errors
/// No memory; ranks that do not come.
pub fn flags(comm: &mut Communicator, one_core: bool) -> Result<FlagEnd> {
    let region = zeroed(comm, FLAG)?;
    FlagEnd::new(comm, comm.right(), region, one_core)
}

/// How one time is made of those of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankAverage {
    /// The time of rank 0.
    First,
    /// The mean.
    Mean,
    /// The shortest time.
    Least,
    /// The longest time.
    Most,
}

impl RankAverage {
    /// Returns the kind with nccl-tests' number, from 0 to 3.
    pub fn numbered(number: u8) -> Self {
        match number {
            0 => Self::First,
            1 => Self::Mean,
            2 => Self::Least,
            _ => Self::Most,
        }
    }

    /// Returns one time of those of all ranks.
    pub fn of(self, times: &[f64]) -> f64 {
        match self {
            Self::First => times[0],
            Self::Mean => times.iter().sum::<f64>() / times.len() as f64,
            Self::Least => times.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Most => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// How many times of a slice a rank can hand in; later ones are not counted.
const MOST_TIMES: u64 = 4096;

/// How all ranks meet between operations.
#[derive(Debug)]
enum MeetingFlags {
    /// Two ranks wait for each other's flag. Two flags take turns, so that the next one can be set
    /// while the other rank still polls the last.
    Pair { flags: [FlagEnd; 2], turn: u64 },
    /// All ranks count up, and poll the counter between yields.
    All(BareBarrier<CellRef<BareFlag>>),
}

/// One of all ranks between operations: meets the others, and hands in its times.
#[derive(Debug)]
pub struct Gathering {
    meeting: MeetingFlags,
    /// Where each rank hands in its times.
    ledgers: Vec<Span>,
    rank: usize,
    average: RankAverage,
    one_by_one: bool,
    stopwatch: Option<Stopwatch>,
}

impl Gathering {
    /// Sets all ranks up. Collective. Two ranks that share a core yield while they wait.
    ///
    /// # Errors
    /// No memory; ranks that do not come.
    pub fn new(comm: &mut Communicator, average: RankAverage, one_core: bool) -> Result<Self> {
        let ledger = comm.alloc_region(MOST_TIMES * 8, FLAG)?;
        let ranks = (0..comm.n_ranks()).map(|rank| Rank::new(rank, comm.n_ranks()));
        let ledgers = ranks.map(|rank| comm.span(rank?, ledger)).collect::<Result<_>>()?;
        let meeting = match comm.n_ranks() {
            2 => MeetingFlags::Pair { flags: [flags(comm, one_core)?, flags(comm, one_core)?], turn: 0 },
            n_ranks => {
                let region = zeroed(comm, FLAG)?;
                let counter = comm.cell(Rank::new(0, n_ranks)?, region.offset)?;
                MeetingFlags::All(BareBarrier::new(counter, n_ranks))
            }
        };
        let rank = comm.rank().index();
        Ok(Self { meeting, ledgers, rank, average, one_by_one: false, stopwatch: None })
    }

    /// Sets whether operations are timed one by one, however few bytes they move.
    pub fn timing_one_by_one(self, one_by_one: bool) -> Self {
        Self { one_by_one, ..self }
    }

    /// Sets the `stopwatch` by which each operation of a batch has a time of its own.
    pub fn timing_within_batches(self, stopwatch: Option<Stopwatch>) -> Self {
        Self { stopwatch, ..self }
    }

    /// Returns the stopwatch that times each operation of a batch, if there is one.
    pub fn stopwatch(&self) -> Option<Stopwatch> {
        self.stopwatch
    }

    /// Returns whether operations are timed one by one by the system's clock.
    pub fn times_one_by_one(&self) -> bool {
        self.one_by_one
    }

    /// Waits for all others.
    #[inline]
    pub fn meet(&mut self) -> Result<()> {
        match &mut self.meeting {
            MeetingFlags::Pair { flags, turn } => {
                *turn += 1;
                let flags = &flags[usize::from(*turn % 2 == 1)];
                flags.set(*turn);
                flags.wait(*turn);
            }
            MeetingFlags::All(barrier) => barrier.meet(),
        }
        Ok(())
    }

    /// Combines the `times` of all ranks into `samples` of rank 0. All ranks have equally many.
    ///
    /// # Errors
    /// None while the job lasts.
    pub fn hand_in(&mut self, times: &[f64], samples: &mut Vec<f64>) -> Result<()> {
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

    /// Returns the sum of all ranks' counts on rank 0, and 0 elsewhere.
    ///
    /// # Errors
    /// None while the job lasts.
    pub fn total(&mut self, count: u64) -> Result<u64> {
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
