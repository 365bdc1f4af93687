//! What ends a coordinator, and what it is asked by a signal.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;

use crate::error::{Error, Result};
use crate::shm::system::InterruptWatch;

/// What is to be done when it is asked.
pub(super) struct Answer(pub(super) Box<dyn FnMut() + Send>);

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// How it comes to its end.
#[derive(Debug)]
pub(super) enum Shutdown {
    /// By a signal, where this process has nobody else who waits for that.
    /// SIGQUIT is a question.
    Interrupt(Option<InterruptWatch>, Option<Answer>),
    /// When whoever has the other side drops it.
    Rope(UnixStream),
}

impl Shutdown {
    pub(super) fn by_interrupt() -> Result<Self> {
        let watch = InterruptWatch::start(true);
        watch
            .map(|watch| Self::Interrupt(watch, None))
            .map_err(|error| Error::os("catching the signals that end a coordinator", error))
    }

    pub(super) fn by_rope(rope: UnixStream) -> Result<Self> {
        rope.set_nonblocking(true).map_err(|error| Error::os("preparing the end of a coordinator", error))?;
        Ok(Self::Rope(rope))
    }

    /// Has this done when SIGQUIT comes, where it is for this process to hear of it.
    pub(super) fn on_quit(&mut self, answer: Answer) {
        if let Self::Interrupt(_, slot) = self {
            *slot = Some(answer);
        }
    }

    /// What is readable when the end may have come.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Interrupt(watch, _) => watch.as_ref().map(InterruptWatch::descriptor),
            Self::Rope(rope) => Some(rope.as_fd()),
        }
    }

    pub(super) fn has_come(&mut self) -> bool {
        match self {
            Self::Interrupt(watch, answer) => match watch.as_mut().and_then(InterruptWatch::next) {
                Some(interrupt) if interrupt.signal == Signal::SIGQUIT => {
                    if let Some(Answer(answer)) = answer {
                        answer();
                    }
                    false
                }
                interrupt => interrupt.is_some(),
            },
            Self::Rope(rope) => match rope.read(&mut [0]) {
                Ok(_) => true,
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            },
        }
    }
}
