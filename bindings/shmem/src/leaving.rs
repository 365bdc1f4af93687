//! How a rank ends: by its own return from `main`, or because one has ended all of them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};
use std::time::Duration;

use shmccl::shm::undivided::undivided;
use shmccl::sync::atomic::AtomicU64;

use crate::fail::{self, or_fatal};
use crate::futex;
use crate::world::{self, World, lock};

/// The bit of the word that says that there is a status.
const IS_OVER: u64 = 1 << 32;

/// Whether this rank ends all. Then it ends by itself, as a program does.
static ENDS_ALL: AtomicBool = AtomicBool::new(false);

/// What a program does when it returns from `main`, before it leaves the job.
static BEFORE: Mutex<Option<fn()>> = Mutex::new(None);

/// Makes the end of the program a `finalize`, as programs of `start_pes` expect it.
pub(crate) fn leave_by(finalize: fn()) {
    *lock(&BEFORE) = Some(finalize);
}

/// Has this rank leave the job when its program ends, and end when another rank ends all.
pub(crate) fn watch(world: &'static World) {
    static WATCHES: Once = Once::new();
    WATCHES.call_once(|| begin(world));
}

fn begin(world: &'static World) {
    // SAFETY: the function is there as long as the process.
    unsafe { libc::atexit(leave_at_exit) };
    let thread = std::thread::Builder::new().name("shmem-exit".into()).stack_size(256 << 10);
    fail::look_before_failing(end_if_told);
    let blocked = BlockedSignals::new();
    or_fatal(undivided(|| thread.spawn(move || end_when_told(world))), "shmem_init");
    drop(blocked);
}

/// Blocks all signals of this thread, and of those that it makes, until it is dropped.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        let mut all = std::mem::MaybeUninit::uninit();
        // SAFETY: it fills the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = std::mem::MaybeUninit::uninit();
        // SAFETY: the first is filled, the second is there to be filled.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: it was filled just now.
        Self(unsafe { before.assume_init() })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is one that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// Leaves the job. Those that still wait for this rank hear that it is gone. A child of a fork has
/// nothing to leave.
extern "C" fn leave_at_exit() {
    if world::is_child() {
        return;
    }
    let has_failed = fail::has_failed_at_end();
    let finalize = lock(&BEFORE).take();
    // The others do not come to the barrier of a rank that has failed.
    if let Some(finalize) = finalize.filter(|_| !has_failed) {
        finalize();
    }
    world::leave();
}

/// Ends the process with the status that another rank has named, if one has ended all.
fn end_if_told() {
    let Some(world) = world::joined() else { return };
    // SAFETY: the word is in memory that stays mapped.
    let value = unsafe { &*world.control.exit() }.load(Ordering::Acquire);
    // Relaxed: a rank that is told as it begins to end all may end at once.
    if value & IS_OVER != 0 && !ENDS_ALL.load(Ordering::Relaxed) {
        // A rank that is gone without a word has failed, whatever its status.
        world::leave();
        fail::end_now(status_of(value));
    }
}

/// Sleeps until there is a status, and ends the process with it.
fn end_when_told(world: &World) {
    let word = world.control.exit();
    loop {
        end_if_told();
        // Relaxed: this thread has nothing to do any more, whenever it sees that.
        if ENDS_ALL.load(Ordering::Relaxed) {
            return;
        }
        // The half that says so is the upper one.
        futex::wait(word.cast::<u32>().wrapping_add(1), 0, Duration::MAX);
    }
}

/// Returns the exit status within a word.
fn status_of(word: u64) -> c_int {
    c_int::from(word.to_le_bytes()[0])
}

/// Ends all ranks with `status`.
pub(crate) fn global_exit(status: c_int) -> ! {
    let world = world::world();
    // Relaxed: as above.
    ENDS_ALL.store(true, Ordering::Relaxed);
    let value = IS_OVER | u64::from(status.to_le_bytes()[0]);
    for rank in (0..world.n).filter(|rank| *rank != world.me) {
        let word: *mut AtomicU64 = world.at(world.control.exit(), rank);
        // SAFETY: the word is in the mapped heap of that rank.
        unsafe { &*word }.store(value, Ordering::Release);
        futex::wake(word.cast::<u32>().wrapping_add(1));
    }
    lock(&BEFORE).take();
    std::process::exit(status)
}
