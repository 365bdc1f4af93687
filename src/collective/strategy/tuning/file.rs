//! Where a table is looked for.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::format;
use super::table::{Table, TuningFault};
use crate::error::{Error, Result};
use crate::files;
use crate::logs::EPOCH;
use crate::variables;

/// The environment variable that names a table's file. Empty, it asks for the built-in table.
pub const VARIABLE: &str = "SHMCCL_TUNING";

/// The most bytes that a table's file has: cases for all numbers of ranks, of many steps each, have
/// fewer.
const MAX_LEN: u64 = 1 << 20;

/// Returns where a table is looked for when [`VARIABLE`] is not set; `None` when there is no home
/// directory.
#[must_use]
pub fn usual_file() -> Option<PathBuf> {
    let directory = |name: &str| {
        let path = PathBuf::from(variables::get(name)?);
        // The rule of the XDG specification: what is not absolute is ignored, and so is what is
        // empty.
        path.is_absolute().then_some(path)
    };
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(config.join("shmccl").join("tuning.toml"))
}

impl Table {
    /// Makes the table of this process: see [the module](super).
    ///
    /// # Errors
    /// [`Error::Tuning`] for a file that was named, and cannot be read or has something wrong in
    /// it.
    pub fn load() -> Result<Self> {
        Self::find(variables::get(VARIABLE), usual_file())
    }

    /// Returns why [`load`](Self::load) takes the built-in table, though there is a file at the
    /// usual place.
    #[must_use]
    pub fn passed_over() -> Option<Error> {
        let usual = usual_file().filter(|_| variables::get(VARIABLE).is_none())?;
        Self::read(&usual).err().filter(|_| usual.symlink_metadata().is_ok())
    }

    /// Makes the table in the file that is `named`, or in the `usual` one if that can be used.
    ///
    /// Nobody has asked for the usual one. It may lie in a home that this user may not enter, or be
    /// of another version.
    pub(super) fn find(named: Option<OsString>, usual: Option<PathBuf>) -> Result<Self> {
        match (named, usual) {
            (Some(named), _) if named.is_empty() => Ok(Self::default()),
            (Some(named), _) => Self::read(named),
            (None, Some(usual)) => Ok(Self::read(&usual).unwrap_or_else(|error| {
                if usual.symlink_metadata().is_ok() {
                    tracing::warn!(target: EPOCH, %error, "the built-in tuning table is taken");
                }
                Self::default()
            })),
            (None, None) => Ok(Self::default()),
        }
    }

    /// Makes the table in `file`.
    ///
    /// # Errors
    /// [`Error::Tuning`].
    pub fn read(file: impl Into<PathBuf>) -> Result<Self> {
        let file = file.into();
        let content = content_of(&file).map_err(|fault| (None, fault));
        content.and_then(|content| format::parse(&content)).map_err(|(line, fault)| Error::Tuning {
            file,
            line,
            fault: Box::new(fault),
        })
    }
}

/// Returns what is in `file`, if that is a regular file of a length that a table can have.
fn content_of(file: &Path) -> std::result::Result<String, TuningFault> {
    let opened = files::open_regular(file).map_err(TuningFault::Unreadable)?.ok_or(TuningFault::NotAFile)?;
    let mut content = String::new();
    // What the file system says of its length is not always so.
    opened.take(MAX_LEN + 1).read_to_string(&mut content).map_err(TuningFault::Unreadable)?;
    if content.len() as u64 > MAX_LEN { Err(TuningFault::TooLong(MAX_LEN)) } else { Ok(content) }
}
