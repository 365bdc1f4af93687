//! The sending end of a parcel: its elements go into messages, or are lent.

use super::course::{Course, Stage};
use super::lent::is_lent;
use super::replaced::Replaced;
use super::slot::{HEADER_LEN, body_at, capacity};
use crate::channel::Channel;
use crate::collective::algorithm::ChannelKind;
use crate::collective::call::{Input, shifted};
use crate::collective::checks::{self, Message};
use crate::collective::pipe::Pipes;
use crate::collective::region::PIPE_SLOTS;
use crate::collective::team::Team;
use crate::error::Result;
use crate::faults::MESSAGE;
use crate::heap::{HeapOffset, HeapPlace, Region};

/// What becomes of the elements when they have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Afterwards {
    /// They stay as they are until the call is done.
    Kept,
    /// They are soon written over.
    Replaced,
}

impl Course {
    /// Sends what has room of `input`.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    #[inline]
    pub(super) fn send<C: Channel>(
        &mut self,
        input: &Input<'_>,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<()> {
        self.send_all(input, Afterwards::Kept, pipes, kind)
    }

    /// The same of a block that is soon written over.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    #[inline(never)]
    pub(super) fn give<C: Channel>(
        &mut self,
        replaced: &Replaced<'_>,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<()> {
        let sent = replaced.read(|input| self.send_all(input, Afterwards::Replaced, pipes, kind));
        replaced.give(self.moved);
        sent
    }

    // In line in the one place that counts, and in the one that does not.
    #[inline(always)]
    fn send_all<C: Channel>(
        &mut self,
        input: &Input<'_>,
        afterwards: Afterwards,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<()> {
        if let Stage::Lent(number) = self.stage {
            if pipes.was_taken(self.peer, number) {
                self.stage = Stage::Done;
            }
            return Ok(());
        }
        while !self.is_in_pipe() && pipes.has_room(self.peer) {
            self.post(input, afterwards, pipes, kind)?;
        }
        Ok(())
    }

    /// Sends the next message, which has room.
    #[inline(always)]
    fn post<C: Channel>(
        &mut self,
        input: &Input<'_>,
        afterwards: Afterwards,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<()> {
        if self.post_card(input, pipes, kind)? {
            return Ok(());
        }
        let (number, _) = pipes.next_to(self.peer);
        let may_be_lent = kind == ChannelKind::Memory && afterwards == Afterwards::Kept;
        let lent = match *input {
            Input::Heap(offset) if may_be_lent && is_lent(pipes.team, self.len) => Some(offset),
            _ => None,
        };
        let len = match lent {
            Some(_) => 0,
            None => (self.len - self.moved).min(capacity(pipes.team)),
        };
        let (header, body) = (self.header(lent, number), body_at(self.len));
        let letter = Letter { to: self.peer, header, body, input, at: self.moved, len, afterwards };
        if pipes.team.checksums {
            letter.tell_check(pipes, lent.map(|_| self.len))?;
        }
        match kind {
            ChannelKind::Memory => letter.write(pipes)?,
            ChannelKind::Port => letter.hand_over(pipes)?,
        }
        self.moved += len;
        self.stage = match lent {
            Some(_) => Stage::Lent(number),
            None if self.moved == self.len => Stage::Done,
            None => Stage::Begun,
        };
        Ok(())
    }
}

/// One message of a parcel: `len` bytes of `input` from `at` on.
struct Letter<'p, 'a> {
    to: usize,
    header: Option<[u64; 4]>,
    /// Where the elements go in the slot.
    body: u64,
    input: &'p Input<'a>,
    at: u64,
    len: u64,
    afterwards: Afterwards,
}

impl Letter<'_, '_> {
    /// Tells the receiver its checksum, and that of the bytes that it lends, if it lends so many.
    #[cold]
    fn tell_check<C: Channel>(&self, pipes: &Pipes<'_, C>, lent: Option<u64>) -> Result<()> {
        let all = lent.map(|len| checks::of_input(pipes.team, self.input, 0, 0, len)).transpose()?;
        let &Self { to, body, at, len, .. } = self;
        let header = self.header.map_or(0, |header| crc32c::crc32c(bytemuck::bytes_of(&header)));
        let crc = checks::of_input(pipes.team, self.input, header, at, len)?;
        pipes.tell_check(to, Message { has_header: self.header.is_some(), body, len, crc }, all);
        Ok(())
    }

    /// Writes it straight into the inbox of the receiver.
    #[inline]
    fn write<C: Channel>(self, pipes: &mut Pipes<'_, C>) -> Result<()> {
        let (_, slot) = pipes.next_to(self.to);
        self.lay_out(pipes.team, self.to, slot)?;
        let context = pipes.team.board.context();
        if context.is_faulty() {
            let place = HeapPlace { rank: pipes.team.members()[self.to], offset: shifted(slot, self.body) };
            context.damage(MESSAGE, place, self.len);
        }
        pipes.channel(self.to).signal()?;
        pipes.count_sent(self.to);
        pipes.wake(self.to);
        Ok(())
    }

    /// Has the proxy write it: from where it is, if that is in the heap and stays as it is.
    fn hand_over<C: Channel>(self, pipes: &mut Pipes<'_, C>) -> Result<()> {
        let team = pipes.team;
        let (number, slot) = pipes.next_to(self.to);
        let desk = team.place(team.me(), team.layout().desk(self.to as u64, number % PIPE_SLOTS));
        let channel = pipes.channel(self.to);
        if let (Input::Heap(source), Afterwards::Kept) = (self.input, self.afterwards) {
            Letter { len: 0, ..self }.lay_out(team, team.me(), desk)?;
            if self.header.is_some() {
                channel.put(slot, desk, HEADER_LEN)?;
            }
            channel.put_with_signal(shifted(slot, self.body), shifted(*source, self.at), self.len)?;
        } else {
            self.lay_out(team, team.me(), desk)?;
            channel.put_with_signal(slot, desk, self.body + self.len)?;
        }
        pipes.count_sent(self.to);
        Ok(())
    }

    /// Writes header and elements as they are to lie in a slot, to `place` of the heap of `member`.
    #[inline]
    fn lay_out(&self, team: &Team, member: usize, place: HeapOffset) -> Result<()> {
        let target = team.heap_of(member, Region::new(place, self.body + self.len))?;
        if let Some(header) = self.header {
            target.write(place.get(), header)?;
        }
        self.input.copy(team.view(), self.at, target, Region::new(shifted(place, self.body), self.len))
    }
}
