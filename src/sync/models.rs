//! Models of the protocols: loom runs each in every interleaving (up to a number of forced switches) and lets
//! every load return every value that the orderings allow.
//!
//! What one thread hands to another is a [`Ghost`]: a relaxed atomic that starts at 0. If the edge under test
//! does not carry it, loom lets the reader find the 0, and the assertion on it fails. For an edge that says
//! "I have read, you may overwrite", the reader leaves a ghost after reading: what happens before the
//! overwriting is the same. A missed wake leaves a thread asleep, which loom reports as a deadlock: time
//! never passes in a model.
//!
//! `membarrier` is modelled by a sequentially consistent fence on each side. That is stronger than the system
//! call in one respect: it also orders two *wakers* with each other, which the real light barrier does not. One place
//! depends on that order, the look of `Barrier::arrive` at whether it is the last; it makes a heavy barrier of its
//! own, which these models therefore cannot show to be needed. The argument is at the head of `barrier`.

use std::time::Duration;

use loom::{sync::Arc, thread};

use super::{
    atomic::{AtomicU64, Ordering},
    bare::{BareBarrier, BareConsumer, BareFlag, BareProducer, BareSlot},
    kernel::mock::MockKernel,
    *,
};
use crate::rank::Rank;

mod regroup;

/// Gives up the processor at every failed poll; never gets as far as sleeping within a model.
const POLL: WaitPolicy = WaitPolicy { spins: 0, park_after: Duration::MAX };

/// Sleeps as soon as the first poll has failed.
const PARK: WaitPolicy = WaitPolicy { spins: 0, park_after: Duration::ZERO };

/// Enough forced switches for each protocol's worst case, which needs two; one more for good measure.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Something written before an edge and read after it.
struct Ghost(AtomicU64);

impl Ghost {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn write(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed); // Relaxed: the edge under test has to carry it
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // Relaxed: the edge under test has to carry it
    }
}

struct World {
    kernel: MockKernel,
    revoke: RevokeCell,
    semaphore: SemaphoreCell,
    park: ParkCell,
    life: LifeCell,
    ghosts: [Ghost; 3],
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            kernel: MockKernel::new(),
            revoke: RevokeCell::new(),
            semaphore: SemaphoreCell::new(0),
            park: ParkCell::new(),
            life: LifeCell::new(),
            ghosts: [Ghost::new(), Ghost::new(), Ghost::new()],
        })
    }

    fn waiting(&self, policy: WaitPolicy) -> Waiting<'_, MockKernel, RevokeCell> {
        Waiting::new(&self.kernel, &self.revoke, policy, Duration::MAX)
    }

    /// Waits for the ghost `index` to be written.
    fn wait_for_ghost(&self, index: usize, policy: WaitPolicy) -> Result<(), Stop> {
        wait_until(&self.waiting(policy), &self.park, || (self.ghosts[index].read() != 0).then_some(()))
    }
}

/// Runs `body` on another thread of the model.
fn spawn<T: 'static>(world: &Arc<World>, body: impl FnOnce(&World) -> T + 'static) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

fn known(rank: u32) -> Rank {
    Rank::known(rank)
}

mod c1_post {
    use super::*;

    /// Two ranks, each with a ring of two posts, go through three operations that wait for each other.
    struct Board {
        rings: [[PostCell; 2]; 2],
        /// Whether a rank has read the other's words of a sequence.
        read: [[Ghost; 4]; 2],
    }

    fn take_part(board: &Board, me: usize) {
        let peer = 1 - me;
        for sequence in 1..=3_u64 {
            let turn = (sequence % 2) as usize;
            if sequence > 2 {
                // What is overwritten now was read: the post of sequence - 1 carried that.
                assert_eq!(board.read[peer][sequence as usize - 2].read(), 1);
            }
            board.rings[me][turn].post(sequence, [10 * sequence + me as u64], &[]);
            while !board.rings[peer][turn].shows(sequence) {
                thread::yield_now();
            }
            assert_eq!(board.rings[peer][turn].word(0), 10 * sequence + peer as u64);
            board.read[me][sequence as usize].write(1);
        }
    }

    #[test]
    fn a_post_carries_its_words_and_that_older_ones_were_read() {
        model(|| {
            let ring = || [PostCell::new(), PostCell::new()];
            let ghosts = || [Ghost::new(), Ghost::new(), Ghost::new(), Ghost::new()];
            let board = Arc::new(Board { rings: [ring(), ring()], read: [ghosts(), ghosts()] });
            let other = Arc::clone(&board);
            let peer = thread::spawn(move || take_part(&other, 1));
            take_part(&board, 0);
            peer.join().unwrap();
        });
    }
}

mod c2_done {
    use super::*;

