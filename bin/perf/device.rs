//! The device side of a measuring job: does what the plan says; a rank that keeps the time prints a row as JSON for each figure.
//!
//! MERGED:
//! The yardsticks of all tests, by themselves.

use std::cell::Cell;
use anyhow::{Context, Result};
use shmccl::Communicator;
use shmccl::comm::{Member, join_job};
use shmccl::shm::CopyKernel;
use shmccl::shm::packet::PacketKind;
use super::barrier::{BARRIERS, CommBarrier, AllSync, YieldBarrier};
use super::collective;
use super::interleave::{Participants, Measured, LimitRule, interleave, second};
use super::pair_sync::PairSync;
use super::ends::{SignalLink, SignalEnd};
use super::figures::{best_of, best_with_handoffs, row_of};
use super::handoff::YieldHandoff;
use super::contender::{Contender, PingPong};
use super::matrix::figure::MatrixFigure;
use super::pair::RankPair;
use super::plan::{PerfPlan, VARIABLE};
use super::rate::{BareStream, MESSAGE, PutStream, MessageRate, WINDOW};
use super::stage::PairBuffers;
use super::transfer::flood::{self, Counters, Level};
use super::transfer::{TransferDirection, Mover, PlainCopy, Put, BulkTransfer};
use crate::output;
use crate::perf::report::PerfRow;
use crate::perf::test::{Test, TestChannel};
use anyhow::Result;
use super::DeviceBench;
use crate::perf::interleave::{Measured, LimitRule};
use crate::perf::pair_sync::PairSync;
use crate::perf::ends::SignalEnd;
use crate::perf::handoff::YieldHandoff;
use crate::perf::contender::PingPong;
use crate::perf::transfer::{TransferDirection, PlainCopy, BulkTransfer};

/// A channel of either kind, so that a test is written once.
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

mod getting;
mod limits;
mod matrix;
mod proxies;
mod tracing;




