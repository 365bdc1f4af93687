//! Limits of verbs on single words: the processor's own instructions, with nothing around them.
//!
//! They order nothing but what the processor orders anyway, so there are no edges.

use shmccl::sync::atomic::{AtomicU64, Ordering};

/// Reads a word.
#[inline]
#[must_use]
pub fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed) // Relaxed: a limit orders nothing
}

/// Writes a word.
#[inline]
pub fn store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed); // Relaxed: a limit orders nothing
}

/// Writes a word, and returns what it was.
#[inline]
pub fn swap(word: &AtomicU64, value: u64) -> u64 {
    word.swap(value, Ordering::Relaxed) // Relaxed: a limit orders nothing
}

/// Writes a word if it is `expected`, and returns what it was.
#[inline]
pub fn compare_swap(word: &AtomicU64, expected: u64, value: u64) -> u64 {
    let plain = Ordering::Relaxed; // Relaxed: a limit orders nothing
    word.compare_exchange(expected, value, plain, plain).unwrap_or_else(|found| found)
}

/// Adds to a word, and returns what it was.
#[inline]
pub fn fetch_add(word: &AtomicU64, value: u64) -> u64 {
    word.fetch_add(value, Ordering::Relaxed) // Relaxed: a limit orders nothing
}

/// Adds to the `f64` that a word holds, and returns what it was: no processor has an instruction
/// for it.
#[inline]
pub fn fetch_add_f64(word: &AtomicU64, value: f64) -> f64 {
    let mut seen = load(word);
    loop {
        let sum = (f64::from_bits(seen) + value).to_bits();
        match compare_swap(word, seen, sum) {
            found if found == seen => return f64::from_bits(found),
            found => seen = found,
        }
    }
}

/// How many words are in a ring.
pub const RING: usize = 64;

/// Words of which each holds the number of the next, so that no load begins before the last one has
/// ended.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct WordRing {
    words: [AtomicU64; RING],
}

impl WordRing {
    /// Links all words in a row, and the last one to the first.
    pub fn link(&self) {
        (1..).zip(&self.words).for_each(|(next, word)| store(word, next % RING as u64));
    }

    /// Returns what word `number` holds; numbers begin anew behind the last word.
    #[inline]
    #[must_use]
    pub fn next(&self, number: u64) -> u64 {
        let index = usize::try_from(number % RING as u64).unwrap_or(0);
        load(&self.words[index])
    }
}

#[allow(unsafe_code, reason = "this lives in shared memory")]
mod layouts {
    use shmccl::shm::SharedLayout;

    use super::WordRing;

    // SAFETY: `repr(C)` and atomic integers throughout.
    unsafe impl SharedLayout for WordRing {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_returns_what_the_word_was() {
        let word = AtomicU64::new(5);
        assert_eq!((fetch_add(&word, 2), swap(&word, 9)), (5, 7));
        assert_eq!((compare_swap(&word, 8, 1), compare_swap(&word, 9, 1), load(&word)), (9, 9, 1));
        store(&word, 1.5_f64.to_bits());
        assert_eq!((fetch_add_f64(&word, 2.0), load(&word)), (1.5, 3.5_f64.to_bits()));
    }

    #[test]
    fn a_ring_leads_through_all_its_words_and_back() {
        let ring = WordRing { words: [const { AtomicU64::new(0) }; RING] };
        ring.link();
        let seen: Vec<_> = (0..RING).scan(0, |at, _| Some(std::mem::replace(at, ring.next(*at)))).collect();
        assert_eq!(seen, (0..RING as u64).collect::<Vec<_>>());
        assert_eq!(ring.next(RING as u64 - 1), 0);
    }
}
