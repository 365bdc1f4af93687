//! How calls are done, once it is decided how: what executes a strategy decides nothing.
//!
//! Tried by its unit tests and `scenarios collectives:: oracle:: checksums:: large_copies::`.

pub(crate) mod algorithms;
pub(crate) mod chunked;
pub(crate) mod custom;
pub(crate) mod eager;
pub(crate) mod eager_checked;
pub(crate) mod fused;
pub(crate) mod planned;
pub(crate) mod staged;
pub(crate) mod widened;
pub(crate) mod zero_copy;

use super::call::{Call, CallSignature, ChannelKind, Input};
use super::rendezvous::members::Members;
use super::strategy::{Execution, PipeAlgorithm};
use super::transport::Pipework;
use super::transport::link::{Bare, Link, PipeChannel};
use super::transport::pipe::Pipes;
use crate::error::Result;
use algorithms::worker::PipeWorker;
use planned::PlanRunner;
use staged::StagedCall;

/// Executes `call`, which all members have posted, as they have settled.
///
/// # Errors
/// Fails as [`CallBoard::await_post`](super::rendezvous::board::CallBoard::await_post) does, or
/// with [`crate::Error::OutOfRange`] for buffers that are not allocated, or as [`PlanRunner::run`]
/// does.
pub(crate) fn run(
    execution: Execution<'_>,
    members: &mut Members,
    pipework: &mut Pipework,
    runners: &mut [PlanRunner],
    call: &mut Call<'_>,
    signature: CallSignature,
) -> Result<()> {
    match execution {
        Execution::Eager => {
            members.board.count_inner_steps(1);
            let len = call.input_len(members.n_members())?;
            eager::run(members, call, signature, len)
        }
        Execution::ZeroCopy => zero_copy::run(members, call),
        Execution::Staged { prestaged, hint, oversubscribed } => {
            count_staged(members, call)?;
            StagedCall::new(call, members, oversubscribed, hint).run(members, call, prestaged)
        }
        Execution::ByPlan { index, compiled } => runners[index].run(members, call, compiled),
        Execution::OverPipes { algorithm, kind, chunked } => {
            if kind == ChannelKind::Memory {
                // Direct pipes need no agreement.
                pipework.require(members, kind)?;
            }
            let mut run =
                |members: &mut Members, piece: &mut Call<'_>| pipework.run(members, piece, algorithm, kind);
            match chunked {
                None => run(members, call),
                Some(form) => {
                    count_staged(members, call)?;
                    chunked::run(members, call, form, run)
                }
            }
        }
    }
}

fn count_staged(members: &Members, call: &Call<'_>) -> Result<()> {
    if !matches!(call.input, Input::None) {
        members.board.context().count_staged(call.input_len(members.n_members())?);
    }
    Ok(())
}

impl PipeAlgorithm<'_> {
    /// Executes `call`, whose buffers are in the heap, over `pipes`.
    fn run<C: PipeChannel>(self, pipes: Pipes<'_, Bare<C>>, call: &Call<'_>) -> Result<()> {
        if pipes.members.is_watched() {
            return self.work(&mut PipeWorker { pipes: pipes.checked(), call });
        }
        self.work(&mut PipeWorker { pipes, call })
    }

    fn work<L: Link>(self, worker: &mut PipeWorker<'_, L>) -> Result<()> {
        match self {
            Self::BuiltIn(algorithm) => algorithms::run(worker, algorithm),
            Self::Custom(algorithm) => custom::run(worker, algorithm),
        }
    }
}

impl Pipework {
    /// Executes `call`, whose buffers are in the heap, as `algorithm` does it over pipes of `kind`,
    /// which are open.
    ///
    /// # Errors
    /// Fails as [`algorithms::run`] or [`custom::run`] does.
    pub(crate) fn run(
        &mut self,
        members: &Members,
        call: &Call<'_>,
        algorithm: PipeAlgorithm<'_>,
        kind: ChannelKind,
    ) -> Result<()> {
        let (Self { ends, memory, ports, .. }, operation) = (self, call.operation);
        match kind {
            ChannelKind::Memory => algorithm.run(Pipes { members, operation, ends, channels: memory }, call),
            ChannelKind::Port => algorithm.run(Pipes { members, operation, ends, channels: ports }, call),
        }
    }
}
