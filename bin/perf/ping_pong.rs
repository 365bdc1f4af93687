//! Latencies: two ranks send messages back and forth.

use anyhow::Result;
use shmccl::shm::CopyKernel;
use shmccl::shm::packet::PacketKind;
use shmccl_harness::clock::{Dither, now_ns, reading_ns};
use shmccl_harness::interleave::{Contender, LimitRule, Measured};
use shmccl_harness::sync::PairSync;
use shmccl_limits::flags::BareFlag;

use super::bench::{TestBench, TestResult, lineup, with_channel};
use super::buffers::{PairBuffers, is_stamped};
use super::links::{MessageRead, PingPongEnd, SignalEnd, SignalLink};

/// The first transfers of a slice are no samples. Past or through the cache, each way to copy
/// leaves the target in a state that the next contender pays for. After a stream past the cache,
/// the third transfer through it costs the usual.
const SETTLING: u64 = 3;

/// Fewer transfers settle the caches where each of them turns the caches over. A source and a
/// target of 16 MiB do not quite.
const SETTLING_BYTES: u64 = 64 << 20;

/// Returns how many transfers of `len` bytes settle the caches at the beginning of a slice, which
/// then has as many samples at least.
pub(crate) fn settling(len: u64) -> u64 {
    (SETTLING_BYTES / len.max(1)).clamp(1, SETTLING)
}

/// Messages back and forth between two ranks, over a [`PingPongEnd`] each.
///
/// A sample of short messages is half the time of a round trip, or of as many in a row as leave the
/// clock out of it. Before each the leader lets a random delay pass, which is measured by itself
/// and deducted. Long messages carry the sender's clock, so that preparing them is not in the
/// sample. It lasts from just before the send to just after the last byte was read. Both processes
/// read one monotonic clock.
#[derive(Debug)]
pub(crate) struct PingPong<E> {
    end: E,
    /// Whether this rank sends first and keeps the time.
    leads: bool,
    stamped: bool,
    /// Round trips at the beginning of a slice that are no samples.
    settling: u64,
    /// Round trips in one sample.
    together: u64,
    dither: Dither,
    seq: u64,
    wrong: u64,
}

/// The most operations that are timed together because each is too short for the clock.
pub(crate) const BATCH: u64 = 16;

/// The clock takes less than one part in so many of what is timed, unless that takes more than a
/// batch.
const CLOCK_SHARE: f64 = 50.0;

/// Returns how many operations of `op_ns` each are timed together: one, wherever reading the clock
/// is short beside it. Batches are a multiple of it.
pub(crate) fn timed_together(op_ns: f64) -> u64 {
    enough_for(reading_ns(), op_ns)
}

fn enough_for(reading_ns: f64, op_ns: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let wanted = (reading_ns * CLOCK_SHARE / op_ns.max(1.0)).ceil() as u64;
    wanted.clamp(1, BATCH).next_power_of_two()
}

impl<E: PingPongEnd> PingPong<E> {
    /// Makes a ping-pong of messages too short for the clock, or without room for a stamp.
    pub(crate) fn new(end: E, leads: bool) -> Self {
        Self {
            end,
            leads,
            stamped: false,
            settling: 0,
            together: BATCH,
            dither: Dither::start(),
            seq: 0,
            wrong: 0,
        }
    }

    /// Makes a ping-pong of messages of `len` bytes, stamped where they are long enough. The first
    /// ones of a slice then only settle the caches.
    pub(crate) fn of_messages(end: E, leads: bool, len: u64) -> Self {
        let new = Self::new(end, leads);
        if !is_stamped(len) {
            return new;
        }
        Self { stamped: true, settling: settling(len), together: 1, ..new }
    }

    fn send(&mut self) -> shmccl::Result<()> {
        self.end.prepare(self.seq);
        if self.stamped {
            self.end.stamp(now_ns());
        }
        self.end.send(self.seq)
    }

    fn receive(&mut self) -> shmccl::Result<MessageRead> {
        let received = self.end.receive(self.seq)?;
        self.wrong += received.wrong;
        Ok(received)
    }

