//! Puts that raise a signal behind them, and signals alone.

use std::ffi::c_int;

use crate::contexts::Ctx;
use crate::fail::fatal;
use crate::waits::{self, Condition};
use crate::words::Word;
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
    unsafe { waits::until("shmem_signal_wait_until", signal, Condition::new(cmp, value)) }
}

/// Locks of the engine: the lock of all ranks is the word of rank 0.
pub(crate) mod locks {
    use std::ffi::{c_int, c_long};

    use shmccl::symmetric::{Acquired, LockWord};
    use shmccl::sync::atomic::AtomicU64;

    use crate::fail::{look, note, or_fatal};
    use crate::world::world;

    /// Returns the lock of all ranks.
    ///
    /// # Safety
    /// `lock` is a word that is zero, or was locked and unlocked by these functions alone.
    unsafe fn of_all(lock: *mut c_long) -> LockWord<'static> {
        let world = world();
        let word = world.at(lock, 0).cast::<u64>();
        // SAFETY: the caller answers for the word, which stays mapped.
        LockWord { word: unsafe { AtomicU64::from_ptr(word) }, name: world.name_of(lock) }
    }

    /// Tells what the program has no other way to hear of.
    fn tell(call: &str, acquired: Acquired) {
        if acquired == Acquired::Recovered {
            // A PE that has ended all had its reasons.
            look();
            note(format_args!("{call}: the last PE with the lock has died or left with it"));
        }
    }

    /// # Safety
    /// As for [`of_all`].
    pub(crate) unsafe fn set(lock: *mut c_long) {
        const CALL: &str = "shmem_set_lock";
        // SAFETY: the caller's duties are the same.
        tell(CALL, or_fatal(world().symmetric.lock_word(unsafe { of_all(lock) }), CALL));
    }

    /// # Safety
    /// As for [`of_all`].
    pub(crate) unsafe fn clear(lock: *mut c_long) {
        // SAFETY: the caller's duties are the same.
        or_fatal(world().symmetric.unlock_word(unsafe { of_all(lock) }), "shmem_clear_lock");
    }

    /// # Safety
    /// As for [`of_all`].
    pub(crate) unsafe fn test(lock: *mut c_long) -> c_int {
        const CALL: &str = "shmem_test_lock";
        // SAFETY: the caller's duties are the same.
        let taken = or_fatal(world().symmetric.try_lock_word(unsafe { of_all(lock) }), CALL);
        taken.map_or(1, |acquired| {
            tell(CALL, acquired);
            0
        })
    }
}
