//! The yardsticks of all tests, by themselves.

use anyhow::Result;
use shmccl::shm::CopyKernel;

use super::Bench;
use crate::perf::contest::{Outcome, Yardstick};
use crate::perf::duet::Duet;
use crate::perf::ends::Signals;
use crate::perf::handoff::YieldHandoff;
use crate::perf::lane::PingPong;
use crate::perf::transfer::{Direction, PlainCopy, Transfer};

impl Bench<'_> {
    /// The yardsticks by themselves.
    pub(super) fn limits(&mut self, mut duet: Option<&mut Duet>) -> Result<()> {
        let none: &[Yardstick] = &[];
        self.two(duet.as_deref_mut(), &[8], |bench, duet, stage| {
            let flags = stage.flags(bench.comm, 0)?;
            duet.meet();
            let mut lane = PingPong::new(Signals(flags), stage.leads());
            let outcome = bench.contest(duet, &mut [&mut lane], none)?;
            bench.report_limit(stage.leads(), &outcome, None, &bench.flag_limit("raw flag ping-pong"))?;
            let mut lane = YieldHandoff::new(stage.leads());
            let outcome = bench.contest(duet, &mut [&mut lane], none)?;
            bench.report_limit(stage.leads(), &outcome, None, "same-core yield hand-off")
        })?;
        self.two(duet.as_deref_mut(), &self.plan.sizes.clone(), |bench, duet, stage| {
            let copy = stage.copy_and_flag(bench.comm, 0, CopyKernel::Memcpy)?;
            duet.meet();
            let mut lane = PingPong::of_messages(copy, stage.leads(), stage.len());
            let outcome = bench.contest(duet, &mut [&mut lane], none)?;
            let name = bench.flag_limit("raw copy + flag");
            bench.report_limit(stage.leads(), &outcome, Some(stage.len()), &name)
        })?;
        self.two(duet, &self.plan.sizes.clone(), |bench, duet, stage| {
            for kernel in CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
                let copy = PlainCopy {
                    source: stage.outgoing(bench.comm)?.span().clone(),
                    target: stage.remote(bench.comm)?,
                    kernel,
                };
                let (outgoing, incoming) = (stage.outgoing(bench.comm)?, stage.incoming(bench.comm)?);
                let flags = stage.flags(bench.comm, 0)?;
                duet.meet();
                let mut lane = Transfer::new(copy, Direction::Push, stage.leads(), outgoing, incoming, flags);
                let outcome = bench.contest(duet, &mut [&mut lane], none)?;
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

    fn report_limit(&self, leads: bool, outcome: &Outcome, bytes: Option<u64>, name: &str) -> Result<()> {
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
