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
/// Words that name a slot for each of 64 members.
const SEAT_WORDS: usize = 64 / PER_WORD;

/// What a member tells at a meeting: 1 if nothing has failed here, and the numbers towards all
/// members.
type SlotNotice = [u64; 1 + SEAT_WORDS];

const _: () = assert!(SEAT_WORDS < INLINE_WORDS);

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
    /// told if none has.
    fn tell(
        &self,
        members: &mut Members,
        operation: Operation,
        signature: CallSignature,
        outcome: &mut Result<()>,
    ) -> Result<Vec<Vec<u64>>> {
        let mut notice: SlotNotice = [0; 1 + SEAT_WORDS];
        notice[0] = u64::from(outcome.is_ok());
        for (member, slot) in self.numbers.iter().enumerate() {
            let number = u64::from(slot % MAX_CHANNELS_PER_PEER);
            notice[1 + member / PER_WORD] |= number << (member % PER_WORD * SEAT_BITS);
        }
        // The call was counted as its members came to it.
        members.board.count_inner_steps(1);
        let told = members.exchange(operation, signature, &notice)?;
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
    fn a_notice_has_room_for_a_seat_towards_every_member() {
        assert_eq!(1 << SEAT_BITS, MAX_CHANNELS_PER_PEER);
        assert!(SEAT_WORDS * PER_WORD >= MAX_RANKS as usize);
        let notice = [1, 0xf, 0, 0x70, 0];
        assert_eq!((number(&notice, 0), number(&notice, 1), number(&notice, 33)), (15, 0, 7));
    }

    #[test]
    fn members_are_seated_when_each_two_of_them_name_one_seat() {
        let notice = |numbers: [u64; 3]| vec![1, numbers[0] | numbers[1] << 4 | numbers[2] << 8, 0, 0, 0];
        assert!(are_alike(&[notice([9, 15, 3]), notice([15, 8, 0]), notice([3, 0, 7])]));
        assert!(!are_alike(&[notice([9, 15, 3]), notice([15, 8, 0]), notice([3, 1, 7])]));
    }
}
