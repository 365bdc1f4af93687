//! A word that opens once, for those who wait for something to be over.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | T1 open | `open` | `is_open` | everything before, such as what was pushed before a proxy was told to stop |

use super::{
    atomic::{AtomicU32, Ordering},
    kernel::{Kernel, SleepWord},
};

const SHUT: u32 = 0;
const OPEN: u32 = 1;

/// Shut, then open for ever.
///
/// Nobody can fall asleep on it once it is open, as the futex call compares the word itself; so opening
/// needs no announcement by the sleeper, only an unconditional wake.
#[repr(C)]
#[derive(Debug)]
pub struct Latch {
    word: AtomicU32,
}

impl Latch {
    /// A shut latch; the same as all zero bytes.
    #[must_use]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(SHUT) }
    }

    /// Opens it and wakes everyone who sleeps on it. Publishes everything before (T1).
    pub fn open<K: Kernel + ?Sized>(&self, kernel: &K) {
        self.word.store(OPEN, Ordering::Release); // T1 open
        kernel.wake_all(&self.word);
    }

    /// Whether it is open; if so, acquires everything before it was opened (T1).
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.word.load(Ordering::Acquire) != SHUT // T1 open
    }

    /// What to sleep on until it opens.
    #[must_use]
    pub fn until_open(&self) -> SleepWord<'_> {
        SleepWord { word: &self.word, expected: SHUT }
    }
}

impl Default for Latch {
    fn default() -> Self {
        Self::new()
    }
}
