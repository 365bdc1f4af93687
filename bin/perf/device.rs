//! The device side of a measuring job: does what the spec says. The rank that keeps the time prints
//! a row as JSON for each figure.

use anyhow::{Context, Result, ensure};
use shmccl::comm::{JoinedAs, join_job};
use shmccl::reduce::ReduceOp;
use shmccl::shm::CopyKernel;
use shmccl::{Collectives, Communicator};
use shmccl_harness::interleave::Contender;
use shmccl_harness::sync::{PairSync, RankPair};
use shmccl_harness::test::{Test, TestChannel};
use shmccl_limits::words::RING;

use super::bench::{TestBench, copy_kernels};
use super::buffers::PairBuffers;
use super::collective;
use super::links::SignalEnd;
use super::ping_pong::{PingPong, YieldHandoff};
use super::rate::{MESSAGE, WINDOW};
use super::spec::{PerfSpec, VARIABLE};
use super::transfer::{BulkTransfer, PlainCopy, TransferDirection};

/// Runs as a member of a measuring job.
///
/// # Errors
/// Whatever the job fails with; a process that is no member of one.
pub(crate) fn run() -> Result<()> {
    let spec = std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is set by `shmccl perf` only"))?;
    let spec: PerfSpec = serde_json::from_str(&spec).with_context(|| format!("{VARIABLE} holds no spec"))?;
    match join_job()? {
        Some(JoinedAs::Device(mut comm)) => {
            if spec.tests.is_empty() {
                add_up(&mut comm)?;
            }
            let pair = RankPair::new(0, 1, comm.n_ranks(), spec.one_core)?;
            let mut sync = PairSync::new(&mut comm, pair)?;
            for &(test, channel) in &spec.tests {
                run_test(&mut comm, &spec, test, channel, pair, sync.as_mut())
                    .with_context(|| format!("in {}", test.name()))?;
            }
            Ok(comm.finalize()?)
        }
        Some(JoinedAs::Proxy) => Ok(()),
        None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

/// Adds up something that every rank has, as a job does that works.
fn add_up(comm: &mut Communicator) -> Result<()> {
    let mut sums = [1_u64; 2048];
    comm.all_reduce_in_place(&mut sums[..], &ReduceOp::Sum).context("in all_reduce")?;
    ensure!(sums == [u64::from(comm.n_ranks()); 2048], "all_reduce gave wrong sums");
    Ok(())
}

fn run_test(
    comm: &mut Communicator,
    spec: &PerfSpec,
    test: Test,
    channel: Option<TestChannel>,
    pair: RankPair,
    sync: Option<&mut PairSync>,
) -> Result<()> {
    if test.is_collective() {
        return collective::device::run(comm, spec, test, sync);
    }
    TestBench::new(comm, spec, test, channel, pair)?.run(sync)
}

impl TestBench<'_> {
    fn run(&mut self, sync: Option<&mut PairSync>) -> Result<()> {
        let sizes = self.spec.sizes.as_slice();
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
            Test::ElementPut => self.pair_measures(sync, &[8], Self::element_put),
            Test::ElementGet => self.pair_measures(sync, &[8 * RING as u64], Self::element_get),
            Test::AtomicLatency => self.pair_measures(sync, &[8], Self::atomic_latency),
            Test::AtomicRate => self.atomic_rate(),
            Test::WaitUntilLatency => self.pair_measures(sync, &[8], Self::wait_until_latency),
            Test::PutSignalLatency => self.pair_measures(sync, &[8], Self::put_signal_latency),
            Test::Overlap => self.pair_measures(sync, sizes, Self::overlap),
            Test::Barrier => self.barrier(),
            Test::TraceCost => self.trace_cost(sync),
            Test::P2p => self.matrix(),
            Test::FifoRate | Test::Launch => unreachable!("measured by the launcher"),
            collective => unreachable!("{} has a device side of its own", collective.name()),
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
        let sizes = self.spec.sizes.as_slice();
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
