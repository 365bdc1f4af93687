//! Which semaphores a channel uses: its slot.
//!
//! Every pair of ranks has [`MAX_CHANNELS_PER_PEER`] slots. A channel that the program opens alone
//! takes the lowest free one on either side, so that channels opened in the same order sit opposite
//! each other without a message. Channels that ranks open together take the highest that is free on
//! both sides, which these tell each other (`src/collective/transport/agree_slots.rs`); the
//! program's stay below them, whatever the order in which those come and go. Semaphores are never
//! reset: a channel that closes leaves its counts behind for the next one in its slot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::RankContext;
use crate::error::{Error, Result};
use crate::heap::layout::SEMAPHORES_PER_RANK;
use crate::rank::Rank;

/// The most channels that can be open between one pair of ranks at a time.
///
/// A trigger has fourteen bits for its semaphore: four name one of these, and ten would name one of
/// 1,024 ranks.
pub const MAX_CHANNELS_PER_PEER: u32 = SEMAPHORES_PER_RANK;

/// The signals that have gone over a slot in all its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SignalCounts {
    /// Signals that this rank has sent.
    pub(crate) sent: u64,
    /// Signals that this rank has received.
    pub(crate) received: u64,
}

/// A slot that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelSlot {
    /// The peer it faces.
    pub(crate) peer: Rank,
    /// The number of the slot among those of the pair.
    pub(crate) number: u32,
    /// The counts of the slot's semaphores.
    pub(crate) counts: SignalCounts,
}

impl ChannelSlot {
    /// Returns where `rank`'s semaphores keep what comes from `from` over this slot.
    pub(crate) fn semaphore_index(&self, from: Rank) -> u32 {
        from.get() * MAX_CHANNELS_PER_PEER + self.number
    }
}

/// The slots of one rank.
#[derive(Debug)]
pub(crate) struct ChannelSlots {
    pairs: Mutex<Vec<Vec<SlotState>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    opened_by: Option<OpenedBy>,
    counts: SignalCounts,
}

/// How a slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenedBy {
    /// A channel that was opened on this side alone.
    Alone,
    /// One that is opened by both sides together.
    Together,
}

impl ChannelSlots {
    /// ChannelSlots towards `n_ranks` ranks, all free.
    pub(crate) fn new(n_ranks: u32) -> Self {
        let pair = vec![SlotState::default(); MAX_CHANNELS_PER_PEER as usize];
        Self { pairs: Mutex::new(vec![pair; n_ranks as usize]) }
    }

    /// Takes the lowest free slot towards `peer`, below all that were agreed on: one above them may
    /// be free on one side only.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(crate) fn take(&self, peer: Rank) -> Result<ChannelSlot> {
        let places = &mut self.lock()[peer.index()];
        let is_shared = |place: &SlotState| place.opened_by == Some(OpenedBy::Together);
        let limit = places.iter().position(is_shared).unwrap_or(places.len());
        let free = (0..).zip(&mut places[..limit]).find(|(_, place)| place.opened_by.is_none());
        let (number, place) = free.ok_or(FULL)?;
        Ok(place.occupy(OpenedBy::Alone, peer, number))
    }

    /// Returns the highest free slot towards `peer` below number `limit`, which is not taken by
    /// this.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(crate) fn highest_below(&self, peer: Rank, limit: u32) -> Result<u32> {
        highest_free(&self.lock()[peer.index()], limit)
    }

    /// Takes that slot.
    ///
    /// # Errors
    /// Fails as [`ChannelSlots::highest_below`] does.
    fn take_highest_below(&self, peer: Rank, limit: u32) -> Result<ChannelSlot> {
        let places = &mut self.lock()[peer.index()];
        let number = highest_free(places, limit)?;
        Ok(places[number as usize].occupy(OpenedBy::Together, peer, number))
    }

    /// Takes slot `number` towards `peer`, if it is free.
    fn take_exactly(&self, peer: Rank, number: u32) -> Option<ChannelSlot> {
        let place = &mut self.lock()[peer.index()][number as usize];
        place.opened_by.is_none().then(|| place.occupy(OpenedBy::Together, peer, number))
    }

    /// Frees `slot`, whose semaphores now stand at `counts`.
    pub(crate) fn leave(&self, slot: ChannelSlot, counts: SignalCounts) {
        self.lock()[slot.peer.index()][slot.number as usize] = SlotState { opened_by: None, counts };
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<SlotState>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotState {
    fn occupy(&mut self, opened_by: OpenedBy, peer: Rank, number: u32) -> ChannelSlot {
        self.opened_by = Some(opened_by);
        ChannelSlot { peer, number, counts: self.counts }
    }
}

const FULL: Error = Error::Exhausted { what: "channels to one peer", limit: MAX_CHANNELS_PER_PEER as u64 };

fn highest_free(places: &[SlotState], limit: u32) -> Result<u32> {
    let mut from_the_top = (0..limit).zip(places).rev();
    from_the_top.find(|(_, place)| place.opened_by.is_none()).map(|(number, _)| number).ok_or(FULL)
}

/// A slot that is kept for a channel until both sides have agreed on it. Free again when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct ReservedSlot {
    context: Arc<RankContext>,
    /// There until it is taken.
    slot: Option<ChannelSlot>,
}

