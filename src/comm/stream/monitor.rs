//! State that threads of this process change and wait for.
//!
//! A waiter stays awake for a while and gives way to other threads after each look, as the thread that it waits for may share
//! its core; then it sleeps on a condition variable. Whoever changes the state enters the system only if somebody sleeps. The lock
//! orders everything: a waiter sees what was done before the change that it waited for.
//!
//! There is no deadline: what is waited for here is work of this process, and that ends by itself, as each of its waits for a
//! peer has one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::sync::WaitPolicy;

/// Yields between two looks at the clock.
const YIELDS_PER_CLOCK: u32 = 8;

/// A value behind a lock, and those who wait for it to change.
#[derive(Debug)]
pub(super) struct Monitor<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: T,
    sleepers: u32,
}

impl<T> Monitor<T> {
    pub(super) fn new(value: T) -> Self {
        Self { state: Mutex::new(State { value, sleepers: 0 }), changed: Condvar::new() }
    }

    /// Looks at the value.
    pub(super) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock().value)
    }

    /// Changes the value, and wakes whoever waits for that.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.lock();
        let result = change(&mut state.value);
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.changed.notify_all();
        }
        result
    }

    /// Waits until `poll` returns something. What `poll` changes nobody is told.
    pub(super) fn wait<R>(&self, mut poll: impl FnMut(&mut T) -> Option<R>) -> R {
        match self.wait_awake(&mut poll) {
            Some(result) => result,
            None => self.wait_asleep(poll),
        }
    }

    /// Waits for a while, awake.
    pub(super) fn wait_awake<R>(&self, mut poll: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let mut begun = None;
        loop {
            for _ in 0..YIELDS_PER_CLOCK {
                if let Some(result) = poll(&mut self.lock().value) {
                    return Some(result);
                }
                std::thread::yield_now();
            }
            if begun.get_or_insert_with(Instant::now).elapsed() >= WaitPolicy::CROWDED.park_after {
                return None;
            }
        }
    }

    /// Waits asleep.
    pub(super) fn wait_asleep<R>(&self, mut poll: impl FnMut(&mut T) -> Option<R>) -> R {
        let mut state = self.lock();
        loop {
            if let Some(result) = poll(&mut state.value) {
                return result;
            }
            state.sleepers += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleepers -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // What is done under the lock does not panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_that_sleeps_is_woken_by_the_change_it_waits_for() {
        let monitor = Monitor::new(0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| monitor.wait_asleep(|value| (*value == 2).then_some("two")));
            for _ in 0..2 {
                monitor.change(|value| *value += 1);
            }
            assert_eq!(waiter.join().unwrap(), "two");
        });
        assert_eq!(monitor.lock().sleepers, 0);
    }

    #[test]
    fn nobody_stays_awake_for_ever() {
        let monitor = Monitor::new(());
        assert_eq!(monitor.wait_awake(|()| None::<()>), None);
    }
}
