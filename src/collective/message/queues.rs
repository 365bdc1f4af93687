//! The messages of a batch in queues, one for each end of a pipe that they go through, each in the
//! order of the calls.
//!
//! A pass looks at the first message of each queue that is not done. So its duration depends on how
//! many queues there are, and not on how many messages a group has.

use arrayvec::ArrayVec;

use super::progress::MessageBatch;
use super::{InPlaceBlock, MessageEnd};
use crate::collective::call::{ChannelKind, Operation};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::Pipework;
use crate::collective::transport::link::Bare;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::rank::MAX_RANKS;

/// The most queues: to each member and from it.
const MOST: usize = 2 * MAX_RANKS as usize;

/// No queue has this number.
const NONE: u8 = u8::MAX;

const _: () = assert!(MOST <= NONE as usize);

/// A batch in queues.
#[derive(Debug)]
pub(super) struct MessageQueues<'r, 'a> {
    pub(super) members: &'r Members,
    pipework: &'r mut Pipework,
    kind: ChannelKind,
    is_watched: bool,
    messages: &'r mut [MessageEnd<'a>],
    in_place: &'r [InPlaceBlock<'a>],
    /// The index of the first message of each queue that is not done; past the end where all are.
    heads: ArrayVec<usize, MOST>,
    /// The index of the message behind each in its queue; past the end for the last. Empty where
    /// each queue is of one.
    behind: Vec<usize>,
}

impl<'r, 'a> MessageQueues<'r, 'a> {
    /// Makes no queues yet for those of `batch`: see [`MessageQueues::fill`].
    #[inline]
    pub(super) fn new(batch: &'r mut MessageBatch<'_, '_, 'a>) -> Self {
        let MessageBatch { members, pipework, kind, messages, in_place } = batch;
        let kind = *kind;
        let is_watched = members.is_watched();
        let (heads, behind) = (ArrayVec::new(), Vec::new());
        Self { members, pipework, kind, is_watched, messages, in_place, heads, behind }
    }

    /// Makes the queues, where they stay: to move a kibibyte takes as long as to send a few bytes.
    #[inline]
    pub(super) fn fill(&mut self) {
        let mut lasts = ArrayVec::<usize, MOST>::new();
        let (mut numbers, end) = ([NONE; MOST], self.messages.len());
        for (at, message) in self.messages.iter().enumerate() {
            let number = &mut numbers[2 * message.state.peer + usize::from(message.is_sent())];
            if let Some(last) = lasts.get_mut(usize::from(*number)) {
                self.behind.resize(end, end);
                self.behind[std::mem::replace(last, at)] = at;
            } else {
                *number = u8::try_from(lasts.len()).expect("there are fewer queues");
                self.heads.push(at);
                lasts.push(at);
            }
        }
    }

    /// Returns whether no message is left.
    #[inline]
    pub(super) fn are_done(&self) -> bool {
        self.heads.iter().all(|&head| head >= self.messages.len())
    }

    /// Returns the first message that is not done, in the order of the calls.
    #[inline]
    pub(super) fn first(&self) -> Option<&MessageEnd<'a>> {
        self.messages.get(*self.heads.iter().min()?)
    }

    /// Returns the first message that is not done, or the last of all where all are done.
    pub(super) fn first_or_last(&self) -> Option<&MessageEnd<'a>> {
        self.first().or_else(|| self.messages.last())
    }

    /// Returns the first message of each queue that is not done, in the order of the calls.
    pub(super) fn open(&self) -> impl Iterator<Item = &MessageEnd<'a>> {
        let mut heads = self.heads.clone();
        heads.sort_unstable();
        heads.into_iter().filter_map(|head| self.messages.get(head))
    }

    /// Returns the first of those for each peer, with which there may be one to send and one to
    /// receive.
    pub(super) fn open_by_peer(&self) -> impl Iterator<Item = &MessageEnd<'a>> {
        let mut found = 0_u64;
        self.open().filter(move |message| {
            let bit = 1 << message.state.peer;
            let is_first = found & bit == 0;
            found |= bit;
            is_first
        })
    }

    /// Does what can be done now in each queue, without waiting; whether that was anything.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let (mut has_moved, end) = (false, self.messages.len());
        for head in &mut self.heads {
            let mut at = *head;
            // What is lent is left behind on the way: no more messages than a pipe has slots.
            while let Some(message) = self.messages.get_mut(at) {
                if !message.state.is_done() {
                    has_moved |= self.pipework.advance(
                        self.members,
                        message,
                        self.in_place,
                        self.kind,
                        self.is_watched,
                    )?;
                }
                let behind = self.behind.get(at).copied().unwrap_or(end);
                if *head == at && message.state.is_done() {
                    *head = behind;
                }
                if !message.state.is_in_pipe() {
                    break;
                }
                at = behind;
            }
        }
        Ok(has_moved)
    }

    /// Returns when all messages have left this member's heap.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<()> {
        self.pipework.flush_messages(self.members, self.kind)
    }
}

impl Pipework {
    /// Does what can be done now for `message`, one of those that share the blocks `in_place`, over
    /// pipes of `kind`, which are open; whether that was anything.
    ///
    /// # Errors
    /// Those of [`crate::collective::message::progress::run`].
    #[inline]
    pub(crate) fn advance(
        &mut self,
        members: &Members,
        message: &mut MessageEnd<'_>,
        in_place: &[InPlaceBlock<'_>],
        kind: ChannelKind,
        is_watched: bool,
    ) -> Result<bool> {
        let Self { ends, memory, ports, .. } = self;
        let operation = Operation::Send;
        match kind {
            ChannelKind::Memory => {
                let pipes = Pipes { members, operation, ends, channels: memory };
                message.advance_over(pipes, in_place, is_watched)
            }
            ChannelKind::Port => {
                let pipes = Pipes { members, operation, ends, channels: ports };
                message.advance_over(pipes, in_place, is_watched)
            }
        }
    }

    /// Returns when all messages over pipes of `kind` have left this member's heap.
    ///
    /// # Errors
    /// Those of [`crate::channel::Channel::flush`].
    #[inline]
    pub(crate) fn flush_messages(&mut self, members: &Members, kind: ChannelKind) -> Result<()> {
        let Self { ends, ports, .. } = self;
        match kind {
            // What a member's own core has moved is there, and the peers are awake.
            ChannelKind::Memory => Ok(()),
            ChannelKind::Port => {
                let operation = Operation::Send;
                Pipes::<Bare<_>> { members, operation, ends, channels: ports }.flush_and_wake()
            }
        }
    }
}
