//! How a call fails: OpenSHMEM has no errors to return, so the program ends, with one line that
//! says why.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

/// The exit code of a rank that a call has ended.
const FAILED: i32 = 1;

/// This rank as its lines name it, once it is one.
static NAME: OnceLock<String> = OnceLock::new();

/// Whether this process ends, for whatever reason.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The thread that leaves the job, since the process ends.
static LEAVER: OnceLock<ThreadId> = OnceLock::new();

/// What is called before a call fails: another rank may have ended all of them.
static LAST_LOOK: OnceLock<fn()> = OnceLock::new();

/// Has `look` called before a call fails.
pub(crate) fn look_before_failing(look: fn()) {
    LAST_LOOK.get_or_init(|| look);
}

/// Ends this process if another rank has ended all of them.
pub(crate) fn look() {
    LAST_LOOK.get().inspect(|look| look());
}

/// Says that this process ends. Returns whether a call that has failed ends it.
pub(crate) fn has_failed_at_end() -> bool {
    // Relaxed: the thread that asks is the one that ends the process.
    ENDS.swap(true, Ordering::Relaxed)
}

/// Says that this thread leaves the job, before calls of others can hear of that.
pub(crate) fn say_leaving() {
    LEAVER.get_or_init(|| std::thread::current().id());
}

fn is_left_by_another() -> bool {
    LEAVER.get().is_some_and(|leaver| *leaver != std::thread::current().id())
}

/// Has all lines from now on name the rank.
pub(crate) fn name_rank(me: usize, n: usize) {
    NAME.get_or_init(|| format!(" rank {me} of {n}:"));
}

/// Writes one line about this rank to the standard error output.
pub(crate) fn note(text: impl Display) {
    let rank = NAME.get().map_or("", String::as_str);
    // By one call, since other ranks write to the same terminal.
    let line = format!("shmem:{rank} {text}\n");
    // Nobody is left to hear that the line could not be written.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Ends the program, which cannot go on.
#[cold]
pub(crate) fn fatal(text: impl Display) -> ! {
    look();
    while is_left_by_another() {
        // The call comes too late, and the process has ended before long.
        std::thread::park();
    }
    note(text);
    // Relaxed: one of two threads that fail at once calls `exit`, no matter which.
    if ENDS.swap(true, Ordering::Relaxed) {
        end_now(FAILED);
    }
    std::process::exit(FAILED)
}

/// Ends the process at once: what it has buffered is lost.
pub(crate) fn end_now(status: i32) -> ! {
    // SAFETY: it does nothing but that.
    unsafe { libc::_exit(status) }
}

/// Returns what a result holds, or ends the program.
pub(crate) fn or_fatal<R, E: Display>(result: Result<R, E>, call: &str) -> R {
    result.unwrap_or_else(|error| fatal(format_args!("{call}: {error}")))
}
