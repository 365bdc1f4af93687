//! All ranks between operations: they meet over bare flags, and put their times together.

use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::{CellRef, Span};
use shmccl::{Communicator, Rank, Result};
use shmccl_limits::flags::{BareBarrier, BareFlag};
use shmccl_limits::stopwatch::Stopwatch;

use super::super::barrier::fresh;
use super::super::ends::{FlagEnd, Link};
use super::settings::Average;

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
    average: Average,
    one_by_one: bool,
    stopwatch: Option<Stopwatch>,
}

impl Gathering {
    /// Sets all ranks up. Collective. Two ranks that have `one_core` between them give way while they wait.
    ///
    /// # Errors
    /// No memory; ranks that do not come.
    pub(crate) fn new(comm: &mut Communicator, average: Average, one_core: bool) -> Result<Self> {
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
