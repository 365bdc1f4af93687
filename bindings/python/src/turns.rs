//! A value that threads use in turn. Ctrl-C ends the wait for a turn.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use shmccl::shm::forks::RankProcess;
use shmccl::{Error, Result};

use crate::interrupt::has_raised;
use crate::lock::lock;

/// How often a thread that waits looks at signals.
const LOOK: Duration = Duration::from_millis(50);

/// A value that one thread at a time uses. No thread holds the interpreter's lock while it waits.
pub struct Turns<T> {
    value: Mutex<T>,
    queue: Queue,
    /// In a child of a fork, whoever had the turn may be no more.
    process: RankProcess,
}

/// The threads that wait for a turn.
#[derive(Default)]
struct Queue {
    n_waiting: AtomicU32,
    gate: Mutex<()>,
    freed: Condvar,
}

/// A turn of a thread, until it is dropped.
pub struct Turn<'a, T> {
    /// Dropped first: fields are in order.
    value: MutexGuard<'a, T>,
    _end: End<'a>,
}

/// Wakes a thread that waits, once the value is free.
struct End<'a>(&'a Queue);

impl<T> Turns<T> {
    /// Lets threads use `value`.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), queue: Queue::default(), process: RankProcess::this() }
    }

    /// Waits for the turn of this thread, which has not the interpreter's lock.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when a handler of signals has raised something meanwhile;
    /// [`Error::Unavailable`] in a child of a fork.
    #[inline]
    pub fn take(&self) -> Result<Turn<'_, T>> {
        self.process.check("a call")?;
        self.free_turn().map_or_else(|| self.wait(Duration::MAX), Ok)
    }

    /// Waits like [`Turns::take`], for so long at most.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when that has passed, too.
    pub fn take_within(&self, patience: Duration) -> Result<Turn<'_, T>> {
        self.free_turn().map_or_else(|| self.wait(patience), Ok)
    }

    /// Returns the value of which nobody has a turn.
    pub fn get_mut(&mut self) -> &mut T {
        // Nothing that panics leaves a value half changed here.
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn free_turn(&self) -> Option<Turn<'_, T>> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            // As in `get_mut`.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Turn { value, _end: End(&self.queue) })
    }

    #[cold]
    fn wait(&self, patience: Duration) -> Result<Turn<'_, T>> {
        // Before it looks again: whoever ends a turn behind that look sees that somebody waits.
        self.queue.n_waiting.fetch_add(1, Ordering::SeqCst);
        let turn = self.next_turn(patience);
        self.queue.n_waiting.fetch_sub(1, Ordering::SeqCst);
        turn
    }

    fn next_turn(&self, patience: Duration) -> Result<Turn<'_, T>> {
        let start = Instant::now();
        loop {
            let gate = lock(&self.queue.gate);
            if let Some(turn) = self.free_turn() {
                return Ok(turn);
            }
            let (gate, passed) =
                self.queue.freed.wait_timeout(gate, LOOK).unwrap_or_else(PoisonError::into_inner);
            // A handler of signals may wait for a turn itself.
            drop(gate);
            if passed.timed_out() && (start.elapsed() >= patience || has_raised()) {
                return Err(Error::Cancelled { operation: "waiting for a call of another thread" });
            }
        }
    }
}

impl<T> Turns<Option<T>> {
    /// Waits for the turn of this thread, and takes the value out. A child of a fork has none to
    /// take.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when a handler of signals has raised something meanwhile.
    pub fn take_out(&self) -> Result<Option<T>> {
        if self.process.check("a call").is_err() {
            return Ok(None);
        }
        Ok(self.take()?.take())
    }
}

impl<T: Default> Default for Turns<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl Drop for End<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.n_waiting.load(Ordering::SeqCst) != 0 {
            self.0.wake();
        }
    }
}

impl Queue {
    #[cold]
    fn wake(&self) {
        // Behind the gate: a thread that has looked in vain sleeps by now.
        drop(lock(&self.gate));
        self.freed.notify_one();
    }
}
