//! Atomic operations on single words of the heap, which any rank may reach.
//!
//! Which word is meant, and that it exists and is aligned, is the caller's business. The word
//! belongs to the program: nothing here gives it a meaning.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | W1 word | `set`, all that change | `fetch`, all that change | all that the rank did before |
//! | W2 fence | `release_fence`, then `write` | W1's `fetch` | all before the fence |
//! | W3 quiet | store, `full_fence`, look | the same of another rank | one sees the other's store |
//!
//! Whoever waits for a word of its rank sleeps on a cell that its rank has for all its words: P1
//! and P2 of [`park`](super::park). A store by address wakes nobody.
//!
//! OpenSHMEM asks for none of W1: there an atomic orders nothing but itself. On x86-64 it is free,
//! so a program may take a word for a flag without a fence. W3 is a store-load pair on each side,
//! which release and acquire do not order: both could look before the other's store is out of its
//! store buffer. So it takes a sequentially consistent fence on each side.

use super::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use super::kernel::Kernel;
use super::park::ParkCell;

/// A word that any rank may change at any time. Each method that changes it returns what it was
/// before.
///
/// # Ordering
/// `read` and `write` order nothing. Of the others, one that writes publishes everything before it,
/// and one that reads acquires what the writer of the value has published (W1).
pub trait AtomicWord {
    /// The bits of the word.
    type Bits: Copy + Eq;

    /// Reads the word whole. It acquires nothing.
    fn read(&self) -> Self::Bits;

    /// Writes the word whole. It publishes nothing.
    fn write(&self, bits: Self::Bits);

    /// Reads the word.
    fn fetch(&self) -> Self::Bits;

    /// Writes the word.
    fn set(&self, bits: Self::Bits);

    /// Writes the word, and returns what it was before.
    fn swap(&self, bits: Self::Bits) -> Self::Bits;

    /// Writes the word if it is `expected`. It was written if the result is `expected`.
    fn compare_swap(&self, expected: Self::Bits, bits: Self::Bits) -> Self::Bits;

    /// Adds to the word, modulo its size.
    fn fetch_add(&self, bits: Self::Bits) -> Self::Bits;

    /// Keeps those bits of the word that `bits` has.
    fn fetch_and(&self, bits: Self::Bits) -> Self::Bits;

    /// Sets those bits of the word that `bits` has.
    fn fetch_or(&self, bits: Self::Bits) -> Self::Bits;

    /// Turns those bits of the word over that `bits` has.
    fn fetch_xor(&self, bits: Self::Bits) -> Self::Bits;
}

macro_rules! atomic_words {
    ($($word:ident of $bits:ident),*) => {$(
        impl AtomicWord for $word {
            type Bits = $bits;

            #[inline]
            fn read(&self) -> $bits {
                self.load(Ordering::Relaxed) // Relaxed: it acquires nothing; `fetch` does
            }

            #[inline]
            fn write(&self, bits: $bits) {
                self.store(bits, Ordering::Relaxed); // Relaxed: what it publishes is the business of a fence, W2
            }

            #[inline]
            fn fetch(&self) -> $bits {
                self.load(Ordering::Acquire) // W1 word
            }

            #[inline]
            fn set(&self, bits: $bits) {
                self.store(bits, Ordering::Release); // W1 word
            }

            #[inline]
            fn swap(&self, bits: $bits) -> $bits {
                self.swap(bits, Ordering::AcqRel) // W1 word
            }

            #[inline]
            fn compare_swap(&self, expected: $bits, bits: $bits) -> $bits {
                let written = Ordering::AcqRel; // W1 word
                let other = Ordering::Acquire; // W1 word
                self.compare_exchange(expected, bits, written, other).unwrap_or_else(|found| found)
            }

            #[inline]
            fn fetch_add(&self, bits: $bits) -> $bits {
                self.fetch_add(bits, Ordering::AcqRel) // W1 word
            }

            #[inline]
            fn fetch_and(&self, bits: $bits) -> $bits {
                self.fetch_and(bits, Ordering::AcqRel) // W1 word
            }

            #[inline]
            fn fetch_or(&self, bits: $bits) -> $bits {
                self.fetch_or(bits, Ordering::AcqRel) // W1 word
            }

            #[inline]
            fn fetch_xor(&self, bits: $bits) -> $bits {
                self.fetch_xor(bits, Ordering::AcqRel) // W1 word
            }
        }
    )*};
}

atomic_words!(AtomicU8 of u8, AtomicU16 of u16, AtomicU32 of u32, AtomicU64 of u64);

/// Does `change` to words of a rank, then wakes the threads of that rank that wait for its words.
/// All of them sleep on `park` (P1, with many wakers of one cell).
#[inline]
pub fn change_words<T, K: Kernel + ?Sized>(park: &ParkCell, kernel: &K, change: impl FnOnce() -> T) -> T {
    let done = change();
    park.wake(kernel);
    done
}

/// Has all that this thread did before seen by whoever sees what it stores from now on (W2).
#[inline]
pub fn release_fence() {
    fence(Ordering::Release); // W2 fence
}

/// Has all that this thread did before seen by whoever looks after a fence of its own that comes
/// later (W3).
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst); // W3 quiet
}
