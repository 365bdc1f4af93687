//! The device side of a measuring job: does what the plan says. The rank that keeps the time prints
//! a row as JSON for each figure.

/// Opens a channel of either kind, so that a test is written once.
macro_rules! with_channel {
    ($bench:expr, $peer:expr, $channel:ident => $body:expr) => {
        match $bench.channel {
            Some($crate::perf::test::TestChannel::Port) => {
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
use shmccl::comm::{JoinedAs, join_job};
use shmccl::shm::CopyKernel;

use super::buffers::PairBuffers;
use super::collective;
use super::interleave::{Contender, LimitRule, Measured, Participants, interleave};
use super::links::SignalEnd;
use super::ping_pong::PingPong;
use super::plan::{MatrixFigure, PerfPlan, VARIABLE};
use super::proxy::YieldHandoff;
use super::rate::{MESSAGE, WINDOW};
use super::report::{FifoCounts, PerfRow, row_of};
use super::sync::{PairSync, RankPair};
use super::test::{Test, TestChannel};
use super::transfer::flood::counts_of;
use super::transfer::{BulkTransfer, PlainCopy, TransferDirection};
use crate::output;
pub(crate) use with_channel;

/// Runs as a member of a measuring job.
///
/// # Errors
/// Whatever the job fails with; a process that is no member of one.
pub(crate) fn run() -> Result<()> {
    let plan = std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is set by `shmccl perf` only"))?;
    let plan: PerfPlan = serde_json::from_str(&plan).with_context(|| format!("{VARIABLE} holds no plan"))?;
    match join_job()? {
        Some(JoinedAs::Device(mut comm)) => {
            let pair = RankPair::new(0, 1, comm.n_ranks(), plan.one_core)?;
            let mut sync = PairSync::new(&mut comm, pair)?;
            for &(test, channel) in &plan.tests {
                run_test(&mut comm, &plan, (test, channel), pair, sync.as_mut())
                    .with_context(|| format!("in {}", test.name()))?;
            }
            Ok(comm.finalize()?)
        }
        Some(JoinedAs::Proxy) => Ok(()),
        None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

fn run_test(
    comm: &mut Communicator,
    plan: &PerfPlan,
    (test, channel): (Test, Option<TestChannel>),
    pair: RankPair,
    sync: Option<&mut PairSync>,
) -> Result<()> {
    if test.is_collective() {
        return collective::device::run(comm, plan, test, sync);
    }
    let counted = Cell::new(counts_of(comm)?);
    TestBench { comm, plan, test, channel, pair, figure: None, counted }.run(sync)
}

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

/// One test over one channel.
pub(crate) struct TestBench<'a> {
    pub(crate) comm: &'a mut Communicator,
    pub(crate) plan: &'a PerfPlan,
    pub(crate) test: Test,
    pub(crate) channel: Option<TestChannel>,
    pub(crate) pair: RankPair,
    /// The figure of a matrix that is measured.
    pub(crate) figure: Option<MatrixFigure>,
    /// The counts of this rank's fifos at the last row.
    counted: Cell<FifoCounts>,
}

impl TestBench<'_> {
    fn run(&mut self, sync: Option<&mut PairSync>) -> Result<()> {
        let sizes = self.plan.sizes.as_slice();
        match self.test {
            Test::Limits => self.limits(sync),
            Test::SignalLatency => self.pair_measures(sync, &[8], Self::signal_latency),
            Test::PutLatency => self.pair_measures(sync, sizes, Self::put_latency),
            Test::PacketLatency => self.pair_measures(sync, sizes, Self::packet_latency),
            Test::GetLatency => self.pair_measures(sync, sizes, Self::get_latency),
            Test::PutBandwidth => self.pair_measures(sync, sizes, Self::put_bandwidth),
            Test::PutBidirectional => self.pair_measures(sync, sizes, Self::put_bidirectional),
            Test::MessageRate => self.pair_measures(sync, &[WINDOW * MESSAGE], Self::message_rate),
            Test::ProxyRoundTrip => self.pair_measures(sync, &[8], Self::proxy_round_trip),
            Test::Overlap => self.pair_measures(sync, sizes, Self::overlap),
            Test::Barrier => self.barrier(),
            Test::TraceCost => self.trace_cost(sync),
            Test::P2p => self.matrix(),
            Test::FifoRate | Test::Launch => unreachable!("measured by the launcher"),
            collective => unreachable!("{} has a device side of its own", collective.name()),
        }
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
            let buffers = PairBuffers::alloc(self.comm, self.pair, len, self.test, self.plan)?;
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
        let effort = self.plan.effort(self.test, self.channel);
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
        row.wrong = self.plan.check.then_some(measured.wrong);
        self.note_placement(&mut row);
        if self.channel == Some(TestChannel::Port) {
            let all = counts_of(self.comm)?;
            row.set_pushes(all.since(self.counted.replace(all)));
        }
        adjust(&mut row);
        output::print(&format!("{}\n", serde_json::to_string(&row)?))
    }

    /// Notes which figure of a matrix the row is, and of which ranks.
    fn note_placement(&self, row: &mut PerfRow) {
        let Some(figure) = self.figure else { return };
        row.variant = Some(figure.name().to_owned());
        let settings = self.plan.matrix.as_ref().filter(|_| figure != MatrixFigure::AllToAll);
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

    /// Measures the limits by themselves.
    fn limits(&mut self, mut sync: Option<&mut PairSync>) -> Result<()> {
        self.pair_measures(sync.as_deref_mut(), &[8], |bench, sync, buffers| {
            let flags = buffers.flags(bench.comm, 0)?;
            sync.meet();
            let name = bench.flag_limit("raw flag ping-pong");
            let mut flags = PingPong::new(SignalEnd(flags), buffers.leads());
            bench.limit(sync, buffers, &mut flags, None, &name)?;
            let mut handoff = YieldHandoff::new(buffers.leads());
            bench.limit(sync, buffers, &mut handoff, None, "same-core yield hand-off")
        })?;
        let sizes = self.plan.sizes.as_slice();
        self.pair_measures(sync.as_deref_mut(), sizes, |bench, sync, buffers| {
            let copy = buffers.copy_and_flag(bench.comm, 0, CopyKernel::Memcpy)?;
            sync.meet();
            let name = bench.flag_limit("raw copy + flag");
            let mut copy = PingPong::of_messages(copy, buffers.leads(), buffers.len());
            bench.limit(sync, buffers, &mut copy, Some(buffers.len()), &name)
        })?;
        self.pair_measures(sync, sizes, |bench, sync, buffers| {
            for kernel in copy_kernels() {
                let copy = PlainCopy::to_peer(buffers, bench.comm, kernel)?;
                let mut copy = BulkTransfer::new(copy, TransferDirection::Push, buffers, bench.comm, 0)?;
                sync.meet();
                let name = format!("plain copy ({kernel})");
                bench.limit(sync, buffers, &mut copy, Some(buffers.len()), &name)?;
            }
            Ok(())
        })
    }

    fn limit(
        &self,
        sync: &mut PairSync,
        buffers: &PairBuffers,
        limit: &mut dyn Contender,
        bytes: Option<u64>,
        name: &str,
    ) -> Result<()> {
        let measured = self.interleave(sync, &mut [limit], &[])?;
        self.report(buffers.leads(), &measured, bytes, "", |row| {
            row.variant = Some(name.to_owned());
            row.limit.name = None;
            if let Some(len) = bytes {
                row.set_bandwidth(len);
            } else {
                row.wrong = None;
            }
        })
    }
}
