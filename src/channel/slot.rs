//! Which semaphores a channel uses: its seat.
//!
//! Every pair of ranks has [`MAX_CHANNELS_PER_PEER`] seats. A channel that the program opens alone takes the lowest free one on
//! either side, so that channels opened in the same order sit opposite each other without a message. Channels that ranks open
//! together take the highest that is free on both sides, which these tell each other (`src/collective/seating.rs`); the program's
//! stay below them, whatever the order in which those come and go. Semaphores are never reset: a channel that closes leaves its
//! counts behind for the next one in its seat.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fabric::Fabric;
use crate::error::{Error, Result};
use crate::rank::Rank;

/// The most channels that can be open between one pair of ranks at a time.
///
/// A trigger has ten bits for its semaphore: six name one of 64 ranks, four one of these.
pub const MAX_CHANNELS_PER_PEER: u32 = 16;

/// What has gone over a seat in all its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Signals that this rank has sent.
    pub(crate) sent: u64,
    /// Signals that this rank has received.
    pub(crate) received: u64,
}

/// A seat that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The peer it faces.
    pub(crate) peer: Rank,
    /// Its number among the seats of the pair.
    pub(crate) number: u32,
    /// Where its semaphores stand.
    pub(crate) counts: Counts,
}

impl Seat {
    /// Where `rank`'s semaphores keep what comes from `from` over this seat.
    pub(crate) fn semaphore_index(&self, from: Rank) -> u32 {
        from.get() * MAX_CHANNELS_PER_PEER + self.number
    }
}

/// The seats of one rank.
#[derive(Debug)]
pub(crate) struct Seats {
    pairs: Mutex<Vec<Vec<Place>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    tenant: Option<Tenant>,
    counts: Counts,
}

/// Who has a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tenant {
    /// A channel that was opened on this side alone.
    Alone,
    /// One that is opened by both sides together.
    Together,
}

impl Seats {
    /// Seats towards `n_ranks` ranks, all free.
    pub(crate) fn new(n_ranks: u32) -> Self {
        let pair = vec![Place::default(); MAX_CHANNELS_PER_PEER as usize];
        Self { pairs: Mutex::new(vec![pair; n_ranks as usize]) }
    }

    /// Takes the lowest free seat towards `peer`, below all that were agreed on: one above them may be free on one side only.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(crate) fn take(&self, peer: Rank) -> Result<Seat> {
        let places = &mut self.lock()[peer.index()];
        let is_shared = |place: &Place| place.tenant == Some(Tenant::Together);
        let limit = places.iter().position(is_shared).unwrap_or(places.len());
        let free = (0..).zip(&mut places[..limit]).find(|(_, place)| place.tenant.is_none());
        let (number, place) = free.ok_or(FULL)?;
        Ok(place.occupy(Tenant::Alone, peer, number))
    }

    /// The highest free seat towards `peer` below number `limit`, which is not taken by this.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(crate) fn highest_below(&self, peer: Rank, limit: u32) -> Result<u32> {
        highest_free(&self.lock()[peer.index()], limit)
    }

    /// Takes that seat.
    ///
    /// # Errors
    /// Those of [`Seats::highest_below`].
    fn take_highest_below(&self, peer: Rank, limit: u32) -> Result<Seat> {
        let places = &mut self.lock()[peer.index()];
        let number = highest_free(places, limit)?;
        Ok(places[number as usize].occupy(Tenant::Together, peer, number))
    }

    /// Takes seat `number` towards `peer`, if it is free.
    fn take_exactly(&self, peer: Rank, number: u32) -> Option<Seat> {
        let place = &mut self.lock()[peer.index()][number as usize];
        place.tenant.is_none().then(|| place.occupy(Tenant::Together, peer, number))
    }

    /// Frees `seat`, whose semaphores now stand at `counts`.
    pub(crate) fn leave(&self, seat: Seat, counts: Counts) {
        self.lock()[seat.peer.index()][seat.number as usize] = Place { tenant: None, counts };
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Place>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn occupy(&mut self, tenant: Tenant, peer: Rank, number: u32) -> Seat {
        self.tenant = Some(tenant);
        Seat { peer, number, counts: self.counts }
    }
}

const FULL: Error = Error::Exhausted { what: "channels to one peer", limit: MAX_CHANNELS_PER_PEER as u64 };

fn highest_free(places: &[Place], limit: u32) -> Result<u32> {
    let mut from_the_top = (0..limit).zip(places).rev();
    from_the_top.find(|(_, place)| place.tenant.is_none()).map(|(number, _)| number).ok_or(FULL)
}

/// A seat that is kept for a channel until both sides have agreed on it. Free again when it is dropped.
#[derive(Debug)]
pub(crate) struct SetAside {
    fabric: Arc<Fabric>,
    /// There until it is taken.
    seat: Option<Seat>,
}

