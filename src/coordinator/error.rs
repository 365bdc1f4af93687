//! What can be wrong with a coordinator, or with the way to it.

use std::path::{Path, PathBuf};

use super::refusal::RequestError;
use crate::bootstrap::resource_error;
use crate::error::Error;

/// Why a coordinator, or a device of it, cannot be reached or does not do what is asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The directory of the sockets is not private.
    #[error("{} {is}, and is to be a directory of mode 0700 of this user; remove it, or set XDG_RUNTIME_DIR", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What it is.
        is: &'static str,
    },
    /// The system refuses to work with the directory of the sockets, or with one of them.
    #[error("{action} {} failed: {why}; set XDG_RUNTIME_DIR to a directory of this user", path.display())]
    Unusable {
        /// What was attempted.
        action: &'static str,
        /// The directory, or the socket.
        path: PathBuf,
        /// The system's own error.
        why: std::io::Error,
    },
    /// No socket can have the path that it would have in this directory.
    #[error(
        "the path of the socket {} has {len} bytes, expected {most} at most; set XDG_RUNTIME_DIR to a directory with a shorter one",
        path.display()
    )]
    LongPath {
        /// The socket.
        path: PathBuf,
        /// The length of its path.
        len: usize,
        /// The longest that the system takes.
        most: usize,
    },
    /// Nobody listens there.
    #[error("no coordinator listens at {}; start one with `shmccl coordinator`", path.display())]
    Nobody {
        /// The socket.
        path: PathBuf,
    },
    /// Nobody listens there any more.
    #[error(
        "the coordinator that listened at {} is dead; start one with `shmccl coordinator`, and the flags that this one had, which takes \
         its place, and over those of its devices that live", path.display()
    )]
    Dead {
        /// The socket.
        path: PathBuf,
    },
    /// The directory has a coordinator.
    #[error("a coordinator is running already at {}; end that one, or set XDG_RUNTIME_DIR to another directory", path.display())]
    Running {
        /// The directory.
        path: PathBuf,
    },
    /// A device of a pool has not come.
    #[error("{how}; a program that is to be one asks Device::from_env first of all, and serves")]
    NotStarted {
        /// Which, and what has become of it.
        how: String,
    },
    /// The other side is another version.
    #[error("this is shmccl {mine}, and the other side is shmccl {theirs}; use the same version on both")]
    Version {
        /// The version of this side.
        mine: String,
        /// The version of the other side.
        theirs: String,
    },
    /// The other side is another user's.
    #[error(
        "the other side runs as user {theirs}, and this as user {mine}; a coordinator serves its own user only"
    )]
    OtherUser {
        /// The user of this side.
        mine: u32,
        /// The user of the other side.
        theirs: u32,
    },
    /// The connection has ended.
    #[error("the {peer} has ended, or has hung up; what runs is not disturbed by that")]
    Lost {
        /// The other side.
        peer: &'static str,
    },
    /// The other side says what the protocol does not have.
    #[error("the {peer} does not speak this protocol: {what}")]
    Garbled {
        /// The other side.
        peer: &'static str,
        /// What is wrong.
        what: String,
    },
    /// What is to be said to the other side is too long. Nothing was sent.
    #[error("the {peer} cannot be told as much at a time: {what}")]
    TooLong {
        /// The other side.
        peer: &'static str,
        /// How long it is.
        what: String,
    },
    /// It was refused.
    #[error(transparent)]
    Refused(#[from] RequestError),
}

// No `From`: with a second one for the error type, `?` in closures would not say any more which error it gives.

impl CoordinatorError {
    /// The error of the library.
    pub(super) fn error(self) -> Error {
        Error::Coordinator { fault: self }
    }

    /// The error for a call of the system on the directory, or a socket in it: of want of a resource, or [`CoordinatorError::Unusable`].
    pub(super) fn at(action: &'static str, path: &Path, why: impl Into<std::io::Error>) -> Error {
        match resource_error(action, why.into()) {
            Error::Os { source: why, .. } => Self::Unusable { action, path: path.to_owned(), why }.error(),
            error => error,
        }
    }
}

impl RequestError {
    /// The error of the library.
    pub(super) fn error(self) -> Error {
        CoordinatorError::Refused(self).error()
    }
}
