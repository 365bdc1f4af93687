//! The waiting loop, over a futex made of a mutex.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use super::super::{
    atomic::{AtomicU32, AtomicU64, Ordering},
    kernel::{Kernel, SleepWord, mock::MockKernel},
    revoke::{Revocation, RevokeCell},
};
use super::*;

const PARK_AT_ONCE: WaitPolicy = WaitPolicy { spins: 0, park_after: Duration::ZERO };
const POLICIES: [WaitPolicy; 3] = [WaitPolicy::DEDICATED, WaitPolicy::OVERSUBSCRIBED, PARK_AT_ONCE];
const LONG: Duration = Duration::from_secs(60);

/// A watch that counts how often it is asked, and may say something from the n-th time on.
struct Nagging {
    asked: Cell<u32>,
    stops_at: u32,
}

impl Watch for Nagging {
    fn check(&self) -> Option<Stop> {
        self.asked.set(self.asked.get() + 1);
        (self.asked.get() >= self.stops_at).then_some(Stop::ProxyLost)
    }
}

#[test]
fn a_poll_that_succeeds_at_once_touches_neither_watch_nor_clock() {
    struct Untouchable;
    impl Watch for Untouchable {
        fn check(&self) -> Option<Stop> {
            unreachable!("asked the watch")
        }
    }
    let kernel = MockKernel::new();
    let context = Waiting::new(&kernel, &Untouchable, WaitPolicy::OVERSUBSCRIBED, Duration::ZERO);
    assert_eq!(wait_until(&context, &ParkCell::default(), || Some(5)), Ok(5));
}

#[test]
fn every_policy_ends_at_the_deadline_and_not_before() {
    for policy in POLICIES {
        let (kernel, revoke) = (MockKernel::new(), RevokeCell::default());
        let timeout = Duration::from_millis(5);
        let context = Waiting::new(&kernel, &revoke, policy, timeout);
        let start = Instant::now();
        let stop = wait_until(&context, &ParkCell::default(), || None::<()>);
        assert_eq!(stop, Err(Stop::Timeout), "{policy:?}");
        assert!(start.elapsed() >= timeout, "{policy:?}");
    }
}

#[test]
fn of_each_pause_of_the_waiter_a_tenth_of_the_timeout_counts_at_most() {
    /// A machine that is paused for an hour whenever somebody sleeps.
    struct OftenPaused(Cell<Duration>);
    impl Kernel for OftenPaused {
        fn light_barrier(&self) {}
        fn heavy_barrier(&self) {}
        fn sleep(&self, _words: &[SleepWord<'_>], _timeout: Duration) {
            self.0.set(self.0.get() + Duration::from_secs(3600));
        }
        fn wake_all(&self, _word: &AtomicU32) {}
        fn yield_now(&self) {}
        fn now(&self) -> Duration {
            self.0.get()
        }
    }
    let (kernel, revoke) = (OftenPaused(Cell::new(LONG)), RevokeCell::default());
    let context = Waiting::new(&kernel, &revoke, PARK_AT_ONCE, LONG);
    let pauses = |kernel: &OftenPaused| (kernel.0.get() - LONG).as_secs() / 3600;
    let waited = wait_until(&context, &ParkCell::default(), || (pauses(&kernel) == 9).then_some("late"));
    assert_eq!(waited, Ok("late"));
    kernel.0.set(LONG);
    assert_eq!(wait_until(&context, &ParkCell::default(), || None::<()>), Err(Stop::Timeout));
    assert_eq!(pauses(&kernel), 10);
}

#[test]
fn a_sleeper_without_a_bell_asks_its_watch_again_and_again() {
    for policy in POLICIES {
        let kernel = MockKernel::new();
        let watch = Nagging { asked: Cell::new(0), stops_at: 3 };
        let context = Waiting::new(&kernel, &watch, policy, LONG);
        assert_eq!(wait_until(&context, &ParkCell::default(), || None::<()>), Err(Stop::ProxyLost));
        assert_eq!(watch.asked.get(), 3);
    }
}

#[test]
fn the_last_look_comes_after_the_reason_to_stop() {
    for policy in POLICIES {
        let kernel = MockKernel::new();
        let watch = Nagging { asked: Cell::new(0), stops_at: 1 };
        let context = Waiting::new(&kernel, &watch, policy, LONG);
        let signalled_before_it_died = || (watch.asked.get() > 0).then_some("news");
        assert_eq!(wait_until(&context, &ParkCell::default(), signalled_before_it_died), Ok("news"));
    }
}

#[test]
fn a_sleeper_is_woken_by_its_cell_and_by_the_bell() {
    for by_bell in [false, true] {
        let (kernel, revoke, park) = (MockKernel::new(), RevokeCell::default(), ParkCell::default());
        let news = AtomicU64::new(0);
        let context = Waiting::new(&kernel, &revoke, PARK_AT_ONCE, LONG);
        let outcome = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                // Relaxed: the value is all there is.
                wait_until(&context, &park, || (news.load(Ordering::Relaxed) != 0).then_some(()))
            });
            while kernel.asleep() == 0 {
                std::thread::yield_now();
            }
            if by_bell {
                revoke.revoke(&kernel, Revocation::Aborted(None));
            } else {
                news.store(1, Ordering::Relaxed); // Relaxed: the value is all there is
                park.wake(&kernel);
            }
            sleeper.join().unwrap()
        });
        assert_eq!(outcome, if by_bell { Err(Stop::Revoked(None)) } else { Ok(()) });
    }
}