    fn round_trip(&mut self) -> shmccl::Result<MessageRead> {
        self.seq += 1;
        if self.leads {
            self.send()?;
            self.receive()
        } else {
            let received = self.receive()?;
            self.send()?;
            Ok(received)
        }
    }

    /// Takes one sample of the leader, in nanoseconds one way.
    fn time(&mut self) -> shmccl::Result<f64> {
        let delays = self.dither.cost(self.together);
        let mut arrived = 0;
        let start = now_ns();
        for _ in 0..self.together {
            self.dither.pass(arrived);
            arrived = self.round_trip()?.first;
        }
        let took = (now_ns() - start).saturating_sub(delays);
        Ok(took as f64 / (2 * self.together) as f64)
    }
}

impl<E: PingPongEnd> Contender for PingPong<E> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        if self.stamped {
            for _ in 0..self.settling {
                self.round_trip()?;
            }
            for _ in 0..ops {
                let received = self.round_trip()?;
                if self.leads {
                    samples.push(received.read_at.saturating_sub(received.first) as f64);
                }
            }
            return Ok(());
        }
        for _ in 0..ops / self.together {
            if self.leads {
                samples.push(self.time()?);
            } else {
                (0..self.together).try_for_each(|_| self.round_trip().map(drop))?;
            }
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        if self.stamped { self.settling } else { BATCH }
    }

    fn settle(&mut self, op_ns: f64) {
        if !self.stamped {
            self.together = timed_together(op_ns);
        }
    }

    fn per_sample(&self) -> u64 {
        if self.stamped { 1 } else { 2 * self.together }
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// Hand-offs between two threads on one core. The leader starts a thread, which inherits its core;
/// the other rank has nothing to do.
#[derive(Debug)]
pub(crate) struct YieldHandoff {
    leads: bool,
    /// Hand-offs there and back in one sample.
    together: u64,
}

impl YieldHandoff {
    /// Makes hand-offs on the core of the calling thread, if the process is pinned.
    pub(crate) fn new(leads: bool) -> Self {
        Self { leads, together: BATCH }
    }
}

impl Contender for YieldHandoff {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        if !self.leads {
            return Ok(());
        }
        let (here, there) = (BareFlag::new(0), BareFlag::new(0));
        let together = self.together;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..=ops / together * together {
                    there.spin_yielding(turn + 1);
                    here.set(turn + 1);
                }
            });
            let mut turn = 0;
            let mut pass = || {
                turn += 1;
                there.set(turn);
                here.spin_yielding(turn);
            };
            pass(); // the thread has started
            for _ in 0..ops / together {
                let start = now_ns();
                for _ in 0..together {
                    pass();
                }
                samples.push((now_ns() - start) as f64 / (2 * together) as f64);
            }
        });
        Ok(())
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn settle(&mut self, op_ns: f64) {
        self.together = timed_together(op_ns);
    }

    fn per_sample(&self) -> u64 {
        2 * self.together
    }
}

