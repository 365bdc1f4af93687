//! What unit tests of several modules need.

use std::time::{Duration, Instant};

/// No condition takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns when the condition holds, and panics when it never does.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::yield_now();
    }
}
