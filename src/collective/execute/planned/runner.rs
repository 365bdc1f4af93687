//! What a plan keeps from launch to launch, and one launch of it.

use std::sync::Arc;

use shmccl_plan::Lowered;

use super::launch::{Launch, Round};
use super::memory::{Area, Placed};
use super::signals::{Signals, control_len, has_ports};
use super::transfer::{Mover, bounce_len, mixes_forms};
use crate::collective::call::{Call, CallSignature, Operation};
use crate::collective::rendezvous::any_member::Awaited;
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::Pipework;
use crate::error::{Error, Result};
use crate::heap::ArenaBuffer;

/// Runs the launches of one plan on one rank.
#[derive(Debug)]
pub(crate) struct PlanRunner {
    name: String,
    /// How many launches have begun.
    launches: u64,
    /// The message of the last one.
    message: u64,
    /// Whether scratch has to be zero at a size that the last launch did not have.
    mixes_forms: bool,
    signals: Signals,
    semaphores: Vec<u64>,
    scratch: Area,
    stage: Area,
    control: Area,
}

impl PlanRunner {
    /// Makes the runner of the plan called `name`, of which `lowered` is any size, within
    /// [`Operation::RegisterAlgorithm`]. All members call it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] and [`Error::Exhausted`] where there is no room, and
    /// [`Error::FailedElsewhere`] on the other members; those of [`Members::exchange`].
    pub(crate) fn new(
        members: &mut Members,
        pipework: &Pipework,
        name: String,
        lowered: &Lowered,
    ) -> Result<Self> {
        let (operation, mut control) = (Operation::RegisterAlgorithm, Area::default());
        control.grow(members, operation, control_len(lowered))?;
        let ports = match has_ports(lowered) {
            true => pipework.open_ports(members, operation, CallSignature::new(operation), Ok(()))?,
            false => (0..members.n_members()).map(|_| None).collect(),
        };
        let signals = Signals::open(members, lowered, &control, ports)?;
        let semaphores = &lowered.ranks[members.me()].semaphores;
        Ok(Self {
            name,
            launches: 0,
            message: 0,
            mixes_forms: mixes_forms(lowered),
            signals,
            semaphores: semaphores.iter().map(|&value| value.into()).collect(),
            scratch: Area::default(),
            stage: Area::default(),
            control,
        })
    }

    /// Returns how many launches have begun.
    pub(crate) fn launches(&self) -> u64 {
        self.launches
    }

    /// Ends it, and returns its memory, which members may touch that are in their last launch.
    pub(crate) fn into_memory(self) -> impl Iterator<Item = ArenaBuffer<u8>> {
        [self.scratch, self.stage, self.control].into_iter().filter_map(Area::into_memory)
    }

    /// Executes `call`, which all members have posted, by the plan as it is `lowered` for that.
    ///
    /// # Errors
    /// [`Error::PlanStalled`] where blocks wait in vain; [`Error::OutOfMemory`] and
    /// [`Error::FailedElsewhere`] where there is no room for scratch; [`Error::OutOfRange`] for
    /// buffers that are not allocated; those of a wait.
    pub(crate) fn run(
        &mut self,
        members: &mut Members,
        call: &mut Call<'_>,
        lowered: &Arc<Lowered>,
    ) -> Result<()> {
        let bounce = bounce_len(lowered);
        if self.mixes_forms && self.message != lowered.message {
            // Bytes of another size might look like a packet of this launch.
            self.scratch = Area::default();
        }
        self.message = lowered.message;
        let placed = Placed::find(members, call, lowered, (&mut self.scratch, &mut self.stage, bounce))?;
        let code = &lowered.ranks[members.me()];
        placed.bring_input(members, call, code)?;
        self.launches += 1;
        let mover = Mover {
            members,
            lowered,
            placed: &placed,
            reducer: call.reducer.as_ref(),
            size: call.data_type.size() as u64,
            launch: self.launches,
            bounce: self.stage.starts.get(members.me()).map_or(0, |start| start.get()),
        };
        let launch = Launch::new(mover, &mut self.signals, &mut self.semaphores);
        run(members, call.operation, launch, &self.name)?;
        self.signals.flush_all()?;
        placed.take_output(members, call, code)
    }
}

/// Runs all blocks to their ends.
fn run(members: &Members, operation: Operation, mut launch: Launch<'_>, name: &str) -> Result<()> {
    loop {
        let mut round = launch.round()?;
        if round == Round::Waits {
            let (awaited, by_proxy) = (launch.awaited(), launch.is_by_proxy());
            let awaited = Awaited { members: &awaited, by_proxy };
            let waited = members.board.wait_for_any(operation, awaited, || match launch.round() {
                Ok(Round::Waits) => None,
                round => Some(round),
            });
            round = waited.map_err(|error| stalled(error, name, &launch))??;
        }
        members.board.wake();
        match round {
            Round::Ended => return Ok(()),
            _ => members.board.check_epoch(operation)?,
        }
    }
}

/// Says of a timeout which blocks of the plan wait.
fn stalled(error: Error, name: &str, launch: &Launch<'_>) -> Error {
    match error {
        Error::Timeout { .. } => {
            Error::PlanStalled { plan: name.to_owned(), blocks: launch.told(), source: Arc::new(error) }
        }
        error => error,
    }
}
