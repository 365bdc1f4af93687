//! Taking bytes out of shared memory and putting others in their place, in one pass.
//!
//! A line that a peer has written comes into this core's cache as it is loaded. Storing to it right
//! then costs nothing. It costs a second trip to the peer's cache if the line has been driven out
//! in between, or if it is stored to first.
//!
//! A half of an exchange is a loop as well, if the processor has one, and not the string
//! instruction, which other copies take for such lengths: see `benches/RESULTS.md`, "Exchanges".
//!
//! Blocks begin with a line of the bytes that are taken, so that no vector is stored across two
//! lines there. If the shared bytes begin equally far into a line, no vector is stored across two
//! lines anywhere.

use std::ops::Range;

use bytemuck::Pod;

use super::CacheHint;
use super::strategy::CopyStrategy;

/// What is loaded before anything is stored, in bytes: a cache line, in as many registers as every
/// architecture has.
const BLOCK: usize = 64;

/// Copies `len` bytes from `shared` to `taken`, and `len` bytes from `given` to `shared`.
///
/// What is taken and not read soon is stored past the cache where that can be, and fenced.
///
/// # Safety
/// `len` bytes are readable and writable at `shared`, writable at `taken` and readable at `given`;
/// the three do not overlap.
pub(in crate::shm) unsafe fn exchange(
    shared: *mut u8,
    taken: *mut u8,
    given: *const u8,
    len: usize,
    cache_hint: CacheHint,
) {
    let blocks = blocks(taken, len);
    for at in (0..blocks.start).chain(blocks.end..len) {
        // SAFETY: the caller's contract; the byte at `at` is within `len`.
        unsafe { exchange_at::<u8>(shared, taken, given, at) };
    }
    if !vectors::are_supported() {
        for at in blocks.step_by(BLOCK) {
            // SAFETY: the caller's contract; a block from `at` on is within `len`.
            unsafe { exchange_at::<[u64; BLOCK / 8]>(shared, taken, given, at) };
        }
    } else if cache_hint == CacheHint::Bypass {
        // SAFETY: the caller's contract; whole blocks within `len`, each a line of `taken`; the
        // processor has the vectors.
        unsafe { vectors::exchange::<true>(shared, taken, given, blocks) };
    } else {
        // SAFETY: the same.
        unsafe { vectors::exchange::<false>(shared, taken, given, blocks) };
    }
}

/// Copies `len` bytes from `source` to `target`, of which one is shared: one half of an exchange.
/// The bytes go past the cache where `cache_hint` says so and the processor can.
///
/// # Safety
/// `len` bytes are readable at `source` and writable at `target`, and the ranges do not overlap.
pub(in crate::shm) unsafe fn exchange_half(
    source: *const u8,
    target: *mut u8,
    len: usize,
    cache_hint: CacheHint,
) {
    // SAFETY: the caller's contract; its kernels are supported (`CopyStrategy::new`).
    unsafe { CopyStrategy::of_this_machine().looped(cache_hint).run(source, target, len) };
}

/// Returns where the whole lines are among the `len` bytes at `taken`.
fn blocks(taken: *mut u8, len: usize) -> Range<usize> {
    let start = (taken.addr().wrapping_neg() % BLOCK).min(len);
    start..start + (len - start) / BLOCK * BLOCK
}

/// Exchanges one `T` at `at`, which needs no alignment.
///
/// # Safety
/// As for [`exchange`], with `at` and the size of `T` for `len`.
#[inline(always)]
unsafe fn exchange_at<T: Pod>(shared: *mut u8, taken: *mut u8, given: *const u8, at: usize) {
    // SAFETY: within the range by the caller's contract.
    let shared = unsafe { shared.add(at) }.cast::<T>();
    // SAFETY: the same.
    let taken = unsafe { taken.add(at) }.cast::<T>();
    // SAFETY: the same.
    let given = unsafe { given.add(at) }.cast::<T>();
    // SAFETY: readable by the caller's contract; any bytes are a T (Pod).
    let old = unsafe { shared.read_unaligned() };
    // SAFETY: the same.
    let new = unsafe { given.read_unaligned() };
    // SAFETY: writable by the caller's contract.
    unsafe { shared.write_unaligned(new) };
    // SAFETY: the same.
    unsafe { taken.write_unaligned(old) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vectors {
    use std::arch::x86_64::{
        __m256i, _mm_sfence, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256,
    };
    use std::ops::Range;

    use super::BLOCK;

    /// Bytes of a vector.
    const VECTOR: usize = size_of::<__m256i>();

    /// Returns whether this processor has the vectors.
    #[inline]
    pub(super) fn are_supported() -> bool {
        is_x86_feature_detected!("avx2")
    }

    /// Exchanges the bytes in `blocks`; with `PAST`, what is taken goes past the cache, and is
    /// fenced.
    ///
    /// # Safety
    /// As for [`super::exchange`], for the bytes up to the end of `blocks`; these are whole blocks,
    /// each of which is a line of `taken`; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn exchange<const PAST: bool>(
        shared: *mut u8,
        taken: *mut u8,
        given: *const u8,
        blocks: Range<usize>,
    ) {
        for at in blocks.step_by(BLOCK) {
            // SAFETY: a block from `at` on is within the range, by the caller's contract.
            let shared = unsafe { shared.add(at) };
            // SAFETY: the same.
            let taken = unsafe { taken.add(at) };
            // SAFETY: the same.
            let given = unsafe { given.add(at) };
            // SAFETY: the same; all of the old block is loaded before anything is stored.
            let old = unsafe { load(shared) };
            // SAFETY: the same.
            let new = unsafe { load(given) };
            for (index, (old, new)) in old.into_iter().zip(new).enumerate() {
                // SAFETY: a vector of the block, writable by the caller's contract.
                unsafe { _mm256_storeu_si256(shared.cast::<__m256i>().wrapping_add(index), new) };
                let taken = taken.cast::<__m256i>().wrapping_add(index);
                if PAST {
                    // SAFETY: the same; aligned, as half a line is.
                    unsafe { _mm256_stream_si256(taken, old) };
                } else {
                    // SAFETY: the same.
                    unsafe { _mm256_storeu_si256(taken, old) };
                }
            }
        }
        if PAST {
            _mm_sfence();
        }
    }

    /// # Safety
    /// A block is readable at `source`; the processor has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(source: *const u8) -> [__m256i; BLOCK / VECTOR] {
        // SAFETY: the first half of the block, readable by the caller's contract.
        let first = unsafe { _mm256_loadu_si256(source.cast()) };
        // SAFETY: the second half.
        let second = unsafe { _mm256_loadu_si256(source.cast::<__m256i>().wrapping_add(1)) };
        [first, second]
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod vectors {
    use std::ops::Range;

    /// Returns `false`: none are known.
    pub(super) fn are_supported() -> bool {
        false
    }

    /// Does nothing: it is never called.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn exchange<const PAST: bool>(_: *mut u8, _: *mut u8, _: *const u8, _: Range<usize>) {}
}
