//! What a plan keeps from launch to launch, and one launch of it.

use std::sync::Arc;

use shmccl_plan::ExecutionPlan;

use super::compiled::CompiledPlan;
use super::launch::{Launch, Round, Task};
use super::memory::{Area, PlanMemory};
use super::signals::{Signals, control_len, has_ports};
use super::stalled::stalled;
use super::transfer::Mover;
use crate::collective::call::{Call, CallSignature, Operation};
use crate::collective::rendezvous::any_member::Awaited;
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::Pipework;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::heap::ArenaBuffer;
use crate::sync::spin_until;

/// Runs the launches of one plan on one rank.
#[derive(Debug)]
pub(crate) struct PlanRunner {
    plan: Arc<ExecutionPlan>,
    /// How many launches have begun.
    launches: u64,
    /// The message of the last one.
    message: u64,
    signals: Signals,
    semaphores: Vec<u64>,
    tasks: Vec<Task>,
    memory: PlanMemory,
    control: Area,
}

impl PlanRunner {
    /// Makes the runner of `plan`, `compiled` for any size, within
    /// [`Operation::RegisterAlgorithm`]. All members call it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] and [`Error::Exhausted`] where there is no room, and
    /// [`Error::FailedElsewhere`] on the other members; those of [`Members::exchange`].
    pub(crate) fn new(
        members: &mut Members,
        pipework: &Pipework,
        plan: Arc<ExecutionPlan>,
        compiled: &CompiledPlan,
    ) -> Result<Self> {
        let (operation, mut control) = (Operation::RegisterAlgorithm, Area::default());
        let lowered = &compiled.lowered;
        control.grow(members, operation, control_len(lowered))?;
        let ports = match has_ports(lowered) {
            true => pipework.open_ports(members, operation, CallSignature::new(operation), Ok(()))?,
            false => (0..members.n_members()).map(|_| None).collect(),
        };
        let signals = Signals::open(members, lowered, &control, ports)?;
        let semaphores = &lowered.ranks[members.me()].semaphores;
        Ok(Self {
            plan,
            launches: 0,
            message: 0,
            signals,
            semaphores: semaphores.iter().map(|&value| value.into()).collect(),
            tasks: Vec::new(),
            memory: PlanMemory::default(),
            control,
        })
    }

    /// Returns how many launches have begun.
    pub(crate) fn launches(&self) -> u64 {
        self.launches
    }

    /// Ends it, and returns its memory, which members may touch that are in their last launch.
    pub(crate) fn into_memory(self) -> impl Iterator<Item = ArenaBuffer<u8>> {
        self.memory.into_memory().chain(self.control.into_memory())
    }

    /// Executes `call`, which this member has posted, by the plan as it is `compiled` for that.
    ///
    /// # Errors
    /// [`Error::PlanStalled`] where blocks wait in vain; [`Error::OutOfMemory`] and
    /// [`Error::FailedElsewhere`] where there is no room for scratch; [`Error::OutOfRange`] for
    /// buffers that are not allocated; those of a wait.
    pub(crate) fn run(
        &mut self,
        members: &mut Members,
        call: &mut Call<'_>,
        compiled: &CompiledPlan,
    ) -> Result<()> {
        self.launches += 1;
        let is_new = self.message != compiled.lowered.message;
        self.message = compiled.lowered.message;
        let goes_ahead = compiled.alternates && !is_new && self.memory.place_own(members, call, compiled);
        if goes_ahead {
            // No post of the others was looked at, and the epoch may have ended long ago.
            members.board.check_epoch(call.operation)?;
        } else {
            members.board.await_all(call.operation)?;
            if is_new && compiled.mixes_forms {
                // Bytes of another size might look like a packet of this launch.
                self.memory.forget_scratch();
            }
            self.memory.place_all(members, call, compiled)?;
        }
        self.memory.bring_input(members, call, compiled)?;
        self.execute(members, call, compiled, !goes_ahead)?;
        self.signals.flush_all()?;
        self.memory.take_output(members, call, compiled)
    }

    /// Runs all blocks to their ends, and waits for the posts of all members, unless it `has_met`
    /// these: when there is nothing else to do.
    fn execute(
        &mut self,
        members: &mut Members,
        call: &Call<'_>,
        compiled: &CompiledPlan,
        mut has_met: bool,
    ) -> Result<()> {
        let Self { plan, launches, signals, semaphores, tasks, memory, .. } = self;
        let code = &compiled.lowered.ranks[members.me()];
        let mut launch = Launch::new(code, signals, semaphores, tasks);
        loop {
            let mover = Mover {
                members,
                compiled,
                memory,
                reducer: call.reducer.as_ref(),
                size: call.data_type.size() as u64,
                launch: *launches,
                operation: call.operation,
                has_met,
            };
            match launch.round(&mover)? {
                Round::GoesOn => {}
                Round::Ended if has_met => return Ok(()),
                Round::Waits if has_met => wait(&mover, call.operation, &mut launch, plan)?,
                Round::Ended | Round::Waits => {
                    members.board.await_all(call.operation)?;
                    memory.place_all(members, call, compiled)?;
                    has_met = true;
                }
            }
            members.board.check_epoch(call.operation)?;
        }
    }
}

/// Waits until some block goes on: for a while right here, as signals to several blocks come one
/// after the other.
fn wait(
    mover: &Mover<'_>,
    operation: Operation,
    launch: &mut Launch<'_>,
    plan: &ExecutionPlan,
) -> Result<()> {
    let mut round = Ok(Round::Waits);
    let policy = mover.members.board.context().policy();
    if spin_until(policy, || {
        round = launch.round(mover);
        !matches!(round, Ok(Round::Waits))
    }) {
        return round.map(drop);
    }
    let (awaited, by_proxy) = (launch.awaited(), launch.is_by_proxy());
    let awaited = Awaited { members: &awaited, by_proxy };
    let waited = mover.members.board.wait_for_any(operation, awaited, || match launch.round(mover) {
        Ok(Round::Waits) => None,
        round => Some(round),
    });
    waited.map_err(|error| stalled(error, plan, mover, launch))?.map(drop)
}
