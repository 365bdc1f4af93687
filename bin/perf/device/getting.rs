//! Gets against plain copies.

use anyhow::Result;
use shmccl::shm::CopyKernel;

use super::Bench;
use crate::perf::duet::Duet;
use crate::perf::figures::best_of;
use crate::perf::lane::Lane;
use crate::perf::pulls::{Gets, PlainPulls, Pulls};
use crate::perf::stage::Stage;
use crate::perf::transfer::PlainCopy;

impl Bench<'_> {
    /// Gets against plain copies by every kernel that this processor has; the best of them is the limit.
    pub(super) fn get_latency(&mut self, duet: &mut Duet, stage: &Stage) -> Result<()> {
        let kernels: Vec<_> = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()).collect();
        let places = stage.places().map(|(source, target)| (source.offset, target.offset)).collect();
        let gets = Gets { channel: self.comm.memory_channel(stage.peer())?, places, len: stage.len() };
        let mut test = self.pulls(stage, gets, 0)?;
        let mut plain = Vec::new();
        for (pair, &kernel) in (1..).zip(&kernels) {
            let copy = |(out, into)| -> Result<_> {
                let source = self.comm.span(stage.peer(), out)?;
                Ok(PlainCopy { source, target: self.comm.span(self.comm.rank(), into)?, kernel })
            };
            let copies = PlainPulls(stage.places().map(copy).collect::<Result<_>>()?);
            plain.push(self.pulls(stage, copies, pair)?);
        }
        duet.meet();
        let mut lanes: Vec<&mut dyn Lane> = vec![&mut test];
        lanes.extend(plain.iter_mut().map(|lane| lane as &mut dyn Lane));
        let outcome = self.contest(duet, &mut lanes, &best_of(kernels.len()))?;
        let Some((best, outcome)) = outcome.with_lowest_limit() else { return Ok(()) };
        let (len, limit) = (stage.len(), format!("plain copy ({})", kernels[best]));
        self.report(stage.leads(), &outcome, Some(len), &limit, |row| row.set_bandwidth(len))
    }

    /// A lane of gets with bare flags of its own `pair`.
    fn pulls<P: crate::perf::pulls::Pull>(&self, stage: &Stage, pull: P, pair: u64) -> Result<Pulls<P>> {
        let (outgoing, incoming) = stage.payloads(self.comm)?;
        Ok(Pulls::new(pull, stage.leads(), outgoing, incoming, stage.flags(self.comm, pair)?))
    }
}
