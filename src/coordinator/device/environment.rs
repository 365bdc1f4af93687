//! What another process of this user was told by its environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::coordinator::id::DeviceId;

/// The environment that a living process began with.
pub(in crate::coordinator) struct ProcessEnvironment {
    process: DeviceId,
    entries: Vec<u8>,
}

impl ProcessEnvironment {
    /// That of `process`. One that has ended has none any more, whoever is yet to wait for it.
    pub(in crate::coordinator) fn of(process: DeviceId) -> Option<Self> {
        let entries = std::fs::read(format!("/proc/{process}/environ")).ok()?;
        Some(Self { process, entries })
    }

    pub(in crate::coordinator) fn value(&self, name: &str) -> Option<&OsStr> {
        let mut entries = self.entries.split(|byte| *byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.map(OsStr::from_bytes)
    }

    /// What it takes `path` for: one that does not begin at the root begins where the process works. The former stay as they are.
    pub(in crate::coordinator) fn resolve(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/cwd", self.process)).join(path)
    }
}
