//! Models of locks in the heap (K1, K2). A rank that dies does some of its steps, and is marked
//! lost; whoever lives has to get the lock all the same, and all that was done under it.

use super::*;
use crate::sync::lock::{Acquired, HeapLock, LockRanks, WishCell};

/// A lock that three ranks share, and what it guards.
struct Shared {
    word: AtomicU64,
    wishes: [WishCell; 3],
    lives: [LifeCell; 3],
    parks: [ParkCell; 3],
    kernel: MockKernel,
    revoke: RevokeCell,
    /// Two words that whoever has the lock makes equal again.
    guarded: [Ghost; 2],
}

impl LockRanks for Shared {
    fn n_ranks(&self) -> u32 {
        3
    }

    fn wishes(&self, rank: Rank) -> &WishCell {
        &self.wishes[rank.index()]
    }

    fn is_gone(&self, rank: Rank) -> bool {
        self.lives[rank.index()].status().is_gone()
    }
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(0),
            wishes: Default::default(),
            lives: Default::default(),
            parks: Default::default(),
            kernel: MockKernel::new(),
            revoke: RevokeCell::default(),
            guarded: [Ghost::new(), Ghost::new()],
        })
    }

    fn lock(&self, rank: u32) -> HeapLock<'_, Self> {
        HeapLock { word: &self.word, name: 9, rank: known(rank), ranks: self }
    }

    fn wake(&self, rank: Option<Rank>) {
        if let Some(rank) = rank {
            self.parks[rank.index()].wake(&self.kernel);
        }
    }

    fn acquire(&self, rank: u32, policy: WaitPolicy) -> Acquired {
        let lock = self.lock(rank);
        let mut wish = lock.wish();
        let waiting = Waiting::new(&self.kernel, &self.revoke, policy, Duration::MAX);
        let acquired = wait_until(&waiting, &self.parks[rank as usize], || wish.poll()).unwrap();
        assert_eq!(wish.end(), None);
        acquired
    }

    fn release(&self, rank: u32) {
        self.wake(self.lock(rank).release().unwrap());
    }

    /// Counts up under the lock, and returns how often that was done before.
    fn count_up(&self, rank: u32, policy: WaitPolicy) -> u64 {
        let acquired = self.acquire(rank, policy);
        let [first, second] = [0, 1].map(|index| self.guarded[index].read());
        assert!(first == second || acquired == Acquired::Recovered, "{first} and {second}");
        self.guarded.iter().for_each(|word| word.write(first + 1));
        self.release(rank);
        first
    }

    fn die(&self, rank: u32) {
        self.lives[rank as usize].mark_lost(&self.kernel);
    }
}

fn on_thread<T: 'static>(
    shared: &Arc<Shared>,
    body: impl FnOnce(&Shared) -> T + 'static,
) -> thread::JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || body(&shared))
}

/// Runs `dying` as rank 0, which is lost behind it, while rank 1 counts up. Afterwards rank 2 does.
fn survives(before: u64, dying: fn(&Shared)) {
    model(move || {
        let shared = Shared::new();
        let other = on_thread(&shared, |shared| shared.count_up(1, POLL));
        dying(&shared);
        shared.die(0);
        assert!(other.join().unwrap() <= before);
        assert!(shared.count_up(2, POLL) <= before + 1);
    });
}

#[test]
fn two_that_take_turns_see_each_others_work() {
    model(|| {
        let shared = Shared::new();
        let other = on_thread(&shared, |shared| shared.count_up(1, POLL));
        let mut seen = [shared.count_up(0, POLL), other.join().unwrap()];
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
        assert_eq!(plain::load(&shared.word), 0);
    });
}

#[test]
fn whoever_sleeps_until_its_turn_comes_is_woken() {
    model(|| {
        let shared = Shared::new();
        assert_eq!(shared.lock(0).try_acquire(), Some(Acquired::Clean));
        let other = on_thread(&shared, |shared| shared.count_up(1, PARK));
        shared.guarded.iter().for_each(|word| word.write(7));
        shared.release(0);
        assert_eq!(other.join().unwrap(), 7);
    });
}

#[test]
fn a_lock_that_two_wait_for_is_handed_on_from_one_to_the_next() {
    model(|| {
        let shared = Shared::new();
        assert_eq!(shared.lock(0).try_acquire(), Some(Acquired::Clean));
        let others = [1, 2].map(|rank| on_thread(&shared, move |shared| shared.count_up(rank, PARK)));
        shared.guarded.iter().for_each(|word| word.write(7));
        shared.release(0);
        let mut seen = others.map(|other| other.join().unwrap());
        seen.sort_unstable();
        assert_eq!(seen, [7, 8]);
    });
}

mod a_holder_dies {
    use super::*;

    fn take(shared: &Shared) -> HeapLock<'_, Shared> {
        let _ = shared.acquire(0, POLL);
        shared.guarded.iter().for_each(|word| word.write(word.read() + 1));
        shared.lock(0)
    }

    #[test]
    fn with_the_lock() {
        survives(1, |shared| _ = take(shared));
    }

    #[test]
    fn in_the_middle_of_its_work() {
        survives(1, |shared| {
            let _ = shared.acquire(0, POLL);
            shared.guarded[0].write(shared.guarded[0].read() + 1);
        });
    }

    #[test]
    fn once_it_has_taken_the_mark_back() {
        survives(1, |shared| _ = take(shared).take_back_mark());
    }

    #[test]
    fn once_it_has_handed_the_lock_on() {
        survives(1, |shared| {
            let lock = take(shared);
            if lock.take_back_mark().is_ok() {
                let _ = lock.pass_on(lock.next_wish());
            }
        });
    }

    #[test]
    fn once_it_has_let_go() {
        survives(1, |shared| _ = take(shared).release());
    }
}

mod a_waiter_dies {
    use super::*;

    #[test]
    fn behind_its_wish() {
        survives(0, |shared| _ = shared.lock(0).wish());
    }

    #[test]
    fn behind_its_mark_or_with_the_lock_before_its_place_is_free() {
        survives(0, |shared| {
            let lock = shared.lock(0);
            let _ = lock.wish().poll();
        });
    }

    #[test]
    fn once_it_was_handed_the_lock_and_passes_on_what_the_one_before_did() {
        model(|| {
            let shared = Shared::new();
            assert_eq!(shared.lock(1).try_acquire(), Some(Acquired::Clean));
            let dying = on_thread(&shared, |shared| {
                let lock = shared.lock(0);
                assert!(lock.wish().poll().is_none_or(|acquired| acquired == Acquired::Clean));
                shared.die(0);
            });
            let third = on_thread(&shared, |shared| shared.count_up(2, POLL));
            shared.guarded.iter().for_each(|word| word.write(7));
            shared.release(1);
            dying.join().unwrap();
            assert_eq!(third.join().unwrap(), 7);
        });
    }
}

#[test]
fn a_lock_that_is_handed_to_one_that_gives_up_is_not_lost() {
    model(|| {
        let shared = Shared::new();
        assert_eq!(shared.lock(0).try_acquire(), Some(Acquired::Clean));
        let impatient = on_thread(&shared, |shared| {
            let lock = shared.lock(1);
            let mut wish = lock.wish();
            let acquired = wish.poll();
            shared.wake(wish.end());
            if acquired.is_some() {
                assert!(shared.guarded[0].read() >= 7);
                shared.release(1);
            }
        });
        shared.guarded.iter().for_each(|word| word.write(7));
        shared.release(0);
        assert_eq!(shared.count_up(2, POLL), 7);
        impatient.join().unwrap();
    });
}
