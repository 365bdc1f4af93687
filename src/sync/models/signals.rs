//! Models of counted signals, of the latch, and of going to sleep (P1, P2).

use super::*;

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
    fn a_word_that_counts_signals_carries_puts_to_who_finds_the_count() {
        model(|| {
            let (world, word) = (World::new(), Arc::new(AtomicU64::new(0)));
            let sender = {
                let word = Arc::clone(&word);
                spawn(&world, move |world| {
                    world.ghosts[0].write(7);
                    semaphore::publish_count(&word, 1);
                })
            };
            if semaphore::counts(&word, 1) {
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
            assert_eq!(receiver.consumed(), 2);
            sender.join().unwrap();
        });
    }
}

mod t1_open {
    use super::*;

    #[test]
    fn who_finds_a_latch_open_sees_what_came_before() {
        model(|| {
            let (world, latch) = (World::new(), Arc::new(Latch::default()));
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
    // The first to be woken wakes the second: neither may sleep through a wake that the other
    // consumed, nor on a bit that the other has set again.
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
