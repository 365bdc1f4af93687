//! The sending end of a message: its elements go into fragments, or the receiver gets them from
//! where they lie (rendezvous get): where that takes less than to copy them twice, the wait of
//! their sender included.

use super::in_place::InPlaceBlock;
use super::state::{HEADER_LEN, MessageStage, MessageState, body_at, capacity};
use crate::channel::Channel;
use crate::collective::call::{ChannelKind, Input, shifted};
use crate::collective::region::PIPE_SLOTS;
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::{Link, Outgoing, PipeChannel};
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};

/// The shortest message in the heap that a sender with a core of its own leaves to a rendezvous
/// get. It is copied once and not twice, but its sender waits until the receiver has got it.
///
/// What else was tried stands in `benches/RESULTS.md`, under "Rendezvous get".
const GET_FROM: u64 = 16 << 10;

/// The longest message in the heap that a member copies that shares its core. It has to give its
/// core away to be told of anything, so it copies only if its pipe holds all of the message at
/// once.
const COPIED_UP_TO: u64 = 64 << 10;

/// Returns whether a message of `len` bytes in the heap is left to a rendezvous get.
#[inline]
fn uses_get(members: &Members, len: u64) -> bool {
    let is_oversubscribed = members.board.context().oversubscribed();
    len >= GET_FROM && (!is_oversubscribed || len > COPIED_UP_TO.min(PIPE_SLOTS * capacity(members)))
}

/// What becomes of the elements when they have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// They stay as they are until the call is done.
    Kept,
    /// They are soon written over.
    InPlaceBlock,
}

impl MessageState {
    /// Sends a block that is soon written over.
    ///
    /// # Errors
    /// Fails as [`super::progress::run`] does.
    #[inline(never)]
    pub(super) fn send_in_place<L: Link>(
        &mut self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<()> {
        let sent = in_place.read(|input| self.send(input, Afterwards::InPlaceBlock, pipes));
        in_place.count_copied_out(self.moved);
        sent
    }

    /// Sends what has room of `input`.
    ///
    /// # Errors
    /// Fails as [`super::progress::run`] does.
    // Inlined for the sake of one of its two callers.
    #[inline(always)]
    pub(super) fn send<L: Link>(
        &mut self,
        input: &Input<'_>,
        afterwards: Afterwards,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<()> {
        if let MessageStage::AwaitsGet(number) = self.stage {
            if pipes.was_taken(self.peer, number) {
                self.stage = MessageStage::Done;
            }
            return Ok(());
        }
        while !self.is_in_pipe() && pipes.has_room(self.peer) {
            self.post(input, afterwards, pipes)?;
        }
        Ok(())
    }

    /// Sends the next fragment, which has room.
    #[inline(always)]
    fn post<L: Link>(
        &mut self,
        input: &Input<'_>,
        afterwards: Afterwards,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<()> {
        if self.send_inline(input, pipes)? {
            return Ok(());
        }
        if self.moved == 0 && !matches!(input, Input::Heap(_)) {
            pipes.members.board.context().count_staged(self.len);
        }
        let (number, _) = pipes.next_to(self.peer);
        let may_use_get = L::Channel::KIND == ChannelKind::Memory && afterwards == Afterwards::Kept;
        let exposed = match *input {
            Input::Heap(offset) if may_use_get && uses_get(pipes.members, self.len) => Some(offset),
            _ => None,
        };
        let len = match exposed {
            Some(_) => 0,
            None => (self.len - self.moved).min(capacity(pipes.members)),
        };
        let outgoing = Outgoing {
            header: self.header(exposed, number),
            body: body_at(self.len),
            input,
            at: self.moved,
            len,
            fetched: exposed.map(|_| self.len),
        };
        L::before_send(pipes, self.peer, &outgoing)?;
        match L::Channel::KIND {
            ChannelKind::Memory => outgoing.write(pipes, self.peer)?,
            ChannelKind::Port => outgoing.hand_over(pipes, self.peer, afterwards)?,
        }
        self.moved += len;
        self.stage = match exposed {
            Some(_) => MessageStage::AwaitsGet(number),
            None if self.moved == self.len => MessageStage::Done,
            None => MessageStage::Begun,
        };
        Ok(())
    }
}

impl Outgoing<'_, '_> {
    /// Writes it straight into the inbox of the receiver.
    #[inline]
    fn write<L: Link>(self, pipes: &mut Pipes<'_, L>, to: usize) -> Result<()> {
        let (_, slot) = pipes.next_to(to);
        self.lay_out(pipes.members, to, slot)?;
        L::stored(pipes, to, shifted(slot, self.body), self.len);
        pipes.channel(to).signal()?;
        pipes.count_sent(to);
        pipes.wake(to);
        Ok(())
    }

    /// Has the proxy write it: from where it is, if that is in the heap and stays as it is.
    fn hand_over<L: Link>(self, pipes: &mut Pipes<'_, L>, to: usize, afterwards: Afterwards) -> Result<()> {
        let members = pipes.members;
        let (number, slot) = pipes.next_to(to);
        let bounce = members.place(members.me(), members.layout().bounce(to as u64, number % PIPE_SLOTS));
        let channel = pipes.channel(to);
        if let (Input::Heap(source), Afterwards::Kept) = (self.input, afterwards) {
            Outgoing { len: 0, ..self }.lay_out(members, members.me(), bounce)?;
            if self.header.is_some() {
                channel.put(slot, bounce, HEADER_LEN)?;
            }
            channel.put_with_signal(shifted(slot, self.body), shifted(*source, self.at), self.len)?;
        } else {
            self.lay_out(members, members.me(), bounce)?;
            channel.put_with_signal(slot, bounce, self.body + self.len)?;
        }
        pipes.count_sent(to);
        Ok(())
    }

    /// Writes header and elements as they are to lie in a slot, to `place` of the heap of `member`.
    #[inline]
    fn lay_out(&self, members: &Members, member: usize, place: HeapOffset) -> Result<()> {
        let target = members.heap_of(member, Region::new(place, self.body + self.len))?;
        if let Some(header) = self.header {
            target.write(place.get(), header)?;
        }
        self.input.copy(members.view(), self.at, target, Region::new(shifted(place, self.body), self.len))
    }
}