/// Runs as a member of a measuring job; `false` when the process was not started as one.
///
/// # Errors
/// Whatever the job fails with.
pub(crate) fn run() -> Result<()> {
    let plan = std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is set by `shmccl perf` only"))?;
    let plan: PerfPlan = serde_json::from_str(&plan).with_context(|| format!("{VARIABLE} holds no plan"))?;
    match join_job()? {
        Some(Member::Device(mut comm)) => {
            let pair = RankPair::new(0, 1, comm.n_ranks(), plan.one_core)?;
            let mut pair_sync = PairSync::new(&mut comm, pair)?;
            for (test, channel) in &plan.tests {
                if test.is_collective() {
                    collective::device::run(&mut comm, &plan, *test, pair_sync.as_mut())
                        .with_context(|| format!("in {}", test.name()))?;
                    continue;
                }
                let mut bench = DeviceBench {
                    counted: Cell::new(Counters::of(&comm)?),
                    comm: &mut comm,
                    plan: &plan,
                    test: *test,
                    channel: *channel,
                    pair,
                    figure: None,
                };
                bench.run(pair_sync.as_mut()).with_context(|| format!("in {}", test.name()))?;
            }
            Ok(comm.finalize()?)
        }
        Some(Member::Proxy) => Ok(()),
        None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

/// One test over one channel.
struct DeviceBench<'a> {
    comm: &'a mut Communicator,
    plan: &'a PerfPlan,
    test: Test,
    channel: Option<TestChannel>,
    pair: RankPair,
    /// What of a matrix is measured.
    figure: Option<MatrixFigure>,
    /// What this rank's fifos had counted at the last row.
    counted: Cell<Counters>,
}

impl DeviceBench<'_> {
    fn run(&mut self, pair_sync: Option<&mut PairSync>) -> Result<()> {
        match self.test {
            Test::Limits => self.limits(pair_sync),
            Test::SignalLatency => self.two(pair_sync, &[8], Self::signal_latency),
            Test::PutLatency => self.two(pair_sync, &self.plan.sizes.clone(), Self::put_latency),
            Test::PacketLatency => self.two(pair_sync, &self.plan.sizes.clone(), Self::packet_latency),
            Test::GetLatency => self.two(pair_sync, &self.plan.sizes.clone(), Self::get_latency),
            Test::PutBandwidth => self.two(pair_sync, &self.plan.sizes.clone(), Self::put_bandwidth),
            Test::PutBidirectional => self.two(pair_sync, &self.plan.sizes.clone(), Self::put_bidirectional),
            Test::MessageRate => self.two(pair_sync, &[WINDOW * MESSAGE], Self::message_rate),
            Test::ProxyRoundTrip => self.two(pair_sync, &[8], Self::proxy_round_trip),
            Test::Overlap => self.two(pair_sync, &self.plan.sizes.clone(), Self::overlap),
            Test::Barrier => self.barrier(),
            Test::TraceCost => self.trace_cost(pair_sync),
            Test::P2p => self.matrix(),
            Test::FifoRate | Test::Launch => unreachable!("measured by the launcher"),
            collective => unreachable!("{} has a device side of its own", collective.name()),
        }
    }

    /// Lets the pair measure at each size, while the others sleep in the barrier.
    fn two(
        &mut self,
        mut pair_sync: Option<&mut PairSync>,
        sizes: &[u64],
        measure: impl Fn(&mut Self, &mut PairSync, &PairBuffers) -> Result<()>,
    ) -> Result<()> {
        let yields = self.channel == Some(TestChannel::Port) || self.comm.n_ranks() > 2;
        for &len in sizes {
            let stage = PairBuffers::alloc(self.comm, self.pair, len, self.test, self.plan)?;
            if let Some(pair_sync) = pair_sync.as_deref_mut() {
                pair_sync.set_yields(yields);
                measure(self, pair_sync, &stage)?;
            }
            self.comm.barrier()?;
            stage.free(self.comm)?;
        }
        Ok(())
    }

    fn interleave(
        &self,
        pair_sync: &mut PairSync,
        contenders: &mut [&mut dyn Contender],
        rules: &[LimitRule],
    ) -> Result<Measured> {
        let outcome =
            interleave(Participants::Two(pair_sync), contenders, rules, self.plan.effort(self.test, self.channel))?;
        // What the other rank found wrong counts as well.
        let wrong = outcome.wrong + pair_sync.share_back(outcome.wrong);
        Ok(Measured { wrong, ..outcome })
    }

    /// Prints the row of a figure on the leader.
    fn report(
        &self,
        leads: bool,
        outcome: &Measured,
        bytes: Option<u64>,
        limit: &str,
        adjust: impl Fn(&mut PerfRow),
    ) -> Result<()> {
        if !leads {
            return Ok(());
        }
        let verdict = outcome.verdicts.first().context("nothing was measured")?;
        let mut row = row_of(self.test, self.channel, self.comm.n_ranks(), verdict, limit);
        row.iterations = outcome.operations;
        row.bytes = bytes;
        row.wrong = self.plan.check.then_some(outcome.wrong);
        self.note_place(&mut row);
        self.note_fifo(&mut row)?;
        adjust(&mut row);
        output::print(&format!("{}\n", serde_json::to_string(&row)?))
    }

    /// The name of a limit that waits for bare flags: on one core it gives way between two looks.
    fn flag_limit(&self, name: &str) -> String {
        if self.pair.one_core { format!("{name}, yielding") } else { name.to_owned() }
    }

    /// What tells the row of a matrix from the others.
    fn note_place(&self, row: &mut PerfRow) {
        let Some(figure) = self.figure else { return };
        row.variant = Some(figure.name().to_owned());
        let settings = self.plan.matrix.as_ref().filter(|_| figure != MatrixFigure::AllToAll);
        row.place = settings.map(|settings| settings.place(self.pair));
    }

    /// Notes how much was pushed since the last row, and how often into a full fifo.
    fn note_fifo(&self, row: &mut PerfRow) -> Result<()> {
        if self.channel == Some(TestChannel::Port) {
            let all = Counters::of(self.comm)?;
            row.set_pushes(all.since(self.counted.replace(all)));
        }
        Ok(())
    }

    /// The name of a limit of what goes over the channel under test, with two hand-offs or without.
    fn beside_proxy(&self, limit: &str, hands_off: bool) -> String {
        match (self.channel, hands_off) {
            (Some(TestChannel::Port), true) => format!("{limit} + 2 yield hand-offs"),
            (Some(TestChannel::Port), false) => format!("{limit}, without a proxy"),
            _ => limit.to_owned(),
        }
    }

    fn signal_latency(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let flags = stage.flags(self.comm, 0)?;
        pair_sync.meet();
        let mut limit = PingPong::new(SignalEnd(flags), stage.leads());
        with_channel!(self, stage.peer(), channel => {
            let mut test = PingPong::new(SignalEnd(SignalLink { channel }), stage.leads());
            let mut contenders: Vec<&mut dyn Contender> = vec![&mut test, &mut limit];
            let mut handoff = YieldHandoff::new(stage.leads());
            let hands_off = self.hands_off()?;
            let rules = if hands_off {
                contenders.push(&mut handoff);
                best_with_handoffs(1)
            } else {
                best_of(1)
            };
            let outcome = self.interleave(pair_sync, &mut contenders, &rules)?;
            let name = self.flag_limit(&self.beside_proxy("raw flag ping-pong", hands_off));
            self.report(stage.leads(), &outcome, None, &name, |row| row.wrong = None)
        })
    }

    /// A put with signal against plain copies and a flag, for long messages in other ways, too; the best of them is the limit. Where a
    /// proxy on the device's own core is told to do it, two hand-offs are added.
    fn put_latency(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let streaming = [CopyKernel::Avx2Streaming, CopyKernel::Avx512Streaming];
        let quickest = streaming.into_iter().find(|kernel| kernel.is_supported());
        let string = Some(CopyKernel::RepMovsb).filter(|kernel| kernel.is_supported());
        let others = quickest.into_iter().chain(string).filter(|_| stage.stamped());
        let kernels: Vec<_> = std::iter::once(CopyKernel::Memcpy).chain(others).collect();
        let mut plain = Vec::new();
        for (pair, &kernel) in (0..).zip(&kernels) {
            let copy = stage.copy_and_flag(self.comm, pair, kernel)?;
            plain.push(PingPong::of_messages(copy, stage.leads(), stage.len()));
        }
        pair_sync.meet();
        with_channel!(self, stage.peer(), channel => {
            let mut test = PingPong::of_messages(stage.put(self.comm, channel)?, stage.leads(), stage.len());
            let mut contenders: Vec<&mut dyn Contender> = vec![&mut test];
            contenders.extend(plain.iter_mut().map(|contender| contender as &mut dyn Contender));
            let mut handoff = YieldHandoff::new(stage.leads());
            let hands_off = self.hands_off()?;
            let rules = if hands_off {
                contenders.push(&mut handoff);
                best_with_handoffs(kernels.len())
            } else {
                best_of(kernels.len())
            };
            let outcome = self.interleave(pair_sync, &mut contenders, &rules)?;
            let Some((best, outcome)) = outcome.with_lowest_limit() else { return Ok(()) };
            let name = match kernels[best] {
                CopyKernel::Memcpy => "raw copy + flag".to_owned(),
                kernel => format!("raw copy ({kernel}) + flag"),
            };
            let (len, name) = (stage.len(), self.flag_limit(&self.beside_proxy(&name, hands_off)));
            self.report(stage.leads(), &outcome, Some(len), &name, |row| row.set_bandwidth(len))
        })
    }

    fn packet_latency(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        for kind in [PacketKind::Ll8, PacketKind::Ll16] {
            let copy = stage.copy_and_flag(self.comm, 0, CopyKernel::Memcpy)?;
            pair_sync.meet();
            let mut limit = PingPong::of_messages(copy, stage.leads(), stage.len());
            let channel = self.comm.memory_channel(stage.peer())?;
            let end = stage.put_packets(self.comm, channel, kind)?;
            let mut test = PingPong::of_messages(end, stage.leads(), stage.len());
            let raw = stage.raw_packets(self.comm, kind)?;
            let mut raw = PingPong::of_messages(raw, stage.leads(), stage.len());
            let outcome = self.interleave(pair_sync, &mut [&mut test, &mut limit, &mut raw], &best_of(2))?;
            let Some((best, outcome)) = outcome.with_lowest_limit() else { return Ok(()) };
            let name = ["raw copy + flag", "raw packets"][best];
            let (len, name) = (stage.len(), self.flag_limit(name));
            self.report(stage.leads(), &outcome, Some(len), &name, |row| {
                row.variant = Some(match kind {
                    PacketKind::Ll8 => "LL8".to_owned(),
                    PacketKind::Ll16 => "LL16".to_owned(),
                });
                row.set_bandwidth(len);
            })?;
        }
        Ok(())
    }

    fn put_bandwidth(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        self.put_transfer(pair_sync, stage, TransferDirection::Push)
    }

    fn put_bidirectional(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        self.put_transfer(pair_sync, stage, TransferDirection::Both)
    }

    fn put_transfer(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers, direction: TransferDirection) -> Result<()> {
        let from = |bench: &Self| Ok((stage.outgoing(bench.comm)?.span().clone(), stage.remote(bench.comm)?));
        with_channel!(self, stage.peer(), channel => {
            let put = Put { channel, source: stage.source(), target: stage.target(), len: stage.len() };
            self.transfer(pair_sync, stage, direction, put, from)
        })
    }

    /// A transfer against plain copies by every kernel that this processor has; the best of them is the limit.
    fn transfer<M: Mover>(
        &mut self,
        pair_sync: &mut PairSync,
        buffers: &PairBuffers,
        direction: TransferDirection,
        mover: M,
        from: impl Fn(&Self) -> Result<(shmccl::shm::Span, shmccl::shm::Span)>,
    ) -> Result<()> {
        let kernels: Vec<_> = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()).collect();
        let contender = |bench: &Self, pair| -> Result<_> {
            Ok((stage.outgoing(bench.comm)?, stage.incoming(bench.comm)?, stage.flags(bench.comm, pair)?))
        };
        let (outgoing, incoming, flags) = contender(self, 0)?;
        let mut test = BulkTransfer::new(mover, direction, stage.leads(), outgoing, incoming, flags);
        let mut plain = Vec::new();
        for (pair, &kernel) in (1..).zip(&kernels) {
            let (source, target) = from(self)?;
            let (outgoing, incoming, flags) = contender(self, pair)?;
            let copy = PlainCopy { source, target, kernel };
            plain.push(BulkTransfer::new(copy, direction, stage.leads(), outgoing, incoming, flags));
        }
        pair_sync.meet();
        let mut contenders: Vec<&mut dyn Contender> = vec![&mut test];
        contenders.extend(plain.iter_mut().map(|contender| contender as &mut dyn Contender));
        let outcome = self.interleave(pair_sync, &mut contenders, &best_of(kernels.len()))?;
        let (level, wrong) = self.flood(pair_sync, stage.len(), &mut test, &outcome)?;
        let outcome = Measured { wrong: outcome.wrong + wrong, ..outcome };
        let Some((best, outcome)) = outcome.with_lowest_limit() else { return Ok(()) };
        let limit = format!("plain copy ({})", kernels[best]);
        let len = stage.len();
        let both = if direction == TransferDirection::Both { 2 } else { 1 };
        self.report(stage.leads(), &outcome, Some(len), &limit, |row| {
            row.set_bandwidth(both * len);
            row.set_level(level);
        })
    }

    /// Floods the fifo of a proxied transfer: how full it was, unless that takes too long, and the words that came wrong.
    fn flood<M: Mover>(
        &self,
        pair_sync: &mut PairSync,
        len: u64,
        test: &mut BulkTransfer<M>,
        outcome: &Measured,
    ) -> Result<(Option<Level>, u64)> {
        if self.channel != Some(TestChannel::Port) || !flood::can_flood(len) {
            return Ok((None, 0));
        }
        let put_ns = outcome.verdicts.first().map_or(0.0, |verdict| verdict.test.p50_ns);
        let puts = pair_sync.share(flood::puts(put_ns));
        let before = test.wrong();
        let level = test.flood(puts, || Counters::of(self.comm))?;
        let wrong = test.wrong() - before;
        Ok((level, wrong + pair_sync.share_back(wrong)))
    }

    fn message_rate(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let spans = |bench: &Self| -> Result<_> {
            Ok((stage.outgoing(bench.comm)?.span().clone(), stage.incoming(bench.comm)?.span().clone()))
        };
        let (outgoing, incoming) = spans(self)?;
        let bare = BareStream {
            source: outgoing.clone(),
            target: stage.remote(self.comm)?,
            flags: stage.flags(self.comm, 0)?,
        };
        let mut limit = MessageRate::new(bare, stage.leads(), outgoing, incoming, stage.flags(self.comm, 1)?);
        let (outgoing, incoming) = spans(self)?;
        let answer = stage.flags(self.comm, 2)?;
        pair_sync.meet();
        with_channel!(self, stage.peer(), channel => {
            let puts = PutStream { channel, source: stage.source(), target: stage.target() };
            let mut test = MessageRate::new(puts, stage.leads(), outgoing, incoming, answer);
            let outcome = self.interleave(pair_sync, &mut [&mut test, &mut limit], &[second])?;
            self.report(stage.leads(), &outcome, Some(MESSAGE), "raw word + flag, streamed", |row| {
                row.per_s = row.p50_ns.map(|ns| 1e9 / ns);
            })
        })
    }

    fn barrier(&mut self) -> Result<()> {
        let mut all_sync = AllSync::new(self.comm)?;
        let mut limit = YieldBarrier::new(self.comm, BARRIERS)?;
        let effort = self.plan.effort(self.test, None);
        let leads = all_sync.leads();
        let outcome = {
            let mut test = CommBarrier { comm: &mut *self.comm };
            interleave(Participants::All(&mut all_sync), &mut [&mut test, &mut limit], &[second], effort)?
        };
        self.report(leads, &outcome, None, "bare yield barrier", |row| row.wrong = None)
    }
}

