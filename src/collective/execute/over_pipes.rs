//! Calls over pipes, by an algorithm that is built in or the user's own.

use super::algorithms::{self, Worker};
use super::chunked::Form;
use super::custom::{self, CustomAlgorithm};
use crate::channel::{MemoryChannel, PortChannel};
use crate::collective::call::{Algorithm, Call, ChannelKind};
use crate::collective::rendezvous::members::Team;
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
    pub(crate) fn form(self, call: &Call<'_>) -> Form {
        let is_short = || call.reducer.as_ref().is_some_and(|reducer| reducer.data_type().is_short_float());
        match self {
            // Inputs are multiplied in the scratch: short ones as `f32`, or they would be rounded there.
            _ if call.is_scaled() => Form::Widened,
            // Each source is added once, all at once.
            Self::BuiltIn(algorithm) if algorithm.keeps_rank_order() => Form::Own,
            _ if is_short() => Form::Widened,
            _ => Form::Own,
        }
    }

    fn run<L: Link>(self, worker: &mut Worker<'_, L>) -> Result<()> {
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
        team: &Team,
        call: &Call<'_>,
        doer: Doer<'_>,
        kind: ChannelKind,
    ) -> Result<()> {
        let Self { ends, memory, ports, .. } = self;
        let operation = call.operation;
        match (kind, team.is_watched()) {
            (ChannelKind::Memory, false) => {
                let pipes = Pipes::<Bare<MemoryChannel>> { team, operation, ends, channels: memory };
                doer.run(&mut Worker { pipes, call })
            }
            (ChannelKind::Port, false) => {
                let pipes = Pipes::<Bare<PortChannel>> { team, operation, ends, channels: ports };
                doer.run(&mut Worker { pipes, call })
            }
            (ChannelKind::Memory, true) => {
                let pipes = Pipes::<Checked<MemoryChannel>> { team, operation, ends, channels: memory };
                doer.run(&mut Worker { pipes, call })
            }
            (ChannelKind::Port, true) => {
                let pipes = Pipes::<Checked<PortChannel>> { team, operation, ends, channels: ports };
                doer.run(&mut Worker { pipes, call })
            }
        }
    }
}
