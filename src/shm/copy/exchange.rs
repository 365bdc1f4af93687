//! Taking bytes out of shared memory and putting others in their place, in one pass.
//!
//! A line that a peer has written comes into this core's cache as it is loaded. Storing to it right then costs nothing, while
//! it costs a second trip to the peer's cache if the line has been driven out in between, or if it is stored to first.

use bytemuck::Pod;

use super::ReadSoon;

/// What is loaded before anything is stored, in bytes: a cache line, in as many registers as every architecture has.
const BLOCK: usize = 64;

/// Copies `len` bytes from `shared` to `taken`, and `len` bytes from `given` to `shared`.
///
/// What is taken and not read soon is stored past the cache where that can be, and fenced.
///
/// # Safety
/// `len` bytes are readable and writable at `shared`, writable at `taken` and readable at `given`; the three do not overlap.
pub(in crate::shm) unsafe fn exchange(
    shared: *mut u8,
    taken: *mut u8,
    given: *const u8,
    len: usize,
    read_soon: ReadSoon,
) {
    let whole = len / BLOCK * BLOCK;
    if read_soon == ReadSoon::No && streaming::fits(taken) {
        // SAFETY: the caller's contract; `whole` is at most `len`, and `taken` fits.
        unsafe { streaming::exchange(shared, taken, given, whole) };
    } else {
        for at in (0..whole).step_by(BLOCK) {
            // SAFETY: the caller's contract; a block from `at` on is within `len`.
            unsafe { exchange_at::<[u64; BLOCK / 8]>(shared, taken, given, at) };
        }
    }
    for at in whole..len {
        // SAFETY: the caller's contract; the byte at `at` is within `len`.
        unsafe { exchange_at::<u8>(shared, taken, given, at) };
    }
}

/// The same for one `T` at `at`. It needs no alignment.
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
mod streaming {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_storeu_si128, _mm_stream_si128};

    use super::BLOCK;

    /// Bytes of a vector that every processor of the architecture has.
    const VECTOR: usize = size_of::<__m128i>();

    /// Whether vectors can be stored past the cache there. Where a line begins between two of them, its parts are stored one
    /// after the other, and the processor puts them together.
    pub(super) fn fits(taken: *mut u8) -> bool {
        taken.addr().is_multiple_of(VECTOR)
    }

    /// # Safety
    /// As for [`super::exchange`]; `len` is a multiple of `BLOCK`, and `taken` fits.
    pub(super) unsafe fn exchange(shared: *mut u8, taken: *mut u8, given: *const u8, len: usize) {
        for at in (0..len).step_by(BLOCK) {
            // SAFETY: a block from `at` on is within `len`, by the caller's contract.
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
                unsafe { _mm_storeu_si128(shared.cast::<__m128i>().wrapping_add(index), new) };
                // SAFETY: the same; `taken` fits, and whole vectors on it does as well.
                unsafe { _mm_stream_si128(taken.cast::<__m128i>().wrapping_add(index), old) };
            }
        }
        // SAFETY: every processor of the architecture has it.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    /// A block is readable at `source`.
    #[inline(always)]
    unsafe fn load(source: *const u8) -> [__m128i; BLOCK / VECTOR] {
        std::array::from_fn(|index| {
            // SAFETY: a vector of the block, readable by the caller's contract.
            unsafe { _mm_loadu_si128(source.cast::<__m128i>().wrapping_add(index)) }
        })
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod streaming {
    /// Nothing does: there are no such stores.
    pub(super) fn fits(_: *mut u8) -> bool {
        false
    }

    /// Never called.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn exchange(_: *mut u8, _: *mut u8, _: *const u8, _: usize) {}
}
