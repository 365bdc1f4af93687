//! The command and the library in odd surroundings, which each test makes by itself: refused system
//! calls, signals as no shell leaves them, limits, namespaces, other users.
//!
//! `device_process` is an entry point: it does nothing unless the environment tells it its part.
//! Where only root can make the surroundings, the test says so elsewhere
//! ([`support::can_be_played`]).

mod command;
mod crashes;
mod defaults;
mod descendants;
mod doctor;
mod everywhere;
mod forks;
mod job;
mod limits;
mod memory;
mod namespaces;
mod pauses;
mod places;
mod presence;
mod replaced;
mod signals;
mod strangers;
mod unread;

use std::path::{Path, PathBuf};

/// A directory for one test, of which nothing is left over from an earlier run.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
