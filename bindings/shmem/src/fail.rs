//! How a call fails: OpenSHMEM has no errors to return, so the program ends, with one line that
//! says why.

use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

/// The exit code of a rank that a call has ended.
const FAILED: i32 = 1;

/// This rank as its lines name it, once it is one.
static NAME: OnceLock<String> = OnceLock::new();

/// Has all lines from now on name the rank.
pub(crate) fn name_rank(me: usize, n: usize) {
    NAME.get_or_init(|| format!(" rank {me} of {n}:"));
}

/// Writes one line about this rank to the standard error output.
pub(crate) fn note(text: impl Display) {
    let rank = NAME.get().map_or("", String::as_str);
    // Nobody is left to hear that the line could not be written.
    let _ = writeln!(std::io::stderr(), "shmem:{rank} {text}");
}

/// Ends the program, which cannot go on.
#[cold]
pub(crate) fn fatal(text: impl Display) -> ! {
    note(text);
    std::process::exit(FAILED)
}

/// Returns what a result holds, or ends the program.
pub(crate) fn or_fatal<R, E: Display>(result: Result<R, E>, call: &str) -> R {
    result.unwrap_or_else(|error| fatal(format_args!("{call}: {error}")))
}
