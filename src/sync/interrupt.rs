//! Lets a program end the long waits of one of its threads, as Ctrl-C does in an interpreter.
//!
//! The check belongs to the thread that waits. So threads of the engine never call it, and a call
//! that need not wait pays for one word of thread-local memory.

use std::cell::Cell;
use std::time::Duration;

/// The time between two questions of one wait.
pub(crate) const INTERRUPT_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Calls `run`. A wait in it that lasts asks `check` every 50 ms whether to give up, and returns
/// [`Error::Cancelled`](crate::Error::Cancelled) once the answer is `true`.
///
/// It concerns waits of the calling thread only, within `run`. A collective call that is cancelled
/// ends the epoch, as one that fails does. Of two nested calls the inner one counts.
pub fn interruptible<R>(check: fn() -> bool, run: impl FnOnce() -> R) -> R {
    struct Restore(Option<fn() -> bool>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHECK.set(self.0);
        }
    }
    let _outer = Restore(CHECK.replace(Some(check)));
    run()
}

/// Returns the check of this thread, while one is set.
pub(crate) fn interrupt_check() -> Option<fn() -> bool> {
    CHECK.get()
}

/// Returns whether this thread has a check that says to give up.
#[cfg(not(loom))]
pub(crate) fn is_interrupted() -> bool {
    interrupt_check().is_some_and(|check| check())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_check_counts_within_its_call_only_and_the_inner_one_first() {
        assert!(!is_interrupted());
        interruptible(
            || true,
            || {
                assert!(is_interrupted());
                interruptible(|| false, || assert!(!is_interrupted()));
                assert!(is_interrupted());
                std::thread::spawn(|| assert!(!is_interrupted())).join().unwrap();
            },
        );
        assert!(!is_interrupted());
    }
}