#[test]
fn a_stop_becomes_the_error_that_says_who_was_awaited() {
    let (kernel, revoke) = (MockKernel::new(), RevokeCell::default());
    let context = Waiting::new(&kernel, &revoke, WaitPolicy::for_spinners(1), Duration::from_secs(2));
    let timeout = context.error(Stop::Timeout, "wait", Some(Rank::known(3)));
    assert_eq!(timeout.to_string(), "wait timed out after 2s, awaiting rank 3");
    let lost = context.error(Stop::PeerLost(Rank::known(1)), "wait", None);
    assert!(matches!(lost, Error::PeerLost { rank } if rank.get() == 1));
    assert!(matches!(context.error(Stop::ProxyLost, "wait", None), Error::ProxyLost));
    assert!(matches!(context.error(Stop::Revoked(None), "wait", None), Error::Revoked { by: None, .. }));
}

#[test]
fn who_shares_a_core_yields_at_once() {
    assert_eq!(WaitPolicy::for_spinners(0), WaitPolicy::DEDICATED);
    assert_eq!(WaitPolicy::for_spinners(1), WaitPolicy::DEDICATED);
    assert_eq!(WaitPolicy::for_spinners(2).spins, 0);
}

#[test]
fn a_burst_ends_with_the_poll_that_succeeds_or_when_the_policy_would_give_way() {
    let polls_until = |policy, hit: u32| {
        let polls = Cell::new(0);
        let found = spin_until(policy, || {
            polls.set(polls.get() + 1);
            polls.get() == hit
        });
        (found, polls.get())
    };
    assert_eq!(polls_until(WaitPolicy::DEDICATED, 1), (true, 1));
    assert_eq!(polls_until(WaitPolicy::DEDICATED, 1000), (true, 1000));
    assert_eq!(polls_until(WaitPolicy::DEDICATED, 1001), (false, 1000));
    assert_eq!(polls_until(WaitPolicy::OVERSUBSCRIBED, 1), (false, 0));
}

#[test]
fn every_policy_ends_when_the_program_says_so_and_asks_again_while_it_does_not() {
    thread_local! {
        static ASKED: Cell<u32> = const { Cell::new(0) };
    }
    fn third_time() -> bool {
        ASKED.set(ASKED.get() + 1);
        ASKED.get() == 3
    }
    for policy in POLICIES {
        ASKED.set(0);
        let (kernel, revoke) = (MockKernel::new(), RevokeCell::default());
        let context = Waiting::new(&kernel, &revoke, policy, LONG);
        let wait = || wait_until(&context, &ParkCell::default(), || None::<()>);
        let start = Instant::now();
        assert_eq!(
            super::super::interrupt::interruptible(third_time, wait),
            Err(Stop::Cancelled),
            "{policy:?}"
        );
        assert!(start.elapsed() >= 3 * INTERRUPT_INTERVAL, "{policy:?}");
        assert_eq!(ASKED.get(), 3);
    }
}

#[test]
fn who_is_woken_for_nothing_stays_awake_before_it_announces_again() {
    /// A system where each sleep ends at once, by a wake, and a yield takes a hundred microseconds.
    #[derive(Default)]
    struct Restless {
        yields: Cell<u32>,
        sleeps: Cell<u32>,
    }
    impl Kernel for Restless {
        fn light_barrier(&self) {}
        fn heavy_barrier(&self) {}
        fn sleep(&self, _: &[SleepWord<'_>], _: Duration) {
            self.sleeps.set(self.sleeps.get() + 1);
        }
        fn wake_all(&self, _: &AtomicU32) {}
        fn yield_now(&self) {
            self.yields.set(self.yields.get() + 1);
        }
        fn now(&self) -> Duration {
            Duration::from_micros(100) * self.yields.get()
        }
    }
    let (kernel, revoke) = (Restless::default(), RevokeCell::default());
    let context = Waiting::new(&kernel, &revoke, WaitPolicy::OVERSUBSCRIBED, LONG);
    let poll = || (kernel.sleeps.get() == 5 && kernel.yields.get() >= 60).then_some(());
    assert_eq!(wait_until(&context, &ParkCell::default(), poll), Ok(()));
    assert_eq!(kernel.sleeps.get(), 5, "ten yields make the time that a waiter stays awake");
}

#[test]
fn sleeps_last_as_long_as_the_watch_says() {
    /// A system that writes down how long each sleep was to be, and on whose clock it has passed.
    struct Sleepy {
        sleeps: std::sync::Mutex<Vec<Duration>>,
    }
    impl Kernel for Sleepy {
        fn light_barrier(&self) {}
        fn heavy_barrier(&self) {}
        fn sleep(&self, _: &[SleepWord<'_>], timeout: Duration) {
            self.sleeps.lock().unwrap().push(timeout);
        }
        fn wake_all(&self, _: &AtomicU32) {}
        fn yield_now(&self) {}
        fn now(&self) -> Duration {
            self.sleeps.lock().unwrap().iter().sum()
        }
    }
    struct Napping;
    impl Watch for Napping {
        fn check(&self) -> Option<Stop> {
            None
        }
        fn longest_sleep(&self, slept: u32) -> Duration {
            Duration::from_millis(1 << slept.min(2))
        }
    }
    let kernel = Sleepy { sleeps: std::sync::Mutex::default() };
    let context = Waiting::new(&kernel, &Napping, PARK_AT_ONCE, LONG);
    let polls = Cell::new(0);
    let poll = || {
        polls.set(polls.get() + 1);
        (polls.get() == 11).then_some(())
    };
    assert_eq!(wait_until(&context, &ParkCell::default(), poll), Ok(()));
    assert_eq!(*kernel.sleeps.lock().unwrap(), [1, 2, 4, 4, 4].map(Duration::from_millis));
}
