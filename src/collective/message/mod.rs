//! Messages: what one member sends another by a call of its own, and how they go through a pipe.
//!
//! A message is one fragment of the [pipe](crate::collective::transport::pipe) between the two, or
//! several. In its slot, the first one starts with a header:
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | the sender's [`CallSignature`]: operation, type and count of the elements |
//! | 16..24 | where the elements lie in the sender's heap, or [`HERE`](state::HERE) |
//! | 24..32 | the number of the fragment in its pipe |
//!
//! Elements follow the header. In a message that fits into the rest of its cache line they follow
//! there, otherwise from the next line on, since a long copy to a crooked place is slow. That holds
//! for fragments without a header, too.
//!
//! What comes at the two ends of a pipe goes together in order: the k-th message that is sent with
//! the k-th that is received. If they differ in type or count, the receiver [reports a
//! mismatch](crate::collective::rendezvous::mismatch_report).
//!
//! A message is done by one of these protocols. The sender alone chooses ([`send`]), and the header
//! tells the receiver:
//!
//! | protocol | for | the sender is done when |
//! |---|---|---|
//! | [`inline`] | a few bytes over direct channels | its post is there |
//! | rendezvous get | long ones in the heap, over direct channels | the receiver has copied all |
//! | fragments | all others | the last fragment is in the receiver's inbox |
//!
//! In a rendezvous get, the only fragment says where the elements lie. The receiver copies them
//! from there, and the sender waits until it has given the slot back.
//!
//! Over proxied channels, elements that are not in the heap are copied to a *bounce buffer* first:
//! a place in this member's staging area for each slot of each pipe. It is free again when the slot
//! is. Nothing else uses the staging area meanwhile, as nothing is left for the proxy when a call
//! returns.
//!
//! Two messages, one each way, may share a block: see [`in_place`].

pub(crate) mod all_to_all_v;
pub(crate) mod deadlock;
pub(crate) mod in_place;
pub(crate) mod inline;
pub(crate) mod progress;
pub(crate) mod queues;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod state;

use crate::collective::call::{Call, CallMismatch, CallSignature, Input, Operation, Output};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::{Bare, Link, PipeChannel};
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::heap::Region;
pub(crate) use in_place::InPlaceBlock;
use send::Afterwards;
pub(crate) use state::MessageStage;
use state::MessageState;

/// One end of a message. There is nothing to be dropped: many of them are made, moved and
/// forgotten.
#[derive(Debug)]
pub(crate) struct MessageEnd<'a> {
    pub(crate) state: MessageState,
    contents: MessageContents<'a>,
}

const _: () = assert!(!std::mem::needs_drop::<MessageEnd<'_>>());

/// What a message is made of, or unpacked into.
#[derive(Debug)]
pub(crate) enum MessageContents<'a> {
    Sent(Input<'a>),
    Received(Output<'a>),
    /// Sent, from where another message is [taken](Self::ReceivedInPlace): the block of this number
    /// of those that are replaced.
    SentInPlace(usize),
    /// Received, over what was [given](Self::SentInPlace).
    ReceivedInPlace(usize),
}

impl<'a> MessageEnd<'a> {
    /// Makes the message that a send or a receive is, whose buffer it takes.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] when the length cannot be counted.
    #[inline]
    pub(crate) fn of(call: &mut Call<'a>) -> Result<Self> {
        let contents = match call.operation {
            Operation::Recv => MessageContents::Received(std::mem::replace(&mut call.output, Output::None)),
            _ => MessageContents::Sent(std::mem::replace(&mut call.input, Input::None)),
        };
        Ok(Self::new(call.operation, call.signature(), call.root, call.block_len()?, contents))
    }

    /// Makes the end of a message between this member and `peer`, of `len` bytes, by which it takes
    /// its part in a call like `signature`.
    #[inline]
    pub(crate) fn new(
        operation: Operation,
        signature: CallSignature,
        peer: usize,
        len: u64,
        contents: MessageContents<'a>,
    ) -> Self {
        Self {
            state: MessageState { signature, operation, peer, len, moved: 0, stage: MessageStage::Fresh },
            contents,
        }
    }

    /// Returns whether it is sent.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.contents, MessageContents::Sent(_) | MessageContents::SentInPlace(_))
    }

    /// Copies this message, which is sent, to the other end `received`, which is this member too.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] when the two differ; [`crate::Error::OutOfRange`] for buffers
    /// that are not allocated.
    pub(crate) fn copy_to(&self, members: &Members, received: &mut Self) -> Result<()> {
        let (mine, theirs) = (received.state.signature, self.state.signature);
        if !mine.answers(theirs) {
            // Nobody else is wrong, but all wait for this member.
            members.board.report_to_all(mine);
            return Err(CallMismatch { mine, rank: members.ranks()[members.me()], theirs }.into());
        }
        let len = self.state.len;
        match (&self.contents, &mut received.contents) {
            (MessageContents::Sent(Input::Memory(bytes)), MessageContents::Received(output)) => {
                output.write(members.view(), 0, bytes)
            }
            (MessageContents::Sent(Input::Heap(offset)), MessageContents::Received(output)) => {
                let heap = members.heap_of(members.me(), Region::new(*offset, len))?;
                output.copy(members.view(), 0, heap, offset.get(), len)
            }
            _ => Ok(()),
        }
    }

    /// Does what can be done at this end now, without waiting, where the blocks are `in_place` that
    /// it may be about; whether that was anything. What goes over `pipes` is checked and struck
    /// where it `is_watched`.
    ///
    /// # Errors
    /// Those of [`progress::run`].
    #[inline]
    pub(crate) fn advance_over<C: PipeChannel>(
        &mut self,
        mut pipes: Pipes<'_, Bare<C>>,
        in_place: &[InPlaceBlock<'_>],
        is_watched: bool,
    ) -> Result<bool> {
        if is_watched {
            return self.advance(in_place, &mut pipes.checked());
        }
        self.advance(in_place, &mut pipes)
    }

    #[inline]
    fn advance<L: Link>(&mut self, in_place: &[InPlaceBlock<'_>], pipes: &mut Pipes<'_, L>) -> Result<bool> {
        let Self { state, contents } = self;
        let (stage, moved) = (state.stage, state.moved);
        match contents {
            MessageContents::Sent(input) => state.send(input, Afterwards::Kept, pipes)?,
            MessageContents::Received(output) => state.receive(output, pipes)?,
            MessageContents::SentInPlace(block) => state.send_in_place(&in_place[*block], pipes)?,
            MessageContents::ReceivedInPlace(block) => state.receive_in_place(&in_place[*block], pipes)?,
        }
        Ok(state.stage != stage || state.moved != moved)
    }
}
