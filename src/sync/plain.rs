//! Words that are shared but order nothing: the edge that carries the news of a word orders it. And
//! the one fence that orders nothing either.
//!
//! For words that are written rarely and read often beside a protocol that has an edge already. The
//! caller says which edge: a memory table's entry reaches the proxy by F1 (publish) of the fifo,
//! and a heap's watermark by the call that told a thread of the region below it. Where no edge
//! does, the value is only a value: some value that was stored, checked before use. A word that
//! several threads may change at a time is changed by read-modify-writes, of which none loses the
//! effect of another.

use std::time::Duration;

use super::atomic::{AtomicU64, Ordering, fence};

/// Reads the word: some value that was stored in it, at least as new as what the caller knows of.
#[inline]
#[must_use]
pub fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed) // Relaxed: the edge that brought the caller here orders it, see the module head
}

/// Writes the word; publishes nothing else.
#[inline]
pub fn store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed); // Relaxed: the edge that tells others of it orders it, see the module head
}

/// Reads a time of [`store_time`] or [`advance_time`]; `None` where there is none.
#[must_use]
pub fn load_time(word: &AtomicU64) -> Option<Duration> {
    Some(load(word)).filter(|time| *time != 0).map(Duration::from_nanos)
}

/// Writes a time in nanoseconds, 1 for 0, which stands for none; publishes nothing else.
pub fn store_time(word: &AtomicU64, time: Duration) {
    store(word, nanos(time).max(1));
}

/// Writes a time like [`store_time`], unless the word has a later one already: another thread may
/// have written it since this one looked at the clock.
pub fn advance_time(word: &AtomicU64, time: Duration) {
    word.fetch_max(nanos(time).max(1), Ordering::Relaxed); // Relaxed: the time is only a time, see the module head
}

/// Returns all the nanoseconds of `time` that a word can tell.
#[must_use]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Sets `bits` in the word, without losing what others set meanwhile; publishes nothing else.
#[inline]
pub fn set_bits(word: &AtomicU64, bits: u64) {
    word.fetch_or(bits, Ordering::Relaxed); // Relaxed: the bits are only bits, see the module head
}

/// Clears `bits` of the word, without losing what others do to it meanwhile; publishes nothing
/// else.
#[inline]
pub fn clear_bits(word: &AtomicU64, bits: u64) {
    word.fetch_and(!bits, Ordering::Relaxed); // Relaxed: bits that are looked at each by itself, see the module head
}

/// Adds to the word, without losing what others add meanwhile; publishes nothing else. Wraps
/// around: adding `u64::MAX` takes one away.
#[inline]
pub fn add(word: &AtomicU64, value: u64) {
    word.fetch_add(value, Ordering::Relaxed); // Relaxed: a count that is only a count, see the module head
}

/// Counts up, and returns what the word was before; publishes nothing else.
#[inline]
pub fn next(word: &AtomicU64) -> u64 {
    word.fetch_add(1, Ordering::Relaxed) // Relaxed: a number that nobody else gets, see the module head
}

/// Waits until the stores of this thread so far are out, where others can get them. It is for a
/// clock that is to tell how long they took. It is not for an order, which the edge that publishes
/// them provides.
#[inline]
pub fn drain_stores() {
    // SeqCst: no weaker fence holds a later load, such as that of the clock, up until earlier
    // stores are out. Were this one gone, figures would be wrong and no data.
    fence(Ordering::SeqCst);
}