impl DeviceBench<'_> {
    /// The yardsticks by themselves.
    pub(crate) fn limits(&mut self, mut pair_sync: Option<&mut PairSync>) -> Result<()> {
        let none: &[LimitRule] = &[];
        self.two(pair_sync.as_deref_mut(), &[8], |bench, pair_sync, stage| {
            let flags = stage.flags(bench.comm, 0)?;
            pair_sync.meet();
            let mut contender = PingPong::new(SignalEnd(flags), stage.leads());
            let outcome = bench.interleave(pair_sync, &mut [&mut contender], none)?;
            bench.report_limit(stage.leads(), &outcome, None, &bench.flag_limit("raw flag ping-pong"))?;
            let mut contender = YieldHandoff::new(stage.leads());
            let outcome = bench.interleave(pair_sync, &mut [&mut contender], none)?;
            bench.report_limit(stage.leads(), &outcome, None, "same-core yield hand-off")
        })?;
        self.two(pair_sync.as_deref_mut(), &self.plan.sizes.clone(), |bench, pair_sync, stage| {
            let copy = stage.copy_and_flag(bench.comm, 0, CopyKernel::Memcpy)?;
            pair_sync.meet();
            let mut contender = PingPong::of_messages(copy, stage.leads(), stage.len());
            let outcome = bench.interleave(pair_sync, &mut [&mut contender], none)?;
            let name = bench.flag_limit("raw copy + flag");
            bench.report_limit(stage.leads(), &outcome, Some(stage.len()), &name)
        })?;
        self.two(pair_sync, &self.plan.sizes.clone(), |bench, pair_sync, stage| {
            for kernel in CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
                let copy = PlainCopy {
                    source: stage.outgoing(bench.comm)?.span().clone(),
                    target: stage.remote(bench.comm)?,
                    kernel,
                };
                let (outgoing, incoming) = (stage.outgoing(bench.comm)?, stage.incoming(bench.comm)?);
                let flags = stage.flags(bench.comm, 0)?;
                pair_sync.meet();
                let mut contender = BulkTransfer::new(copy, TransferDirection::Push, stage.leads(), outgoing, incoming, flags);
                let outcome = bench.interleave(pair_sync, &mut [&mut contender], none)?;
                bench.report_limit(
                    stage.leads(),
                    &outcome,
                    Some(stage.len()),
                    &format!("plain copy ({kernel})"),
                )?;
            }
            Ok(())
        })
    }

    fn report_limit(&self, leads: bool, outcome: &Measured, bytes: Option<u64>, name: &str) -> Result<()> {
        self.report(leads, outcome, bytes, "", |row| {
            row.variant = Some(name.to_owned());
            row.limit = None;
            if let Some(len) = bytes {
                row.set_bandwidth(len);
            } else {
                row.wrong = None;
            }
        })
    }
}
