//! The messages of a batch in queues, one for each end of a pipe that they go through, each in the
//! order of the calls.
//!
//! A pass looks at the first message of each queue that is not done. So its duration depends on how
//! many queues there are, and not on how many messages a group has. Once a message comes that is
//! not for the first receive of its queue, receives are found by [matching](super::matching). So
//! are those of any tag, and those from any member, which have a queue of their own.

use arrayvec::ArrayVec;

use super::matching::Matching;
use super::progress::MessageBatch;
use super::receive;
use super::state::ANY_SOURCE;
use super::unexpected::{UnexpectedMessage, UnexpectedMessages};
use super::{InPlaceBlock, MessageEnd, Progress};
use crate::collective::call::{CallSignature, ChannelKind, Operation, Output};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::{Bare, Link};
use crate::collective::transport::pipe::Pipes;
use crate::collective::transport::{PipeVisitor, Pipework};
use crate::error::Result;
use crate::rank::{MAX_RANKS, RankSet};

/// The most queues: to each member and from it. That from any takes the place of the one from this
/// member itself, which has no pipe.
const MOST: usize = 2 * MAX_RANKS as usize;

/// No queue has this number.
const NONE: u16 = u16::MAX;

const _: () = assert!(MOST <= NONE as usize);

/// How many messages a batch has for which looking through its queues takes less than a table does.
const SHORT: usize = 8;

/// A batch in queues.
#[derive(Debug)]
pub(super) struct MessageQueues<'r, 'a> {
    pub(super) members: &'r Members,
    pipework: &'r mut Pipework,
    unexpected: &'r mut UnexpectedMessages,
    kind: ChannelKind,
    is_watched: bool,
    messages: &'r mut [MessageEnd<'a>],
    in_place: &'r [InPlaceBlock<'a>],
    /// The index of the first message of each queue that is not done; past the end where all are.
    heads: ArrayVec<u32, MOST>,
    /// The index of the message behind each in its queue; past the end for the last. Empty where
    /// each queue is of one.
    behind: Vec<usize>,
    /// Finds the receives that messages are for, where that is not the first one of a queue.
    matching: Option<Box<Matching>>,
}

impl<'r, 'a> MessageQueues<'r, 'a> {
    /// Makes no queues yet for those of `batch`: see [`MessageQueues::fill`].
    #[inline]
    pub(super) fn new(batch: &'r mut MessageBatch<'_, '_, 'a>) -> Self {
        let MessageBatch { members, pipework, unexpected, kind, messages, in_place } = batch;
        let kind = *kind;
        let is_watched = members.is_watched();
        let (heads, behind, matching) = (ArrayVec::new(), Vec::new(), None);
        Self { members, pipework, unexpected, kind, is_watched, messages, in_place, heads, behind, matching }
    }

    /// Makes the queues, where they stay: to move a kibibyte takes as long as to send a few bytes.
    #[inline]
    pub(super) fn fill(&mut self) {
        let mut lasts = ArrayVec::<u32, MOST>::new();
        let end = self.messages.len();
        let mut numbers = QueueNumbers::new(end, self.members.n_members());
        let (me, mut is_from_any) = (self.members.me(), false);
        for (at, message) in (0..).zip(self.messages.iter_mut()) {
            if message.state.peer == ANY_SOURCE {
                message.state.peer = self.members.only_other().unwrap_or(ANY_SOURCE);
            }
            let peer = if message.state.peer == ANY_SOURCE { me } else { message.state.peer };
            is_from_any |= peer == me || message.state.signature.has_any_tag();
            let number = numbers.number(2 * peer + usize::from(message.is_sent()), lasts.len());
            if let Some(last) = lasts.get_mut(number) {
                self.behind.resize(end, end);
                self.behind[std::mem::replace(last, at) as usize] = at as usize;
            } else {
                self.heads.push(at);
                lasts.push(at);
            }
        }
        if is_from_any || self.unexpected.len() > 0 && self.may_have_come() {
            self.matching = Some(self.begin_matching());
        }
    }

