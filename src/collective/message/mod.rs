//! Parcels: what one member sends another by a call of its own, and how they go through a pipe.
//!
//! A parcel is one message of the [pipe](crate::collective::transport::pipe) between the two, or several. In its slot, the first one starts with a header:
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | the sender's [`Summary`]: its operation, the type and the count of the elements |
//! | 16..24 | where the elements are in the sender's heap, or [`HERE`](slot::HERE) |
//! | 24..32 | the number of the message in its pipe |
//!
//! Elements follow the header: in a parcel that fits into the rest of its cache line there, otherwise from the next line on (a
//! long copy to a crooked place is slow), also in messages without a header. What comes at the two ends of a pipe goes
//! together in order, the k-th parcel that is sent with the k-th that is received; if they differ in type or count, the
//! receiver [complains](crate::collective::rendezvous::mismatch_report).
//!
//! A long parcel in the sender's heap, over direct channels, is *lent*: its only message says where it is, the receiver copies it
//! from there, and the sender waits until the receiver has given the slot back. Every other one is copied into slots, and the
//! sender is done when its last message is in the receiver's inbox. The sender alone chooses, by the length ([lent]), and the
//! header tells the receiver.
//!
//! Over proxied channels what is not in the heap is copied to a *desk* first, a place in this member's scratch for each
//! slot of each pipe. It is free again when the slot is; the scratch is not used by anything else in the meantime, as
//! nothing is left for the proxy when a call returns.
//!
//! A parcel of a few bytes takes no slot, but goes on a [card]. Two parcels, one each way, may share a block, which is then [replaced].

pub(crate) mod all_to_all_v;
pub(crate) mod deadlock;
pub(crate) mod in_place;
pub(crate) mod inline;
pub(crate) mod progress;
pub(crate) mod queues;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod state;

use crate::collective::call::{Call, ChannelKind, Input, Operation, Output, Summary};
use crate::collective::rendezvous::members::Team;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Pipes;
use crate::error::{Error, Result};
use crate::heap::Region;
pub(crate) use in_place::Replaced;
use state::{Course, Stage};

/// One end of a parcel. There is nothing to be dropped: many of them are made, moved and forgotten.
#[derive(Debug)]
pub(crate) struct Parcel<'a> {
    course: Course,
    contents: Contents<'a>,
}

const _: () = assert!(!std::mem::needs_drop::<Parcel<'_>>());

/// What a parcel is made of, or unpacked into.
#[derive(Debug)]
pub(crate) enum Contents<'a> {
    Sent(Input<'a>),
    Received(Output<'a>),
    /// Sent, from where another parcel is [taken](Self::Taken): the block of this number of those that are replaced.
    Given(usize),
    /// Received, over what was [given](Self::Given).
    Taken(usize),
}

impl<'a> Parcel<'a> {
    /// The parcel that a send or a receive is, whose buffer it takes.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] when the length cannot be counted.
    #[inline]
    pub(crate) fn of(call: &mut Call<'a>) -> Result<Self> {
        let contents = match call.operation {
            Operation::Recv => Contents::Received(std::mem::replace(&mut call.output, Output::None)),
            _ => Contents::Sent(std::mem::replace(&mut call.input, Input::None)),
        };
        Ok(Self::new(call.operation, call.summary(), call.root, call.block_len()?, contents))
    }

    /// The end of a parcel between this member and `peer`, of `len` bytes, by which it takes its part in a call like `summary`.
    #[inline]
    pub(crate) fn new(
        operation: Operation,
        summary: Summary,
        peer: usize,
        len: u64,
        contents: Contents<'a>,
    ) -> Self {
        Self { course: Course { summary, operation, peer, len, moved: 0, stage: Stage::Fresh }, contents }
    }

    /// Whether it is sent.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.contents, Contents::Sent(_) | Contents::Given(_))
    }

    /// Copies this parcel, which is sent, to the other end `received`, which is this member too.
    ///
    /// # Errors
    /// [`crate::Error::CallMismatch`] when the two differ; [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn copy_to(&self, team: &Team, received: &mut Self) -> Result<()> {
        let (mine, theirs) = (received.summary(), self.summary());
        if !mine.answers(theirs) {
            // Nobody else is wrong, but all wait for this member.
            team.board.object(mine);
            return Err(Error::CallMismatch { mine, rank: team.members()[team.me()], theirs });
        }
        let len = self.len();
        match (&self.contents, &mut received.contents) {
            (Contents::Sent(Input::Memory(bytes)), Contents::Received(output)) => {
                output.write(team.view(), 0, bytes)
            }
            (Contents::Sent(Input::Heap(offset)), Contents::Received(output)) => {
                let heap = team.heap_of(team.me(), Region::new(*offset, len))?;
                output.copy(team.view(), 0, heap, offset.get(), len)
            }
            _ => Ok(()),
        }
    }

    /// The call that it belongs to.
    pub(crate) fn operation(&self) -> Operation {
        self.course.operation
    }

    /// How many bytes this member has for it, or room.
    pub(crate) fn len(&self) -> u64 {
        self.course.len
    }

    /// What this member has called.
    pub(crate) fn summary(&self) -> Summary {
        self.course.summary
    }

    /// The member at the other end.
    #[inline]
    pub(crate) fn peer(&self) -> usize {
        self.course.peer
    }

    /// Whether there is nothing left to do at this end.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.course.stage == Stage::Done
    }

    /// Whether nothing more of it will be sent: a later one may follow.
    #[inline]
    pub(crate) fn is_in_pipe(&self) -> bool {
        self.course.is_in_pipe()
    }

    /// Does what can be done at this end now, without waiting, where the blocks are `replaced` that it may be about; whether that was
    /// anything.
    ///
    /// # Errors
    /// Those of [`progress::run`].
    #[inline]
    pub(crate) fn advance<L: Link>(
        &mut self,
        replaced: &[Replaced<'_>],
        pipes: &mut Pipes<'_, L>,
        kind: ChannelKind,
    ) -> Result<bool> {
        let Self { course, contents } = self;
        let (stage, moved) = (course.stage, course.moved);
        match contents {
            Contents::Sent(input) => course.send(input, pipes, kind)?,
            Contents::Received(output) => course.receive(output, pipes)?,
            Contents::Given(block) => course.give(&replaced[*block], pipes, kind)?,
            Contents::Taken(block) => course.take(&replaced[*block], pipes)?,
        }
        Ok(course.stage != stage || course.moved != moved)
    }
}
