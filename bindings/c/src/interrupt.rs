//! The program's question whether to end a wait, as an interpreter has it for Ctrl-C.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use shmccl::shm::undivided::ForkMutex;
use shmccl::sync::interrupt;

use crate::answer::answer;
use crate::failure::Failure;
use crate::types::shmcclResult_t;

/// What `shmcclSetInterruptCheck` takes: it returns something else than 0 to end the wait.
pub type shmcclInterruptCheck_t = Option<unsafe extern "C" fn() -> c_int>;

static CHECK: ForkMutex<shmcclInterruptCheck_t> = ForkMutex::new(None);

/// Whether there is one, which every call looks at.
static IS_SET: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the check has ended a wait of the function that runs in this thread.
    static HAS_ENDED: Cell<bool> = const { Cell::new(false) };
}

/// Has every long wait of the library ask `check` whether to end: every 50 ms, in the thread whose
/// function waits. Threads of the library ask nobody. NULL asks no more.
///
/// A function that is ended so returns `shmcclInterrupted`. A call that moves data of all ranks
/// then ends the epoch for all of them. An operation that was started goes on. The check may use
/// another language's interpreter, but no function of this library.
///
/// # Safety
/// `check` can be called from any thread that calls a function of this library, until another one
/// is set and these functions have returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclSetInterruptCheck(check: shmcclInterruptCheck_t) -> shmcclResult_t {
    answer(|| {
        CHECK.with(|current| *current = check);
        // Relaxed: whoever is told of the check by other means sees it, and others soon do.
        IS_SET.store(check.is_some(), Ordering::Relaxed);
        Ok(())
    })
}

/// Does `run`, whose long waits ask the program. Whatever fails once it has said yes was
/// interrupted.
pub(crate) fn interruptible(run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    // Relaxed: as where it is stored.
    if !IS_SET.load(Ordering::Relaxed) {
        return run();
    }
    // A function that `done` calls is within another one.
    let outer = HAS_ENDED.replace(false);
    let ended = interrupt::interruptible(says_so, run);
    let is_interrupted = HAS_ENDED.replace(outer);
    if is_interrupted { ended.map_err(Failure::interrupted) } else { ended }
}

fn says_so() -> bool {
    let check = CHECK.with(|current| *current);
    // SAFETY: who has set it answers for this thread, too.
    let ends = check.is_some_and(|check| unsafe { check() } != 0);
    if ends {
        HAS_ENDED.set(true);
    }
    ends
}
