//! Calls over pipes, by an algorithm that is built in or the user's own.

use super::algorithms::{self, PipeWorker};
use super::custom;
use crate::channel::Channel;
use crate::collective::call::{Call, ChannelKind};
use crate::collective::plan::PipeAlgorithm;
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::Pipework;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;

impl PipeAlgorithm<'_> {
    fn run<C: Channel>(self, worker: &mut PipeWorker<'_, C>) -> Result<()> {
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
        match kind {
            ChannelKind::Memory => {
                let pipes = Pipes { members, operation, ends, channels: memory };
                algorithm.run(&mut PipeWorker { pipes, call })
            }
            ChannelKind::Port => {
                let pipes = Pipes { members, operation, ends, channels: ports };
                algorithm.run(&mut PipeWorker { pipes, call })
            }
        }
    }
}