    #[test]
    fn progress_carries_what_the_rank_did() {
        model(|| {
            let cell = Arc::new((Ghost::new(), ProgressCell::new(u64::MAX)));
            let other = Arc::clone(&cell);
            let rank = thread::spawn(move || {
                other.0.write(7);
                other.1.publish(0);
            });
            while !cell.1.has_reached(0) {
                thread::yield_now();
            }
            assert_eq!(cell.0.read(), 7);
            rank.join().unwrap();
        });
    }
}

mod s1_signal {
    use super::*;

    fn carries(send: impl Fn(&World) + Copy + Send + Sync + 'static, policy: WaitPolicy) {
        model(move || {
            let world = World::new();
            let sender = spawn(&world, move |world| {
                world.ghosts[0].write(7);
                send(world);
            });
            SemaphoreReceiver::new(&world.semaphore, 0).wait(&world.waiting(policy)).unwrap();
            assert_eq!(world.ghosts[0].read(), 7);
            sender.join().unwrap();
        });
    }

    #[test]
    fn a_signal_carries_puts_to_a_polling_wait() {
        carries(|world| SemaphoreSender::new(&world.semaphore, 0).signal(&world.kernel), POLL);
    }

    #[test]
    fn a_signal_carries_puts_to_a_sleeper_and_wakes_it() {
        carries(|world| SemaphoreSender::new(&world.semaphore, 0).signal(&world.kernel), PARK);
    }

    #[test]
    fn a_stateless_signal_carries_puts_and_wakes() {
        carries(|world| world.semaphore.signal_next(&world.kernel), PARK);
    }

