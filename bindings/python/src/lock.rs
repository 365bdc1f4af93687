//! Locks of what no panic leaves half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, of which nobody calls Python or waits. Nothing that panics leaves a value half
/// changed here.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
