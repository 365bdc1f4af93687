//! Unexpected messages: those that a receive has passed over, since it was for another tag.
//!
//! A message that no receive of a call is for is copied out of its pipe, or by a rendezvous get, to
//! ordinary memory of this process, by the same steps as one that is received. Its sender
//! goes on as if it had been. A later call finds it here, before it looks at the pipe. So messages
//! of one tag stay in the order in which they were sent.
//!
//! # Bound
//! A receive passes over messages of a member as long as fewer than [`LIMIT`] bytes of that
//! member's lie here. From then on they stay in the pipe, and their sender waits. Nothing is lost.
//! If that sender waits for a receive which is behind them, both are told
//! ([`super::deadlock`]).

use std::collections::VecDeque;

use super::state::{MessageStage, MessageState};
use crate::collective::call::{CallSignature, Operation};

/// The most bytes of one member's messages at which another one is passed over.
pub(super) const LIMIT: u64 = 32 << 20;

/// The bytes that a message counts for besides its elements.
const OVERHEAD: u64 = size_of::<UnexpectedMessage>() as u64;

/// The unexpected messages of one communicator.
#[derive(Debug, Default)]
pub(crate) struct UnexpectedMessages {
    /// The messages of each member that has sent some, in the order in which it has; empty where
    /// there were none yet.
    by_source: Vec<Backlog>,
    /// How many there are.
    n_messages: u64,
    /// The member whose turn it is to be looked at first by a receive from any.
    pub(super) next_source: usize,
}

/// The unexpected messages of one member.
#[derive(Debug, Default)]
struct Backlog {
    messages: VecDeque<UnexpectedMessage>,
    bytes: u64,
}

/// A message that has come, or is about to.
#[derive(Debug)]
pub(super) struct UnexpectedMessage {
    /// What it was sent as.
    pub(super) sent: CallSignature,
    /// How far it has come. Only the last one of a member is not done.
    pub(super) state: MessageState,
    pub(super) bytes: Vec<u8>,
}

impl UnexpectedMessages {
    /// Returns how many there are.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.n_messages
    }

    /// Returns whether there are some of `source`.
    pub(super) fn has_some_of(&self, source: usize) -> bool {
        self.by_source.get(source).is_some_and(|backlog| !backlog.messages.is_empty())
    }

    /// Returns the message of `source` that has not come in full, if there is one.
    pub(super) fn unfinished(&mut self, source: usize) -> Option<&mut UnexpectedMessage> {
        let last = self.by_source.get_mut(source)?.messages.back_mut()?;
        (!last.state.is_done()).then_some(last)
    }

    /// Returns the messages of `source` that have come in full, in their order.
    pub(super) fn of(&self, source: usize) -> impl Iterator<Item = &UnexpectedMessage> {
        let messages = self.by_source.get(source).into_iter().flat_map(|backlog| &backlog.messages);
        messages.filter(|message| message.state.is_done())
    }

    /// Takes message number `index` of `source`.
    pub(super) fn take(&mut self, source: usize, index: usize) -> Option<UnexpectedMessage> {
        let backlog = self.by_source.get_mut(source)?;
        let message = backlog.messages.remove(index)?;
        backlog.bytes -= message.cost();
        self.n_messages -= 1;
        Some(message)
    }

    /// Makes room for a message of `source` that was sent like `sent`; none if it has to wait.
    pub(super) fn admit(&mut self, source: usize, sent: CallSignature) -> Option<()> {
        if self.by_source.len() <= source {
            self.by_source.resize_with(source + 1, Backlog::default);
        }
        let backlog = self.by_source.get_mut(source)?;
        if backlog.bytes >= LIMIT {
            return None;
        }
        let message = UnexpectedMessage::new(source, sent)?;
        backlog.bytes += message.cost();
        backlog.messages.push_back(message);
        self.n_messages += 1;
        Some(())
    }
}

impl UnexpectedMessage {
    /// Makes room for it; none where there is no memory.
    fn new(source: usize, sent: CallSignature) -> Option<Self> {
        let (operation, data_type) = (Operation::Recv, sent.data_type()?);
        let len = sent.count().checked_mul(data_type.size() as u64)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(len).ok()?).ok()?;
        bytes.resize(bytes.capacity(), 0);
        let signature =
            CallSignature::new(operation).of(sent.count(), data_type).tagged(sent.tag().unwrap_or(0));
        let state =
            MessageState { signature, operation, peer: source, len, moved: 0, stage: MessageStage::Fresh };
        Some(Self { sent, state, bytes })
    }

    fn cost(&self) -> u64 {
        self.state.len + OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::DataType;

    fn sent(count: u64, tag: u32) -> CallSignature {
        CallSignature::new(Operation::Send).of(count, DataType::U8).tagged(tag)
    }

    #[test]
    fn a_member_may_be_ahead_by_so_many_bytes_and_one_message() {
        let mut unexpected = UnexpectedMessages::default();
        assert!(unexpected.admit(1, sent(LIMIT - OVERHEAD - 1, 7)).is_some());
        assert!(unexpected.admit(1, sent(3 << 20, 7)).is_some(), "one byte is left");
        assert!(unexpected.admit(1, sent(0, 7)).is_none());
        assert!(unexpected.admit(2, sent(0, 7)).is_some(), "another member has room of its own");
        assert_eq!(unexpected.len(), 3);
        assert!(unexpected.take(1, 0).is_some() && unexpected.take(1, 1).is_none());
        assert!(unexpected.admit(1, sent(0, 7)).is_some());
        assert_eq!(unexpected.len(), 3);
    }

    #[test]
    fn what_has_no_length_or_is_too_long_for_memory_waits() {
        let mut unexpected = UnexpectedMessages::default();
        assert!(unexpected.admit(0, CallSignature::new(Operation::Send)).is_none());
        assert!(
            unexpected.admit(0, CallSignature::new(Operation::Send).of(1 << 47, DataType::F64)).is_none()
        );
        assert_eq!(unexpected.len(), 0);
        assert!(!unexpected.has_some_of(0));
    }
}
