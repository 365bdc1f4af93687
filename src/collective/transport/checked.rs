//! A link whose messages are checked, where all members take checksums, and struck, where faults
//! are planned.

use std::marker::PhantomData;

use super::checksum::{self, FragmentCheck};
use super::link::{Link, Outgoing};
use super::pipe::{FragmentArrival, Pipes};
use crate::channel::Channel;
use crate::collective::call::Output;
use crate::error::Result;
use crate::faults::MESSAGE;
use crate::heap::{HeapOffset, HeapPlace};

/// A link by channels of one kind.
#[derive(Debug)]
pub(crate) struct Checked<C>(PhantomData<C>);

impl<C: Channel + std::fmt::Debug> Link for Checked<C> {
    type Channel = C;

    /// Faults strike slots, and checksums lie beside them.
    const HAS_INLINE: bool = false;

    #[cold]
    fn before_send(pipes: &Pipes<'_, Self>, to: usize, message: &Outgoing<'_, '_>) -> Result<()> {
        let members = pipes.members;
        if !members.checksums {
            return Ok(());
        }
        let &Outgoing { header, body, input, at, len, fetched } = message;
        let fetched = fetched.map(|len| checksum::of_input(members, input, 0, 0, len)).transpose()?;
        let of_header = header.map_or(0, |header| crc32c::crc32c(bytemuck::bytes_of(&header)));
        let crc = checksum::of_input(members, input, of_header, at, len)?;
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
