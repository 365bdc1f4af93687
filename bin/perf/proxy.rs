//! What is about proxies alone: how long they take, and what they let a device hide.
//!
//! MERGED:
//! From the push of a trigger until its transfer is done: what who waits for a flush waits for.
//!
//! MERGED:
//! The same-core yield hand-off: two threads on one core pass a flag to each other by giving way.

use anyhow::Result;
use shmccl::shm::CopyKernel;
use super::DeviceBench;
use crate::flags::ProxyPlace;
use crate::perf::completion::Completion;
use crate::perf::interleave::{Measured, second};
use crate::perf::cores;
use crate::perf::pair_sync::PairSync;
use crate::perf::figures::{best_with_handoffs, two_handoffs};
use crate::perf::handoff::YieldHandoff;
use crate::perf::contender::{Contender, PingPong};
use crate::perf::overlap::OverlapTest;
use crate::perf::stage::PairBuffers;
use crate::perf::test::TestChannel;
use shmccl::Result;
use shmccl::channel::Channel;
use shmccl::heap::HeapOffset;
use super::clock::now_ns;
use super::ends::FlagEnd;
use super::contender::Contender;
use super::payload::Payload;
use shmccl_limits::flags::BareFlag;
use super::contender::{BATCH, Contender, timed_together};

impl DeviceBench<'_> {
    /// Whether what is measured is handed to a proxy on the device's own core, and back.
    pub(crate) fn hands_off(&self) -> Result<bool> {
        Ok(self.channel == Some(TestChannel::Port)
            && self.plan.proxy == ProxyPlace::Thread
            && cores::is_pinned()?)
    }

    /// Two rows: one way to the peer, and until the rank that has pushed knows that it is done.
    pub(crate) fn proxy_round_trip(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        self.proxied_one_way(pair_sync, stage)?;
        self.proxied_completion(pair_sync, stage)
    }

    fn proxied_one_way(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let copy = stage.copy_and_flag(self.comm, 0, CopyKernel::Memcpy)?;
        pair_sync.meet();
        let mut limit = PingPong::new(copy, stage.leads());
        let mut handoff = YieldHandoff::new(stage.leads());
        let channel = self.comm.port_channel(stage.peer())?;
        let mut test = PingPong::new(stage.put(self.comm, channel)?, stage.leads());
        let hands_off = self.hands_off()?;
        let mut contenders: Vec<&mut dyn Contender> = vec![&mut test, &mut limit];
        let (rules, name) = if hands_off {
            contenders.push(&mut handoff);
            (best_with_handoffs(1), "raw copy + flag + 2 yield hand-offs")
        } else {
            (vec![second as _], "raw copy + flag, without a proxy")
        };
        let outcome = self.interleave(pair_sync, &mut contenders, &rules)?;
        self.report(stage.leads(), &outcome, Some(stage.len()), &self.flag_limit(name), |row| {
            row.variant = Some("push to peer".to_owned());
        })
    }

    fn proxied_completion(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let answer = stage.flags(self.comm, 0)?;
        pair_sync.meet();
        let mut test = Completion {
            channel: self.comm.port_channel(stage.peer())?,
            leads: stage.leads(),
            outgoing: stage.outgoing(self.comm)?,
            incoming: stage.incoming(self.comm)?,
            source: stage.source(),
            target: stage.target(),
            answer,
            seq: 0,
            wrong: 0,
        };
        let mut handoff = YieldHandoff::new(stage.leads());
        let outcome = self.interleave(pair_sync, &mut [&mut test, &mut handoff], &[two_handoffs])?;
        let name = if self.hands_off()? { "2 yield hand-offs" } else { "2 same-core yield hand-offs" };
        self.report(stage.leads(), &outcome, Some(stage.len()), name, |row| {
            row.variant = Some("push to completion".to_owned());
        })
    }

    /// A proxy that shares the core of its device can hide nothing: here it is started beside it, where there is another core.
    pub(crate) fn overlap(&mut self, pair_sync: &mut PairSync, buffers: &PairBuffers) -> Result<()> {
        let is_pinned = cores::is_pinned()?;
        let core = cores::step_aside()?;
        let place = match (self.plan.proxy, core.has_moved()) {
            _ if self.channel != Some(TestChannel::Port) => None,
            (ProxyPlace::Process, _) => Some("service process"),
            (ProxyPlace::Thread, true) => Some("proxy on other cores"),
            (ProxyPlace::Thread, false) if is_pinned => Some("proxy on the device's core"),
            (ProxyPlace::Thread, false) => Some("proxy on any core"),
        };
        with_channel!(self, stage.peer(), channel => {
            core.back()?;
            let scene = OverlapTest {
                pair_sync,
                channel,
                outgoing: stage.outgoing(self.comm)?,
                incoming: stage.incoming(self.comm)?,
                source: stage.source(),
                target: stage.target(),
            };
            let overlap = scene.play(self.plan.effort(self.test, None))?;
            let wrong = overlap.wrong + pair_sync.share_back(overlap.wrong);
            let verdicts = overlap.slices.verdict().into_iter().collect();
            let outcome = Measured { verdicts, operations: overlap.rounds, wrong };
            let limit = "longer of transfer and computation alone";
            self.report(stage.leads(), &outcome, Some(stage.len()), limit, |row| {
                row.overlap = overlap.hidden;
                row.variant = place.map(str::to_owned);
            })
        })
    }
}

/// Puts of the leader, each with a signal and a flush. The other rank waits, reads what has come, and says so by a bare flag; that is
/// not in the sample.
#[derive(Debug)]
pub(crate) struct Completion<C> {
    /// The channel.
    pub(crate) channel: C,
    /// Whether this rank puts and keeps the time.
    pub(crate) leads: bool,
    /// What is put.
    pub(crate) outgoing: Payload,
    /// What arrives.
    pub(crate) incoming: Payload,
    /// Where it is in this rank's heap.
    pub(crate) source: HeapOffset,
    /// Where it goes in the peer's.
    pub(crate) target: HeapOffset,
    /// Says that it was read.
    pub(crate) answer: FlagEnd,
    /// Puts so far.
    pub(crate) seq: u64,
    /// Words that did not arrive as sent.
    pub(crate) wrong: u64,
}

impl<C: Channel> Completion<C> {
    fn put(&mut self) -> Result<f64> {
        self.outgoing.rewrite(self.seq);
        let start = now_ns();
        self.channel.put_with_signal_and_flush(self.target, self.source, self.outgoing.span().len())?;
        let took = now_ns() - start;
        self.answer.mine.spin_yielding(self.seq);
        Ok(took as f64)
    }

    fn take(&mut self) -> Result<()> {
        self.channel.wait()?;
        self.wrong += self.incoming.read(self.seq, false).wrong;
        self.answer.theirs.set(self.seq);
        Ok(())
    }
}

impl<C: Channel> Contender for Completion<C> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
        for _ in 0..ops {
            self.seq += 1;
            if self.leads {
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

/// The rank that leads does it with a thread that inherits its core; the other rank has nothing to do.
#[derive(Debug)]
pub(crate) struct YieldHandoff {
    leads: bool,
    /// Hand-offs there and back in one sample.
    together: u64,
}

impl YieldHandoff {
    /// On the core of the calling thread, if the process is pinned.
    pub(crate) fn new(leads: bool) -> Self {
        Self { leads, together: BATCH }
    }
}

impl Contender for YieldHandoff {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()> {
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
