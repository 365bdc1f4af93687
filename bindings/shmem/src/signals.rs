//! Puts that raise a signal behind them, and signals alone.

use std::ffi::c_int;

use crate::contexts::Ctx;
use crate::fail::fatal;
use crate::waits::{self, Condition};
use crate::words::{CountingWord, Word};
use crate::{atomics, rma};

/// `SHMEM_SIGNAL_SET`.
const SET: c_int = 0;

/// `SHMEM_SIGNAL_ADD`.
const ADD: c_int = 1;

/// # Safety
/// `dest` has as many elements on `pe`, and `source` here; `signal` is a word on `pe`.
pub(crate) unsafe fn put_signal<T: Copy>(
    ctx: Ctx,
    dest: *mut T,
    source: *const T,
    count: usize,
    signal: *mut u64,
    value: u64,
    operation: c_int,
    pe: c_int,
) {
    // SAFETY: the caller's duties are the same.
    unsafe { rma::put(ctx, dest, source, count, pe) };
    // Both release what was put.
    match operation {
        // SAFETY: the caller answers for the word.
        SET => unsafe { set(ctx, signal, value, pe) },
        // SAFETY: as above.
        ADD => unsafe { add(ctx, signal, value, pe) },
        _ => fatal(format_args!("shmem_put_signal: sig_op is {operation}, which is no SHMEM_SIGNAL_")),
    }
}

/// # Safety
/// `signal` is a word on `pe`.
pub(crate) unsafe fn set(ctx: Ctx, signal: *mut u64, value: u64, pe: c_int) {
    // SAFETY: the caller's duties are the same.
    unsafe { atomics::set(ctx, signal, value, pe) };
}

/// # Safety
/// `signal` is a word on `pe`.
pub(crate) unsafe fn add(ctx: Ctx, signal: *mut u64, value: u64, pe: c_int) {
    // SAFETY: the caller's duties are the same.
    unsafe { atomics::add(ctx, signal, value, pe) };
}

/// # Safety
/// `signal` is a word.
pub(crate) unsafe fn fetch(signal: *const u64) -> u64 {
    // SAFETY: the caller's duties are the same.
    unsafe { u64::load(signal) }
}

/// # Safety
/// `signal` is a word.
pub(crate) unsafe fn wait_until(signal: *mut u64, cmp: c_int, value: u64) -> u64 {
    // SAFETY: the caller's duties are the same.
    unsafe { waits::until("shmem_signal_wait_until", signal, Condition { cmp, value }) }
}

/// Keeps the ticket of each rank that asks for a lock apart from the number of the one that has it:
/// the lock of all ranks is the word of rank 0 (Reed and Kanodia, 1979).
pub(crate) mod locks {
    use std::ffi::{c_int, c_long};

    use super::{CountingWord, Word};
    use crate::wait::{self, AwaitedWord};
    use crate::world::world;

    /// One ticket, in the upper half of the word. The lower half says which one has the lock.
    const TICKET: u64 = 1 << 32;

    /// Returns the word of a lock.
    fn word(lock: *mut c_long) -> *mut u64 {
        world().at(lock, 0).cast()
    }

    fn ticket(word: u64) -> u64 {
        word >> 32
    }

    fn served(word: u64) -> u64 {
        word & (TICKET - 1)
    }

    /// # Safety
    /// `lock` is a word that is zero, or was locked and unlocked by these functions alone.
    pub(crate) unsafe fn set(lock: *mut c_long) {
        let word = word(lock);
        // SAFETY: the caller answers for the word.
        let own = ticket(unsafe { u64::fetch_add(word, TICKET) });
        // SAFETY: as above.
        wait::until(AwaitedWord::of("shmem_set_lock"), || served(unsafe { u64::load(word) }) == own);
    }

    /// # Safety
    /// As for [`set`]; the caller has the lock.
    pub(crate) unsafe fn clear(lock: *mut c_long) {
        // SAFETY: the caller answers for the word, whose lower half wraps around alone.
        unsafe { u32::fetch_add(word(lock).cast(), 1) };
    }

    /// # Safety
    /// As for [`set`].
    pub(crate) unsafe fn test(lock: *mut c_long) -> c_int {
        let word = word(lock);
        // SAFETY: the caller answers for the word.
        let seen = unsafe { u64::load(word) };
        if ticket(seen) == served(seen) {
            // SAFETY: as above.
            let was = unsafe { u64::compare_swap(word, seen, seen.wrapping_add(TICKET)) };
            if was == seen {
                return 0;
            }
        }
        wait::yield_now();
        1
    }
}
