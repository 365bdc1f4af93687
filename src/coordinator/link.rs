//! A connection that never blocks: what came is kept until it is a message, and what is to go until there is room.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::poll::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{Frames, KEPT, MAX_MESSAGE, encode};
use crate::error::{Error, Result};
use crate::logs::COORDINATOR;

/// How much may wait for one peer that does not read.
const MAX_BACKLOG: usize = 8 * MAX_MESSAGE;

/// How much is read at a time, so that one peer does not keep the others waiting.
const SLICE: usize = 64 << 10;

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    incoming: Frames,
    outgoing: VecDeque<u8>,
    /// The peer reads too slowly, or is gone.
    is_over: bool,
}

impl Connection {
    /// # Errors
    /// [`Error::Os`].
    pub(super) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_nonblocking(true).map_err(|error| Error::os("preparing a connection", error))?;
        Ok(Self { stream, incoming: Frames::default(), outgoing: VecDeque::new(), is_over: false })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What to poll for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.outgoing.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT }
    }

    /// Whether the peer has yet to take what was sent.
    pub(super) fn is_behind(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// How much is kept of messages of its that have not come whole, or were not taken out.
    pub(super) fn unheard(&self) -> usize {
        self.incoming.len()
    }

    /// Whether a message has come whole.
    pub(super) fn has_next(&self) -> bool {
        self.incoming.has_next()
    }

    /// How much is kept of what it has not read.
    pub(super) fn unread(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether there is no use in it any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes in what has come.
    pub(super) fn read(&mut self) {
        let mut slice = [0; SLICE];
        match self.stream.read(&mut slice) {
            Ok(0) => self.is_over = true,
            Ok(len) => self.incoming.push(&slice[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.is_over = true,
        }
    }

    /// The next message, if all of it has come.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> std::result::Result<Option<T>, String> {
        self.incoming.next()
    }

    /// Sends a message, now or when there is room.
    pub(super) fn send<T: Serialize>(&mut self, message: &T) {
        if self.is_over {
            return;
        }
        match encode(message) {
            Ok(bytes) => self.outgoing.extend(bytes),
            Err(what) => {
                // All that is sent here is bounded where it is made; a peer that misses it is better off without a link.
                tracing::error!(target: COORDINATOR, what, "cannot send");
                self.is_over = true;
            }
        }
        self.flush();
        self.is_over |= self.outgoing.len() > MAX_BACKLOG;
    }

    /// Sends what there is room for.
    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() && !self.is_over {
            let (front, _) = self.outgoing.as_slices();
            match self.stream.write(front) {
                Ok(len) => drop(self.outgoing.drain(..len)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.is_over = true,
            }
        }
        if self.outgoing.is_empty() {
            self.outgoing.shrink_to(KEPT);
        }
    }
}
