//! The receiving end of a message: its elements come out of fragments, or are copied from where
//! they are lent.

use super::in_place::{InPlaceBlock, WaitingFragment};
use super::state::{HEADER_LEN, HERE, MessageStage, MessageState, body_at, capacity};
use crate::collective::call::{Output, shifted};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::{FragmentArrival, Pipes};
use crate::error::Result;
use crate::heap::{HeapOffset, Region};

impl MessageState {
    /// Takes what has come into `output`.
    ///
    /// # Errors
    /// Those of [`super::MessageEnd::advance_over`].
    #[inline]
    pub(super) fn receive<L: Link>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<()> {
        while self.stage != MessageStage::Done {
            pipes.look_for_signal(self.peer);
            if self.receive_inline(output, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = pipes.take_signal(self.peer) else { return Ok(()) };
            L::arrived(pipes, self.arrival(number), at)?;
            self.open(output, pipes, number, at)?;
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// Takes what has come over a block, as far as that was given.
    ///
    /// # Errors
    /// Those of [`super::MessageEnd::advance_over`].
    #[inline(never)]
    pub(super) fn receive_in_place<L: Link>(
        &mut self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<()> {
        while self.stage != MessageStage::Done {
            pipes.look_for_signal(self.peer);
            if self.receive_inline_over(in_place, pipes)? {
                return Ok(());
            }
            let Some((number, at)) = self.take_signal_over(in_place, pipes)? else { return Ok(()) };
            let block = &mut *in_place.block().borrow_mut();
            self.open(block, pipes, number, at)?;
            pipes.give_back(self.peer);
        }
        Ok(())
    }

    /// Returns the next message, if its signal was found and what it is copied over was given.
    fn take_signal_over<L: Link>(
        &self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, L>,
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

    /// Returns what has to be given before the message numbered `number` may be opened, which is
    /// what was sent and called for.
    fn look_at<L: Link>(&self, pipes: &Pipes<'_, L>, number: u64, at: HeapOffset) -> Result<WaitingFragment> {
        let members = pipes.members;
        L::arrived(pipes, self.arrival(number), at)?;
        let needed = match self.place(members, number, at)? {
            HERE => self.len.min(self.moved + capacity(members)),
            _ => self.len,
        };
        Ok(WaitingFragment { number, at, needed })
    }

    fn arrival(&self, number: u64) -> FragmentArrival {
        FragmentArrival { operation: self.operation, member: self.peer, number }
    }

    /// Takes what is in the message numbered `number`, at `at` of this member's heap.
    #[inline]
    fn open<L: Link>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &Pipes<'_, L>,
        number: u64,
        at: HeapOffset,
    ) -> Result<()> {
        let members = pipes.members;
        let place = self.place(members, number, at)?;
        if place == HERE {
            let len = (self.len - self.moved).min(capacity(members));
            let source = Region::new(shifted(at, body_at(self.len)), len);
            let heap = members.heap_of(members.me(), source)?;
            output.copy(members.view(), self.moved, heap, source.offset.get(), len)?;
            self.moved += len;
        } else {
            self.get(output, members, HeapOffset::new(place))?;
            L::fetched(pipes, self.arrival(number), output, self.len)?;
        }
        self.stage = if self.moved == self.len { MessageStage::Done } else { MessageStage::Begun };
        Ok(())
    }

    /// Returns where the elements are that come by fragment `number` at `at`, or [`HERE`].
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
        Ok(())
    }
}
