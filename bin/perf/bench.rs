//! What every test of device processes needs: taking turns on a pair of ranks, and printing rows.

/// Opens a channel of either kind, so that a test is written once.
macro_rules! with_channel {
    ($bench:expr, $peer:expr, $channel:ident => $body:expr) => {
        match $bench.channel {
            Some(shmccl_harness::test::TestChannel::Port) => {
                let $channel: shmccl::channel::PortChannel = $bench.comm.port_channel($peer)?;
                $body
            }
            _ => {
                let $channel: shmccl::channel::MemoryChannel = $bench.comm.memory_channel($peer)?;
                $body
            }
        }
    };
}

use std::cell::Cell;

use anyhow::{Context, Result};
use shmccl::Communicator;
use shmccl::shm::CopyKernel;
use shmccl_harness::interleave::{Contender, LimitRule, Measured, Participants, interleave};
use shmccl_harness::report::{FifoCounts, PerfRow, row_of};
use shmccl_harness::sync::{PairSync, RankPair};
use shmccl_harness::test::{Test, TestChannel};

use super::buffers::PairBuffers;
use super::spec::{MatrixFigure, PerfSpec};
use crate::output;
pub(crate) use with_channel;

/// Returns the copy kernels that this processor has.
pub(crate) fn copy_kernels() -> Vec<CopyKernel> {
    CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()).collect()
}

/// Returns `test` and, behind it, its `limits`.
pub(crate) fn lineup<'l, L: Contender>(
    test: &'l mut dyn Contender,
    limits: &'l mut [L],
) -> Vec<&'l mut dyn Contender> {
    let mut all: Vec<&mut dyn Contender> = vec![test];
    all.extend(limits.iter_mut().map(|limit| limit as &mut dyn Contender));
    all
}

/// The outcome of a measurement.
pub(crate) type TestResult = Result<()>;

/// One test over one channel.
pub(crate) struct TestBench<'a> {
    pub(crate) comm: &'a mut Communicator,
    pub(crate) spec: &'a PerfSpec,
    pub(crate) test: Test,
    pub(crate) channel: Option<TestChannel>,
    pub(crate) pair: RankPair,
    /// The figure of a matrix that is measured.
    pub(crate) figure: Option<MatrixFigure>,
    /// The counts of this rank's fifos at the last row.
    counted: Cell<FifoCounts>,
}

/// Reads what the fifos of this rank have counted.
///
/// # Errors
/// None in a job that is intact.
pub(crate) fn counts_of(comm: &Communicator) -> shmccl::Result<FifoCounts> {
    let add = |sum: FifoCounts, fifo: &shmccl_proxy::Snapshot| FifoCounts {
        pushed: sum.pushed + fifo.pushed,
        stalls: sum.stalls + fifo.stalls,
    };
    Ok(comm.fifo_snapshots()?.iter().fold(FifoCounts::default(), add))
}

impl<'a> TestBench<'a> {
    /// Makes the bench of `test` over `channel`.
    ///
    /// # Errors
    /// None in a job that is intact.
    pub(crate) fn new(
        comm: &'a mut Communicator,
        spec: &'a PerfSpec,
        test: Test,
        channel: Option<TestChannel>,
        pair: RankPair,
    ) -> Result<Self> {
        let counted = Cell::new(counts_of(comm)?);
        Ok(Self { comm, spec, test, channel, pair, figure: None, counted })
    }

    /// Lets the pair measure at each size, while the others sleep in the barrier.
    pub(crate) fn pair_measures(
        &mut self,
        mut sync: Option<&mut PairSync>,
        sizes: &[u64],
        measure: impl Fn(&mut Self, &mut PairSync, &PairBuffers) -> Result<()>,
    ) -> Result<()> {
        let yields = self.channel == Some(TestChannel::Port) || self.comm.n_ranks() > 2;
        for &len in sizes {
            let buffers = PairBuffers::alloc(self.comm, self.pair, len, self.test, self.spec)?;
            if let Some(sync) = sync.as_deref_mut() {
                sync.set_yields(yields);
                measure(self, sync, &buffers)?;
            }
            self.comm.barrier()?;
            buffers.free(self.comm)?;
        }
        Ok(())
    }

    /// Lets `contenders` take turns on the pair; the wrong words of both ranks count.
    pub(crate) fn interleave(
        &self,
        sync: &mut PairSync,
        contenders: &mut [&mut dyn Contender],
        limits: &[LimitRule],
    ) -> Result<Measured> {
        let effort = self.spec.effort(self.test, self.channel);
        let measured = interleave(Participants::Two(sync), contenders, limits, effort)?;
        let wrong = measured.wrong + sync.share_back(measured.wrong);
        Ok(Measured { wrong, ..measured })
    }

    /// Prints the row of a figure on the leader.
    pub(crate) fn report(
        &self,
        leads: bool,
        measured: &Measured,
        bytes: Option<u64>,
        limit: &str,
        adjust: impl Fn(&mut PerfRow),
    ) -> Result<()> {
        if !leads {
            return Ok(());
        }
        let comparison = measured.comparisons.first().context("nothing was measured")?;
        let mut row = row_of(self.test, self.channel, self.comm.n_ranks(), comparison, limit);
        row.iterations = measured.operations;
        row.bytes = bytes;
        row.wrong = self.spec.check.then_some(measured.wrong);
        self.note_placement(&mut row);
        if self.channel == Some(TestChannel::Port) {
            let all = counts_of(self.comm)?;
            row.set_pushes(all.since(self.counted.replace(all)));
        }
        adjust(&mut row);
        output::print_json(&row)
    }

    /// Notes which figure of a matrix the row is, and of which ranks.
    fn note_placement(&self, row: &mut PerfRow) {
        let Some(figure) = self.figure else { return };
        row.variant = Some(figure.name().to_owned());
        let settings = self.spec.matrix.as_ref().filter(|_| figure != MatrixFigure::AllToAll);
        row.place = settings.map(|settings| settings.placement(self.pair));
    }

    /// Returns the name of a limit that waits for bare flags: on one core it yields between polls.
    pub(crate) fn flag_limit(&self, name: &str) -> String {
        if self.pair.one_core { format!("{name}, yielding") } else { name.to_owned() }
    }

    /// Returns the name of a limit beside the channel under test, with two hand-offs or without.
    pub(crate) fn beside_proxy(&self, limit: &str, hands_off: bool) -> String {
        match (self.channel, hands_off) {
            (Some(TestChannel::Port), true) => format!("{limit} + 2 yield hand-offs"),
            (Some(TestChannel::Port), false) => format!("{limit}, without a proxy"),
            _ => limit.to_owned(),
        }
    }
}
