//! Locks in the heap that outlive their holders: a word names the rank that holds it.
//!
//! Waiters of a lock queue up in no list, which a death could cut. Each leaves a wish in the cell
//! of its rank, and the holder hands the lock over to the next rank behind it that has one.
//!
//! ```text
//! 0 ──A2──► me ──A3: wish, mark──► me, WAITED ──R2, R3──► your place, WAITED ──A4──► you
//! ▲          │                          │                          │
//! └────R1────┘                          └─────H: who held it is gone ──────────► another
//! ```
//!
//! | step | what | killed behind it |
//! |---|---|---|
//! | A1 | a free place of the own cell gets the name of the lock | the dead are passed over |
//! | A2 | the word, where it is free: 0 to me | the holder is dead: H |
//! | A3 | else the word gets `WAITED`; wait until A2, A4 or H can be done | as A1 |
//! | A4 | the word: this place of me to me; then the place is free again | the holder is dead: H |
//! | H | the word, where its rank is gone: to me, and `WAITED` | the holder is dead: H |
//! | R1 | the word without `WAITED`: me to 0 | the lock is free |
//! | R2 | `WAITED` is taken back; the next live wish is looked for | the holder is dead: H |
//! | R3 | the word: me to that place and `WAITED`, or to 0 | a place of a dead rank: H |
//! | T | to give up, the place is freed; what was handed to it goes on by R1 to R3 | H |
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | K1 turn | R1, R3: the word | A2, A4, H: the word | all that the holder did |
//! | K2 wish | A3: the mark | R2: its taking back | the wish |
//!
//! # Invariants
//! - All changes of the word compare and exchange what was read, so of two that try one wins.
//! - The lock is held by one thread at most: A2, A4 and H each make the word name a taken lock, and
//!   only its own rank changes that, or H once that rank is gone for good.
//! - A wish is served or told: its mark comes before R2, which then finds it, or behind, and then
//!   R3 fails to free the word and R2 is done once more.
//! - A place of which the rank is alive, and which does not hold the lock's name, was given up
//!   after it had been looked at. Whoever finds that takes the lock as if it were free.
//! - A holder that dies passes on all it did by L1 of [`life`](super::life), and what those before
//!   it did by K1. The next one is told that the lock was *recovered*: what it guards may be half
//!   done.
//!
//! Turns go round by rank, so a rank waits for one turn of each other at most. A thread that finds
//! all places of its rank taken has no wish: it takes the lock only when it is free.

use super::atomic::{AtomicU64, Ordering, Reserved};
use super::plain;
use crate::rank::Rank;

/// How many threads of a rank can wish for locks at a time. One under loom, which has no room for
/// more.
const PLACES: usize = if cfg!(loom) { 1 } else { 8 };

/// The bits of the rank, plus one.
const OWNER: u64 = 0xffff;

/// Where the number of the place begins that a lock was handed to.
const PLACE: u32 = 16;

/// The number of no place: the lock is held.
const TAKEN: u64 = 0xff << PLACE;

/// A thread has left a wish.
const WAITED: u64 = 1 << 63;

/// The locks that threads of one rank wait for.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | wishes | 0..64 | the rank's threads | whoever hands a lock over, or waits for one |
/// | reserved | 64..128 | nobody | nobody |
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct WishCell {
    wishes: [AtomicU64; PLACES],
    reserved: Reserved<16>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<WishCell>() == 128 && align_of::<WishCell>() == 128);

/// What a lock has to know of the ranks that share it.
pub trait LockRanks {
    /// Returns how many there are.
    fn n_ranks(&self) -> u32;

    /// Returns the wishes of one.
    fn wishes(&self, rank: Rank) -> &WishCell;

    /// Returns whether one has died or left. If so, acquires all that it did (L1).
    fn is_gone(&self, rank: Rank) -> bool;
}

/// How a lock was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It was free, or its holder has let it go.
    Clean,
    /// Its holder died or left with it. What the lock guards may be half done.
    Recovered,
}

/// A lock as one rank sees it.
#[derive(Debug)]
pub struct HeapLock<'a, R: ?Sized> {
    /// The word. It is free when it is zero.
    pub word: &'a AtomicU64,
    /// The number by which wishes name it, which is not zero.
    pub name: u64,
    /// The rank that sees it.
    pub rank: Rank,
    /// The ranks that share it.
    pub ranks: &'a R,
}

