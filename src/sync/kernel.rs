//! What the protocols need from the operating system, as a trait, so that loom can stand in for it.

use std::time::Duration;

use super::atomic::{AtomicU32, Ordering};

/// A word to sleep on, and the value it must still hold for the sleep to begin.
#[derive(Clone, Copy, Debug)]
pub struct SleepWord<'a> {
    /// The word.
    pub word: &'a AtomicU32,
    /// The value of the word when the caller last looked.
    pub expected: u32,
}

impl SleepWord<'_> {
    /// Returns whether the word still holds that value.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.word.load(Ordering::Relaxed) == self.expected // Relaxed: a hint to sleep or to look again
    }
}

/// The calls that waiting is made of; `shm::HostKernel` makes them on a live system.
pub trait Kernel {
    /// Makes the waker's half of the barrier pair between "publish, then look for sleepers" and
    /// "announce sleep, then look for news": see [`park`](super::park). It is on the fast path of
    /// every signal, so it costs next to nothing.
    fn light_barrier(&self);

    /// Makes the sleeper's half of that pair. It may take microseconds.
    fn heavy_barrier(&self);

    /// Sleeps until one of `words` is woken, unless one of them has already changed, for at most
    /// `timeout`. May return early for any reason or none; the caller looks again.
    fn sleep(&self, words: &[SleepWord<'_>], timeout: Duration);

    /// Wakes all sleepers on `word`, in any process.
    fn wake_all(&self, word: &AtomicU32);

    /// Lets another runnable thread have this core.
    fn yield_now(&self);

    /// Returns the time since some fixed moment; never runs backwards.
    fn now(&self) -> Duration;
}

#[cfg(test)]
pub(crate) mod mock {
    //! A futex made of a mutex and a condition variable: the same for unit tests (std) and models
    //! (loom).
    //!
    //! It is exact where exactness finds bugs: a sleeper is woken only through a word that it
    //! named, and never spuriously. So a wake that is sent to the wrong word, or before the sleep,
    //! leaves it asleep, and loom reports the deadlock. The two barriers are the SeqCst fences that
    //! a system without `membarrier` uses.

    use super::super::{
        atomic::AtomicU32,
        park::{sleeper_fence, waker_fence},
    };
    use super::{Duration, Kernel, SleepWord};

    #[cfg(loom)]
    use loom::{sync::Condvar, sync::Mutex, thread};
    #[cfg(not(loom))]
    use std::{sync::Condvar, sync::Mutex, thread};

    #[derive(Debug)]
    pub(crate) struct MockKernel {
        sleepers: Mutex<Vec<Sleeper>>,
        woken: Condvar,
        #[cfg(not(loom))]
        start: std::time::Instant,
    }

    #[derive(Debug)]
    struct Sleeper {
        id: usize,
        words: Vec<usize>,
        woken: bool,
    }

    impl MockKernel {
        pub(crate) fn new() -> Self {
            Self {
                sleepers: Mutex::new(Vec::new()),
                woken: Condvar::new(),
                #[cfg(not(loom))]
                start: std::time::Instant::now(),
            }
        }

        /// Returns how many threads are asleep.
        #[cfg(not(loom))]
        pub(crate) fn asleep(&self) -> usize {
            self.sleepers.lock().unwrap().len()
        }
    }

    fn name(word: &AtomicU32) -> usize {
        std::ptr::from_ref(word).addr()
    }

    impl Kernel for MockKernel {
        fn light_barrier(&self) {
            waker_fence();
        }

        fn heavy_barrier(&self) {
            sleeper_fence();
        }

        fn sleep(&self, words: &[SleepWord<'_>], timeout: Duration) {
            let mut sleepers = self.sleepers.lock().unwrap();
            // The mutex orders this look after every waker that has been here already.
            if !words.iter().all(SleepWord::is_unchanged) {
                drop(sleepers);
                thread::yield_now(); // tells loom that the caller looks again only after the others have moved on
                return;
            }
            let id = sleepers.iter().map(|sleeper| sleeper.id + 1).max().unwrap_or(0);
            sleepers.push(Sleeper { id, words: words.iter().map(|w| name(w.word)).collect(), woken: false });
            let awake = |sleepers: &[Sleeper]| sleepers.iter().any(|s| s.id == id && s.woken);
            #[cfg(loom)]
            while !awake(&sleepers) {
                let _ = timeout; // a model has no clock: nobody may rely on the timeout to wake up
                sleepers = self.woken.wait(sleepers).unwrap();
            }
            #[cfg(not(loom))]
            {
                sleepers = self.woken.wait_timeout_while(sleepers, timeout, |s| !awake(s)).unwrap().0;
            }
            sleepers.retain(|sleeper| sleeper.id != id);
        }

        fn wake_all(&self, word: &AtomicU32) {
            let mut sleepers = self.sleepers.lock().unwrap();
            for sleeper in sleepers.iter_mut().filter(|sleeper| sleeper.words.contains(&name(word))) {
                sleeper.woken = true;
            }
            drop(sleepers);
            self.woken.notify_all();
        }

        fn yield_now(&self) {
            thread::yield_now();
        }

        #[cfg(loom)]
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        #[cfg(not(loom))]
        fn now(&self) -> Duration {
            self.start.elapsed()
        }
    }
}
