//! How members of a communicator agree on channel slots, one towards each other member, for
//! channels that all of them open at once.
//!
//! Both ends of a channel have to be in the slot of one number, and what is free differs from rank
//! to rank: other communicators open channels at the same time in other threads, and programs open
//! and drop some. So of two members the one of the lower rank in the job, whatever their order
//! here, *decides*, and the other one *follows*. In each round they tell each other twice:
//!
//! | exchange | the one that decides tells | the one that follows tells |
//! |---|---|---|
//! | offer | its highest free slot, which it has reserved | nothing |
//! | answer | that slot again | that number, reserved; if taken here, the highest free below |
//!
//! A slot that was refused is free again, and the next round offers one no higher than the answer.
//! What was agreed on stays. The slots on one side alone decide between communicators that open
//! channels at once. So these never wait for each other, nor take the same slot. As each number is
//! lower than the one before, there are as many rounds as slots at most, and one as a rule.
//!
//! All members read all answers. So all know whether everybody has its slots, or which member could
//! not have one; then nobody takes any. A last exchange lies between the look at the semaphores and
//! the first signal: what a dropped channel has left there is not heard by the next one.

use crate::channel::{MAX_CHANNELS_PER_PEER, ReservedSlot};
use crate::collective::call::{CallSignature, Operation};
use crate::collective::rendezvous::members::Members;
use crate::collective::rendezvous::post::INLINE_WORDS;
use crate::error::Result;

/// Bits of a slot's number.
const SEAT_BITS: usize = 4;
/// ChannelSlots in a word.
const PER_WORD: usize = 64 / SEAT_BITS;

/// Takes a slot towards each other member, within `operation`, in which all members call this as
/// `signature` says. A member that is not `ready` to go on takes part all the same, to say so.
///
/// # Errors
/// What kept this member from being ready; [`crate::Error::Exhausted`] when a slot is not to be
/// had, and [`crate::Error::FailedElsewhere`] on the other members: nobody has taken anything then.
/// Otherwise those of [`Members::exchange`].
pub(crate) fn take(
    members: &mut Members,
    operation: Operation,
    signature: CallSignature,
    ready: Result<()>,
) -> Result<Vec<Option<ReservedSlot>>> {
    let mut agreement = SlotAgreement::new(members);
    let mut outcome = ready;
    loop {
        outcome = outcome.and_then(|()| agreement.offer(members));
        let offers = agreement.tell(members, operation, signature, &mut outcome)?;
        outcome = agreement.follow(members, &offers);
        let answers = agreement.tell(members, operation, signature, &mut outcome)?;
        if are_alike(&answers) {
            break;
        }
        agreement.step_down(members, &answers);
    }
    let fresh = agreement.slots.iter_mut().flatten().try_for_each(ReservedSlot::start_afresh);
    agreement.tell(members, operation, signature, &mut fresh.map(drop))?;
    Ok(agreement.slots)
}

