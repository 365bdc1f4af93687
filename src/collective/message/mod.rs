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
//! What comes at the two ends of a pipe goes together in order, for each tag: the k-th message that
//! is sent with it and the k-th that is received. If they differ in type or count, the receiver
//! [reports a mismatch](crate::collective::rendezvous::mismatch_report). The tag is in the
//! signature. As long as messages come in the order of the receives, the first receive finds its
//! own in front of the pipe; otherwise [`matching`] finds the receive that a message is for.
//! A message that is for none is [unexpected].
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
//!
//! Tried by its unit tests and `scenarios point_to_point:: tags:: tag_programs:: blocks::
//! replaced_blocks:: message_deadlock::`.

pub(crate) mod all_to_all_v;
pub(crate) mod deadlock;
pub(crate) mod in_place;
pub(crate) mod inline;
mod matching;
pub(crate) mod progress;
pub(crate) mod queues;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod state;
pub(crate) mod unexpected;

use crate::collective::call::{Call, CallMismatch, CallSignature, Input, MessageStatus, Operation, Output};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::heap::Region;
use crate::rank::{Rank, RankSet};
use crate::sync::Stop;
pub(crate) use in_place::InPlaceBlock;
use send::Afterwards;
use state::ANY_SOURCE;
pub(crate) use state::MessageStage;
pub(crate) use state::MessageState;
use unexpected::UnexpectedMessage;
pub(crate) use unexpected::UnexpectedMessages;

/// One end of a message. There is nothing to be dropped: many of them are made, moved and
/// forgotten.
#[derive(Debug)]
pub(crate) struct MessageEnd<'a> {
    pub(crate) state: MessageState,
    contents: MessageContents<'a>,
}

const _: () = assert!(!std::mem::needs_drop::<MessageEnd<'_>>());

/// What a look at one end has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing could be done.
    None,
    /// Something was done.
    Some,
    /// The message in front of the pipe is for another receive.
    Other,
}

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
            Operation::Recv | Operation::RecvAny => {
                MessageContents::Received(std::mem::replace(&mut call.output, Output::None))
            }
            _ => MessageContents::Sent(std::mem::replace(&mut call.input, Input::None)),
        };
        let peer = match &call.receipt {
            Some(receipt) => receipt.source.unwrap_or(ANY_SOURCE),
            None => call.root,
        };
        Ok(Self::new(call.operation, call.signature(), peer, call.block_len()?, contents))
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

    /// Returns what it has received, for whoever has called for a message of any member.
    pub(crate) fn status(&self, members: &Members) -> Result<MessageStatus> {
        let MessageState { signature, peer, .. } = self.state;
        let (source, n) = (u32::try_from(peer).unwrap_or(u32::MAX), members.n_members());
        let (tag, count) = (signature.tag().unwrap_or(0), signature.count());
        let source = Rank::new(source, u32::try_from(n).unwrap_or(u32::MAX))?;
        let data_type = signature.data_type().expect("it is of this member's own making");
        Ok(MessageStatus { source, tag, count, data_type })
    }

    /// Returns why it is in vain, if it is: its peer is gone, or all are that it may come from.
    pub(crate) fn check(&self, members: &Members) -> Option<Stop> {
        if self.state.peer != ANY_SOURCE {
            return members.board.check_member(self.state.peer);
        }
        let mut gone = members.others().map(|(member, _)| members.board.check_member(member));
        let first = gone.next()??;
        gone.all(|stop| stop.is_some()).then_some(first)
    }

    /// Returns the ranks of the job that it may be awaited from.
    pub(crate) fn awaited(&self, members: &Members) -> RankSet {
        match members.ranks().get(self.state.peer) {
            Some(peer) => RankSet::from_iter([*peer]),
            None => members.others().map(|(_, rank)| rank).collect(),
        }
    }

    /// Takes `message`, which is for this receive and has come before.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] when the two differ; [`crate::Error::OutOfRange`] for buffers
    /// that are not allocated.
    fn take(&mut self, members: &Members, message: &UnexpectedMessage) -> Result<()> {
        let Self { state, contents } = self;
        (state.peer, state.signature) = (message.state.peer, state.signature.told(message.sent));
        if !state.signature.answers(message.sent) {
            return Err(members.board.report_mismatch(state.peer, state.signature, message.sent));
        }
        if let MessageContents::Received(output) = contents {
            output.write(members.view(), 0, &message.bytes)?;
        }
        (state.moved, state.stage) = (state.len, MessageStage::Done);
        Ok(())
    }

    /// Returns whether it has begun to receive: some of its message has left the pipe.
    fn has_begun(&self, in_place: &[InPlaceBlock<'_>]) -> bool {
        let is_kept =
            matches!(self.contents, MessageContents::ReceivedInPlace(block) if in_place[block].keeps_one());
        self.state.stage == MessageStage::Begun || is_kept
    }

    /// Does what can be done at this end now, without waiting, where the blocks are `in_place` that
    /// it may be about.
    ///
    /// # Errors
    /// Fails as [`progress::run`] does.
    #[inline]
    fn advance<L: Link>(
        &mut self,
        in_place: &[InPlaceBlock<'_>],
        pipes: &mut Pipes<'_, L>,
    ) -> Result<Progress> {
        let Self { state, contents } = self;
        let (stage, moved) = (state.stage, state.moved);
        let mut is_other = false;
        match contents {
            MessageContents::Sent(input) => state.send(input, Afterwards::Kept, pipes)?,
            MessageContents::Received(output) => is_other = state.receive(output, pipes)?,
            MessageContents::SentInPlace(block) => state.send_in_place(&in_place[*block], pipes)?,
            MessageContents::ReceivedInPlace(block) => {
                is_other = state.receive_in_place(&in_place[*block], pipes)?;
            }
        }
        if is_other {
            return Ok(Progress::Other);
        }
        let has_moved = state.stage != stage || state.moved != moved;
        Ok(if has_moved { Progress::Some } else { Progress::None })
    }
}
