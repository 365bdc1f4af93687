//! The barrier of the communicator beside a bare one.

use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::{CellRef, HostKernel, Span};
use shmccl::sync::bare::{BareBarrier, BareFlag};
use shmccl::{Communicator, Rank, Result};

use super::clock::now_ns;
use super::lane::Lane;

/// All ranks between two slices: they meet and agree on a number, over a bare barrier.
#[derive(Debug)]
pub(crate) struct Ensemble {
    leads: bool,
    n_ranks: u32,
    barrier: BareBarrier<CellRef<BareFlag>>,
    number: Span,
    kernel: HostKernel,
}

impl Ensemble {
    /// Sets all ranks up. Collective.
    pub(crate) fn new(comm: &mut Communicator) -> Result<Self> {
        let region = fresh(comm, 256)?;
        let leader = Rank::new(0, comm.n_ranks())?;
        let number = Region::new(HeapOffset::new(region.offset.get() + 128), 8);
        Ok(Self {
            leads: comm.rank() == leader,
            n_ranks: comm.n_ranks(),
            barrier: BareBarrier::new(comm.cell(leader, region.offset)?, comm.n_ranks()),
            number: comm.span(leader, number)?,
            kernel: HostKernel::detect(),
        })
    }

    /// Whether this is rank 0.
    pub(crate) fn leads(&self) -> bool {
        self.leads
    }

    /// How many they are.
    pub(crate) fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Returns the leader's `value` on every rank.
    pub(crate) fn share(&mut self, value: u64) -> Result<u64> {
        if self.leads {
            self.number.write(0, value)?;
        }
        self.barrier.meet(&self.kernel);
        let shared = self.number.read(0)?;
        self.barrier.meet(&self.kernel);
        Ok(shared)
    }
}

/// The barrier under test, one by one.
#[derive(Debug)]
pub(crate) struct CommBarrier<'c> {
    /// Whose barrier.
    pub(crate) comm: &'c mut Communicator,
}

impl Lane for CommBarrier<'_> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        // From one return to the next: a rank that comes last would find its own barrier short.
        let mut last = now_ns();
        for _ in 0..ops {
            self.comm.barrier()?;
            let now = now_ns();
            samples.push((now - last) as f64);
            last = now;
        }
        Ok(())
    }
}

/// The limit: a counter, polled between yields.
#[derive(Debug)]
pub(crate) struct YieldBarrier {
    barrier: BareBarrier<CellRef<BareFlag>>,
    kernel: HostKernel,
}

impl YieldBarrier {
    /// Sets all ranks up. Collective.
    pub(crate) fn new(comm: &mut Communicator) -> Result<Self> {
        let region = fresh(comm, 128)?;
        let counter = comm.cell(Rank::new(0, comm.n_ranks())?, region.offset)?;
        Ok(Self { barrier: BareBarrier::new(counter, comm.n_ranks()), kernel: HostKernel::detect() })
    }
}

impl Lane for YieldBarrier {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        let mut last = now_ns();
        for _ in 0..ops {
            self.barrier.meet(&self.kernel);
            let now = now_ns();
            samples.push((now - last) as f64);
            last = now;
        }
        Ok(())
    }
}

/// Allocates flags that show zero. Collective.
pub(crate) fn fresh(comm: &mut Communicator, len: u64) -> Result<Region> {
    let region = comm.alloc_region(len, 128)?;
    comm.span(comm.rank(), region)?.fill(0, len, 0)?;
    comm.barrier()?;
    Ok(region)
}
