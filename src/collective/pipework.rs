//! Opens the pipes of a communicator, all of one kind at a time.
//!
//! Direct pipes have semaphores in the members' regions, and need no agreement: the first call that moves data over them opens
//! them. Proxied ones need seats, as triggers name semaphores by seat; a seat is taken on either side alone, and the two have to
//! be the same. Pipes take the highest free ones, which channels of the user's own get last, and all members tell each other
//! which they got when they choose proxied channels together. All compare all, so that if any two disagree every member knows,
//! and returns an error instead of waiting for a signal that goes to somebody else.

use std::sync::Arc;

use super::algorithm::{Algorithm, ChannelKind};
use super::algorithms::{self, Worker};
use super::board::INLINE_WORDS;
use super::call::Call;
use super::custom::{self, CustomAlgorithm};
use super::operation::Operation;
use super::parcel::{Parcel, Replaced};
use super::pipe::{End, Pipes};
use super::staged::Form;
use super::team::Team;
use crate::channel::{Channel, MemoryChannel, PortChannel};
use crate::error::{Error, Result};
use crate::rank::Rank;

/// What opens proxied channels for pipes.
pub(crate) trait OpenPorts: std::fmt::Debug + Send + Sync {
    /// Opens a channel to `peer`, a rank of the job, in the highest free seat.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there are no more seats, or no more producers of a fifo; [`Error::Os`] when the proxy cannot be
    /// started.
    fn open_port(&self, peer: Rank) -> Result<PortChannel>;
}

/// Bits of a seat's number.
const SEAT_BITS: usize = 4;
/// Seats in a word.
const PER_WORD: usize = 64 / SEAT_BITS;
/// Words that name a seat for each of 64 members.
const SEAT_WORDS: usize = 64 / PER_WORD;

const _: () = assert!(1 + SEAT_WORDS < INLINE_WORDS, "the balance goes with a notice");

/// What a member tells the others about the proxied channels that it has opened: whether it could, and in which seats.
pub(crate) type Notice = [u64; 1 + SEAT_WORDS];

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

    /// Opens the channels of `kind` that need an agreement with the peers, unless they are open. All members tell each other the
    /// [`Opening::notice`] then, and [`Pipework::agree`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for regions that are not allocated.
    pub(crate) fn open(&mut self, team: &Team, kind: ChannelKind) -> Result<Opening> {
        self.open_ends(team)?;
        let is_needed = kind == ChannelKind::Port && self.ports.is_empty();
        let opened = is_needed.then(|| each_other(team, |peer| self.opener.open_port(team.members()[peer])));
        Ok(Opening(opened))
    }

    /// Keeps what was opened, if all members could open theirs, and in the same seats, as they have `told`.
    ///
    /// # Errors
    /// What kept this member from opening; [`Error::FailedElsewhere`]; [`Error::Mismatch`].
    pub(crate) fn agree(&mut self, team: &Team, opening: Opening, told: &[Vec<u64>]) -> Result<()> {
        let Some(opened) = opening.0 else { return Ok(()) };
        let ports = opened?;
        if let Some(failed) = told.iter().position(|notice| notice[0] == 0) {
            let operation = Operation::SetChannelKind.name();
            return Err(Error::FailedElsewhere { operation, rank: team.members()[failed] });
        }
        for (one, mine) in told.iter().enumerate() {
            for (other, theirs) in told.iter().enumerate() {
                let (mine, theirs) = (seat(mine, other), seat(theirs, one));
                if one != other && mine != theirs {
                    let (what, rank) = ("the seat of a proxied pipe", team.members()[other]);
                    return Err(Error::Mismatch { what, mine, rank, theirs });
                }
            }
        }
        self.ports = ports;
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

/// Proxied channels that were opened at this end, or what kept this member from opening them; nothing where none were needed.
#[derive(Debug)]
pub(crate) struct Opening(Option<Result<Vec<Option<PortChannel>>>>);

impl Opening {
    /// What the others have to know of it.
    pub(crate) fn notice(&self) -> Notice {
        let mut notice = [0; 1 + SEAT_WORDS];
        if let Some(Ok(ports)) = &self.0 {
            notice[0] = 1;
            for (peer, port) in ports.iter().enumerate() {
                let number = port.as_ref().map_or(0, PortChannel::seat_number);
                notice[1 + peer / PER_WORD] |= u64::from(number) << (peer % PER_WORD * SEAT_BITS);
            }
        }
        notice
    }
}

/// The seat towards `peer` that a member has told of in its notice.
fn seat(notice: &[u64], peer: usize) -> u64 {
    notice[1 + peer / PER_WORD] >> (peer % PER_WORD * SEAT_BITS) & ((1 << SEAT_BITS) - 1)
}

/// What `make` makes for each member but this one.
fn each_other<T>(team: &Team, make: impl Fn(usize) -> Result<T>) -> Result<Vec<Option<T>>> {
    let one = |member| if member == team.me() { Ok(None) } else { make(member).map(Some) };
    (0..team.n_members()).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::MAX_CHANNELS_PER_PEER;
    use crate::rank::MAX_RANKS;

    #[test]
    fn a_notice_has_room_for_a_seat_towards_every_member() {
        assert_eq!(1 << SEAT_BITS, MAX_CHANNELS_PER_PEER);
        assert!(SEAT_WORDS * PER_WORD >= MAX_RANKS as usize);
        let notice = [1, 0xf, 0, 0x70, 0];
        assert_eq!((seat(&notice, 0), seat(&notice, 1), seat(&notice, 33)), (15, 0, 7));
    }
}
