//! Opens the pipes of a communicator, all of one kind at a time.
//!
//! Direct pipes have semaphores in the members' regions, and need no agreement: the first call that moves data over them opens
//! them. Proxied ones need slots, as triggers name semaphores by slot: members take these together (`seating.rs`) when they choose
//! proxied channels together.

use std::sync::Arc;

use super::algorithm::{Algorithm, ChannelKind};
use super::algorithms::{self, Worker};
use super::call::Call;
use super::custom::{self, CustomAlgorithm};
use super::operation::{Operation, Summary};
use super::parcel::{Parcel, Replaced};
use super::pipe::{End, Pipes};
use super::seating;
use super::staged::Form;
use super::team::Team;
use crate::channel::{Channel, MemoryChannel, Port, PortChannel, ReservedSlot};
use crate::error::{Error, Result};

/// What opens proxied channels for pipes.
pub(crate) trait OpenPorts: std::fmt::Debug + Send + Sync {
    /// A place to push triggers for one channel.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there are no more producers of a fifo; [`Error::Os`] when the proxy cannot be started.
    fn open_port(&self) -> Result<Port>;
}

/// One member's pipes.
#[derive(Debug)]
pub(crate) struct Pipework {
    opener: Arc<dyn OpenPorts>,
    ends: Vec<Option<End>>,
    memory: Vec<Option<MemoryChannel>>,
    ports: Vec<Option<PortChannel>>,
}

impl Pipework {
    /// No pipes yet; `opener` is asked for those that need a proxy.
    pub(crate) fn new(opener: Arc<dyn OpenPorts>) -> Self {
        Self { opener, ends: Vec::new(), memory: Vec::new(), ports: Vec::new() }
    }

    /// Sees to it that the pipes of `kind` are open, as far as this member can do it alone.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for regions that are not allocated; [`Error::Unavailable`] for proxied ones that nobody has opened.
    #[inline]
    pub(crate) fn require(&mut self, team: &Team, kind: ChannelKind) -> Result<()> {
        match kind {
            ChannelKind::Memory if self.memory.is_empty() => self.open_memory(team),
            ChannelKind::Port if self.ports.is_empty() => Err(Error::Unavailable {
                operation: "a call over proxied channels",
                needs: "all ranks to have called set_channel_kind",
            }),
            _ => Ok(()),
        }
    }

    #[cold]
    fn open_memory(&mut self, team: &Team) -> Result<()> {
        self.open_ends(team)?;
        self.memory = each_other(team, |peer| team.memory_channel(peer))?;
        Ok(())
    }

    fn open_ends(&mut self, team: &Team) -> Result<()> {
        if self.ends.is_empty() {
            self.ends = each_other(team, |peer| End::new(team, peer))?;
        }
        Ok(())
    }

    /// Opens the channels of `kind` that need an agreement with the peers, unless they are open, within the call `summary` of
    /// [`Operation::SetChannelKind`]. All members call it.
    ///
    /// # Errors
    /// What kept this member from opening its own; [`Error::FailedElsewhere`]: nobody has opened any then. Otherwise those of
    /// [`Team::exchange`]; what fails afterwards ends the epoch.
    pub(crate) fn open(&mut self, team: &mut Team, summary: Summary, kind: ChannelKind) -> Result<()> {
        if kind != ChannelKind::Port || !self.ports.is_empty() {
            return Ok(());
        }
        let ports = self.open_ends(team).and_then(|()| each_other(team, |_| self.opener.open_port()));
        let (ports, ready) = match ports {
            Ok(ports) => (ports, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        let slots = seating::take(team, Operation::SetChannelKind, summary, ready)?;
        let open = |(port, slot): (Option<Port>, Option<ReservedSlot>)| {
            let both = port.zip(slot);
            both.map(|(port, slot)| PortChannel::open_in(team.board.context(), slot.take(), port)).transpose()
        };
        let opened = ports.into_iter().zip(slots).map(open).collect::<Result<_>>();
        self.ports = opened.inspect_err(|_| team.board.revoke())?;
        Ok(())
    }

    /// How many messages of parcels this member has sent, less those that it has received, modulo 2^64. Over all members, each at
    /// the same point in the order of its calls, these add up to the number of those that are left in pipes.
    pub(crate) fn balance(&self) -> u64 {
        self.ends.iter().flatten().map(End::balance).fold(0, u64::wrapping_add)
    }

    /// Does what can be done now for `parcel`, one of those that share the blocks `replaced`, over pipes of `kind`, which are open;
    /// whether that was anything.
    ///
    /// # Errors
    /// Those of [`super::delivery::run`].
    #[inline]
    pub(crate) fn advance(
        &mut self,
        team: &Team,
        parcel: &mut Parcel<'_>,
        replaced: &[Replaced<'_>],
        kind: ChannelKind,
    ) -> Result<bool> {
        let Self { ends, memory, ports, .. } = self;
        let operation = Operation::Send;
        match kind {
            ChannelKind::Memory => {
                parcel.advance(replaced, &mut Pipes { team, operation, ends, channels: memory }, kind)
            }
            ChannelKind::Port => {
                parcel.advance(replaced, &mut Pipes { team, operation, ends, channels: ports }, kind)
            }
        }
    }

    /// Returns when all messages of parcels over pipes of `kind` have left this member's heap.
    ///
    /// # Errors
    /// Those of [`crate::channel::Channel::flush`].
    #[inline]
    pub(crate) fn flush_parcels(&mut self, team: &Team, kind: ChannelKind) -> Result<()> {
        let Self { ends, ports, .. } = self;
        match kind {
            // What a member's own core has moved is there, and the peers are awake.
            ChannelKind::Memory => Ok(()),
            ChannelKind::Port => {
                Pipes { team, operation: Operation::Send, ends, channels: ports }.flush_and_wake()
            }
        }
    }

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
        match kind {
            ChannelKind::Memory => {
                let pipes = Pipes { team, operation, ends, channels: memory };
                doer.run(&mut Worker { pipes, call })
            }
            ChannelKind::Port => {
                let pipes = Pipes { team, operation, ends, channels: ports };
                doer.run(&mut Worker { pipes, call })
            }
        }
    }
}

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

    fn run<C: Channel>(self, worker: &mut Worker<'_, C>) -> Result<()> {
        match self {
            Self::BuiltIn(algorithm) => algorithms::run(worker, algorithm),
            Self::Custom(algorithm) => custom::run(worker, algorithm),
        }
    }
}

/// What `make` makes for each member but this one.
fn each_other<T>(team: &Team, make: impl Fn(usize) -> Result<T>) -> Result<Vec<Option<T>>> {
    let one = |member| if member == team.me() { Ok(None) } else { make(member).map(Some) };
    (0..team.n_members()).map(one).collect()
}
