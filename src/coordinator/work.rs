//! What the members of a communicator do together, and count as a group.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::call::DeviceCall;
use super::refusal::RequestError;

/// The longest path of a directory, in bytes: no system takes a longer one.
pub(super) const MAX_PATH: usize = 4096;

/// What a group consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GroupWork {
    /// Collective operations, which are executed together.
    Calls(Vec<DeviceCall>),
    /// The memory of all devices is written to this directory.
    Checkpoint(String),
    /// The memory of all devices is read back from this directory.
    Restore(String),
}

impl GroupWork {
    /// Where a checkpoint is that it is about.
    pub(super) fn directory(&self) -> Option<&str> {
        match self {
            Self::Calls(_) => None,
            Self::Checkpoint(directory) | Self::Restore(directory) => Some(directory),
        }
    }

    /// # Errors
    /// [`RequestError::BadDirectory`] for a directory that is not the same for all devices, wherever they were started.
    pub(super) fn check(&self) -> Result<(), RequestError> {
        let Some(directory) = self.directory() else { return Ok(()) };
        let is = match () {
            () if directory.len() > MAX_PATH => "is too long",
            () if directory.contains('\0') => "has a zero byte in it",
            () if !Path::new(directory).is_absolute() => "does not begin with a slash",
            () => return Ok(()),
        };
        let directory = directory.chars().take(64).collect();
        Err(RequestError::BadDirectory { directory, is: is.to_owned() })
    }
}
