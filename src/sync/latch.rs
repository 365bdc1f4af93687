//! A word that opens once, for sleepers that wait for something to be over.

use super::{
    atomic::{AtomicU32, Ordering},
    kernel::{Kernel, SleepWord},
};

const SHUT: u32 = 0;
const OPEN: u32 = 1;

/// Shut, then open for ever. It carries nothing but that: who must see more than the opening reads it elsewhere.
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

    /// Opens it and wakes everyone who sleeps on it.
    pub fn open<K: Kernel + ?Sized>(&self, kernel: &K) {
        self.word.store(OPEN, Ordering::Relaxed); // Relaxed: carries only itself
        kernel.wake_all(&self.word);
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.word.load(Ordering::Relaxed) != SHUT // Relaxed: carries only itself
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
