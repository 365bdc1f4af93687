//! What makes a hang a failure with a name.

use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

/// Aborts the process unless it is dropped in time.
#[derive(Debug)]
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    /// Watches whatever has this `name`, which is to be over when the patience is.
    #[must_use]
    pub fn start(name: &str, patience: Duration) -> Self {
        let (alive, watched) = mpsc::channel();
        let name = name.to_owned();
        std::thread::spawn(move || {
            if watched.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = writeln!(std::io::stderr(), "watchdog: {name} hangs since {patience:?}");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}