/// A place of a rank's cell that a lock can be handed to.
type WishPlace = (Rank, usize);

/// Returns the word of a lock that is handed to a place.
fn handed_to((rank, place): WishPlace) -> u64 {
    owner(rank) | (place as u64) << PLACE
}

fn owner(rank: Rank) -> u64 {
    u64::from(rank.get()) + 1
}

impl<'a, R: LockRanks + ?Sized> HeapLock<'a, R> {
    fn taken(&self) -> u64 {
        owner(self.rank) | TAKEN
    }

    /// Takes the lock if nobody holds it, or who did is gone (A2, H).
    pub fn try_acquire(&self) -> Option<Acquired> {
        let mut seen = plain::load(self.word);
        loop {
            let acquired = self.to_be_had(seen)?;
            match self.claim(seen, acquired) {
                Ok(()) => return Some(acquired),
                Err(found) => seen = found,
            }
        }
    }

    /// Returns how a lock that is found so can be taken, if it can.
    fn to_be_had(&self, seen: u64) -> Option<Acquired> {
        if seen == 0 {
            return Some(Acquired::Clean);
        }
        let rank = u32::try_from((seen & OWNER).checked_sub(1)?).ok()?;
        let rank = Rank::new(rank, self.ranks.n_ranks()).ok()?;
        if rank != self.rank && self.ranks.is_gone(rank) {
            return Some(Acquired::Recovered);
        }
        let place = usize::try_from((seen & TAKEN) >> PLACE).ok()?;
        let wish = self.ranks.wishes(rank).wishes.get(place)?;
        (plain::load(wish) != self.name).then_some(Acquired::Clean)
    }

    /// Makes the word, which was `seen` so, name this rank.
    fn claim(&self, seen: u64, acquired: Acquired) -> Result<(), u64> {
        // A holder may have died while it looked for wishes, with the mark taken back.
        let marked = if acquired == Acquired::Recovered { WAITED } else { seen & WAITED };
        let turn = Ordering::Acquire; // K1 turn
        // Relaxed: nothing was taken.
        self.word.compare_exchange(seen, self.taken() | marked, turn, Ordering::Relaxed).map(drop)
    }

