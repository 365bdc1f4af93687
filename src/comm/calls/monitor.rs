//! A value behind a lock, which threads of the program wait for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::channel::RankContext;
use crate::error::{Error, Result};
use crate::sync::{ParkCell, SleepWord, Stop, WaitPolicy, Waiting, Watch, wait_until};

/// A value behind a lock, and those who wait for it to change.
#[derive(Debug)]
pub(super) struct Monitor<T> {
    pub(super) context: Arc<RankContext>,
    value: Mutex<T>,
    park: ParkCell,
}

/// Watches nothing. Only the end of the epoch wakes its sleepers once; afterwards that bell would
/// not let them sleep.
#[derive(Debug)]
struct Unstoppable<'a>(&'a RankContext);

impl Watch for Unstoppable<'_> {
    fn check(&self) -> Option<Stop> {
        None
    }

    fn bell(&self) -> Option<SleepWord<'_>> {
        let revocation = self.0.mapped().revocation();
        revocation.read().is_none().then(|| revocation.bell())
    }
}

impl<T> Monitor<T> {
    pub(super) fn new(context: &Arc<RankContext>, value: T) -> Self {
        Self { context: Arc::clone(context), value: Mutex::new(value), park: ParkCell::default() }
    }

    /// Looks at the value.
    pub(super) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the value, and wakes the threads that wait for that.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.park.wake(self.context.kernel());
        result
    }

    /// Waits until `poll` returns something, or the program cancels the wait `operation`.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(super) fn wait_cancellable<R>(
        &self,
        operation: &'static str,
        poll: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R> {
        let done = self.wait_for(WaitPolicy::OVERSUBSCRIBED, Duration::MAX, poll);
        done.map_err(|_| Error::Cancelled { operation })
    }

    /// Waits for as long as waiters stay awake.
    pub(super) fn wait_awake<R>(&self, poll: impl FnMut(&mut T) -> Option<R>) -> Option<R> {
        let awake = WaitPolicy { park_after: Duration::MAX, ..WaitPolicy::OVERSUBSCRIBED };
        self.wait_for(awake, WaitPolicy::OVERSUBSCRIBED.park_after, poll).ok()
    }

    /// Waits asleep from the start.
    pub(super) fn wait_asleep<R>(&self, poll: impl FnMut(&mut T) -> Option<R>) -> R {
        let asleep = WaitPolicy { park_after: Duration::ZERO, ..WaitPolicy::OVERSUBSCRIBED };
        self.wait_for(asleep, Duration::MAX, poll).expect("there is no deadline")
    }

    /// Waits for `timeout` at most until `poll` returns something. Changes that `poll` makes wake
    /// nobody.
    ///
    /// # Errors
    /// [`Stop::Timeout`]; [`Stop::Cancelled`].
    pub(super) fn wait_for<R>(
        &self,
        policy: WaitPolicy,
        timeout: Duration,
        mut poll: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Stop> {
        let watch = Unstoppable(&self.context);
        let waiting = Waiting::new(self.context.kernel(), &watch, policy, timeout);
        wait_until(&waiting, &self.park, || poll(&mut self.lock()))
    }

    /// Locks the value. Changes wake nobody.
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        // Nothing under the lock panics half way.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
