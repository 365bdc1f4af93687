//! What is about proxies alone: how long they take, and what they let a device hide.

use anyhow::Result;
use shmccl::shm::CopyKernel;

use super::Bench;
use crate::flags::ProxyPlace;
use crate::perf::completion::Completion;
use crate::perf::contest::{Outcome, second};
use crate::perf::cores;
use crate::perf::duet::Duet;
use crate::perf::figures::{best_with_handoffs, two_handoffs};
use crate::perf::handoff::YieldHandoff;
use crate::perf::lane::{Lane, PingPong};
use crate::perf::overlap::Scene;
use crate::perf::stage::Stage;
use crate::perf::test::TestChannel;

impl Bench<'_> {
    /// Whether what is measured is handed to a proxy on the device's own core, and back.
    pub(super) fn hands_off(&self) -> Result<bool> {
        Ok(self.channel == Some(TestChannel::Port)
            && self.plan.proxy == ProxyPlace::Thread
            && cores::is_pinned()?)
    }

    /// Two rows: one way to the peer, and until the rank that has pushed knows that it is done.
    pub(super) fn proxy_round_trip(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        self.proxied_one_way(duet, stage)?;
        self.proxied_completion(duet, stage)
    }

    fn proxied_one_way(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        let copy = stage.copy_and_flag(self.comm, 0, CopyKernel::Memcpy)?;
        duet.meet();
        let mut limit = PingPong::new(copy, stage.leads());
        let mut handoff = YieldHandoff::new(stage.leads());
        let channel = self.comm.port_channel(stage.peer())?;
        let mut test = PingPong::new(stage.put(self.comm, channel)?, stage.leads());
        let hands_off = self.hands_off()?;
        let mut lanes: Vec<&mut dyn Lane> = vec![&mut test, &mut limit];
        let (yardsticks, name) = if hands_off {
            lanes.push(&mut handoff);
            (best_with_handoffs(1), "raw copy + flag + 2 yield hand-offs")
        } else {
            (vec![second as _], "raw copy + flag, without a proxy")
        };
        let outcome = self.contest(duet, &mut lanes, &yardsticks)?;
        self.report(stage.leads(), &outcome, Some(stage.len()), &self.flag_limit(name), |row| {
            row.variant = Some("push to peer".to_owned());
        })
    }

    fn proxied_completion(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        let answer = stage.flags(self.comm, 0)?;
        duet.meet();
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
        let outcome = self.contest(duet, &mut [&mut test, &mut handoff], &[two_handoffs])?;
        let name = if self.hands_off()? { "2 yield hand-offs" } else { "2 same-core yield hand-offs" };
        self.report(stage.leads(), &outcome, Some(stage.len()), name, |row| {
            row.variant = Some("push to completion".to_owned());
        })
    }

    /// A proxy that shares the core of its device can hide nothing: here it is started beside it, where there is another core.
    pub(super) fn overlap(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
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
            let scene = Scene {
                duet,
                channel,
                outgoing: stage.outgoing(self.comm)?,
                incoming: stage.incoming(self.comm)?,
                source: stage.source(),
                target: stage.target(),
            };
            let overlap = scene.play(self.plan.effort(self.test, None))?;
            let wrong = overlap.wrong + duet.share_back(overlap.wrong);
            let verdicts = overlap.slices.verdict().into_iter().collect();
            let outcome = Outcome { verdicts, operations: overlap.rounds, wrong };
            let limit = "longer of transfer and computation alone";
            self.report(stage.leads(), &outcome, Some(stage.len()), limit, |row| {
                row.overlap = overlap.hidden;
                row.variant = place.map(str::to_owned);
            })
        })
    }
}