    /// Returns whether an unexpected message may be for a receive.
    #[cold]
    fn may_have_come(&self) -> bool {
        let mut heads = self.heads.iter().map(|&head| &self.messages[head as usize]);
        heads.any(|message| !message.is_sent() && self.unexpected.has_some_of(message.state.peer))
    }

    /// Returns whether no message is left.
    #[inline]
    pub(super) fn are_done(&self) -> bool {
        self.heads.iter().all(|&head| head as usize >= self.messages.len())
    }

    /// Returns the first message that is not done, in the order of the calls.
    #[inline]
    pub(super) fn first(&self) -> Option<&MessageEnd<'a>> {
        self.messages.get(*self.heads.iter().min()? as usize)
    }

    /// Returns the first message that is not done, or the last of all where all are done.
    pub(super) fn first_or_last(&self) -> Option<&MessageEnd<'a>> {
        self.first().or_else(|| self.messages.last())
    }

    /// Returns the first message of each queue that is not done, in the order of the calls.
    pub(super) fn open(&self) -> impl Iterator<Item = &MessageEnd<'a>> {
        let mut heads = self.heads.clone();
        heads.sort_unstable();
        heads.into_iter().filter_map(|head| self.messages.get(head as usize))
    }

    /// Returns the first receive from any member, if no message was found for it.
    pub(super) fn open_to_any(&self) -> Option<&MessageEnd<'a>> {
        self.open().find(|message| message.state.peer == ANY_SOURCE)
    }

    /// Returns whether the message in front of the pipe from `source` is to be passed over, and has
    /// no room elsewhere.
    pub(super) fn is_stalled(&self, source: usize) -> bool {
        self.matching.as_ref().is_some_and(|matching| matching.sources[source].is_stalled)
    }

    /// Returns the open ones whose peer is known.
    pub(super) fn open_with_peer(&self) -> impl Iterator<Item = &MessageEnd<'a>> {
        self.open().filter(|message| message.state.peer != ANY_SOURCE)
    }

    /// Returns the first of those for each peer, with which there may be one to send and one to
    /// receive.
    pub(super) fn open_by_peer(&self) -> impl Iterator<Item = &MessageEnd<'a>> {
        let (mut found, ranks) = (RankSet::default(), self.members.ranks());
        self.open_with_peer().filter(move |message| found.insert(ranks[message.state.peer]))
    }

    /// Does what can be done now in each queue, without waiting; whether that was anything.
    #[inline]
    pub(super) fn advance(&mut self) -> Result<bool> {
        let (mut has_moved, mut is_out_of_order, end) = (false, false, self.messages.len());
        let is_matching = self.matching.is_some();
        for head in &mut self.heads {
            let mut at = *head as usize;
            // Messages that await their rendezvous get are passed over. There are no more of them
            // than slots of a pipe.
            while let Some(message) = self.messages.get_mut(at) {
                if is_matching && !message.is_sent() {
                    break;
                }
                if !message.state.is_done() {
                    let visitor = Advance { message: &mut *message, in_place: self.in_place };
                    match self.pipework.visit(self.members, self.kind, self.is_watched, visitor)? {
                        Progress::None => {}
                        Progress::Some => has_moved = true,
                        Progress::Other => is_out_of_order = true,
                    }
                }
                let behind = self.behind.get(at).copied().unwrap_or(end);
                if *head as usize == at && message.state.is_done() {
                    *head = short_index(behind);
                }
                if !message.state.is_in_pipe() {
                    break;
                }
                at = behind;
            }
        }
        if is_matching || is_out_of_order {
            has_moved |= self.advance_matching()?;
        }
        Ok(has_moved)
    }

    /// Does what can be done now for the receives, whichever message comes first.
    #[cold]
    fn advance_matching(&mut self) -> Result<bool> {
        let mut matching = match self.matching.take() {
            Some(matching) => matching,
            None => self.begin_matching(),
        };
        let has_moved = self.visit_sources(&mut matching);
        self.matching = Some(matching);
        let end = self.messages.len();
        for head in &mut self.heads {
            while self.messages.get(*head as usize).is_some_and(|message| message.state.is_done()) {
                *head = short_index(self.behind.get(*head as usize).copied().unwrap_or(end));
            }
        }
        has_moved
    }

    fn begin_matching(&self) -> Box<Matching> {
        let (n, in_place) = (self.members.n_members(), self.in_place);
        let has_begun = |message: &MessageEnd<'_>| message.has_begun(in_place);
        Box::new(Matching::new(self.messages, n, self.unexpected, has_begun))
    }

    fn visit_sources(&mut self, matching: &mut Matching) -> Result<bool> {
        let (n, me, first) = (self.members.n_members(), self.members.me(), self.unexpected.next_source);
        let mut has_moved = false;
        for source in (first..first + n).map(|member| member % n).filter(|&source| source != me) {
            has_moved |= self.visit_source(matching, source)?;
        }
        Ok(has_moved)
    }

    /// Does the first of what can be done for `source`: see [`super::matching`].
    fn visit_source(&mut self, matching: &mut Matching, source: usize) -> Result<bool> {
        if self.unexpected.unfinished(source).is_some() {
            return self.take_unexpected(matching, source);
        }
        if std::mem::take(&mut matching.sources[source].may_have_come)
            && matching.awaits(source)
            && self.match_unexpected(matching, source)?
        {
            matching.sources[source].may_have_come = true;
            return Ok(true);
        }
        let turn = match matching.sources[source].turn {
            Some(at) => Some(at),
            None => self.match_front(matching, source)?,
        };
        match turn {
            Some(at) => self.take_turn(matching, source, at),
            // It has been passed over, if there was one.
            None => self.take_unexpected(matching, source),
        }
    }

    /// Takes an unexpected message further that has begun to come from `source`, if there is one.
    fn take_unexpected(&mut self, matching: &mut Matching, source: usize) -> Result<bool> {
        let Self { members, pipework, unexpected, kind, is_watched, .. } = self;
        let Some(message) = unexpected.unfinished(source) else { return Ok(false) };
        let visitor = TakeUnexpected(message);
        let has_moved = pipework.visit(members, *kind, *is_watched, visitor)?;
        if unexpected.unfinished(source).is_none() {
            let from = &mut matching.sources[source];
            from.may_have_come |= !std::mem::take(&mut from.is_passed_over);
        }
        Ok(has_moved)
    }

    /// Gives the first unexpected message of `source` that is for a receive to that; whether there
    /// was one.
    fn match_unexpected(&mut self, matching: &mut Matching, source: usize) -> Result<bool> {
        let Self { members, unexpected, messages, .. } = self;
        let found = {
            let mut all = unexpected.of(source).enumerate();
            all.find_map(|(index, message)| Some((index, matching.take(messages, source, message.sent)?)))
        };
        let Some((index, at)) = found else { return Ok(false) };
        let Some(message) = unexpected.take(source, index) else { return Ok(false) };
        let receive = &mut messages[at];
        if receive.state.peer != source {
            unexpected.next_source = source + 1;
        }
        receive.take(members, &message)?;
        Ok(true)
    }

    /// Returns the receive that the message in front of the pipe from `source` is for, which has
    /// its turn there from now on. If there is none, makes room for that message elsewhere.
    fn match_front(&mut self, matching: &mut Matching, source: usize) -> Result<Option<usize>> {
        let Self { members, pipework, unexpected, messages, kind, is_watched, .. } = self;
        if !matching.awaits(source) {
            return Ok(None);
        }
        let Some(sent) = pipework.visit(members, *kind, *is_watched, LookAtFront(source))? else {
            return Ok(None);
        };
        let Some(at) = matching.take(messages, source, sent) else {
            let first = matching.first_for(messages, source).filter(|_| !sent.may_be_passed_over());
            if let Some(first) = first {
                return Err(members.board.report_mismatch(source, messages[first].state.signature, sent));
            }
            let has_room = unexpected.admit(source, sent).is_some();
            let from = &mut matching.sources[source];
            (from.is_passed_over, from.is_stalled) = (has_room, !has_room);
            return Ok(None);
        };
        messages[at].state.signature = messages[at].state.signature.told(sent);
        if messages[at].state.peer != source {
            messages[at].state.peer = source;
            unexpected.next_source = source + 1;
        }
        matching.sources[source].turn = Some(at);
        Ok(Some(at))
    }

    /// Takes what has come for the receive numbered `at`, which has its turn.
    fn take_turn(&mut self, matching: &mut Matching, source: usize, at: usize) -> Result<bool> {
        let message = &mut self.messages[at];
        let visitor = Advance { message, in_place: self.in_place };
        let progress = self.pipework.visit(self.members, self.kind, self.is_watched, visitor)?;
        if self.messages[at].state.is_done() {
            matching.sources[source].turn = None;
        }
        Ok(progress == Progress::Some)
    }

    /// Returns when all messages have left this member's heap.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<()> {
        self.pipework.flush_messages(self.members, self.kind)
    }
}

