//! Tests of proxies alone: the round trip of a put, to the peer and to its completion, and how much
//! of a transfer hides behind computation.

use shmccl::Result;
use shmccl::channel::Channel;
use shmccl::heap::HeapOffset;
use shmccl::shm::CopyKernel;
use shmccl_harness::clock::now_ns;
use shmccl_harness::cores;
use shmccl_harness::interleave::{Contender, Effort, LimitRule, Measured};
use shmccl_harness::slices::Slices;
use shmccl_harness::stats::{ENOUGH_FOR_P99, median};
use shmccl_harness::sync::PairSync;
use shmccl_harness::test::TestChannel;

use super::bench::{TestBench, TestResult};
use super::buffers::{PairBuffers, PairEnds};
use super::ping_pong::{PingPong, YieldHandoff};
use crate::flags::ProxyPlace;

/// Puts of the leader, each with a signal and a flush. The other rank waits, reads the data, and
/// answers by a bare flag, which is not in the sample.
#[derive(Debug)]
struct CompletionTest<C> {
    channel: C,
    ends: PairEnds,
    /// Where the message is in this rank's heap.
    source: HeapOffset,
    /// Where the message goes in the peer's heap.
    target: HeapOffset,
    seq: u64,
    wrong: u64,
}

impl<C: Channel> CompletionTest<C> {
    fn put(&mut self) -> Result<f64> {
        self.ends.outgoing.rewrite(self.seq);
        let start = now_ns();
        let len = self.ends.outgoing.span().len();
        self.channel.put_with_signal_and_flush(self.target, self.source, len)?;
        let took = now_ns() - start;
        self.ends.flags.mine.spin_yielding(self.seq);
        Ok(took as f64)
    }

    fn take(&mut self) -> Result<()> {
        self.channel.wait()?;
        self.wrong += self.ends.incoming.read(self.seq, false).wrong;
        self.ends.flags.theirs.set(self.seq);
        Ok(())
    }
}

impl<C: Channel> Contender for CompletionTest<C> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..ops {
            self.seq += 1;
            if self.ends.leads {
                samples.push(self.put()?);
            } else {
                self.take()?;
            }
        }
        Ok(())
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

impl TestBench<'_> {
    /// Returns whether work is handed to a proxy on the device's own core, and back.
    pub(crate) fn hands_off(&self) -> bool {
        let is_proxied = self.channel == Some(TestChannel::Port);
        is_proxied && self.spec.proxy == ProxyPlace::Thread && cores::is_pinned()
    }

    /// Prints two rows: one way to the peer, and until the rank that has pushed knows of the end.
    pub(crate) fn proxy_round_trip(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        self.proxied_one_way(sync, buffers)?;
        self.proxied_completion(sync, buffers)
    }

    fn proxied_one_way(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let copy = buffers.copy_and_flag(self.comm, 0, CopyKernel::Memcpy)?;
        sync.meet();
        let mut limit = PingPong::new(copy, buffers.leads());
        let mut handoff = YieldHandoff::new(buffers.leads());
        let channel = self.comm.port_channel(buffers.peer())?;
        let mut test = PingPong::new(buffers.put(self.comm, channel)?, buffers.leads());
        let mut contenders: Vec<&mut dyn Contender> = vec![&mut test, &mut limit];
        let (rules, name) = if self.hands_off() {
            contenders.push(&mut handoff);
            (LimitRule::each_with_handoffs(1), "raw copy + flag + 2 yield hand-offs")
        } else {
            (LimitRule::each(1), "raw copy + flag, without a proxy")
        };
        let measured = self.interleave(sync, &mut contenders, &rules)?;
        let name = self.flag_limit(name);
        self.report(buffers.leads(), &measured, Some(buffers.len()), &name, |row| {
            row.variant = Some("push to peer".to_owned());
        })
    }

    fn proxied_completion(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let ends = buffers.ends(self.comm, 0)?;
        sync.meet();
        let mut test = CompletionTest {
            channel: self.comm.port_channel(buffers.peer())?,
            ends,
            source: buffers.source(),
            target: buffers.target(),
            seq: 0,
            wrong: 0,
        };
        let mut handoff = YieldHandoff::new(buffers.leads());
        let measured = self.interleave(sync, &mut [&mut test, &mut handoff], &[LimitRule::Handoffs])?;
        let name = if self.hands_off() { "2 yield hand-offs" } else { "2 same-core yield hand-offs" };
        self.report(buffers.leads(), &measured, Some(buffers.len()), name, |row| {
            row.variant = Some("push to completion".to_owned());
        })
    }
}

/// Transfers before the clock counts, unless the user says how many.
const WARMUP: u64 = 5;

/// Below this the clock and the call of the computation take as long as what could be hidden.
const SHORTEST_NS: f64 = 5_000.0;

/// The figures of one size, on the leader.
#[derive(Clone, Debug)]
struct OverlapFigures {
    /// Transfer and computation together against the longer of the two alone, a slice for each
    /// round.
    slices: Slices,
    rounds: u64,
    /// The share of the transfer that hides behind as much computation, `None` when too short to
    /// tell.
    hidden: Option<f64>,
    /// Words that did not arrive as sent.
    wrong: u64,
}

/// One of the two ranks of the measurement.
struct OverlapTest<'d, C> {
    sync: &'d mut PairSync,
    channel: C,
    ends: PairEnds,
    source: HeapOffset,
    target: HeapOffset,
}

