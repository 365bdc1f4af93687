//! Core dumps: switched on, found, measured and removed.

use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};

use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

/// What a job that has allocated next to nothing dumps at most, in bytes.
const MOST: u64 = 64 << 20;

/// The dumps of a series of trials in a process of its own, which works in a directory for them.
#[derive(Debug)]
pub(crate) struct Cores {
    directory: PathBuf,
    found: Cell<u32>,
    largest: Cell<u64>,
}

impl Cores {
    /// Has the processes that this one starts from now on dump core into a directory of `test`,
    /// unless the system has another place for dumps.
    ///
    /// The directory lies in memory: peers learn of a crash when its dump is written, and how long
    /// a disk takes for that says nothing about them.
    pub(crate) fn switch_on(test: &str) -> Self {
        setrlimit(Resource::RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY).unwrap();
        let directory = Path::new("/dev/shm").join(format!("{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::env::set_current_dir(&directory).unwrap();
        Self { directory, found: Cell::new(0), largest: Cell::new(0) }
    }

    /// Measures the dumps that there are, and removes them.
    ///
    /// # Panics
    /// When one is too long.
    pub(crate) fn judge(&self) {
        for core in std::fs::read_dir(&self.directory).unwrap() {
            let core = core.unwrap();
            let len = core.metadata().unwrap().len();
            assert!(len <= MOST, "a dump of {len} bytes");
            self.found.set(self.found.get() + 1);
            self.largest.set(self.largest.get().max(len));
            std::fs::remove_file(core.path()).unwrap();
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} core dumps, of {} bytes at most", self.found.get(), self.largest.get())
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