    /// Begins to wait for the lock (A1).
    pub fn wish(&self) -> LockWish<'_, 'a, R> {
        let wishes = &self.ranks.wishes(self.rank).wishes;
        // Relaxed: the mark tells the others of it (K2).
        let free = |wish: &AtomicU64| {
            wish.compare_exchange(0, self.name, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        LockWish { lock: self, place: wishes.iter().position(free), is_marked: false }
    }

    /// Lets the lock go, and returns the rank that it was handed to, if one has waited (R1 to R3).
    /// That rank is to be woken.
    ///
    /// # Errors
    /// What the word is, where this rank does not hold the lock.
    pub fn release(&self) -> Result<Option<Rank>, u64> {
        match self.exchange(self.taken(), 0) {
            Ok(()) => return Ok(None),
            Err(found) if found != self.taken() | WAITED => return Err(found),
            Err(_) => {}
        }
        loop {
            self.take_back_mark()?;
            let next = self.next_wish();
            match self.pass_on(next) {
                Ok(()) => return Ok(next.map(|(rank, _)| rank)),
                Err(found) if found != self.taken() | WAITED => return Err(found),
                Err(_) => {}
            }
        }
    }

    /// Takes the mark back before wishes are looked for (R2).
    pub(super) fn take_back_mark(&self) -> Result<(), u64> {
        let marked = self.taken() | WAITED;
        let wish = Ordering::Acquire; // K2 wish
        // Relaxed: nothing was changed.
        self.word.compare_exchange(marked, self.taken(), wish, Ordering::Relaxed).map(drop)
    }

    /// Finds the next wish for this lock: those of the ranks behind this one first, its own last.
    pub(super) fn next_wish(&self) -> Option<WishPlace> {
        let (n_ranks, me) = (self.ranks.n_ranks(), self.rank.get());
        let behind = (1..=n_ranks).map(|step| Rank::known((me + step) % n_ranks));
        behind.into_iter().find_map(|rank| {
            let mut wishes = self.ranks.wishes(rank).wishes.iter();
            let place = wishes.position(|wish| plain::load(wish) == self.name)?;
            (!self.ranks.is_gone(rank)).then_some((rank, place))
        })
    }

    /// Hands the lock over to a wish, or frees it (R3).
    pub(super) fn pass_on(&self, next: Option<WishPlace>) -> Result<(), u64> {
        let Some(place) = next else { return self.exchange(self.taken(), 0) };
        let handed = handed_to(place) | WAITED;
        match self.exchange(self.taken(), handed) {
            Err(found) if found == self.taken() | WAITED => self.exchange(found, handed),
            done => done,
        }
    }

    /// Lets go of the lock that was `seen` so.
    fn exchange(&self, seen: u64, next: u64) -> Result<(), u64> {
        let turn = Ordering::Release; // K1 turn
        // Relaxed: nothing was let go.
        self.word.compare_exchange(seen, next, turn, Ordering::Relaxed).map(drop)
    }
}

/// A thread that waits for a lock. It is to be [ended](Self::end), whether it has the lock or not.
#[derive(Debug)]
#[must_use]
pub struct LockWish<'l, 'a, R: ?Sized> {
    lock: &'l HeapLock<'a, R>,
    place: Option<usize>,
    is_marked: bool,
}

impl<R: LockRanks + ?Sized> LockWish<'_, '_, R> {
    /// Takes the lock if it was handed to this thread, or can be had otherwise (A2 to A4, H).
    pub fn poll(&mut self) -> Option<Acquired> {
        let lock = self.lock;
        let mut seen = plain::load(lock.word);
        loop {
            let handed = self.is_handed(seen).then_some(Acquired::Clean);
            let Err(found) = (match handed.or_else(|| lock.to_be_had(seen)) {
                Some(acquired) => match lock.claim(seen, acquired) {
                    Ok(()) => return Some(acquired),
                    changed => changed,
                },
                None => self.mark(seen),
            }) else {
                return None;
            };
            seen = found;
        }
    }

    /// Returns whether a lock that is seen so was handed to this thread.
    fn is_handed(&self, seen: u64) -> bool {
        self.place.is_some_and(|place| seen & !WAITED == handed_to((self.lock.rank, place)))
    }

    /// Tells the holder of the wish, once (A3). Only a holder that looks for wishes takes it back.
    fn mark(&mut self, seen: u64) -> Result<(), u64> {
        if self.place.is_some() && !self.is_marked {
            let wish = Ordering::Release; // K2 wish
            // Relaxed: nothing was marked.
            self.lock.word.compare_exchange(seen, seen | WAITED, wish, Ordering::Relaxed)?;
            self.is_marked = true;
        }
        Ok(())
    }

    /// Frees the place. What was handed to it meanwhile goes on to the rank that it returns, which
    /// is to be woken (T).
    pub fn end(self) -> Option<Rank> {
        let place = self.place?;
        // Relaxed: whoever takes it for a wish still finds by the word that it is none.
        plain::store(&self.lock.ranks.wishes(self.lock.rank).wishes[place], 0);
        let seen = plain::load(self.lock.word);
        if self.is_handed(seen) && self.lock.claim(seen, Acquired::Clean).is_ok() {
            return self.lock.release().ok().flatten();
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Ranks of a test, of which those in the mask are gone.
    #[derive(Default)]
    struct FewRanks {
        wishes: [WishCell; 3],
        gone: Cell<u32>,
    }

    impl LockRanks for FewRanks {
        fn n_ranks(&self) -> u32 {
            3
        }

        fn wishes(&self, rank: Rank) -> &WishCell {
            &self.wishes[rank.index()]
        }

        fn is_gone(&self, rank: Rank) -> bool {
            self.gone.get() & 1 << rank.get() != 0
        }
    }

    fn locks<'a>(word: &'a AtomicU64, ranks: &'a FewRanks) -> [HeapLock<'a, FewRanks>; 3] {
        [0, 1, 2].map(|rank| HeapLock { word, name: 5, rank: Rank::known(rank), ranks })
    }

    #[test]
    fn turns_go_round_by_rank_whoever_came_first() {
        let (word, ranks) = (AtomicU64::new(0), FewRanks::default());
        let [first, second, third] = locks(&word, &ranks);
        assert_eq!(second.try_acquire(), Some(Acquired::Clean));
        assert_eq!((first.try_acquire(), second.try_acquire()), (None, None));
        let mut wishes = [first.wish(), third.wish()];
        assert_eq!(wishes.each_mut().map(LockWish::poll), [None, None]);
        assert_eq!(second.release(), Ok(Some(third.rank)));
        let [mut of_first, mut of_third] = wishes;
        assert_eq!((of_first.poll(), of_third.poll()), (None, Some(Acquired::Clean)));
        assert_eq!((of_third.end(), third.release()), (None, Ok(Some(first.rank))));
        assert_eq!((of_first.poll(), of_first.end()), (Some(Acquired::Clean), None));
        assert_eq!((first.release(), plain::load(&word)), (Ok(None), 0));
    }

    #[test]
    fn only_the_rank_that_holds_a_lock_lets_it_go() {
        let (word, ranks) = (AtomicU64::new(0), FewRanks::default());
        let [first, second, _] = locks(&word, &ranks);
        assert_eq!(first.release(), Err(0));
        assert_eq!(first.try_acquire(), Some(Acquired::Clean));
        assert_eq!(second.release(), Err(1 | TAKEN));
        // A word that no lock has written is never had.
        plain::store(&word, 77);
        assert_eq!((second.try_acquire(), second.release()), (None, Err(77)));
    }

    #[test]
    fn a_lock_of_a_rank_that_is_gone_is_recovered_and_its_wishes_are_passed_over() {
        let (word, ranks) = (AtomicU64::new(0), FewRanks::default());
        let [first, second, third] = locks(&word, &ranks);
        assert_eq!(first.try_acquire(), Some(Acquired::Clean));
        let (mut of_second, mut of_third) = (second.wish(), third.wish());
        assert_eq!((of_second.poll(), of_third.poll()), (None, None));
        ranks.gone.set(0b010);
        assert_eq!(first.release(), Ok(Some(third.rank)));
        ranks.gone.set(0b110);
        assert_eq!(first.try_acquire(), Some(Acquired::Recovered));
        assert_eq!((first.release(), plain::load(&word)), (Ok(None), 0));
        drop((of_second, of_third));
    }

    #[test]
    fn a_lock_that_is_handed_to_a_thread_that_gave_up_is_free() {
        let (word, ranks) = (AtomicU64::new(0), FewRanks::default());
        let [first, second, third] = locks(&word, &ranks);
        assert_eq!(first.try_acquire(), Some(Acquired::Clean));
        let mut wish = second.wish();
        assert_eq!(wish.poll(), None);
        // It gives up once its wish was seen, and before it is handed the lock.
        assert_eq!(first.take_back_mark(), Ok(()));
        let next = first.next_wish();
        assert_eq!((next, wish.end()), (Some((second.rank, 0)), None));
        assert_eq!(first.pass_on(next), Ok(()));
        assert_eq!((third.try_acquire(), third.release()), (Some(Acquired::Clean), Ok(None)));
        // It gives up once it was handed the lock.
        assert_eq!(first.try_acquire(), Some(Acquired::Clean));
        let (mut wish, mut other) = (second.wish(), third.wish());
        assert_eq!((wish.poll(), other.poll()), (None, None));
        assert_eq!((first.release(), wish.end()), (Ok(Some(second.rank)), Some(third.rank)));
        assert_eq!((other.poll(), other.end(), third.release()), (Some(Acquired::Clean), None, Ok(None)));
    }

    #[test]
    fn threads_of_one_rank_wait_in_places_of_their_own_or_in_none() {
        let (word, ranks) = (AtomicU64::new(0), FewRanks::default());
        let [first, ..] = locks(&word, &ranks);
        assert_eq!(first.try_acquire(), Some(Acquired::Clean));
        let mut wishes: Vec<_> = (0..=PLACES).map(|_| first.wish()).collect();
        assert!(wishes.iter_mut().all(|wish| wish.poll().is_none()));
        assert_eq!(first.release(), Ok(Some(first.rank)));
        let holders: Vec<_> = wishes.iter_mut().map(LockWish::poll).collect();
        assert_eq!(holders.iter().flatten().count(), 1);
        let holder = holders.iter().position(Option::is_some).unwrap();
        assert_eq!(wishes.remove(holder).end(), None);
        // The one without a place finds it free once all others were served or have given up.
        let homeless = wishes.pop().unwrap();
        wishes.into_iter().for_each(|wish| assert_eq!(wish.end(), None));
        let mut homeless = homeless;
        assert_eq!((homeless.poll(), first.release()), (None, Ok(None)));
        assert_eq!((homeless.poll(), homeless.end()), (Some(Acquired::Clean), None));
    }
}
