//! Parcels: what one member sends another by a call of its own, and how they go through a pipe.
//!
//! A message is one fragment of the [pipe](crate::collective::transport::pipe) between the two, or several. In its slot, the first one starts with a header:
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | the sender's [`CallSignature`]: its operation, the type and the count of the elements |
//! | 16..24 | where the elements are in the sender's heap, or [`HERE`](slot::HERE) |
//! | 24..32 | the number of the fragment in its pipe |
//!
//! Elements follow the header: in a message that fits into the rest of its cache line there, otherwise from the next line on (a
//! long copy to a crooked place is slow), also in fragments without a header. What comes at the two ends of a pipe goes
//! together in order, the k-th message that is sent with the k-th that is received; if they differ in type or count, the
//! receiver [complains](crate::collective::rendezvous::mismatch_report).
//!
//! A long message in the sender's heap, over direct channels, is *lent*: its only fragment says where it is, the receiver copies it
//! from there, and the sender waits until the receiver has given the slot back. Every other one is copied into slots, and the
//! sender is done when its last fragment is in the receiver's inbox. The sender alone chooses, by the length ([`send`]), and the
//! header tells the receiver.
//!
//! Over proxied channels what is not in the heap is copied to a *bounce buffer* first, a place in this member's staging area for each
//! slot of each pipe. It is free again when the slot is; the staging area is not used by anything else in the meantime, as
//! nothing is left for the proxy when a call returns.
//!
//! A message of a few bytes takes no slot, but goes [`inline`]. Two messages, one each way, may share a block, which is then in [place](in_place).

pub(crate) mod all_to_all_v;
pub(crate) mod deadlock;
pub(crate) mod in_place;
pub(crate) mod inline;
pub(crate) mod progress;
pub(crate) mod queues;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod state;

use crate::collective::call::{Call, CallMismatch, CallSignature, ChannelKind, Input, Operation, Output};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::heap::Region;
pub(crate) use in_place::InPlaceBlock;
use state::{MessageStage, MessageState};

/// One end of a message. There is nothing to be dropped: many of them are made, moved and forgotten.
#[derive(Debug)]
pub(crate) struct MessageEnd<'a> {
    state: MessageState,
    contents: MessageContents<'a>,
}

const _: () = assert!(!std::mem::needs_drop::<MessageEnd<'_>>());

/// What a message is made of, or unpacked into.
#[derive(Debug)]
pub(crate) enum MessageContents<'a> {
    Sent(Input<'a>),
    Received(Output<'a>),
    /// Sent, from where another message is [taken](Self::ReceivedInPlace): the block of this number of those that are replaced.
    SentInPlace(usize),
    /// Received, over what was [given](Self::SentInPlace).
    ReceivedInPlace(usize),
}

impl<'a> MessageEnd<'a> {
    /// The message that a send or a receive is, whose buffer it takes.
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

    /// The end of a message between this member and `peer`, of `len` bytes, by which it takes its part in a call like `signature`.
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

    /// Whether it is sent.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.contents, MessageContents::Sent(_) | MessageContents::SentInPlace(_))
    }

    /// Copies this message, which is sent, to the other end `received`, which is this member too.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] when the two differ; [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn copy_to(&self, members: &Members, received: &mut Self) -> Result<()> {
        let (mine, theirs) = (received.signature(), self.signature());
        if !mine.answers(theirs) {
            // Nobody else is wrong, but all wait for this member.
            members.board.report_to_all(mine);
            return Err(CallMismatch { mine, rank: members.ranks()[members.me()], theirs }.into());
        }
        let len = self.len();
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

    /// The call that it belongs to.
    pub(crate) fn operation(&self) -> Operation {
        self.state.operation
    }

    /// How many bytes this member has for it, or room.
    pub(crate) fn len(&self) -> u64 {
        self.state.len
    }

    /// What this member has called.
    pub(crate) fn signature(&self) -> CallSignature {
        self.state.signature
    }

    /// The member at the other end.
    #[inline]
    pub(crate) fn peer(&self) -> usize {
        self.state.peer
    }

    /// Whether there is nothing left to do at this end.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.stage == MessageStage::Done
    }

    /// Whether nothing more of it will be sent: a later one may follow.
    #[inline]
    pub(crate) fn is_in_pipe(&self) -> bool {
        self.state.is_in_pipe()
    }

    /// Does what can be done at this end now, without waiting, where the blocks are `replaced` that it may be about; whether that was
    /// anything.
    ///
    /// # Errors
    /// Those of [`progress::run`].
    #[inline]
    pub(crate) fn advance<L: Link>(
        &mut self,
        in_place: &[InPlaceBlock<'_>],
        pipes: &mut Pipes<'_, L>,
        kind: ChannelKind,
    ) -> Result<bool> {
        let Self { state, contents } = self;
        let (stage, moved) = (state.stage, state.moved);
        match contents {
            MessageContents::Sent(input) => state.send(input, pipes, kind)?,
            MessageContents::Received(output) => state.receive(output, pipes)?,
            MessageContents::SentInPlace(block) => state.send_in_place(&in_place[*block], pipes, kind)?,
            MessageContents::ReceivedInPlace(block) => state.receive_in_place(&in_place[*block], pipes)?,
        }
        Ok(state.stage != stage || state.moved != moved)
    }
}
