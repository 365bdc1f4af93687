//! Variables of the environment, read where nobody changes them.
//!
//! `getenv` of glibc walks an array that `setenv` may move in another thread. A program in Rust or
//! C reads variables in the thread that calls, and knows what its other threads do. A program in
//! Python changes them with the lock of the interpreter, which a thread that joins a job does not
//! hold. So the package for Python has them [remembered](remember) while it holds that lock, and
//! what is read from then on is what was remembered last.
//!
//! Tried by its unit tests and `.ci/run bindings_torch`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use crate::shm::undivided::ForkMutex;

/// The variables as they were remembered last; `None` where they never were.
static REMEMBERED: ForkMutex<Option<HashMap<OsString, OsString>>> = ForkMutex::new(None);

/// Remembers all variables. From now on the library reads these, in whatever thread. No other
/// thread changes one meanwhile.
pub fn remember() {
    let now = std::env::vars_os().collect();
    REMEMBERED.with(|remembered| *remembered = Some(now));
}

/// Returns the value of a variable, as it was remembered last, or else as it is.
pub(crate) fn get(name: &str) -> Option<OsString> {
    // Not beneath the lock: a walk through the environment is no step that a fork waits for.
    let remembered = REMEMBERED
        .with(|remembered| remembered.as_ref().map(|variables| variables.get(OsStr::new(name)).cloned()));
    remembered.unwrap_or_else(|| std::env::var_os(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Other tests of this process change no variable, and so may read what was remembered.
    #[test]
    fn what_is_remembered_is_what_there_was() {
        let path = std::env::var_os("PATH");
        assert_eq!(get("PATH"), path);
        remember();
        assert_eq!(get("PATH"), path);
        assert_eq!(get("SHMCCL_NO_SUCH_VARIABLE"), None);
    }
}
