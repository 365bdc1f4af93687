//! Calls over pipes, by an algorithm that is built in or the user's own.

use super::algorithms::{self, PipeWorker};
use super::custom;
use crate::channel::{MemoryChannel, PortChannel};
use crate::collective::call::{Call, ChannelKind};
use crate::collective::plan::PipeAlgorithm;
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::Pipework;
use crate::collective::transport::checked::Checked;
use crate::collective::transport::link::{Bare, Link};
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;

impl PipeAlgorithm<'_> {
    fn run<L: Link>(self, worker: &mut PipeWorker<'_, L>) -> Result<()> {
        match self {
            Self::BuiltIn(algorithm) => algorithms::run(worker, algorithm),
            Self::Custom(algorithm) => custom::run(worker, algorithm),
        }
    }
}

impl Pipework {
    /// Executes `call`, whose buffers are in the heap, as `algorithm` does it over pipes of `kind`, which are open.
    ///
    /// # Errors
    /// Those of [`algorithms::run`] and [`custom::run`].
    pub(crate) fn run(
        &mut self,
        members: &Members,
        call: &Call<'_>,
        algorithm: PipeAlgorithm<'_>,
        kind: ChannelKind,
    ) -> Result<()> {
        let Self { ends, memory, ports, .. } = self;
        let operation = call.operation;
        match (kind, members.is_watched()) {
            (ChannelKind::Memory, false) => {
                let pipes = Pipes::<Bare<MemoryChannel>> { members, operation, ends, channels: memory };
                algorithm.run(&mut PipeWorker { pipes, call })
            }
            (ChannelKind::Port, false) => {
                let pipes = Pipes::<Bare<PortChannel>> { members, operation, ends, channels: ports };
                algorithm.run(&mut PipeWorker { pipes, call })
            }
            (ChannelKind::Memory, true) => {
                let pipes = Pipes::<Checked<MemoryChannel>> { members, operation, ends, channels: memory };
                algorithm.run(&mut PipeWorker { pipes, call })
            }
            (ChannelKind::Port, true) => {
                let pipes = Pipes::<Checked<PortChannel>> { members, operation, ends, channels: ports };
                algorithm.run(&mut PipeWorker { pipes, call })
            }
        }
    }
}