/// Returns whether any two members name the same slot.
fn are_alike(answers: &[Vec<u64>]) -> bool {
    let pairs = (0..answers.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    pairs.into_iter().all(|(one, other)| number(&answers[one], other) == number(&answers[other], one))
}

/// Returns the slot towards `member` that a member has told of in its notice.
fn number(notice: &[u64], member: usize) -> u32 {
    let word = notice[1 + member / PER_WORD] >> (member % PER_WORD * SEAT_BITS);
    u32::try_from(word & ((1 << SEAT_BITS) - 1)).expect("it has four bits")
}

/// Returns what a member tells: 1 if nothing has failed here, and its `numbers` towards all
/// members.
fn notice(numbers: &[u32], is_ok: bool) -> Vec<u64> {
    let word = |numbers: &[u32]| {
        let placed = numbers
            .iter()
            .enumerate()
            .map(|(place, number)| u64::from(number % MAX_CHANNELS_PER_PEER) << (place * SEAT_BITS));
        placed.fold(0, std::ops::BitOr::bitor)
    };
    std::iter::once(is_ok.into()).chain(numbers.chunks(PER_WORD).map(word)).collect()
}

/// One member's side.
#[derive(Debug)]
struct SlotAgreement {
    slots: Vec<Option<ReservedSlot>>,
    /// What this member tells of its slot towards each member.
    numbers: Vec<u32>,
}

impl SlotAgreement {
    fn new(members: &Members) -> Self {
        let n_members = members.n_members();
        let slots = (0..n_members).map(|_| None).collect();
        Self { slots, numbers: vec![MAX_CHANNELS_PER_PEER; n_members] }
    }

    /// Members towards which this one has no slot yet: those for which it decides, or those whom it
    /// follows.
    fn unseated(&self, members: &Members, deciding: bool) -> Vec<usize> {
        let own = members.ranks()[members.me()];
        let is_meant = |member: &usize| match members.ranks()[*member] {
            rank if rank == own => false,
            rank => self.slots[*member].is_none() && (own < rank) == deciding,
        };
        (0..members.ranks().len()).filter(is_meant).collect()
    }

    /// Sets aside the highest slots that are free here, below those that were refused.
    fn offer(&mut self, members: &Members) -> Result<()> {
        for member in self.unseated(members, true) {
            let limit = self.numbers[member];
            let slot = ReservedSlot::highest_below(members.board.context(), members.ranks()[member], limit)?;
            self.numbers[member] = slot.number();
            self.slots[member] = Some(slot);
        }
        Ok(())
    }

    /// Sets aside what was offered to this member, or finds out what it has below.
    fn follow(&mut self, members: &Members, offers: &[Vec<u64>]) -> Result<()> {
        for member in self.unseated(members, false) {
            let (rank, offered) = (members.ranks()[member], number(&offers[member], members.me()));
            self.slots[member] = ReservedSlot::exactly(members.board.context(), rank, offered);
            self.numbers[member] = match self.slots[member] {
                Some(_) => offered,
                None => members.board.context().slots().highest_below(rank, offered)?,
            };
        }
        Ok(())
    }

    /// Gives back what was refused.
    fn step_down(&mut self, members: &Members, answers: &[Vec<u64>]) {
        let own = members.ranks()[members.me()];
        for member in (0..members.ranks().len()).filter(|member| own < members.ranks()[*member]) {
            let (mine, theirs) = (self.numbers[member], number(&answers[member], members.me()));
            if mine != theirs {
                self.slots[member] = None;
                // The answer may be taken as well; it is no higher than the offer was.
                self.numbers[member] = mine.min(theirs + 1);
            }
        }
    }

    /// Tells all members the numbers of this one, or that it has failed, and returns what they have
    /// told if none has: 1, and the numbers. Up to 160 members tell it by one post, others by two.
    fn tell(
        &self,
        members: &mut Members,
        operation: Operation,
        signature: CallSignature,
        outcome: &mut Result<()>,
    ) -> Result<Vec<Vec<u64>>> {
        let mut told = vec![Vec::new(); members.n_members()];
        for words in notice(&self.numbers, outcome.is_ok()).chunks(INLINE_WORDS) {
            // The call was counted as its members came to it.
            members.board.count_inner_steps(1);
            let more = members.exchange(operation, signature, words)?;
            told.iter_mut().zip(more).for_each(|(told, more)| told.extend(more));
        }
        std::mem::replace(outcome, Ok(()))?;
        match told.iter().position(|words| words[0] == 0) {
            None => Ok(told),
            Some(failed) => {
                Err(members.board.context().failed_elsewhere(operation.name(), members.ranks()[failed]))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::MAX_RANKS;

    #[test]
    fn a_notice_names_a_slot_towards_every_member() {
        assert_eq!(1 << SEAT_BITS, MAX_CHANNELS_PER_PEER);
        for n_members in [1, 15, 16, 17, 64, 65, 160, 161, MAX_RANKS] {
            let numbers: Vec<_> = (0..n_members).map(|member| (member * 7 + 3) % 16).collect();
            let notice = notice(&numbers, true);
            assert!((0..).zip(&numbers).all(|(member, &expected)| number(&notice, member) == expected));
            let is_one_post = notice.len() <= INLINE_WORDS;
            assert_eq!((notice[0], is_one_post), (1, n_members <= 160), "{n_members} members");
        }
        assert_eq!(notice(&[16; 3], false), [0, 0], "no slot yet");
    }

    #[test]
    fn members_have_their_slots_when_each_two_of_them_name_one() {
        let notice = |numbers: [u64; 3]| vec![1, numbers[0] | numbers[1] << 4 | numbers[2] << 8, 0, 0, 0];
        assert!(are_alike(&[notice([9, 15, 3]), notice([15, 8, 0]), notice([3, 0, 7])]));
        assert!(!are_alike(&[notice([9, 15, 3]), notice([15, 8, 0]), notice([3, 1, 7])]));
    }
}