impl TestBench<'_> {
    /// Measures a signal against bare flags.
    pub(crate) fn signal_latency(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let flags = buffers.flags(self.comm, 0)?;
        sync.meet();
        let mut limits = [PingPong::new(SignalEnd(flags), buffers.leads())];
        with_channel!(self, buffers.peer(), channel => {
            let mut test = PingPong::new(SignalEnd(SignalLink { channel }), buffers.leads());
            let (_, measured, hands_off) = self.against_each(sync, &mut test, &mut limits)?;
            let name = self.flag_limit(&self.beside_proxy("raw flag ping-pong", hands_off));
            self.report(buffers.leads(), &measured, None, &name, |row| row.wrong = None)
        })
    }

    /// Measures a put with signal against a plain copy and a flag, and for long messages against
    /// other copies as well. The best of them is the limit.
    pub(crate) fn put_latency(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let others = [CopyKernel::Avx2Streaming, CopyKernel::RepMovsb].into_iter();
        let others = others.filter(|kernel| kernel.is_supported() && buffers.stamped());
        let kernels: Vec<_> = std::iter::once(CopyKernel::Memcpy).chain(others).collect();
        let mut limits = Vec::new();
        for (pair, &kernel) in (0..).zip(&kernels) {
            let copy = buffers.copy_and_flag(self.comm, pair, kernel)?;
            limits.push(PingPong::of_messages(copy, buffers.leads(), buffers.len()));
        }
        sync.meet();
        with_channel!(self, buffers.peer(), channel => {
            let put = buffers.put(self.comm, channel)?;
            let mut test = PingPong::of_messages(put, buffers.leads(), buffers.len());
            let (best, measured, hands_off) = self.against_each(sync, &mut test, &mut limits)?;
            let name = match kernels[best] {
                CopyKernel::Memcpy => "raw copy + flag".to_owned(),
                kernel => format!("raw copy ({kernel}) + flag"),
            };
            let (len, name) = (buffers.len(), self.flag_limit(&self.beside_proxy(&name, hands_off)));
            self.report(buffers.leads(), &measured, Some(len), &name, |row| row.set_bandwidth(len))
        })
    }

    /// Lets `test` take turns with `limits`. Where a proxy on the device's own core does the work,
    /// each limit includes two hand-offs. Returns the lowest limit, the figures, and whether it
    /// does.
    fn against_each<L: Contender>(
        &self,
        sync: &mut PairSync,
        test: &mut dyn Contender,
        limits: &mut [L],
    ) -> Result<(usize, Measured, bool)> {
        let (count, hands_off) = (limits.len(), self.hands_off());
        let mut handoff = YieldHandoff::new(sync.leads());
        let mut contenders = lineup(test, limits);
        let rules = if hands_off {
            contenders.push(&mut handoff);
            LimitRule::each_with_handoffs(count)
        } else {
            LimitRule::each(count)
        };
        let (best, measured) = self.interleave(sync, &mut contenders, &rules)?.with_lowest_limit();
        Ok((best, measured, hands_off))
    }

    /// Measures puts in packets of both kinds against a plain copy and a flag, and against packets
    /// without a channel.
    pub(crate) fn packet_latency(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> TestResult {
        let (leads, len) = (buffers.leads(), buffers.len());
        for (kind, kind_name) in [(PacketKind::Ll8, "LL8"), (PacketKind::Ll16, "LL16")] {
            let copy = buffers.copy_and_flag(self.comm, 0, CopyKernel::Memcpy)?;
            sync.meet();
            let mut copy = PingPong::of_messages(copy, leads, len);
            let channel = self.comm.memory_channel(buffers.peer())?;
            let put = buffers.put_packets(self.comm, channel, kind)?;
            let mut test = PingPong::of_messages(put, leads, len);
            let raw = buffers.raw_packets(self.comm, kind)?;
            let mut raw = PingPong::of_messages(raw, leads, len);
            let measured =
                self.interleave(sync, &mut [&mut test, &mut copy, &mut raw], &LimitRule::each(2))?;
            let (best, measured) = measured.with_lowest_limit();
            let name = self.flag_limit(["raw copy + flag", "raw packets"][best]);
            self.report(leads, &measured, Some(len), &name, |row| {
                row.variant = Some(kind_name.to_owned());
                row.set_bandwidth(len);
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_short_for_the_clock_is_timed_together() {
        assert_eq!(enough_for(25.0, 5000.0), 1);
        assert_eq!(enough_for(25.0, 1250.0), 1);
        assert_eq!(enough_for(25.0, 300.0), 8);
        assert_eq!(enough_for(25.0, 100.0), BATCH);
        assert_eq!(enough_for(25.0, 0.0), BATCH);
        assert_eq!(enough_for(0.0, 100.0), 1);
        // So that a slice, which is a multiple of the batch, is one of it as well.
        assert!((1..2000).all(|ns| BATCH.is_multiple_of(enough_for(25.0, f64::from(ns)))));
    }
}