impl ReservedSlot {
    /// Sets aside the highest free slot towards `peer` below number `limit`.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(crate) fn highest_below(context: &Arc<RankContext>, peer: Rank, limit: u32) -> Result<Self> {
        let slot = context.slots().take_highest_below(peer, limit)?;
        Ok(Self { context: Arc::clone(context), slot: Some(slot) })
    }

    /// Sets aside slot `number` towards `peer`, if it is free.
    pub(crate) fn exactly(context: &Arc<RankContext>, peer: Rank, number: u32) -> Option<Self> {
        let slot = context.slots().take_exactly(peer, number)?;
        Some(Self { context: Arc::clone(context), slot: Some(slot) })
    }

    /// Returns the number of the slot.
    pub(crate) fn number(&self) -> u32 {
        self.slot().number
    }

    /// Takes for received what the peer has signalled here. It does not signal while this is
    /// called: whatever channel it had in this slot is closed, and the next one is not open yet.
    /// What that one had not waited for, the next one is not to hear.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], not in a job that is intact.
    pub(crate) fn start_afresh(&mut self) -> Result<()> {
        let Some(slot) = &mut self.slot else { return Ok(()) };
        let index = slot.semaphore_index(slot.peer);
        slot.counts.received = self.context.semaphore(self.context.rank(), index)?.value();
        Ok(())
    }

    /// Returns the slot, for a channel that gives it back.
    pub(crate) fn take(mut self) -> ChannelSlot {
        self.slot.take().expect("it is taken once")
    }

    fn slot(&self) -> &ChannelSlot {
        self.slot.as_ref().expect("it is there until it is taken")
    }
}

impl Drop for ReservedSlot {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.context.slots().leave(slot, slot.counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_handed_out_lowest_first_and_keep_their_counts() {
        let slots = ChannelSlots::new(2);
        let peer = Rank::known(1);
        let first = slots.take(peer).unwrap();
        let second = slots.take(peer).unwrap();
        assert_eq!((first.number, second.number), (0, 1));
        let counts = SignalCounts { sent: 3, received: u64::MAX };
        slots.leave(first, counts);
        assert_eq!(slots.take(peer).unwrap(), ChannelSlot { peer, number: 0, counts });
        assert_eq!(slots.take(peer).unwrap().number, 2);
    }

    #[test]
    fn seats_from_the_top_and_from_the_bottom_meet_only_when_all_are_taken() {
        let (slots, peer) = (ChannelSlots::new(2), Rank::known(1));
        let highest = || slots.take_highest_below(peer, MAX_CHANNELS_PER_PEER).map(|slot| slot.number);
        assert_eq!(highest().unwrap(), 15);
        assert_eq!((slots.take(peer).unwrap().number, highest().unwrap()), (0, 14));
        assert!((0..13).all(|_| slots.take(peer).is_ok()));
        assert!(slots.take(peer).is_err() && highest().is_err());
    }

    #[test]
    fn a_slot_that_was_agreed_on_can_lie_anywhere_and_the_programs_own_stay_below() {
        let (slots, peer) = (ChannelSlots::new(2), Rank::known(1));
        let mut own: Vec<_> = (0..16).map(|_| slots.take(peer).unwrap()).collect();
        assert!(slots.take_exactly(peer, 9).is_none() && slots.highest_below(peer, 16).is_err());
        slots.leave(own.remove(9), SignalCounts::default());
        assert_eq!(slots.highest_below(peer, 16).unwrap(), 9);
        assert!(slots.highest_below(peer, 9).is_err());
        let shared = slots.take_exactly(peer, 9).unwrap();
        slots.leave(own.remove(14), SignalCounts::default());
        assert!(slots.take(peer).is_err(), "the peer may still have another one in its slot 15");
        assert_eq!(slots.highest_below(peer, 16).unwrap(), 15);
        slots.leave(shared, SignalCounts::default());
        assert_eq!([9, 15], [(); 2].map(|()| slots.take(peer).unwrap().number));
    }

    #[test]
    fn a_pair_has_a_limited_number_of_slots() {
        let slots = ChannelSlots::new(2);
        for _ in 0..MAX_CHANNELS_PER_PEER {
            slots.take(Rank::known(0)).unwrap();
        }
        assert!(matches!(slots.take(Rank::known(0)), Err(Error::Exhausted { limit: 16, .. })));
        assert!(slots.take(Rank::known(1)).is_ok(), "another peer has slots of its own");
    }

    #[test]
    fn every_semaphore_has_one_sender() {
        let mut seen = std::collections::HashSet::new();
        let slots = ChannelSlots::new(crate::rank::MAX_RANKS);
        for rank in 0..crate::rank::MAX_RANKS {
            for _ in 0..MAX_CHANNELS_PER_PEER {
                let from = Rank::known(rank);
                let index = slots.take(from).unwrap().semaphore_index(from);
                assert!(index < 4096 && seen.insert(index));
            }
        }
    }
}
