//! Which semaphores a channel uses: its seat.
//!
//! Every pair of ranks has [`MAX_CHANNELS_PER_PEER`] seats. Opening a channel takes the lowest free one on either side, so
//! that channels opened in the same order sit opposite each other without a message. Semaphores are never reset: a
//! channel that closes leaves its counts behind for the next one in its seat.

use std::sync::{Mutex, MutexGuard, PoisonError};

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
    taken: bool,
    counts: Counts,
}

impl Seats {
    /// Seats towards `n_ranks` ranks, all free.
    pub(crate) fn new(n_ranks: u32) -> Self {
        let pair = vec![Place::default(); MAX_CHANNELS_PER_PEER as usize];
        Self { pairs: Mutex::new(vec![pair; n_ranks as usize]) }
    }

    /// Takes the lowest free seat towards `peer`.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when all are taken.
    pub(crate) fn take(&self, peer: Rank) -> Result<Seat> {
        Self::occupy(peer, (0..).zip(&mut self.lock()[peer.index()]))
    }

    /// Takes the highest free seat towards `peer`: for channels that are opened beside those of the user, in an order of their
    /// own, so that neither kind shifts the numbers of the other.
    ///
    /// # Errors
    /// Those of [`Seats::take`].
    pub(crate) fn take_from_top(&self, peer: Rank) -> Result<Seat> {
        Self::occupy(peer, (0..MAX_CHANNELS_PER_PEER).zip(&mut self.lock()[peer.index()]).rev())
    }

    /// Takes the first free one of `places`.
    fn occupy<'a>(peer: Rank, mut places: impl Iterator<Item = (u32, &'a mut Place)>) -> Result<Seat> {
        let Some((number, place)) = places.find(|(_, place)| !place.taken) else {
            let limit = u64::from(MAX_CHANNELS_PER_PEER);
            return Err(Error::Exhausted { what: "channels to one peer", limit });
        };
        place.taken = true;
        Ok(Seat { peer, number, counts: place.counts })
    }

    /// Frees `seat`, whose semaphores now stand at `counts`.
    pub(crate) fn leave(&self, seat: Seat, counts: Counts) {
        self.lock()[seat.peer.index()][seat.number as usize] = Place { taken: false, counts };
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Place>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
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
        let seats = Seats::new(2);
        let peer = Rank::known(1);
        assert_eq!(seats.take_from_top(peer).unwrap().number, 15);
        assert_eq!((seats.take(peer).unwrap().number, seats.take_from_top(peer).unwrap().number), (0, 14));
        assert!((0..13).all(|_| seats.take(peer).is_ok()));
        assert!(seats.take(peer).is_err() && seats.take_from_top(peer).is_err());
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
