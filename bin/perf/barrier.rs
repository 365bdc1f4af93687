//! The barrier of the communicator beside a bare one.

use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::{CellRef, Span};
use shmccl::{Communicator, Rank, Result};
use shmccl_limits::flags::{BareBarrier, BareFlag};

use super::clock::now_ns;
use super::lane::Lane;

/// All ranks between two slices: they meet and agree on a number, over a bare barrier.
#[derive(Debug)]
pub(crate) struct Ensemble {
    leads: bool,
    n_ranks: u32,
    barrier: BareBarrier<CellRef<BareFlag>>,
    number: Span,
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
        self.barrier.meet();
        let shared = self.number.read(0)?;
        self.barrier.meet();
        Ok(shared)
    }
}

/// Barriers that one sample is the mean of. From one return of a rank to the next is no barrier's time where ranks share cores: who gets
/// its core back late finds the next barrier complete, and returns from it at once. Over so many in a row early and late even out, and a
/// slice that somebody else takes of the core is still in few of the samples.
pub(crate) const BARRIERS: u64 = 8;

/// The barrier under test.
#[derive(Debug)]
pub(crate) struct CommBarrier<'c> {
    /// Whose barrier.
    pub(crate) comm: &'c mut Communicator,
}

impl Lane for CommBarrier<'_> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        means(ops, BARRIERS, samples, || self.comm.barrier())
    }

    fn batch(&self) -> u64 {
        BARRIERS
    }

    fn per_sample(&self) -> u64 {
        BARRIERS
    }
}

/// The limit: a counter, polled between yields.
#[derive(Debug)]
pub(crate) struct YieldBarrier {
    barrier: BareBarrier<CellRef<BareFlag>>,
    per_sample: u64,
}

impl YieldBarrier {
    /// Sets all ranks up, for samples that are the mean of so many. Collective.
    pub(crate) fn new(comm: &mut Communicator, per_sample: u64) -> Result<Self> {
        let region = fresh(comm, 128)?;
        let counter = comm.cell(Rank::new(0, comm.n_ranks())?, region.offset)?;
        let barrier = BareBarrier::new(counter, comm.n_ranks());
        Ok(Self { barrier, per_sample })
    }
}

impl Lane for YieldBarrier {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        means(ops, self.per_sample, samples, || {
            self.barrier.meet();
            Ok(())
        })
    }

    fn batch(&self) -> u64 {
        self.per_sample
    }

    fn per_sample(&self) -> u64 {
        self.per_sample
    }
}

/// Meets `ops` times at least; each sample is the mean of `per_sample` in a row, from return to return.
fn means(
    ops: u64,
    per_sample: u64,
    samples: &mut Vec<f64>,
    mut meet: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut last = now_ns();
    for _ in 0..ops.div_ceil(per_sample) {
        (0..per_sample).try_for_each(|_| meet())?;
        let now = now_ns();
        samples.push((now - last) as f64 / per_sample as f64);
        last = now;
    }
    Ok(())
}

/// Allocates flags that show zero. Collective.
pub(crate) fn fresh(comm: &mut Communicator, len: u64) -> Result<Region> {
    let region = comm.alloc_region(len, 128)?;
    comm.span(comm.rank(), region)?.fill(0, len, 0)?;
    comm.barrier()?;
    Ok(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_the_mean_of_as_many_meetings_as_it_says() {
        for (ops, per_sample, expected) in [(64, 32, 2), (65, 32, 3), (3, 1, 3), (0, 32, 0)] {
            let (mut met, mut samples) = (0, Vec::new());
            means(ops, per_sample, &mut samples, || {
                met += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!((met, samples.len()), (expected * per_sample, usize::try_from(expected).unwrap()));
        }
    }
}
