//! The device side of a measuring job: does what the plan says; a rank that keeps the time prints a row as JSON for each figure.

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

use std::cell::Cell;

use anyhow::{Context, Result};
use shmccl::Communicator;
use shmccl::comm::{Member, join_job};
use shmccl::shm::CopyKernel;
use shmccl::shm::packet::PacketKind;

use super::barrier::{BARRIERS, CommBarrier, Ensemble, YieldBarrier};
use super::collective;
use super::contest::{Company, Outcome, Yardstick, contest, second};
use super::duet::Duet;
use super::ends::{SignalLink, Signals};
use super::figures::{best_of, best_with_handoffs, row_of};
use super::handoff::YieldHandoff;
use super::lane::{Lane, PingPong};
use super::matrix::figure::Figure;
use super::pair::Pair;
use super::plan::{Plan, VARIABLE};
use super::rate::{BareStream, MESSAGE, PutStream, Rate, WINDOW};
use super::stage::Stage;
use super::transfer::flood::{self, Counters, Level};
use super::transfer::{Direction, Mover, PlainCopy, Put, Transfer};
use crate::output;
use crate::perf::report::PerfRow;
use crate::perf::test::{Test, TestChannel};

/// Runs as a member of a measuring job; `false` when the process was not started as one.
///
/// # Errors
/// Whatever the job fails with.
pub(crate) fn run() -> Result<()> {
    let plan = std::env::var(VARIABLE).with_context(|| format!("{VARIABLE} is set by `shmccl perf` only"))?;
    let plan: Plan = serde_json::from_str(&plan).with_context(|| format!("{VARIABLE} holds no plan"))?;
    match join_job()? {
        Some(Member::Device(mut comm)) => {
            let pair = Pair::new(0, 1, comm.n_ranks(), plan.one_core)?;
            let mut duet = Duet::new(&mut comm, pair)?;
            for (test, channel) in &plan.tests {
                if test.is_collective() {
                    collective::device::run(&mut comm, &plan, *test, duet.as_mut())
                        .with_context(|| format!("in {}", test.name()))?;
                    continue;
                }
                let mut bench = Bench {
                    counted: Cell::new(Counters::of(&comm)?),
                    comm: &mut comm,
                    plan: &plan,
                    test: *test,
                    channel: *channel,
                    pair,
                    figure: None,
                };
                bench.run(duet.as_mut()).with_context(|| format!("in {}", test.name()))?;
            }
            Ok(comm.finalize()?)
        }
        Some(Member::Proxy) => Ok(()),
        None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

/// One test over one channel.
struct Bench<'a> {
    comm: &'a mut Communicator,
    plan: &'a Plan,
    test: Test,
    channel: Option<TestChannel>,
    pair: Pair,
    /// What of a matrix is measured.
    figure: Option<Figure>,
    /// What this rank's fifos had counted at the last row.
    counted: Cell<Counters>,
}

impl Bench<'_> {
    fn run(&mut self, duet: Option<&mut Duet>) -> Result<()> {
        match self.test {
            Test::Limits => self.limits(duet),
            Test::SignalLatency => self.two(duet, &[8], Self::signal_latency),
            Test::PutLatency => self.two(duet, &self.plan.sizes.clone(), Self::put_latency),
            Test::PacketLatency => self.two(duet, &self.plan.sizes.clone(), Self::packet_latency),
            Test::GetLatency => self.two(duet, &self.plan.sizes.clone(), Self::get_latency),
            Test::PutBandwidth => self.two(duet, &self.plan.sizes.clone(), Self::put_bandwidth),
            Test::PutBidirectional => self.two(duet, &self.plan.sizes.clone(), Self::put_bidirectional),
            Test::MessageRate => self.two(duet, &[WINDOW * MESSAGE], Self::message_rate),
            Test::ProxyRoundTrip => self.two(duet, &[8], Self::proxy_round_trip),
            Test::Overlap => self.two(duet, &self.plan.sizes.clone(), Self::overlap),
            Test::Barrier => self.barrier(),
            Test::TraceCost => self.trace_cost(duet),
            Test::P2p => self.matrix(),
            Test::FifoRate | Test::Launch => unreachable!("measured by the launcher"),
            collective => unreachable!("{} has a device side of its own", collective.name()),
        }
    }

    /// Lets the pair measure at each size, while the others sleep in the barrier.
    fn two(
        &mut self,
        mut duet: Option<&mut Duet>,
        sizes: &[u64],
        measure: impl Fn(&mut Self, &mut Duet, &Stage) -> Result<()>,
    ) -> Result<()> {
        let yields = self.channel == Some(TestChannel::Port) || self.comm.n_ranks() > 2;
        for &len in sizes {
            let stage = Stage::set(self.comm, self.pair, len, self.test, self.plan)?;
            if let Some(duet) = duet.as_deref_mut() {
                duet.set_yields(yields);
                measure(self, duet, &stage)?;
            }
            self.comm.barrier()?;
            stage.strike(self.comm)?;
        }
        Ok(())
    }

    fn contest(
        &self,
        duet: &mut Duet,
        lanes: &mut [&mut dyn Lane],
        yardsticks: &[Yardstick],
    ) -> Result<Outcome> {
        let outcome =
            contest(Company::Two(duet), lanes, yardsticks, self.plan.effort(self.test, self.channel))?;
        // What the other rank found wrong counts as well.
        let wrong = outcome.wrong + duet.share_back(outcome.wrong);
        Ok(Outcome { wrong, ..outcome })
    }

    /// Prints the row of a figure on the leader.
    fn report(
        &self,
        leads: bool,
        outcome: &Outcome,
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
        let settings = self.plan.matrix.as_ref().filter(|_| figure != Figure::AllToAll);
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

    fn signal_latency(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        let flags = stage.flags(self.comm, 0)?;
        duet.meet();
        let mut limit = PingPong::new(Signals(flags), stage.leads());
        with_channel!(self, stage.peer(), channel => {
            let mut test = PingPong::new(Signals(SignalLink { channel }), stage.leads());
            let mut lanes: Vec<&mut dyn Lane> = vec![&mut test, &mut limit];
            let mut handoff = YieldHandoff::new(stage.leads());
            let hands_off = self.hands_off()?;
            let yardsticks = if hands_off {
                lanes.push(&mut handoff);
                best_with_handoffs(1)
            } else {
                best_of(1)
            };
            let outcome = self.contest(duet, &mut lanes, &yardsticks)?;
            let name = self.flag_limit(&self.beside_proxy("raw flag ping-pong", hands_off));
            self.report(stage.leads(), &outcome, None, &name, |row| row.wrong = None)
        })
    }

    /// A put with signal against plain copies and a flag, for long messages in other ways, too; the best of them is the limit. Where a
    /// proxy on the device's own core is told to do it, two hand-offs are added.
    fn put_latency(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
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
        duet.meet();
        with_channel!(self, stage.peer(), channel => {
            let mut test = PingPong::of_messages(stage.put(self.comm, channel)?, stage.leads(), stage.len());
            let mut lanes: Vec<&mut dyn Lane> = vec![&mut test];
            lanes.extend(plain.iter_mut().map(|lane| lane as &mut dyn Lane));
            let mut handoff = YieldHandoff::new(stage.leads());
            let hands_off = self.hands_off()?;
            let yardsticks = if hands_off {
                lanes.push(&mut handoff);
                best_with_handoffs(kernels.len())
            } else {
                best_of(kernels.len())
            };
            let outcome = self.contest(duet, &mut lanes, &yardsticks)?;
            let Some((best, outcome)) = outcome.with_lowest_limit() else { return Ok(()) };
            let name = match kernels[best] {
                CopyKernel::Memcpy => "raw copy + flag".to_owned(),
                kernel => format!("raw copy ({kernel}) + flag"),
            };
            let (len, name) = (stage.len(), self.flag_limit(&self.beside_proxy(&name, hands_off)));
            self.report(stage.leads(), &outcome, Some(len), &name, |row| row.set_bandwidth(len))
        })
    }

    fn packet_latency(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        for kind in [PacketKind::Ll8, PacketKind::Ll16] {
            let copy = stage.copy_and_flag(self.comm, 0, CopyKernel::Memcpy)?;
            duet.meet();
            let mut limit = PingPong::of_messages(copy, stage.leads(), stage.len());
            let channel = self.comm.memory_channel(stage.peer())?;
            let end = stage.put_packets(self.comm, channel, kind)?;
            let mut test = PingPong::of_messages(end, stage.leads(), stage.len());
            let raw = stage.raw_packets(self.comm, kind)?;
            let mut raw = PingPong::of_messages(raw, stage.leads(), stage.len());
            let outcome = self.contest(duet, &mut [&mut test, &mut limit, &mut raw], &best_of(2))?;
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

    fn put_bandwidth(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        self.put_transfer(duet, stage, Direction::Push)
    }

    fn put_bidirectional(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        self.put_transfer(duet, stage, Direction::Both)
    }

    fn put_transfer(&mut self, duet: &mut Duet, stage: &Stage, direction: Direction) -> Result<()> {
        let from = |bench: &Self| Ok((stage.outgoing(bench.comm)?.span().clone(), stage.remote(bench.comm)?));
        with_channel!(self, stage.peer(), channel => {
            let put = Put { channel, source: stage.source(), target: stage.target(), len: stage.len() };
            self.transfer(duet, stage, direction, put, from)
        })
    }

    /// A transfer against plain copies by every kernel that this processor has; the best of them is the limit.
    fn transfer<M: Mover>(
        &mut self,
        duet: &mut Duet,
        stage: &Stage,
        direction: Direction,
        mover: M,
        from: impl Fn(&Self) -> Result<(shmccl::shm::Span, shmccl::shm::Span)>,
    ) -> Result<()> {
        let kernels: Vec<_> = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()).collect();
        let lane = |bench: &Self, pair| -> Result<_> {
            Ok((stage.outgoing(bench.comm)?, stage.incoming(bench.comm)?, stage.flags(bench.comm, pair)?))
        };
        let (outgoing, incoming, flags) = lane(self, 0)?;
        let mut test = Transfer::new(mover, direction, stage.leads(), outgoing, incoming, flags);
        let mut plain = Vec::new();
        for (pair, &kernel) in (1..).zip(&kernels) {
            let (source, target) = from(self)?;
            let (outgoing, incoming, flags) = lane(self, pair)?;
            let copy = PlainCopy { source, target, kernel };
            plain.push(Transfer::new(copy, direction, stage.leads(), outgoing, incoming, flags));
        }
        duet.meet();
        let mut lanes: Vec<&mut dyn Lane> = vec![&mut test];
        lanes.extend(plain.iter_mut().map(|lane| lane as &mut dyn Lane));
        let outcome = self.contest(duet, &mut lanes, &best_of(kernels.len()))?;
        let (level, wrong) = self.flood(duet, stage.len(), &mut test, &outcome)?;
        let outcome = Outcome { wrong: outcome.wrong + wrong, ..outcome };
        let Some((best, outcome)) = outcome.with_lowest_limit() else { return Ok(()) };
        let limit = format!("plain copy ({})", kernels[best]);
        let len = stage.len();
        let both = if direction == Direction::Both { 2 } else { 1 };
        self.report(stage.leads(), &outcome, Some(len), &limit, |row| {
            row.set_bandwidth(both * len);
            row.set_level(level);
        })
    }

    /// Floods the fifo of a proxied transfer: how full it was, unless that takes too long, and the words that came wrong.
    fn flood<M: Mover>(
        &self,
        duet: &mut Duet,
        len: u64,
        test: &mut Transfer<M>,
        outcome: &Outcome,
    ) -> Result<(Option<Level>, u64)> {
        if self.channel != Some(TestChannel::Port) || !flood::can_flood(len) {
            return Ok((None, 0));
        }
        let put_ns = outcome.verdicts.first().map_or(0.0, |verdict| verdict.test.p50_ns);
        let puts = duet.share(flood::puts(put_ns));
        let before = test.wrong();
        let level = test.flood(puts, || Counters::of(self.comm))?;
        let wrong = test.wrong() - before;
        Ok((level, wrong + duet.share_back(wrong)))
    }

    fn message_rate(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        let spans = |bench: &Self| -> Result<_> {
            Ok((stage.outgoing(bench.comm)?.span().clone(), stage.incoming(bench.comm)?.span().clone()))
        };
        let (outgoing, incoming) = spans(self)?;
        let bare = BareStream {
            source: outgoing.clone(),
            target: stage.remote(self.comm)?,
            flags: stage.flags(self.comm, 0)?,
        };
        let mut limit = Rate::new(bare, stage.leads(), outgoing, incoming, stage.flags(self.comm, 1)?);
        let (outgoing, incoming) = spans(self)?;
        let answer = stage.flags(self.comm, 2)?;
        duet.meet();
        with_channel!(self, stage.peer(), channel => {
            let puts = PutStream { channel, source: stage.source(), target: stage.target() };
            let mut test = Rate::new(puts, stage.leads(), outgoing, incoming, answer);
            let outcome = self.contest(duet, &mut [&mut test, &mut limit], &[second])?;
            self.report(stage.leads(), &outcome, Some(MESSAGE), "raw word + flag, streamed", |row| {
                row.per_s = row.p50_ns.map(|ns| 1e9 / ns);
            })
        })
    }

    fn barrier(&mut self) -> Result<()> {
        let mut ensemble = Ensemble::new(self.comm)?;
        let mut limit = YieldBarrier::new(self.comm, BARRIERS)?;
        let effort = self.plan.effort(self.test, None);
        let leads = ensemble.leads();
        let outcome = {
            let mut test = CommBarrier { comm: &mut *self.comm };
            contest(Company::All(&mut ensemble), &mut [&mut test, &mut limit], &[second], effort)?
        };
        self.report(leads, &outcome, None, "bare yield barrier", |row| row.wrong = None)
    }
}
