//! State that threads of this process change and wait for.
//!
//! Waiters wait as everybody does here ([`wait_until`]): they give way after each look, as the thread that they wait for may
//! share their core, and sleep after a while. A waker enters the system only if somebody sleeps. The lock carries the data: who
//! sees a change sees what was done before it. It is held for some instructions, never while anything is waited for or
//! executed.
//!
//! There is no deadline, and the end of the epoch ends no wait: what is waited for is work of this process, and that ends by
//! itself, as each of its waits for a peer has both.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::channel::Fabric;
use crate::sync::{ParkCell, SleepWord, Stop, WaitPolicy, Waiting, Watch, wait_until};

/// A value behind a lock, and those who wait for it to change.
#[derive(Debug)]
pub(super) struct Monitor<T> {
    fabric: Arc<Fabric>,
    value: Mutex<T>,
    park: ParkCell,
}

/// Sleepers that nothing stops are still woken once by the end of the epoch; afterwards its bell would not let them sleep.
#[derive(Debug)]
struct Unstoppable<'a>(&'a Fabric);

impl Watch for Unstoppable<'_> {
    fn check(&self) -> Option<Stop> {
        None
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        let revocation = self.0.world().revocation();
        revocation.read().is_none().then(|| revocation.bell())
    }
}

impl<T> Monitor<T> {
    pub(super) fn new(fabric: &Arc<Fabric>, value: T) -> Self {
        Self { fabric: Arc::clone(fabric), value: Mutex::new(value), park: ParkCell::new() }
    }

    /// Looks at the value.
    pub(super) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the value, and wakes whoever waits for that.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.park.wake(self.fabric.kernel());
        result
    }

    /// Waits until `poll` returns something. What `poll` changes nobody is told.
    pub(super) fn wait<R>(&self, poll: impl FnMut(&mut T) -> Option<R>) -> R {
        self.wait_for(WaitPolicy::OVERSUBSCRIBED, Duration::MAX, poll).expect("there is no deadline")
    }

    /// Waits for as long as waiters stay awake.
    pub(super) fn wait_awake<R>(&self, poll: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let awake = WaitPolicy { park_after: Duration::MAX, ..WaitPolicy::OVERSUBSCRIBED };
        self.wait_for(awake, WaitPolicy::OVERSUBSCRIBED.park_after, poll)
    }

    /// Waits asleep from the start.
    pub(super) fn wait_asleep<R>(&self, poll: impl FnMut(&mut T) -> Option<R>) -> R {
        let asleep = WaitPolicy { park_after: Duration::ZERO, ..WaitPolicy::OVERSUBSCRIBED };
        self.wait_for(asleep, Duration::MAX, poll).expect("there is no deadline")
    }

    fn wait_for<R>(
        &self,
        policy: WaitPolicy,
        timeout: Duration,
        mut poll: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let watch = Unstoppable(&self.fabric);
        let waiting = Waiting::new(self.fabric.kernel(), &watch, policy, timeout);
        wait_until(&waiting, &self.park, || poll(&mut self.lock())).ok()
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // What is done under the lock does not panic half way.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
