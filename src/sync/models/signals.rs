//! Models of counted signals and of the latch.

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
