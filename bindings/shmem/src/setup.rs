//! The calls that begin and end the use of a job, in pairs.

use std::ffi::c_int;
use std::sync::Mutex;

use crate::world::{self, current, lock, store};
use crate::{leaving, memory, sync, teams};

/// `SHMEM_THREAD_MULTIPLE`: the level that is always provided.
const THREAD_MULTIPLE: c_int = 3;

/// How many calls of `shmem_init` no `shmem_finalize` has matched yet.
static PAIRS: Mutex<u32> = Mutex::new(0);

/// Begins to use the job with the first call, and counts the others. The very first one joins it.
pub(crate) fn init() {
    world::refuse_child();
    let mut pairs = lock(&PAIRS);
    if *pairs == 0 {
        leaving::watch(world::enter());
        sync::sync_all();
    }
    *pairs += 1;
}

/// Ends the use of the job with the call that matches the first `shmem_init`. The process leaves it
/// when it ends, as the program may begin once more.
pub(crate) fn finalize() {
    let mut pairs = lock(&PAIRS);
    if *pairs > 0 {
        sync::barrier_all();
        *pairs -= 1;
    }
    if *pairs == 0 && current().is_some() {
        memory::free_all();
        teams::forget_all();
        world::end();
    }
}

/// Enters the job as programs of old do, which leave it by their end.
pub(crate) fn start_pes(_: c_int) {
    if current().is_none() {
        init();
        leaving::leave_by(finalize);
    }
}

/// Enters the job. Calls may always be made from all threads.
///
/// # Safety
/// `provided` is NULL, or can be written.
pub(crate) unsafe fn init_thread(_requested: c_int, provided: *mut c_int) -> c_int {
    init();
    // SAFETY: the caller's duties are the same.
    unsafe { query_thread(provided) };
    0
}

/// # Safety
/// As for [`init_thread`].
pub(crate) unsafe fn query_thread(provided: *mut c_int) {
    // SAFETY: the caller answers for it.
    unsafe { store(provided, THREAD_MULTIPLE) };
}

/// # Safety
/// `initialized` is NULL, or can be written.
pub(crate) unsafe fn query_initialized(initialized: *mut c_int) {
    // SAFETY: the caller answers for it.
    unsafe { store(initialized, c_int::from(current().is_some())) };
}
