//! Steps that a fork of this process does not divide.
//!
//! A child of a fork has only the thread that has forked. What another thread was about to do stays
//! half done there for good. Two such steps harm a child:
//!
//! - A lock that somebody had stays taken, and the child waits for ever.
//! - glibc (2.36) gives a new thread the stack of one that has ended, and frees the thread-local
//!   memory of that one first. A child of a fork at this moment frees it once more when it starts a
//!   thread, and ends by SIGABRT.
//!
//! So a fork waits until all threads are outside such steps, and they wait until it is over. A step
//! is short, waits for no other thread, and may contain others. A fork inside a step, by which
//! `std` starts programs, waits for nobody.

use std::cell::Cell;
use std::io;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::thread::{Builder, JoinHandle};

use super::forks;

/// Threads in their steps read; a fork writes.
static FORK: RwLock<()> = RwLock::new(());

thread_local! {
    /// How many steps this thread is in, one inside the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Calls `step` while no other thread of this process forks. Threads are started so.
pub fn undivided<R>(step: impl FnOnce() -> R) -> R {
    let _step = Step::begin();
    step()
}

/// The stack of a thread, as large as `std` makes it. Untold, `std` looks for a variable of the
/// environment, which another thread may be changing.
const STACK: usize = 2 << 20;

/// Starts a thread of this `name`.
///
/// # Errors
/// The system's.
pub(crate) fn spawn<R: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    let builder = Builder::new().name(name.to_owned()).stack_size(STACK);
    undivided(|| builder.spawn(body))
}

/// A value of the whole process. In a child of a fork nobody has it locked.
#[derive(Debug, Default)]
pub struct ForkMutex<T>(Mutex<T>);

impl<T> ForkMutex<T> {
    /// Returns a lock of `value`.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Calls `step` with the value, which no other thread has meanwhile.
    pub fn with<R>(&self, step: impl FnOnce(&mut T) -> R) -> R {
        // Before the lock: a thread that has it is in a step already, and never waits for a fork.
        undivided(|| step(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<T> ForkMutex<T> {
    /// Calls `look` with the value if no other thread has it, outside any step: in a fork.
    pub(super) fn look(&self, look: impl FnOnce(&mut T)) {
        match self.0.try_lock() {
            Ok(mut value) => look(&mut value),
            Err(TryLockError::Poisoned(poisoned)) => look(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// A value that each process has for itself. A child of a fork drops its copy of what its parent
/// had, and begins with the default.
#[derive(Debug, Default)]
pub struct ProcessMutex<T>(ForkMutex<(u32, Option<T>)>);

impl<T: Default> ProcessMutex<T> {
    /// Returns a lock of the default.
    pub const fn new() -> Self {
        Self(ForkMutex::new((0, None)))
    }

    /// Calls `step` with the value of this process, which no other thread has meanwhile.
    pub fn with<R>(&self, step: impl FnOnce(&mut T) -> R) -> R {
        let this = std::process::id();
        self.0.with(|(owner, value)| {
            if std::mem::replace(owner, this) != this {
                *value = None;
            }
            step(value.get_or_insert_default())
        })
    }
}

/// A step of this thread, until it is dropped.
struct Step {
    /// `None` inside another step.
    _no_fork: Option<RwLockReadGuard<'static, ()>>,
}

impl Step {
    fn begin() -> Self {
        let is_outermost = DEPTH.get() == 0;
        if is_outermost {
            forks::handle();
        }
        let no_fork = is_outermost.then(|| FORK.read().unwrap_or_else(PoisonError::into_inner));
        DEPTH.set(DEPTH.get() + 1);
        Self { _no_fork: no_fork }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Waits until all other threads are outside their steps, and keeps them there while the guard
/// lives. None for a thread that is in a step itself.
pub(super) fn keep_all_outside() -> Option<RwLockWriteGuard<'static, ()>> {
    (DEPTH.get() == 0).then(|| FORK.write().unwrap_or_else(PoisonError::into_inner))
}
