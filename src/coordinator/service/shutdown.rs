//! How a coordinator is told to end, and what it is asked by a signal.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;

use crate::error::Error;
use crate::shm::system::InterruptWatch;

/// What ends a coordinator.
pub(super) enum Shutdown {
    /// A signal, where no other part of this process waits for signals. SIGQUIT calls `on_quit`,
    /// and ends nothing.
    Signal { watch: Option<InterruptWatch>, on_quit: Option<Box<dyn FnMut() + Send>> },
    /// The end of the other side of this pipe.
    StopPipe(UnixStream),
}

impl Shutdown {
    pub(super) fn by_signal() -> Result<Self, Error> {
        let watch = InterruptWatch::start(true);
        Ok(Self::Signal { watch: watch?, on_quit: None })
    }

    pub(super) fn by_stop_pipe(pipe: UnixStream) -> Result<Self, Error> {
        pipe.set_nonblocking(true).map_err(|error| Error::os("preparing the end of a coordinator", error))?;
        Ok(Self::StopPipe(pipe))
    }

    /// Has `answer` called at SIGQUIT, where this process hears of signals here.
    pub(super) fn on_quit(&mut self, answer: Box<dyn FnMut() + Send>) {
        if let Self::Signal { on_quit, .. } = self {
            *on_quit = Some(answer);
        }
    }

    /// Returns the descriptor that is readable when the end may have come.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Signal { watch, .. } => watch.as_ref().map(InterruptWatch::descriptor),
            Self::StopPipe(pipe) => Some(pipe.as_fd()),
        }
    }

    pub(super) fn has_come(&mut self) -> bool {
        match self {
            Self::Signal { watch, on_quit } => match watch.as_mut().and_then(InterruptWatch::next) {
                Some(interrupt) if interrupt.signal == Signal::SIGQUIT => {
                    on_quit.iter_mut().for_each(|answer| answer());
                    false
                }
                interrupt => interrupt.is_some(),
            },
            Self::StopPipe(pipe) => match pipe.read(&mut [0]) {
                Ok(_) => true,
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            },
        }
    }
}
