//! The round trip over a proxy: how long a put takes to the peer, and to its completion.

use shmccl::Result;
use shmccl::channel::Channel;
use shmccl::heap::HeapOffset;
use shmccl::shm::CopyKernel;

use super::bench::TestBench;
use super::buffers::{PairBuffers, PairEnds};
use super::clock::now_ns;
use super::cores;
use super::interleave::{Contender, each_with_handoffs, second, two_handoffs};
use super::ping_pong::{PingPong, YieldHandoff};
use super::sync::PairSync;
use super::test::TestChannel;
use crate::flags::ProxyPlace;

/// Puts of the leader, each with a signal and a flush. The other rank waits, reads the data, and
/// answers by a bare flag, which is not in the sample.
#[derive(Debug)]
struct Completion<C> {
    channel: C,
    ends: PairEnds,
    /// Where the message is in this rank's heap.
    source: HeapOffset,
    /// Where the message goes in the peer's heap.
    target: HeapOffset,
    seq: u64,
    wrong: u64,
}

impl<C: Channel> Completion<C> {
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

impl<C: Channel> Contender for Completion<C> {
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
    pub(crate) fn hands_off(&self) -> anyhow::Result<bool> {
        let is_proxied = self.channel == Some(TestChannel::Port);
        Ok(is_proxied && self.plan.proxy == ProxyPlace::Thread && cores::is_pinned()?)
    }

    /// Prints two rows: one way to the peer, and until the rank that has pushed knows of the end.
    pub(crate) fn proxy_round_trip(
        &mut self,
        sync: &mut PairSync,
        buffers: &PairBuffers,
    ) -> anyhow::Result<()> {
        self.proxied_one_way(sync, buffers)?;
        self.proxied_completion(sync, buffers)
    }

    fn proxied_one_way(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> anyhow::Result<()> {
        let copy = buffers.copy_and_flag(self.comm, 0, CopyKernel::Memcpy)?;
        sync.meet();
        let mut limit = PingPong::new(copy, buffers.leads());
        let mut handoff = YieldHandoff::new(buffers.leads());
        let channel = self.comm.port_channel(buffers.peer())?;
        let mut test = PingPong::new(buffers.put(self.comm, channel)?, buffers.leads());
        let mut contenders: Vec<&mut dyn Contender> = vec![&mut test, &mut limit];
        let (rules, name) = if self.hands_off()? {
            contenders.push(&mut handoff);
            (each_with_handoffs(1), "raw copy + flag + 2 yield hand-offs")
        } else {
            (vec![second as _], "raw copy + flag, without a proxy")
        };
        let measured = self.interleave(sync, &mut contenders, &rules)?;
        let name = self.flag_limit(name);
        self.report(buffers.leads(), &measured, Some(buffers.len()), &name, |row| {
            row.variant = Some("push to peer".to_owned());
        })
    }

    fn proxied_completion(&mut self, sync: &mut PairSync, buffers: &PairBuffers) -> anyhow::Result<()> {
        let ends = buffers.ends(self.comm, 0)?;
        sync.meet();
        let mut test = Completion {
            channel: self.comm.port_channel(buffers.peer())?,
            ends,
            source: buffers.source(),
            target: buffers.target(),
            seq: 0,
            wrong: 0,
        };
        let mut handoff = YieldHandoff::new(buffers.leads());
        let measured = self.interleave(sync, &mut [&mut test, &mut handoff], &[two_handoffs])?;
        let name = if self.hands_off()? { "2 yield hand-offs" } else { "2 same-core yield hand-offs" };
        self.report(buffers.leads(), &measured, Some(buffers.len()), name, |row| {
            row.variant = Some("push to completion".to_owned());
        })
    }
}
