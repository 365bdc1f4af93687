//! Links: the channels of either kind that a pipe goes over, [`Bare`] or [`Checked`].
//!
//! A pipe tells its link of each fragment. A bare link does nothing with that, at no cost.
//! Fragments over a checked one have checksums, where all members take them, and faults, where some
//! are planned.

use std::marker::PhantomData;

use super::checksum::{self, FragmentCheck};
use super::pipe::{FragmentArrival, Pipes};
use crate::channel::{Channel, MemoryChannel, PortChannel};
use crate::collective::call::{ChannelKind, Input, Output};
use crate::error::Result;
use crate::faults::MESSAGE;
use crate::heap::{HeapOffset, HeapPlace};

/// A channel that joins two members by pipes.
pub(crate) trait PipeChannel: Channel + std::fmt::Debug {
    /// The kind of the link.
    const KIND: ChannelKind;
}

impl PipeChannel for MemoryChannel {
    const KIND: ChannelKind = ChannelKind::Memory;
}

impl PipeChannel for PortChannel {
    const KIND: ChannelKind = ChannelKind::Port;
}

/// Carries the bytes of pipes between this member and the others.
pub(crate) trait Link: Sized {
    /// Moves what does not go by this member's own stores.
    type Channel: PipeChannel;

    /// Whether short messages may go inline, without a slot: over direct channels.
    const HAS_INLINE: bool = matches!(Self::Channel::KIND, ChannelKind::Memory);

    /// Hears of `outgoing` before it is sent to `to`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for an input that is not allocated.
    #[inline(always)]
    fn before_send(_pipes: &Pipes<'_, Self>, _to: usize, _outgoing: &Outgoing<'_, '_>) -> Result<()> {
        Ok(())
    }

    /// Hears that this member has stored `len` bytes at `at` of the heap of `to`, which are not
    /// signalled yet.
    #[inline(always)]
    fn stored(_pipes: &Pipes<'_, Self>, _to: usize, _at: HeapOffset, _len: u64) {}

    /// Hears of a fragment that lies at `at` of this member's heap, before anything is made of it.
    ///
    /// # Errors
    /// [`crate::Error::Corrupted`]; [`crate::Error::Mismatch`] when its sender does not check.
    #[inline(always)]
    fn arrived(_pipes: &Pipes<'_, Self>, _arrival: FragmentArrival, _at: HeapOffset) -> Result<()> {
        Ok(())
    }

    /// Hears that this member has copied to `output` the `len` bytes that a fragment has told of.
    ///
    /// # Errors
    /// [`crate::Error::Corrupted`].
    #[inline(always)]
    fn fetched(
        _pipes: &Pipes<'_, Self>,
        _arrival: FragmentArrival,
        _output: &Output<'_>,
        _len: u64,
    ) -> Result<()> {
        Ok(())
    }
}

/// A fragment that is about to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing<'p, 'a> {
    pub(crate) header: Option<[u64; 4]>,
    /// Where the elements go in the slot.
    pub(crate) body: u64,
    pub(crate) input: &'p Input<'a>,
    /// The fragment has `len` bytes of the input from here on.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// How many bytes of the input the receiver fetches by itself, if it does.
    pub(crate) fetched: Option<u64>,
}

/// A link by channels of one kind.
#[derive(Debug)]
pub(crate) struct Bare<C>(PhantomData<C>);

impl<C: PipeChannel> Link for Bare<C> {
    type Channel = C;
}

/// A link by channels of one kind whose fragments are checked and struck.
#[derive(Debug)]
pub(crate) struct Checked<C>(PhantomData<C>);

impl<C: PipeChannel> Link for Checked<C> {
    type Channel = C;

    /// Faults strike slots, and checksums lie beside them.
    const HAS_INLINE: bool = false;

    #[cold]
    fn before_send(pipes: &Pipes<'_, Self>, to: usize, outgoing: &Outgoing<'_, '_>) -> Result<()> {
        let members = pipes.members;
        if !members.checksums {
            return Ok(());
        }
        let &Outgoing { header, body, input, at, len, fetched } = outgoing;
        let crc_of = |before, at, len| input.place(members.view(), at, len)?.crc32c(before, len);
        let fetched = fetched.map(|len| crc_of(0, 0, len)).transpose()?;
        let of_header = header.map_or(0, |header| crc32c::crc32c(bytemuck::bytes_of(&header)));
        let crc = crc_of(of_header, at, len)?;
        let told = FragmentCheck { has_header: header.is_some(), body, len, crc };
        told.tell(pipes.words_of_next(to), fetched);
        Ok(())
    }

    #[cold]
    fn stored(pipes: &Pipes<'_, Self>, to: usize, at: HeapOffset, len: u64) {
        let place = HeapPlace { rank: pipes.members.ranks()[to], offset: at };
        pipes.members.board.context().damage(MESSAGE, place, len);
    }

    #[cold]
    fn arrived(pipes: &Pipes<'_, Self>, arrival: FragmentArrival, at: HeapOffset) -> Result<()> {
        if !pipes.members.checksums {
            return Ok(());
        }
        checksum::check_message(pipes.members, pipes.words_of_arrival(arrival), at, arrival)
    }

    #[cold]
    fn fetched(
        pipes: &Pipes<'_, Self>,
        arrival: FragmentArrival,
        output: &Output<'_>,
        len: u64,
    ) -> Result<()> {
        let members = pipes.members;
        if let &Output::Heap(offset) = output {
            let place = HeapPlace { rank: members.ranks()[members.me()], offset };
            members.board.context().damage(MESSAGE, place, len);
        }
        if !members.checksums {
            return Ok(());
        }
        checksum::check_got(members, pipes.words_of_arrival(arrival), output, len, arrival)
    }
}
