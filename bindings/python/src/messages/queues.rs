//! Receives that were posted, unexpected messages, and the ranks that have ended.
//!
//! A message goes to the first receive that it is for, in the order in which receives were posted.
//! A receive takes the first unexpected message that is for it, in the order in which messages
//! came. So messages of one rank do not overtake each other.

use std::collections::VecDeque;

use shmccl::{MessageSelector, Rank};

/// The receives of one communicator that no message has come for, and the messages that none was
/// posted for. Receives are `R`, messages `M`.
pub struct ReceiveQueues<R, M> {
    posted: VecDeque<(MessageSelector, R)>,
    unexpected: VecDeque<(Envelope, M)>,
    /// Whether each rank has ended.
    has_ended: Vec<bool>,
    rank: Rank,
}

/// By what a message is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The rank that has sent it.
    pub source: Rank,
    /// Its tag.
    pub tag: u32,
}

impl Envelope {
    /// Returns whether a receive takes the message.
    pub fn is_for(self, selector: &MessageSelector) -> bool {
        selector.source.is_none_or(|source| source == self.source)
            && selector.tag.is_none_or(|tag| tag == self.tag)
    }
}

impl<R, M> ReceiveQueues<R, M> {
    /// Makes empty ones of `rank`, one of `size`.
    pub fn new(rank: Rank, size: u32) -> Self {
        let has_ended = vec![false; size as usize];
        Self { posted: VecDeque::new(), unexpected: VecDeque::new(), has_ended, rank }
    }

    /// Returns the first unexpected message that is for `selector`.
    pub fn find(&self, selector: &MessageSelector) -> Option<&M> {
        self.unexpected.iter().find(|(envelope, _)| envelope.is_for(selector)).map(|(_, message)| message)
    }

    /// Takes that one.
    pub fn take(&mut self, selector: &MessageSelector) -> Option<M> {
        let at = self.unexpected.iter().position(|(envelope, _)| envelope.is_for(selector))?;
        self.unexpected.remove(at).map(|(_, message)| message)
    }

    /// Adds a message that no receive is for.
    pub fn keep(&mut self, envelope: Envelope, message: M) {
        self.unexpected.push_back((envelope, message));
    }

    /// Returns the unexpected messages in their order.
    pub fn unexpected(&self) -> impl Iterator<Item = &M> {
        self.unexpected.iter().map(|(_, message)| message)
    }

    /// Posts a receive that no unexpected message is for.
    pub fn post(&mut self, selector: MessageSelector, receive: R) {
        self.posted.push_back((selector, receive));
    }

    /// Takes the first receive that a message is for.
    pub fn matched(&mut self, envelope: Envelope) -> Option<R> {
        let at = self.posted.iter().position(|(selector, _)| envelope.is_for(selector))?;
        self.posted.remove(at).map(|(_, receive)| receive)
    }

    /// Withdraws the receives that `is_meant`, and returns them.
    pub fn withdraw(&mut self, is_meant: impl Fn(&MessageSelector, &R) -> bool) -> Vec<R> {
        let (withdrawn, left) =
            self.posted.drain(..).partition(|(selector, receive)| is_meant(selector, receive));
        self.posted = left;
        let withdrawn: VecDeque<_> = withdrawn;
        withdrawn.into_iter().map(|(_, receive)| receive).collect()
    }

    /// Returns whether some receive waits for a message.
    pub fn has_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Hears that a rank has ended, and returns the receives that wait in vain.
    pub fn end(&mut self, rank: Rank) -> Vec<R> {
        self.has_ended[rank.index()] = true;
        let has_ended = std::mem::take(&mut self.has_ended);
        let own = self.rank;
        let withdrawn = self.withdraw(|selector, _| lost(&has_ended, own, selector).is_some());
        self.has_ended = has_ended;
        withdrawn
    }

    /// Returns whether a rank has ended.
    pub fn has_ended(&self, rank: Rank) -> bool {
        self.has_ended[rank.index()]
    }