/// Returns the index of a message as the heads of queues keep it.
#[inline]
fn short_index(at: usize) -> u32 {
    u32::try_from(at).expect("a group has at most 65,536 calls")
}

/// The numbers of the queues of a batch.
struct QueueNumbers {
    /// The ends of pipes that have a queue, in the order of their numbers, in a short batch.
    ends: ArrayVec<u16, SHORT>,
    /// The number of each end of a pipe, in another one.
    table: Vec<u16>,
}

impl QueueNumbers {
    #[inline]
    fn new(n_messages: usize, n_members: usize) -> Self {
        let table = if n_messages > SHORT { vec![NONE; 2 * n_members] } else { Vec::new() };
        Self { ends: ArrayVec::new(), table }
    }

    /// Returns the number of the queue of `end`: `next` where it had none.
    #[inline]
    fn number(&mut self, end: usize, next: usize) -> usize {
        let short = |number: usize| u16::try_from(number).expect("there are at most 512 of them");
        if let Some(number) = self.table.get_mut(end) {
            if *number == NONE {
                *number = short(next);
            }
            return usize::from(*number);
        }
        let found = self.ends.iter().position(|known| usize::from(*known) == end);
        found.unwrap_or_else(|| {
            self.ends.push(short(end));
            next
        })
    }
}