impl SetAside {
    /// Sets aside the highest free seat towards `peer` below number `limit`.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub(crate) fn highest_below(fabric: &Arc<Fabric>, peer: Rank, limit: u32) -> Result<Self> {
        let seat = fabric.seats().take_highest_below(peer, limit)?;
        Ok(Self { fabric: Arc::clone(fabric), seat: Some(seat) })
    }

    /// Sets aside seat `number` towards `peer`, if it is free.
    pub(crate) fn exactly(fabric: &Arc<Fabric>, peer: Rank, number: u32) -> Option<Self> {
        let seat = fabric.seats().take_exactly(peer, number)?;
        Some(Self { fabric: Arc::clone(fabric), seat: Some(seat) })
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.seat().number
    }

    /// Takes for received what the peer has signalled here. It does not signal while this is called: whatever channel it had in this
    /// seat is closed, and the next one is not open yet. What that one had not waited for, the next one is not to hear.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], not in a job that is intact.
    pub(crate) fn start_afresh(&mut self) -> Result<()> {
        let Some(seat) = &mut self.seat else { return Ok(()) };
        let index = seat.semaphore_index(seat.peer);
        seat.counts.received = self.fabric.semaphore(self.fabric.rank(), index)?.value();
        Ok(())
    }

    /// The seat, for a channel that gives it back.
    pub(crate) fn take(mut self) -> Seat {
        self.seat.take().expect("it is taken once")
    }

    fn seat(&self) -> &Seat {
        self.seat.as_ref().expect("it is there until it is taken")
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        if let Some(seat) = self.seat {
            self.fabric.seats().leave(seat, seat.counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_handed_out_lowest_first_and_keep_their_counts() {
        let seats = Seats::new(2);
        let peer = Rank::known(1);
        let first = seats.take(peer).unwrap();
        let second = seats.take(peer).unwrap();
        assert_eq!((first.number, second.number), (0, 1));
        let counts = Counts { sent: 3, received: u64::MAX };
        seats.leave(first, counts);
        assert_eq!(seats.take(peer).unwrap(), Seat { peer, number: 0, counts });
        assert_eq!(seats.take(peer).unwrap().number, 2);
    }

    #[test]
    fn seats_from_the_top_and_from_the_bottom_meet_only_when_all_are_taken() {
        let (seats, peer) = (Seats::new(2), Rank::known(1));
        let highest = || seats.take_highest_below(peer, MAX_CHANNELS_PER_PEER).map(|seat| seat.number);
        assert_eq!(highest().unwrap(), 15);
        assert_eq!((seats.take(peer).unwrap().number, highest().unwrap()), (0, 14));
        assert!((0..13).all(|_| seats.take(peer).is_ok()));
        assert!(seats.take(peer).is_err() && highest().is_err());
    }

    #[test]
    fn a_seat_that_was_agreed_on_can_lie_anywhere_and_the_programs_own_stay_below() {
        let (seats, peer) = (Seats::new(2), Rank::known(1));
        let mut own: Vec<_> = (0..16).map(|_| seats.take(peer).unwrap()).collect();
        assert!(seats.take_exactly(peer, 9).is_none() && seats.highest_below(peer, 16).is_err());
        seats.leave(own.remove(9), Counts::default());
        assert_eq!(seats.highest_below(peer, 16).unwrap(), 9);
        assert!(seats.highest_below(peer, 9).is_err());
        let shared = seats.take_exactly(peer, 9).unwrap();
        seats.leave(own.remove(14), Counts::default());
        assert!(seats.take(peer).is_err(), "the peer may still have another one in its seat 15");
        assert_eq!(seats.highest_below(peer, 16).unwrap(), 15);
        seats.leave(shared, Counts::default());
        assert_eq!([9, 15], [(); 2].map(|()| seats.take(peer).unwrap().number));
    }

    #[test]
    fn a_pair_has_a_limited_number_of_seats() {
        let seats = Seats::new(2);
        for _ in 0..MAX_CHANNELS_PER_PEER {
            seats.take(Rank::known(0)).unwrap();
        }
        assert!(matches!(seats.take(Rank::known(0)), Err(Error::Exhausted { limit: 16, .. })));
        assert!(seats.take(Rank::known(1)).is_ok(), "another peer has seats of its own");
    }

    #[test]
    fn every_semaphore_has_one_sender() {
        let mut seen = std::collections::HashSet::new();
        let seats = Seats::new(64);
        for rank in 0..64 {
            for _ in 0..MAX_CHANNELS_PER_PEER {
                let from = Rank::known(rank);
                let index = seats.take(from).unwrap().semaphore_index(from);
                assert!(index < 1024 && seen.insert(index));
            }
        }
    }
}
