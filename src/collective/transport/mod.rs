//! Opens the pipes of a communicator, all of one kind at a time.
//!
//! Direct pipes have semaphores in the members' regions, and need no agreement: the first call that
//! moves data over them opens them. Proxied ones need slots, as triggers name semaphores by slot:
//! members take these together (`agree_slots.rs`) when they choose proxied channels together.
//!
//! Tried by its unit tests and `scenarios algorithms:: point_to_point:: checksums::`.

pub(crate) mod agree_slots;
pub(crate) mod checksum;
pub(crate) mod link;
pub(crate) mod pipe;

use std::sync::Arc;

use crate::channel::{MemoryChannel, Port, PortChannel, ReservedSlot};
use crate::collective::call::{CallSignature, ChannelKind, Operation};
use crate::collective::rendezvous::members::Members;
use crate::error::{Error, Result};
use link::{Bare, Link};
use pipe::{PipeEnd, Pipes};

/// Opens proxied channels for pipes.
pub(crate) trait OpenPorts: std::fmt::Debug + Send + Sync {
    /// Returns a place to push triggers for one channel.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there are no more producers of a fifo; [`Error::Os`] when the
    /// proxy cannot be started.
    fn open_port(&self) -> Result<Port>;
}

/// One member's pipes.
#[derive(Debug)]
pub(crate) struct Pipework {
    opener: Arc<dyn OpenPorts>,
    pub(crate) ends: Vec<Option<PipeEnd>>,
    pub(crate) memory: Vec<Option<MemoryChannel>>,
    pub(crate) ports: Vec<Option<PortChannel>>,
}

impl Pipework {
    /// Makes no pipes yet; `opener` is asked for those that need a proxy.
    pub(crate) fn new(opener: Arc<dyn OpenPorts>) -> Self {
        Self { opener, ends: Vec::new(), memory: Vec::new(), ports: Vec::new() }
    }

    /// Sees to it that the pipes of `kind` are open, as far as this member can do it alone.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for regions that are not allocated; [`Error::Unavailable`] for proxied
    /// ones that nobody has opened.
    #[inline]
    pub(crate) fn require(&mut self, members: &Members, kind: ChannelKind) -> Result<()> {
        match kind {
            ChannelKind::Memory if self.memory.is_empty() => self.open_memory(members),
            ChannelKind::Port if self.ports.is_empty() => Err(Error::Unavailable {
                operation: "a call over proxied channels",
                needs: "all ranks to have called set_channel_kind",
            }),
            _ => Ok(()),
        }
    }

    #[cold]
    fn open_memory(&mut self, members: &Members) -> Result<()> {
        self.open_ends(members)?;
        self.memory = each_other(members, |peer| members.memory_channel(peer))?;
        Ok(())
    }

    fn open_ends(&mut self, members: &Members) -> Result<()> {
        if self.ends.is_empty() {
            self.ends = each_other(members, |peer| PipeEnd::new(members, peer))?;
        }
        Ok(())
    }

    /// Opens the channels of `kind` that need an agreement with the peers, unless they are open,
    /// within the call `signature` of [`Operation::SetChannelKind`]. All members call it.
    ///
    /// # Errors
    /// What kept this member from opening its own; [`Error::FailedElsewhere`]: nobody has opened
    /// any then. Otherwise those of [`Members::exchange`]; what fails afterwards ends the epoch.
    pub(crate) fn open(
        &mut self,
        members: &mut Members,
        signature: CallSignature,
        kind: ChannelKind,
    ) -> Result<()> {
        if kind != ChannelKind::Port || !self.ports.is_empty() {
            return Ok(());
        }
        let ready = self.open_ends(members);
        self.ports = self.open_ports(members, Operation::SetChannelKind, signature, ready)?;
        Ok(())
    }

    /// Opens a proxied channel to each other member, within the call `signature` of `operation`.
    /// All members call it; one that is not `ready` has none opened.
    ///
    /// # Errors
    /// Fails as [`Pipework::open`] does.
    pub(crate) fn open_ports(
        &self,
        members: &mut Members,
        operation: Operation,
        signature: CallSignature,
        ready: Result<()>,
    ) -> Result<Vec<Option<PortChannel>>> {
        let ports = ready.and_then(|()| each_other(members, |_| self.opener.open_port()));
        let (ports, ready) = match ports {
            Ok(ports) => (ports, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        let slots = agree_slots::take(members, operation, signature, ready)?;
        let open = |(port, slot): (Option<Port>, Option<ReservedSlot>)| {
            let both = port.zip(slot);
            both.map(|(port, slot)| PortChannel::open_in(members.board.context(), slot.take(), port))
                .transpose()
        };
        let opened = ports.into_iter().zip(slots).map(open).collect::<Result<_>>();
        opened.inspect_err(|error| members.board.revoke_after(error))
    }

    /// Lets `visitor` have the pipes of `kind`, which are open, for messages. What goes over them
    /// is checked and struck where it `is_watched`.
    ///
    /// # Errors
    /// Returns the errors of the visitor.
    #[inline]
    pub(crate) fn visit<V: PipeVisitor>(
        &mut self,
        members: &Members,
        kind: ChannelKind,
        is_watched: bool,
        visitor: V,
    ) -> Result<V::Outcome> {
        let Self { ends, memory, ports, .. } = self;
        let operation = Operation::Send;
        match kind {
            ChannelKind::Memory => {
                let mut pipes = Pipes::<Bare<_>> { members, operation, ends, channels: memory };
                if is_watched { visitor.visit(&mut pipes.checked()) } else { visitor.visit(&mut pipes) }
            }
            ChannelKind::Port => {
                let mut pipes = Pipes::<Bare<_>> { members, operation, ends, channels: ports };
                if is_watched { visitor.visit(&mut pipes.checked()) } else { visitor.visit(&mut pipes) }
            }
        }
    }

    /// Returns how many fragments of messages this member has sent, less those that it has
    /// received, modulo 2^64. Over all members, each at the same point in the order of its calls,
    /// these add up to the number of those that are left in pipes.
    pub(crate) fn balance(&self) -> u64 {
        self.ends.iter().flatten().map(|end| end.balance).fold(0, u64::wrapping_add)
    }
}

/// Does something with pipes, whatever link they go by.
pub(crate) trait PipeVisitor {
    /// What comes of it.
    type Outcome;

    /// Does it.
    ///
    /// # Errors
    /// Returns the errors of what is done.
    fn visit<L: Link>(self, pipes: &mut Pipes<'_, L>) -> Result<Self::Outcome>;
}

/// Returns what `make` makes for each member but this one.
fn each_other<T>(members: &Members, make: impl Fn(usize) -> Result<T>) -> Result<Vec<Option<T>>> {
    let one = |member| if member == members.me() { Ok(None) } else { make(member).map(Some) };
    (0..members.n_members()).map(one).collect()
}

/// What is to hold when all members have come to the end.
pub(crate) const NONE_LEFT: &str = "none when all ranks leave";

/// What is to hold where all members begin a call over pipes.
pub(crate) const NONE_TO_BEGIN_WITH: &str = "none when all ranks make a call over the same channels";

/// Refuses what must not find messages left in pipes, after all members have told their `balances`
/// ([`Pipework::balance`]): all of them do.
pub(crate) fn check_balance(balances: impl Iterator<Item = u64>, expected: &'static str) -> Result<()> {
    let name = "the number of messages that were sent and not received";
    match balances.fold(0, u64::wrapping_add) {
        0 => Ok(()),
        value => Err(Error::InvalidArgument { name, value, expected }),
    }
}