/// Does what can be done at one end of a message.
struct Advance<'e, 'a> {
    message: &'e mut MessageEnd<'a>,
    in_place: &'e [InPlaceBlock<'a>],
}

impl PipeVisitor for Advance<'_, '_> {
    type Outcome = Progress;

    #[inline]
    fn visit<L: Link>(self, pipes: &mut Pipes<'_, L>) -> Result<Progress> {
        self.message.advance(self.in_place, pipes)
    }
}

/// Takes what has come of an unexpected message; whether that was anything.
struct TakeUnexpected<'e>(&'e mut UnexpectedMessage);

impl PipeVisitor for TakeUnexpected<'_> {
    type Outcome = bool;

    fn visit<L: Link>(self, pipes: &mut Pipes<'_, L>) -> Result<bool> {
        let UnexpectedMessage { state, bytes, .. } = self.0;
        let before = (state.stage, state.moved);
        state.receive(&mut Output::Memory(bytes), pipes)?;
        Ok((state.stage, state.moved) != before)
    }
}

/// Looks at the message in front of the pipe from a member.
struct LookAtFront(usize);

impl PipeVisitor for LookAtFront {
    type Outcome = Option<CallSignature>;

    fn visit<L: Link>(self, pipes: &mut Pipes<'_, L>) -> Result<Option<CallSignature>> {
        receive::front(pipes, self.0)
    }
}

impl Pipework {
    /// Returns when all messages over pipes of `kind` have left this member's heap.
    ///
    /// # Errors
    /// Fails as [`crate::channel::Channel::flush`] does.
    #[inline]
    pub(crate) fn flush_messages(&mut self, members: &Members, kind: ChannelKind) -> Result<()> {
        let Self { ends, ports, .. } = self;
        match kind {
            // A member's own core has moved the data already, and the peers are awake.
            ChannelKind::Memory => Ok(()),
            ChannelKind::Port => {
                let operation = Operation::Send;
                Pipes::<Bare<_>> { members, operation, ends, channels: ports }.flush_and_wake()
            }
        }
    }
}
