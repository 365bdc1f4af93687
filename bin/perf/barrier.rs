//! The barrier of the communicator beside a bare one.

use shmccl::shm::CellRef;
use shmccl::{Communicator, Rank, Result};
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::{Contender, LimitRule, Participants, interleave};
use shmccl_harness::sync::{AllSync, zeroed};
use shmccl_limits::flags::{BareBarrier, BareFlag};

use super::bench::{TestBench, TestResult};

/// Barriers that one sample is the mean of.
///
/// Where ranks share cores, the time from one return to the next is not the time of a barrier: a
/// rank that gets its core back late finds the next barrier complete and returns at once. Over
/// several in a row, early and late returns even out; and a slice of the core taken by another
/// process is still in few of the samples.
const BARRIERS: u64 = 8;

/// The barrier under test.
#[derive(Debug)]
struct CommBarrier<'c> {
    comm: &'c mut Communicator,
}

impl Contender for CommBarrier<'_> {
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
}

impl YieldBarrier {
    /// Sets all ranks up. Collective.
    pub(crate) fn new(comm: &mut Communicator) -> Result<Self> {
        let region = zeroed(comm, 128)?;
        let counter = comm.cell(Rank::new(0, comm.n_ranks())?, region.offset)?;
        Ok(Self { barrier: BareBarrier::new(counter, comm.n_ranks()) })
    }
}

impl Contender for YieldBarrier {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        means(ops, BARRIERS, samples, || {
            self.barrier.meet();
            Ok(())
        })
    }

    fn batch(&self) -> u64 {
        BARRIERS
    }

    fn per_sample(&self) -> u64 {
        BARRIERS
    }
}

/// Meets `ops` times at least. Each sample is the mean of `per_sample` in a row, from return to
/// return.
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

impl TestBench<'_> {
    /// Measures the barrier of all ranks.
    pub(crate) fn barrier(&mut self) -> TestResult {
        let mut all = AllSync::new(self.comm)?;
        let mut limit = YieldBarrier::new(self.comm)?;
        let effort = self.spec.effort(self.test, None);
        let leads = all.leads();
        let measured = {
            let mut test = CommBarrier { comm: &mut *self.comm };
            interleave(
                Participants::All(&mut all),
                &mut [&mut test, &mut limit],
                &[LimitRule::Of(1)],
                effort,
            )?
        };
        self.report(leads, &measured, None, "bare yield barrier", |row| row.wrong = None)
    }
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
