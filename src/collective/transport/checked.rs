//! A link whose messages are checked, where all members take checksums, and struck, where faults are
//! planned.

use std::marker::PhantomData;

use super::checksum::{self, Message};
use super::link::{Link, Outgoing};
use super::pipe::{Arrival, Pipes};
use crate::channel::Channel;
use crate::collective::call::Output;
use crate::error::Result;
use crate::faults::MESSAGE;
use crate::heap::{HeapOffset, Place};

/// A link by channels of one kind.
#[derive(Debug)]
pub(crate) struct Checked<C>(PhantomData<C>);

impl<C: Channel + std::fmt::Debug> Link for Checked<C> {
    type Channel = C;

    /// Faults strike slots, and checksums lie beside them.
    const HAS_INLINE: bool = false;

    #[cold]
    fn before_send(pipes: &Pipes<'_, Self>, to: usize, message: &Outgoing<'_, '_>) -> Result<()> {
        let team = pipes.team;
        if !team.checksums {
            return Ok(());
        }
        let &Outgoing { header, body, input, at, len, fetched } = message;
        let fetched = fetched.map(|len| checksum::of_input(team, input, 0, 0, len)).transpose()?;
        let of_header = header.map_or(0, |header| crc32c::crc32c(bytemuck::bytes_of(&header)));
        let crc = checksum::of_input(team, input, of_header, at, len)?;
        let told = Message { has_header: header.is_some(), body, len, crc };
        told.tell(pipes.words_of_next(to), fetched);
        Ok(())
    }

    #[cold]
    fn stored(pipes: &Pipes<'_, Self>, to: usize, at: HeapOffset, len: u64) {
        let place = Place { rank: pipes.team.members()[to], offset: at };
        pipes.team.board.fabric().damage(MESSAGE, place, len);
    }

    #[cold]
    fn arrived(pipes: &Pipes<'_, Self>, arrival: Arrival, at: HeapOffset) -> Result<()> {
        if !pipes.team.checksums {
            return Ok(());
        }
        checksum::check_message(pipes.team, pipes.words_of_arrival(arrival), at, arrival)
    }

    #[cold]
    fn fetched(pipes: &Pipes<'_, Self>, arrival: Arrival, output: &Output<'_>, len: u64) -> Result<()> {
        let team = pipes.team;
        if let &Output::Heap(offset) = output {
            let place = Place { rank: team.members()[team.me()], offset };
            team.board.fabric().damage(MESSAGE, place, len);
        }
        if !team.checksums {
            return Ok(());
        }
        checksum::check_lent(team, pipes.words_of_arrival(arrival), output, len, arrival)
    }
}
