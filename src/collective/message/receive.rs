//! The receiving end of a message: its elements come out of fragments, or by a rendezvous get.

use super::in_place::{InPlaceBlock, WaitingFragment};
use super::inline::sent_as;
use super::state::{Front, HEADER_LEN, HERE, MessageStage, MessageState, body_at, capacity};
use crate::collective::call::{CallSignature, Operation, Output, shifted};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::{FragmentArrival, Pipes};
use crate::error::Result;
use crate::heap::{HeapOffset, Region};

impl MessageState {
    /// Takes what has come into `output`; whether what is in front is another's.
    ///
    /// # Errors
    /// Fails as [`super::progress::run`] does.
    #[inline]
    pub(super) fn receive<L: Link>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<bool> {
        while self.stage != MessageStage::Done {
            pipes.look_for_signal(self.peer);
            match self.receive_inline(output, pipes)? {
                Front::Nothing => {}
                front => return Ok(front == Front::Other),
            }
            let fragment = match self.take_fragment(pipes)? {
                Front::Own(fragment) => fragment,
                front => return Ok(front == Front::Other),
            };
            self.open(output, pipes, fragment)?;
            pipes.give_back(self.peer);
        }
        Ok(false)
    }

    /// Takes what has come over a block, as far as that was given; whether what is in front is
    /// another's.
    ///
    /// # Errors
    /// Fails as [`super::progress::run`] does.
    #[inline(never)]
    pub(super) fn receive_in_place<L: Link>(
        &mut self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<bool> {
        while self.stage != MessageStage::Done {
            pipes.look_for_signal(self.peer);
            match self.receive_inline_over(in_place, pipes)? {
                Front::Nothing => {}
                front => return Ok(front == Front::Other),
            }
            let fragment = match self.take_fragment_over(in_place, pipes)? {
                Front::Own(fragment) => fragment,
                front => return Ok(front == Front::Other),
            };
            let block = &mut *in_place.block().borrow_mut();
            self.open(block, pipes, fragment)?;
            pipes.give_back(self.peer);
        }
        Ok(false)
    }

    /// Returns the next fragment, if its signal was found and what it is copied over was given.
    fn take_fragment_over<L: Link>(
        &self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<Front<WaitingFragment>> {
        let fragment = match in_place.kept() {
            Some(kept) => kept,
            None => match self.take_fragment(pipes)? {
                Front::Own(fragment) => fragment,
                front => return Ok(front),
            },
        };
        let needed = self.needed(pipes.members, fragment.place);
        Ok(if in_place.admits(fragment, needed) { Front::Own(fragment) } else { Front::Nothing })
    }

    /// Returns the next fragment, if its signal was found.
    #[inline]
    fn take_fragment<L: Link>(&self, pipes: &mut Pipes<'_, L>) -> Result<Front<WaitingFragment>> {
        let Some((number, at)) = pipes.take_signal(self.peer) else { return Ok(Front::Nothing) };
        L::arrived(pipes, self.arrival(number), at)?;
        let Front::Own(place) = self.place(pipes.members, number, at)? else {
            pipes.keep_signal(self.peer);
            return Ok(Front::Other);
        };
        Ok(Front::Own(WaitingFragment { number, at, place }))
    }

    /// Returns what has to be given before a fragment with elements at `place` may be opened.
    fn needed(&self, members: &Members, place: u64) -> u64 {
        match place {
            HERE => self.len.min(self.moved + capacity(members)),
            _ => self.len,
        }
    }

    fn arrival(&self, number: u64) -> FragmentArrival {
        FragmentArrival { operation: self.operation, member: self.peer, number }
    }

    /// Takes what is in `fragment`.
    #[inline]
    fn open<L: Link>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &Pipes<'_, L>,
        fragment: WaitingFragment,
    ) -> Result<()> {
        let (members, WaitingFragment { number, at, place }) = (pipes.members, fragment);
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
    fn place(&self, members: &Members, number: u64, at: HeapOffset) -> Result<Front<u64>> {
        if self.stage != MessageStage::Fresh {
            return Ok(Front::Own(HERE));
        }
        self.check(members, header(members, at)?, number)
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

/// Returns the header of the fragment at `at` of this member's heap.
#[inline]
fn header(members: &Members, at: HeapOffset) -> Result<[u64; 4]> {
    members.heap_of(members.me(), Region::new(at, HEADER_LEN))?.read(at.get())
}

/// Returns what the message in front of the pipe from `source` was sent as, if one has come, and no
/// receive has begun to take it.
///
/// # Errors
/// Fails as [`super::progress::run`] does.
pub(super) fn front<L: Link>(pipes: &mut Pipes<'_, L>, source: usize) -> Result<Option<CallSignature>> {
    pipes.look_for_signal(source);
    if let Some(inline) = pipes.inline_from(source) {
        return Ok(Some(sent_as(inline)));
    }
    let Some((number, at)) = pipes.take_signal(source) else { return Ok(None) };
    pipes.keep_signal(source);
    L::arrived(pipes, FragmentArrival { operation: Operation::Recv, member: source, number }, at)?;
    let [head, count, ..] = header(pipes.members, at)?;
    Ok(Some(CallSignature::from_words([head, count])))
}
