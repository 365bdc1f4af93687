//! Calls over pipes, by an algorithm that is built in or the user's own.

use super::algorithms::{self, PipeWorker};
use super::chunked::ElementForm;
use super::custom::{self, CustomAlgorithm};
use crate::channel::{MemoryChannel, PortChannel};
use crate::collective::call::{Algorithm, Call, ChannelKind};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::Pipework;
use crate::collective::transport::checked::Checked;
use crate::collective::transport::link::{Bare, Link};
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;

/// What does a call over pipes.
#[derive(Clone, Copy)]
pub(crate) enum Doer<'d> {
    BuiltIn(Algorithm),
    Custom(&'d dyn CustomAlgorithm),
}

impl Doer<'_> {
    /// As what the elements of `call` have to be passed on.
    pub(crate) fn form(self, call: &Call<'_>) -> ElementForm {
        let is_short = || call.reducer.as_ref().is_some_and(|reducer| reducer.data_type().is_short_float());
        match self {
            // Inputs are multiplied in the scratch: short ones as `f32`, or they would be rounded there.
            _ if call.is_scaled() => ElementForm::Widened,
            // Each source is added once, all at once.
            Self::BuiltIn(algorithm) if algorithm.keeps_rank_order() => ElementForm::Own,
            _ if is_short() => ElementForm::Widened,
            _ => ElementForm::Own,
        }
    }

    fn run<L: Link>(self, worker: &mut PipeWorker<'_, L>) -> Result<()> {
        match self {
            Self::BuiltIn(algorithm) => algorithms::run(worker, algorithm),
            Self::Custom(algorithm) => custom::run(worker, algorithm),
        }
    }
}

impl Pipework {
    /// Executes `call`, whose buffers are in the heap, as `doer` does it over pipes of `kind`, which are open.
    ///
    /// # Errors
    /// Those of [`algorithms::run`] and [`custom::run`].
    pub(crate) fn run(
        &mut self,
        members: &Members,
        call: &Call<'_>,
        doer: Doer<'_>,
        kind: ChannelKind,
    ) -> Result<()> {
        let Self { ends, memory, ports, .. } = self;
        let operation = call.operation;
        match (kind, members.is_watched()) {
            (ChannelKind::Memory, false) => {
                let pipes = Pipes::<Bare<MemoryChannel>> { members, operation, ends, channels: memory };
                doer.run(&mut PipeWorker { pipes, call })
            }
            (ChannelKind::Port, false) => {
                let pipes = Pipes::<Bare<PortChannel>> { members, operation, ends, channels: ports };
                doer.run(&mut PipeWorker { pipes, call })
            }
            (ChannelKind::Memory, true) => {
                let pipes = Pipes::<Checked<MemoryChannel>> { members, operation, ends, channels: memory };
                doer.run(&mut PipeWorker { pipes, call })
            }
            (ChannelKind::Port, true) => {
                let pipes = Pipes::<Checked<PortChannel>> { members, operation, ends, channels: ports };
                doer.run(&mut PipeWorker { pipes, call })
            }
        }
    }
}
