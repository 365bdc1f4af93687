//! What ends a coordinator.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::error::{Error, Result};
use crate::shm::system::InterruptWatch;

/// How it comes to its end.
#[derive(Debug)]
pub(super) enum Ends {
    /// By a signal, where this process has nobody else who waits for that.
    Interrupt(Option<InterruptWatch>),
    /// When whoever has the other side drops it.
    Rope(UnixStream),
}

impl Ends {
    pub(super) fn by_interrupt() -> Result<Self> {
        let watch = InterruptWatch::start(false);
        watch
            .map(Self::Interrupt)
            .map_err(|error| Error::os("catching the signals that end a coordinator", error))
    }

    pub(super) fn by_rope(rope: UnixStream) -> Result<Self> {
        rope.set_nonblocking(true).map_err(|error| Error::os("preparing the end of a coordinator", error))?;
        Ok(Self::Rope(rope))
    }

    /// What is readable when the end may have come.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Interrupt(watch) => watch.as_ref().map(InterruptWatch::descriptor),
            Self::Rope(rope) => Some(rope.as_fd()),
        }
    }

    pub(super) fn has_come(&mut self) -> bool {
        match self {
            Self::Interrupt(watch) => watch.as_mut().is_some_and(|watch| watch.next().is_some()),
            Self::Rope(rope) => match rope.read(&mut [0]) {
                Ok(_) => true,
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            },
        }
    }
}