    /// Returns whether all other ranks have ended.
    pub fn is_alone(&self) -> bool {
        self.has_ended.iter().filter(|has_ended| !**has_ended).count() == 1
    }

    /// Returns a rank that has ended where no more messages for `selector` can come from any.
    pub fn lost(&self, selector: &MessageSelector) -> Option<Rank> {
        lost(&self.has_ended, self.rank, selector)
    }
}

fn lost(has_ended: &[bool], own: Rank, selector: &MessageSelector) -> Option<Rank> {
    let size = u32::try_from(has_ended.len()).unwrap_or(u32::MAX);
    let ranks = (0..size).filter_map(|rank| Rank::new(rank, size).ok());
    let mut sources = ranks.filter(|rank| selector.source.map_or(*rank != own, |source| source == *rank));
    let first = sources.next().filter(|rank| has_ended[rank.index()])?;
    sources.all(|rank| has_ended[rank.index()]).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32) -> Rank {
        Rank::new(rank, 3).unwrap()
    }

    fn queues() -> ReceiveQueues<u32, u32> {
        ReceiveQueues::new(rank(0), 3)
    }

    fn from(source: u32, tag: u32) -> Envelope {
        Envelope { source: rank(source), tag }
    }

    fn of(source: Option<u32>, tag: Option<u32>) -> MessageSelector {
        MessageSelector { source: source.map(rank), tag }
    }

    #[test]
    fn a_message_goes_to_the_first_receive_that_it_is_for() {
        let mut queues = queues();
        for (number, selector) in
            [(1, of(Some(1), Some(7))), (2, of(None, Some(8))), (3, of(Some(1), None)), (4, of(None, None))]
        {
            queues.post(selector, number);
        }
        assert_eq!(queues.matched(from(2, 7)), Some(4));
        assert_eq!((queues.matched(from(1, 7)), queues.matched(from(1, 7))), (Some(1), Some(3)));
        assert_eq!((queues.matched(from(1, 7)), queues.matched(from(2, 8))), (None, Some(2)));
        assert!(!queues.has_posted());
    }

    #[test]
    fn unexpected_messages_of_one_rank_and_tag_are_taken_in_their_order() {
        let mut queues = queues();
        for (number, envelope) in [(1, from(1, 7)), (2, from(2, 7)), (3, from(1, 8)), (4, from(1, 7))] {
            queues.keep(envelope, number);
        }
        assert_eq!(queues.find(&of(Some(1), Some(8))), Some(&3));
        assert_eq!(queues.take(&of(Some(2), None)), Some(2));
        let taken: Vec<_> = (0..4).map(|_| queues.take(&of(None, Some(7)))).collect();
        assert_eq!(taken, [Some(1), Some(4), None, None]);
        assert_eq!(queues.take(&of(None, None)), Some(3));
    }

    #[test]
    fn receives_of_ranks_that_have_ended_are_lost_and_others_are_not() {
        let mut queues = queues();
        for (number, selector) in [(1, of(Some(1), None)), (2, of(None, Some(7))), (3, of(Some(0), None))] {
            queues.post(selector, number);
        }
        assert_eq!(queues.end(rank(1)), [1]);
        assert_eq!((queues.lost(&of(Some(1), None)), queues.lost(&of(None, None))), (Some(rank(1)), None));
        assert!(!queues.is_alone());
        assert_eq!(queues.end(rank(2)), [2]);
        assert_eq!(queues.lost(&of(None, None)), Some(rank(1)));
        assert!(queues.is_alone() && queues.has_posted() && queues.has_ended(rank(2)));
    }

    #[test]
    fn nobody_is_lost_to_a_rank_that_is_alone_from_the_start() {
        let one = Rank::new(0, 1).unwrap();
        let queues = ReceiveQueues::<u32, u32>::new(one, 1);
        assert!(queues.is_alone() && queues.lost(&MessageSelector::default()).is_none());
    }
}
