//! Sockets that children of a fork do not have.
//!
//! Whoever connects to a listening socket waits for an answer. A child that has the socket gives
//! none, and keeps it open when its parent is dead: then nobody learns of that death, and a name
//! stays taken. So a child finds `/dev/null` under the number of each such socket.
#![allow(unsafe_code, reason = "another file in the place of a socket")]

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};

use super::undivided::ForkMutex;

/// The numbers of all such sockets.
static OPEN: ForkMutex<Vec<RawFd>> = ForkMutex::new(Vec::new());

/// A socket of this process alone.
#[derive(Debug)]
pub(crate) struct Unforked<T: AsRawFd>(
    /// `None` as it is dropped.
    Option<T>,
);

impl<T: AsRawFd> Unforked<T> {
    /// Opens a socket by `open`.
    ///
    /// # Errors
    /// Fails as `open` does.
    pub(crate) fn open<E>(open: impl FnOnce() -> Result<T, E>) -> Result<Self, E> {
        OPEN.with(|numbers| {
            let socket = open()?;
            numbers.push(socket.as_raw_fd());
            Ok(Self(Some(socket)))
        })
    }
}

impl<T: AsRawFd> Deref for Unforked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: AsRawFd> Drop for Unforked<T> {
    fn drop(&mut self) {
        let number = self.as_raw_fd();
        // It is closed in the same step: a fork finds it open and listed, or neither.
        OPEN.with(|numbers| {
            numbers.retain(|other| *other != number);
            self.0 = None;
        });
    }
}

/// Takes the sockets from this process, the child of a fork.
pub(super) fn close_in_child() {
    // Another thread may have had the lock where the fork came within a step: the child of that
    // executes a program, and has no socket then.
    OPEN.look(|numbers| {
        if numbers.is_empty() {
            return;
        }
        let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else { return };
        for number in numbers.drain(..) {
            // SAFETY: the number is of a socket that a copy of its owner still has. It stays open,
            // and its owner closes it.
            unsafe { libc::dup3(nothing.as_raw_fd(), number, libc::O_CLOEXEC) };
        }
    });
}