impl<C: Channel> OverlapTest<'_, C> {
    /// Times the transfer, as long a computation, and both together, by turns.
    fn run(mut self, effort: Effort) -> Result<OverlapFigures> {
        let mut wrong = 0;
        let mut seq = 0;
        let mut round = |scene: &mut Self, work: Option<u64>| -> Result<f64> {
            seq += 1;
            let (took, missed) = scene.round(seq, work)?;
            wrong += missed;
            Ok(took)
        };
        let began = now_ns();
        let warmup = effort.warmup.unwrap_or(WARMUP).max(1);
        let mut warm: Vec<f64> = (0..warmup).map(|_| round(&mut self, None)).collect::<Result<_>>()?;
        let mine = steps_for(median(&mut warm).unwrap_or(0.0));
        let steps = self.sync.share(mine);
        let (mut transfers, mut hidden) = (Vec::new(), Vec::new());
        let round_ns = 3 * (now_ns() - began) / warmup;
        let affordable = u64::try_from(effort.patience.as_nanos()).unwrap_or(u64::MAX) / round_ns.max(1);
        let rounds =
            self.sync.share(effort.iters.unwrap_or(affordable.clamp(effort.fewest_slices, ENOUGH_FOR_P99)));
        let mut slices = Slices::of_means(1);
        for _ in 0..rounds {
            let probe = self.sync.probe();
            let transfer = round(&mut self, None)?;
            let start = now_ns();
            compute(steps);
            let work = (now_ns() - start) as f64;
            let together = round(&mut self, Some(steps))?;
            slices.push(probe, &[together], &[transfer.max(work)]);
            transfers.push(transfer);
            hidden.push(share_hidden(transfer, work, together));
        }
        let is_long = median(&mut transfers).is_some_and(|transfer| transfer >= SHORTEST_NS);
        Ok(OverlapFigures { slices, rounds, hidden: median(&mut hidden).filter(|_| is_long), wrong })
    }

    /// Does one transfer, with `work` between handing it over and its completion. Returns the
    /// leader's time and the wrong words.
    fn round(&mut self, seq: u64, work: Option<u64>) -> Result<(f64, u64)> {
        if self.sync.leads() {
            self.ends.outgoing.rewrite(seq);
            self.sync.meet();
            let start = now_ns();
            self.channel.put_with_signal(self.target, self.source, self.ends.outgoing.span().len())?;
            if let Some(steps) = work {
                compute(steps);
            }
            self.channel.flush()?;
            let took = (now_ns() - start) as f64;
            self.channel.wait()?;
            Ok((took, 0))
        } else {
            self.sync.meet();
            self.channel.wait()?;
            let wrong = self.ends.incoming.read(seq, false).wrong;
            self.channel.signal()?;
            Ok((0.0, wrong))
        }
    }
}

/// Returns how much of the shorter time is saved by doing both `together`: all of it at most, and
/// nothing where something else has made both together longer than one after the other.
fn share_hidden(transfer: f64, work: f64, together: f64) -> f64 {
    ((transfer + work - together) / transfer.min(work).max(1.0)).clamp(0.0, 1.0)
}

/// Returns the number of steps that take about `ns`.
fn steps_for(ns: f64) -> u64 {
    const TRIAL: u64 = 1 << 16;
    compute(TRIAL);
    let start = now_ns();
    compute(TRIAL);
    let per_step = (now_ns() - start) as f64 / TRIAL as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count that need not be exact"
    )]
    let steps = (ns / per_step.max(0.01)) as u64;
    steps
}

/// Keeps the core busy without touching memory.
fn compute(steps: u64) {
    let mut x = std::hint::black_box(1.000_000_1_f64);
    for _ in 0..steps {
        x = x * 0.999_999_9 + 1e-9;
    }
    std::hint::black_box(x);
}

impl TestBench<'_> {
    /// Measures the overlap. A proxy that shares the core of its device can hide nothing, so it is
    /// started on other cores.
    pub(crate) fn overlap(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let is_pinned = cores::is_pinned();
        let core = cores::step_aside();
        let place = match (self.spec.proxy, core.has_moved()) {
            (ProxyPlace::Process, _) => "service process",
            (ProxyPlace::Thread, true) => "proxy on other cores",
            (ProxyPlace::Thread, false) if is_pinned => "proxy on the device's core",
            (ProxyPlace::Thread, false) => "proxy on any core",
        };
        let channel = self.comm.port_channel(buffers.peer())?;
        core.back()?;
        let ends = buffers.ends(self.comm, 0)?;
        let (source, target) = (buffers.source(), buffers.target());
        let test = OverlapTest { sync: &mut *sync, channel, ends, source, target };
        let overlap = test.run(self.spec.effort(self.test, None))?;
        let wrong = overlap.wrong + sync.share_back(overlap.wrong);
        let comparisons = overlap.slices.compare().into_iter().collect();
        let measured = Measured { comparisons, operations: overlap.rounds, wrong };
        let limit = "longer of transfer and computation alone";
        self.report(buffers.leads(), &measured, Some(buffers.len()), limit, |row| {
            row.overlap = overlap.hidden;
            row.variant = Some(place.to_owned());
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_all_at_most_and_nothing_at_least() {
        assert!((share_hidden(10_000.0, 10_000.0, 10_000.0) - 1.0).abs() < 1e-9);
        assert!(share_hidden(10_000.0, 12_000.0, 22_000.0).abs() < 1e-9);
        assert_eq!(share_hidden(10_000.0, 10_000.0, 193_000.0), 0.0);
        assert_eq!(share_hidden(10_000.0, 10_000.0, 9_000.0), 1.0);
    }
}