    #[test]
    fn a_signal_carries_puts_to_a_poll() {
        model(|| {
            let world = World::new();
            let sender = spawn(&world, |world| {
                world.ghosts[0].write(7);
                SemaphoreSender::new(&world.semaphore, 0).signal(&world.kernel);
            });
            let mut receiver = SemaphoreReceiver::new(&world.semaphore, 0);
            if receiver.poll() {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn a_relaxed_signal_carries_on_what_the_one_before_has_published() {
        model(|| {
            let world = World::new();
            let sender = spawn(&world, |world| {
                let mut sender = SemaphoreSender::new(&world.semaphore, 0);
                world.ghosts[0].write(7);
                sender.signal(&world.kernel);
                sender.relaxed_signal(&world.kernel);
            });
            let mut receiver = SemaphoreReceiver::new(&world.semaphore, 0);
            if receiver.poll() {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn each_signal_wakes_its_own_wait_even_if_relaxed() {
        model(|| {
            let world = World::new();
            let sender = spawn(&world, |world| {
                let mut sender = SemaphoreSender::new(&world.semaphore, 0);
                sender.relaxed_signal(&world.kernel);
                sender.relaxed_signal(&world.kernel);
            });
            let mut receiver = SemaphoreReceiver::new(&world.semaphore, 0);
            receiver.relaxed_wait(&world.waiting(PARK)).unwrap();
            receiver.relaxed_wait(&world.waiting(PARK)).unwrap();
            assert_eq!(receiver.expected(), 3);
            sender.join().unwrap();
        });
    }
}

mod t1_open {
    use super::*;

    #[test]
    fn who_finds_a_latch_open_sees_what_came_before() {
        model(|| {
            let (world, latch) = (World::new(), Arc::new(Latch::new()));
            let opener = {
                let latch = Arc::clone(&latch);
                spawn(&world, move |world| {
                    world.ghosts[0].write(7);
                    latch.open(&world.kernel);
                })
            };
            if latch.is_open() {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            opener.join().unwrap();
        });
    }
}

mod p1_asleep {
    use super::*;

    #[test]
    fn no_wake_is_missed_between_the_last_look_and_the_sleep() {
        model(|| {
            let world = World::new();
            let waker = spawn(&world, |world| {
                world.ghosts[0].write(1);
                world.park.wake(&world.kernel);
            });
            world.wait_for_ghost(0, PARK).unwrap();
            waker.join().unwrap();
        });
    }

    #[test]
    fn two_sleepers_on_one_cell_each_get_their_own_news() {
        // The first to be woken wakes the second: neither may sleep through a wake that the other consumed, nor on
        // a bit that the other has set again.
        model(|| {
            let world = World::new();
            let first = spawn(&world, |world| {
                world.wait_for_ghost(0, PARK).unwrap();
                world.ghosts[1].write(1);
                world.park.wake(&world.kernel);
            });
            let second = spawn(&world, |world| world.wait_for_ghost(1, PARK).unwrap());
            world.ghosts[0].write(1);
            world.park.wake(&world.kernel);
            first.join().unwrap();
            second.join().unwrap();
        });
    }

    #[test]
    fn one_wake_reaches_all_sleepers_of_a_cell() {
        model(|| {
            let world = World::new();
            let sleepers = [0, 1].map(|_| spawn(&world, |world| world.wait_for_ghost(0, PARK).unwrap()));
            world.ghosts[0].write(1);
            world.park.wake(&world.kernel);
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
        });
    }

    #[test]
    fn two_wakers_do_not_leave_each_others_sleeper_asleep() {
        model(|| {
            let world = World::new();
            let wakers = [0, 1].map(|index| {
                spawn(&world, move |world| {
                    world.ghosts[index].write(1);
                    world.park.wake(&world.kernel);
                })
            });
            let both = || (world.ghosts[0].read() & world.ghosts[1].read() == 1).then_some(());
            wait_until(&world.waiting(PARK), &world.park, both).unwrap();
            for waker in wakers {
                waker.join().unwrap();
            }
        });
    }
}

mod r1_revoke {
    use super::*;

    #[test]
    fn a_revocation_wakes_a_sleeper_that_nobody_signals() {
        model(|| {
            let world = World::new();
            let sleeper = spawn(&world, |world| world.wait_for_ghost(0, PARK));
            world.revoke.revoke(&world.kernel, Revocation::PeerLost(known(2)));
            assert_eq!(sleeper.join().unwrap(), Err(Stop::PeerLost(known(2))));
        });
    }

    #[test]
    fn a_revocation_carries_what_the_revoker_knew() {
        model(|| {
            let world = World::new();
            let revoker = spawn(&world, |world| {
                world.ghosts[0].write(7);
                world.revoke.revoke(&world.kernel, Revocation::ProxyLost);
            });
            if world.revoke.read().is_some() {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            revoker.join().unwrap();
        });
    }

    #[test]
    fn what_was_signalled_before_the_revocation_is_still_received() {
        for policy in [POLL, PARK] {
            model(move || {
                let world = World::new();
                let revoker = spawn(&world, |world| {
                    world.ghosts[0].write(1);
                    world.revoke.revoke(&world.kernel, Revocation::Aborted(None));
                });
                assert_eq!(world.wait_for_ghost(0, policy), Ok(()));
                revoker.join().unwrap();
            });
        }
    }

    #[test]
    fn the_first_reason_stands_for_everybody() {
        model(|| {
            let world = World::new();
            let other =
                spawn(&world, |world| world.revoke.revoke(&world.kernel, Revocation::PeerLost(known(1))));
            let mine = world.revoke.revoke(&world.kernel, Revocation::Aborted(Some(known(0))));
            let theirs = other.join().unwrap();
            assert_eq!(mine, theirs);
            assert_eq!(world.revoke.read(), Some(mine));
        });
    }
}

mod l1_end {
    use super::*;

    const THREAD: u32 = 4711;

    fn carries(
        end: impl Fn(&World) + Copy + Send + Sync + 'static,
        look: impl Fn(&LifeCell) -> LifeStatus + Copy + Send + Sync + 'static,
    ) {
        model(move || {
            let world = World::new();
            world.life.take(&world.kernel, THREAD).unwrap();
            let rank = spawn(&world, move |world| {
                world.ghosts[0].write(7);
                end(world);
            });
            if look(&world.life) != LifeStatus::Alive {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            rank.join().unwrap();
        });
    }

    #[test]
    fn leaving_carries_what_the_rank_did() {
        carries(|world| world.life.leave(&world.kernel, THREAD), LifeCell::status);
    }

    #[test]
    fn giving_a_rank_up_carries_what_was_known() {
        carries(|world| world.life.mark_lost(&world.kernel), LifeCell::status);
    }

    #[test]
    fn a_watcher_acquires_it_too() {
        carries(|world| world.life.mark_lost(&world.kernel), |cell| cell.observe().0);
    }

    #[test]
    fn a_watcher_never_sleeps_through_the_end() {
        model(|| {
            let world = World::new();
            world.life.take(&world.kernel, THREAD).unwrap();
            let watcher = spawn(&world, |world| {
                loop {
                    let (status, word) = world.life.observe();
                    if status == LifeStatus::Lost {
                        break;
                    }
                    world.kernel.sleep(&[word, world.revoke.bell()], Duration::MAX);
                }
            });
            world.life.mark_lost(&world.kernel);
            watcher.join().unwrap();
        });
    }
}

mod b1_arrive {
    use super::*;

    struct Hall {
        world: Arc<World>,
        cells: Vec<BarrierCell>,
    }

    impl Hall {
        fn new(members: usize) -> Arc<Self> {
            let cells = (0..members).map(|_| BarrierCell::new(0)).collect();
            Arc::new(Self { world: World::new(), cells })
        }

        /// Each member writes its ghost, meets the others, and reads all ghosts; `passages` times.
        fn attend(&self, member: usize, passages: u64, policy: WaitPolicy) {
            let mut barrier = Barrier::new(&self.cells[..], &self.world.park, member, 0);
            for passage in 1..=passages {
                self.world.ghosts[member].write(passage);
                barrier.barrier(&self.world.waiting(policy)).unwrap();
                for ghost in &self.world.ghosts[..self.cells.len()] {
                    assert!(ghost.read() >= passage);
                }
            }
        }
    }

    fn meet(members: usize, passages: u64, policy: WaitPolicy) {
        model(move || {
            let hall = Hall::new(members);
            let others: Vec<_> = (1..members)
                .map(|member| {
                    let hall = Arc::clone(&hall);
                    thread::spawn(move || hall.attend(member, passages, policy))
                })
                .collect();
            hall.attend(0, passages, policy);
            for other in others {
                other.join().unwrap();
            }
        });
    }

    #[test]
    fn two_members_that_poll_see_what_each_did_before() {
        meet(2, 2, POLL);
    }

    #[test]
    fn two_members_that_sleep_wake_each_other_in_every_generation() {
        meet(2, 2, PARK);
    }

    #[test]
    fn the_last_of_three_members_wakes_the_others() {
        meet(3, 1, PARK);
    }

    #[test]
    fn who_finds_that_a_member_has_arrived_sees_what_it_did_before() {
        model(|| {
            let hall = Hall::new(2);
            let other = {
                let hall = Arc::clone(&hall);
                thread::spawn(move || {
                    hall.world.ghosts[1].write(1);
                    Barrier::new(&hall.cells[..], &hall.world.park, 1, 0).arrive(&hall.world.kernel);
                })
            };
            if hall.cells[1].shows(1) {
                assert_eq!(hall.world.ghosts[1].read(), 1);
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn a_member_that_arrives_and_does_not_wait_still_wakes_the_sleeper() {
        model(|| {
            let hall = Hall::new(3);
            let others = [1, 2].map(|member| {
                let hall = Arc::clone(&hall);
                thread::spawn(move || {
                    hall.world.ghosts[member].write(1);
                    Barrier::new(&hall.cells[..], &hall.world.park, member, 0).arrive(&hall.world.kernel);
                })
            });
            hall.attend(0, 1, PARK);
            for other in others {
                other.join().unwrap();
            }
        });
    }
}

mod yardsticks {
    use super::*;

    #[test]
    fn y1_a_flag_carries_what_came_before_it() {
        model(|| {
            let shared = Arc::new((BareFlag::new(0), Ghost::new()));
            let theirs = Arc::clone(&shared);
            let setter = thread::spawn(move || {
                theirs.1.write(7);
                theirs.0.set(1);
            });
            shared.0.spin(1);
            assert_eq!(shared.1.read(), 7);
            setter.join().unwrap();
        });
    }

    #[test]
    fn y2_y3_a_ring_carries_words_forth_and_slots_back() {
        const SLOTS: usize = 2;
        const ROUNDS: u64 = 3;
        model(|| {
            let slots: Vec<_> = (0..SLOTS).map(|_| BareSlot::new()).collect();
            let shared = Arc::new((slots, BareFlag::new(0), Ghost::new()));
            let theirs = Arc::clone(&shared);
            let pushing = thread::spawn(move || {
                let mut producer = BareProducer::new(&theirs.0[..], &theirs.1);
                for round in 0..ROUNDS {
                    while !producer.has_room() {
                        thread::yield_now();
                    }
                    // The slot is free only once the consumer has read what a lap ago was in it.
                    assert!(theirs.2.read() + SLOTS as u64 > round);
                    producer.push(round + 10, round);
                }
            });
            let mut consumer = BareConsumer::new(&shared.0[..], &shared.1);
            for round in 0..ROUNDS {
                let words = loop {
                    match consumer.peek() {
                        Some(words) => break words,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((words.0, words.1 & !(1 << 63)), (round + 10, round));
                shared.2.write(round + 1);
                consumer.pop();
            }
            pushing.join().unwrap();
        });
    }

    #[test]
    fn y4_a_counter_makes_two_meet() {
        model(|| {
            let shared = Arc::new((BareFlag::new(0), [Ghost::new(), Ghost::new()], MockKernel::new()));
            let attend = |shared: &(BareFlag, [Ghost; 2], MockKernel), member: usize| {
                shared.1[member].write(7);
                BareBarrier::new(&shared.0, 2).meet(&shared.2);
                assert_eq!(shared.1[1 - member].read(), 7);
            };
            let theirs = Arc::clone(&shared);
            let other = thread::spawn(move || attend(&theirs, 1));
            attend(&shared, 0);
            other.join().unwrap();
        });
    }
}
