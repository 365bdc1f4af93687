//! The receiving end of a message: its elements come out of fragments, or are copied from where they are lent.

use super::in_place::{InPlaceBlock, WaitingFragment};
use super::state::{HEADER_LEN, HERE, MessageStage, MessageState, body_at, capacity};
use crate::channel::Channel;
use crate::collective::call::{Output, shifted};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::checksum;
use crate::collective::transport::pipe::{FragmentArrival, Pipes};
use crate::error::Result;
use crate::faults::MESSAGE;
use crate::heap::{HeapOffset, HeapPlace, Region};

impl MessageState {
    /// Takes what has come into `output`.
    ///
    /// # Errors
    /// Those of [`super::MessageEnd::advance`].
    #[inline]
    pub(super) fn receive<C: Channel>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<()> {
        while self.stage != MessageStage::Done {
            pipes.look_for_signal(self.peer);
            if self.receive_inline(output, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = pipes.take_signal(self.peer) else { return Ok(()) };
            if pipes.members.checksums {
                pipes.check(self.arrival(number), at)?;
                self.open_checked(output, pipes, number, at)?;
            } else {
                self.open(output, pipes.members, number, at)?;
            }
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// Takes what has come over a block, as far as that was given.
    ///
    /// # Errors
    /// Those of [`super::MessageEnd::advance`].
    #[inline(never)]
    pub(super) fn receive_in_place<C: Channel>(
        &mut self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<()> {
        while self.stage != MessageStage::Done {
            pipes.look_for_signal(self.peer);
            if self.receive_inline_over(in_place, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = self.take_signal_over(in_place, pipes)? else { return Ok(()) };
            let block = &mut *in_place.block().borrow_mut();
            if pipes.members.checksums {
                self.open_checked(block, pipes, number, at)?;
            } else {
                self.open(block, pipes.members, number, at)?;
            }
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// The next fragment, if its signal was found and what it is copied over was given.
    fn take_signal_over<C: Channel>(
        &self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<Option<(u64, HeapOffset)>> {
        let message = match in_place.kept() {
            Some(kept) => kept,
            None => match pipes.take_signal(self.peer) {
                Some((number, at)) => self.look_at(pipes, number, at)?,
                None => return Ok(None),
            },
        };
        Ok(in_place.admits(message).then_some((message.number, message.at)))
    }

    /// What has to be given before the fragment numbered `number` may be opened, which is what was sent and called for.
    fn look_at<C: Channel>(
        &self,
        pipes: &Pipes<'_, C>,
        number: u64,
        at: HeapOffset,
    ) -> Result<WaitingFragment> {
        let members = pipes.members;
        if members.checksums {
            pipes.check(self.arrival(number), at)?;
        }
        let needed = match self.place(members, number, at)? {
            HERE => self.len.min(self.moved + capacity(members)),
            _ => self.len,
        };
        Ok(WaitingFragment { number, at, needed })
    }

    fn arrival(&self, number: u64) -> FragmentArrival {
        FragmentArrival { operation: self.operation, member: self.peer, number }
    }

    /// The same as [`MessageState::open`], of a fragment that is what was sent.
    #[cold]
    fn open_checked<C: Channel>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &Pipes<'_, C>,
        number: u64,
        at: HeapOffset,
    ) -> Result<()> {
        if !self.open(output, pipes.members, number, at)? {
            return Ok(());
        }
        let arrival = self.arrival(number);
        checksum::check_got(pipes.members, pipes.checks_of(arrival), output, self.len, arrival)
    }

    /// Takes what is in the fragment numbered `number`, at `at` of this member's heap; whether that was lent.
    #[inline]
    fn open(
        &mut self,
        output: &mut Output<'_>,
        members: &Members,
        number: u64,
        at: HeapOffset,
    ) -> Result<bool> {
        let place = self.place(members, number, at)?;
        if place == HERE {
            let len = (self.len - self.moved).min(capacity(members));
            let source = Region::new(shifted(at, body_at(self.len)), len);
            let heap = members.heap_of(members.me(), source)?;
            output.copy(members.view(), self.moved, heap, source.offset.get(), len)?;
            self.moved += len;
        } else {
            self.get(output, members, HeapOffset::new(place))?;
        }
        self.stage = if self.moved == self.len { MessageStage::Done } else { MessageStage::Begun };
        Ok(place != HERE)
    }

    /// Where the elements are that come by fragment `number` at `at`, or [`HERE`].
    #[inline]
    fn place(&self, members: &Members, number: u64, at: HeapOffset) -> Result<u64> {
        if self.stage != MessageStage::Fresh {
            return Ok(HERE);
        }
        let mine = members.heap_of(members.me(), Region::new(at, HEADER_LEN))?;
        self.check(members, mine.read(at.get())?, number)
    }

    /// Copies all of the message from `place` of the heap of its sender.
    #[inline]
    fn get(&mut self, output: &mut Output<'_>, members: &Members, place: HeapOffset) -> Result<()> {
        let heap = members.heap_of(self.peer, Region::new(place, self.len))?;
        output.copy(members.view(), 0, heap, place.get(), self.len)?;
        self.moved = self.len;
        if let (&mut Output::Heap(offset), true) = (output, members.board.context().is_faulty()) {
            let place = HeapPlace { rank: members.ranks()[members.me()], offset };
            members.board.context().damage(MESSAGE, place, self.len);
        }
        Ok(())
    }
}
