//! Finds the receives that messages are for, where these do not come in the order of the receives:
//! by tag, and from any member.
//!
//! Members are visited in turn. At a visit, whatever comes first is done, and at most one message:
//! 1. An [unexpected](super::unexpected) message that has begun to come is taken further.
//! 2. One that has come before this call goes to the first receive that it is for.
//! 3. The message in front of the pipe goes to the first receive that it is for: the receive has
//!    its *turn* at that pipe until it is done.
//! 4. If there is none, and some receive of this call may still be for a message behind it, it is
//!    passed over.
//!
//! Messages of a member are looked at in their order, and receives in the order of the calls. So
//! those of one tag are received in the order in which they were sent.
//!
//! A receive from any member takes the first message that it meets, and the next visits begin
//! behind that member. So a member that always has a message is not served twice before another one
//! whose message is there.

use std::collections::VecDeque;

use super::MessageEnd;
use super::state::ANY_SOURCE;
use super::unexpected::UnexpectedMessages;
use crate::collective::call::CallSignature;

/// The receives of a batch that are not done.
#[derive(Debug)]
pub(super) struct Matching {
    /// The receives that no message was found for, by their numbers in the batch, in that order.
    open: VecDeque<usize>,
    pub(super) sources: Vec<Source>,
    /// How many of them are for any member.
    n_for_any: usize,
}

/// One member, as those receives see it.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The receive that has its turn at the pipe.
    pub(super) turn: Option<usize>,
    /// How many receives are open for this member alone.
    n_open: usize,
    /// Whether an unexpected message of it may be for one of them.
    pub(super) may_have_come: bool,
    /// Whether a message of it is being passed over, which is for none of them.
    pub(super) is_passed_over: bool,
    /// Whether the message in front of its pipe was to be passed over, and there was no room.
    pub(super) is_stalled: bool,
}

impl Matching {
    /// Begins with the receives of `messages`, which are between `n_members`; those that say
    /// `has_begun` have their turn.
    pub(super) fn new(
        messages: &[MessageEnd<'_>],
        n_members: usize,
        unexpected: &UnexpectedMessages,
        has_begun: impl Fn(&MessageEnd<'_>) -> bool,
    ) -> Self {
        let source = |member| Source { may_have_come: unexpected.has_some_of(member), ..Source::default() };
        let sources = (0..n_members).map(source).collect();
        let mut matching = Self { open: VecDeque::new(), sources, n_for_any: 0 };
        for (at, message) in messages.iter().enumerate() {
            if message.is_sent() || message.state.is_done() {
                continue;
            }
            if has_begun(message) {
                matching.sources[message.state.peer].turn = Some(at);
                continue;
            }
            matching.open.push_back(at);
            *matching.count_of(message.state.peer) += 1;
        }
        matching
    }

    fn count_of(&mut self, peer: usize) -> &mut usize {
        if peer == ANY_SOURCE { &mut self.n_for_any } else { &mut self.sources[peer].n_open }
    }

    /// Returns whether some open receive may be for a message of `source`.
    pub(super) fn awaits(&self, source: usize) -> bool {
        self.n_for_any > 0 || self.sources[source].n_open > 0
    }

    /// Returns the first open receive of `messages` that is for a message of `source`, sent like
    /// `sent`, which is open no more.
    pub(super) fn take(
        &mut self,
        messages: &[MessageEnd<'_>],
        source: usize,
        sent: CallSignature,
    ) -> Option<usize> {
        let is_for = |&at: &usize| messages[at].state.is_for(source, sent);
        let place = self.open.iter().position(is_for)?;
        let at = self.open.remove(place)?;
        *self.count_of(messages[at].state.peer) -= 1;
        Some(at)
    }

    /// Returns the first open receive that may be for a message of `source`.
    pub(super) fn first_for(&self, messages: &[MessageEnd<'_>], source: usize) -> Option<usize> {
        self.open.iter().copied().find(|&at| messages[at].state.may_come_from(source))
    }
}

#[cfg(test)]
mod tests {
    use super::super::MessageContents;
    use super::*;
    use crate::collective::call::{Operation, Output};
    use crate::reduce::DataType;

    fn receive(operation: Operation, peer: usize, tag: u32) -> MessageEnd<'static> {
        let signature = CallSignature::new(operation).of(1, DataType::U8).tagged(tag);
        MessageEnd::new(operation, signature, peer, 1, MessageContents::Received(Output::None))
    }

    fn sent(tag: u32) -> CallSignature {
        CallSignature::new(Operation::Send).of(1, DataType::U8).tagged(tag)
    }

    #[test]
    fn a_message_goes_to_the_first_call_that_it_is_for() {
        let (one, any) = (Operation::Recv, Operation::RecvAny);
        let messages = [
            receive(one, 1, 7),
            receive(one, 2, 7),
            receive(any, ANY_SOURCE, 7),
            receive(one, 1, 7),
            receive(one, 1, 8),
            receive(any, ANY_SOURCE, 8),
        ];
        let mut matching = Matching::new(&messages, 4, &UnexpectedMessages::default(), |_| false);
        let mut take = |source, tag| matching.take(&messages, source, sent(tag));
        assert_eq!(take(1, 9), None);
        assert_eq!((take(1, 8), take(1, 8), take(1, 8)), (Some(4), Some(5), None));
        assert_eq!((take(1, 7), take(3, 7), take(3, 7)), (Some(0), Some(2), None));
        assert_eq!((take(1, 7), take(1, 7)), (Some(3), None));
        assert!(matching.awaits(2) && !matching.awaits(1) && !matching.awaits(3));
    }

    #[test]
    fn a_receive_that_has_begun_has_its_turn_and_is_open_no_more() {
        let messages = [receive(Operation::Recv, 1, 7), receive(Operation::Recv, 1, 8)];
        let has_begun = |message: &MessageEnd<'_>| message.state.signature.tag() == Some(8);
        let mut matching = Matching::new(&messages, 2, &UnexpectedMessages::default(), has_begun);
        assert_eq!((matching.sources[1].turn, matching.take(&messages, 1, sent(8))), (Some(1), None));
        assert_eq!(matching.first_for(&messages, 1), Some(0));
        assert_eq!(matching.first_for(&messages, 0), None);
    }
}
