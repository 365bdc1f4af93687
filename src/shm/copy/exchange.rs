//! Taking bytes out of shared memory and putting others in their place, in one pass.
//!
//! A line that a peer has written comes into this core's cache as it is loaded. Storing to it right then costs nothing, while
//! it costs a second trip to the peer's cache if the line has been driven out in between, or if it is stored to first.

use bytemuck::Pod;

/// What is loaded before anything is stored, in bytes: a cache line, in as many registers as every architecture has.
const BLOCK: usize = 64;

/// Copies `len` bytes from `shared` to `taken`, and `len` bytes from `given` to `shared`.
///
/// # Safety
/// `len` bytes are readable and writable at `shared`, writable at `taken` and readable at `given`; the three do not overlap.
pub(in crate::shm) unsafe fn exchange(shared: *mut u8, taken: *mut u8, given: *const u8, len: usize) {
    let whole = len / BLOCK * BLOCK;
    for at in (0..whole).step_by(BLOCK) {
        // SAFETY: the caller's contract; a block from `at` on is within `len`.
        unsafe { exchange_at::<[u64; BLOCK / 8]>(shared, taken, given, at) };
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
