//! Messages on a stream: four bytes of length, least significant first, then JSON.
//!
//! [`read`] and [`write`] wait for the other side. A [`PeerConnection`] never waits: it keeps what
//! has come until a message is whole, and what is to go until there is room.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{CoordinatorError, Result};
use crate::bootstrap::call_error;
use crate::error::Error;
use crate::logs::COORDINATOR;

/// The longest message: room for a full group on the largest communicator.
pub(super) const MAX_MESSAGE: usize = 512 << 10;

const HEAD: usize = 4;

/// The memory that an idle connection keeps in either direction: that of a usual message.
const KEPT: usize = 4 << 10;

/// The most bytes that may wait for one peer that does not read.
const MAX_BACKLOG: usize = 8 * MAX_MESSAGE;

/// The most bytes that are read at a time, so that one peer does not keep the others waiting.
const SLICE: usize = 64 << 10;

/// Encodes a message as it goes over the stream.
///
/// # Errors
/// A text that says how long the message is, if that is longer than the other side takes.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, message).expect("messages have nothing that JSON has not");
    let len = check_length(bytes.len() - HEAD)?;
    bytes[..HEAD].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    Ok(bytes)
}

/// The bytes that have come of a stream, to be taken out message by message.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// How many of them were taken out.
    taken: usize,
}

impl Frames {
    /// Appends bytes that have come.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.drop_taken();
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns how many bytes were not taken out, of whole messages and of the last, unfinished
    /// one.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Returns whether there is something to take out: a whole message, or bytes that can never
    /// become one.
    pub(super) fn has_next(&self) -> bool {
        !matches!(self.whole(), Ok(None))
    }

    /// Takes out the next message, if all of it has come. If not, gives back the memory of earlier
    /// ones.
    ///
    /// # Errors
    /// A text that says what is wrong with it. Nothing that comes after it makes sense then.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let Some(body) = self.whole()? else {
            self.drop_taken();
            return Ok(None);
        };
        let message = serde_json::from_slice(&self.bytes[body.clone()]).map_err(|error| error.to_string())?;
        self.taken = body.end;
        Ok(Some(message))
    }

    /// Returns where the body of the next message is, if all of it has come.
    fn whole(&self) -> Result<Option<Range<usize>>, String> {
        let rest = &self.bytes[self.taken..];
        let Some((head, body)) = rest.split_first_chunk::<HEAD>() else { return Ok(None) };
        let (len, begin) = (length(*head)?, self.taken + HEAD);
        Ok((body.len() >= len).then_some(begin..begin + len))
    }

    fn drop_taken(&mut self) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.bytes.shrink_to(KEPT);
            self.taken = 0;
        }
    }
}

fn length(head: [u8; HEAD]) -> Result<usize, String> {
    check_length(usize::try_from(u32::from_le_bytes(head)).unwrap_or(usize::MAX))
}

fn check_length(len: usize) -> Result<usize, String> {
    if len > MAX_MESSAGE {
        return Err(format!("a message of {len} bytes, and {MAX_MESSAGE} is the most"));
    }
    Ok(len)
}

/// The context of a blocking read or write: with whom, what for, and for how long at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoContext {
    pub(super) peer: &'static str,
    pub(super) operation: &'static str,
    pub(super) patience: Duration,
}

impl IoContext {
    /// Returns the error for a stream that takes or gives no more.
    pub(super) fn error(self, error: std::io::Error) -> CoordinatorError {
        let Self { peer, operation, patience } = self;
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                CoordinatorError::Disconnected { peer }
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::timed_out(operation, None, patience).into(),
            _ => call_error(operation, "a system call", error).into(),
        }
    }
}

/// Waits for a message of the peer.
///
/// # Errors
/// [`CoordinatorError::Disconnected`], [`CoordinatorError::Protocol`]; [`Error::Timeout`] of the
/// operation where the stream has a deadline; [`Error::Os`].
pub(super) fn read<T>(stream: &mut impl Read, context: IoContext) -> Result<T>
where
    T: DeserializeOwned,
{
    let garbled = |what| CoordinatorError::Protocol { peer: context.peer, what };
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).map_err(|error| context.error(error))?;
    let mut body = vec![0; length(head).map_err(garbled)?];
    stream.read_exact(&mut body).map_err(|error| context.error(error))?;
    serde_json::from_slice(&body).map_err(|error| garbled(error.to_string()))
}

/// Sends a message to the peer.
///
/// # Errors
/// Fails as [`read`] does, or with [`CoordinatorError::MessageTooLong`]. Nothing was sent after the
/// latter.
pub(super) fn write<T>(stream: &mut impl Write, message: &T, context: IoContext) -> Result<()>
where
    T: Serialize,
{
    let too_long = |what| CoordinatorError::MessageTooLong { peer: context.peer, what };
    let bytes = encode(message).map_err(too_long)?;
    stream.write_all(&bytes).map_err(|error| context.error(error))
}

/// One side of a connection that never blocks.
#[derive(Debug)]
pub(super) struct PeerConnection {
    stream: UnixStream,
    incoming: Frames,
    outgoing: VecDeque<u8>,
    /// The peer reads too slowly, or is gone.
    is_over: bool,
}

impl PeerConnection {
    /// # Errors
    /// [`Error::Os`].
    pub(super) fn new(stream: UnixStream) -> Result<Self, Error> {
        stream.set_nonblocking(true).map_err(|error| Error::os("preparing a connection", error))?;
        Ok(Self { stream, incoming: Frames::default(), outgoing: VecDeque::new(), is_over: false })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the events to poll for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.outgoing.is_empty() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT }
    }

    /// Returns how many bytes have come that were not taken out as messages.
    pub(super) fn received_bytes(&self) -> usize {
        self.incoming.len()
    }

    /// Returns how many bytes wait for the peer to read.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.outgoing.len()
    }

    /// Returns whether a message has come whole.
    pub(super) fn has_next(&self) -> bool {
        self.incoming.has_next()
    }

    /// Returns whether the connection is of no use any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes in bytes that have come.
    pub(super) fn read(&mut self) {
        let mut slice = [0; SLICE];
        match self.stream.read(&mut slice) {
            Ok(0) => self.is_over = true,
            Ok(len) => self.incoming.push(&slice[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.is_over = true,
        }
    }

    /// Returns the next message, if all of it has come.
    ///
    /// # Errors
    /// Fails as [`Frames::next`] does.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
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
                // Every message sent here is bounded where it is made. A peer that misses one is
                // better off without a connection.
                tracing::error!(target: COORDINATOR, what, "cannot send");
                self.is_over = true;
            }
        }
        self.flush();
        self.is_over |= self.outgoing.len() > MAX_BACKLOG;
    }

    /// Sends as much as there is room for.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::coordinator::request::ClientRequest;

    #[test]
    fn messages_come_out_as_they_went_in_wherever_the_stream_was_cut() {
        let sent: Vec<Vec<u64>> = vec![vec![], vec![1, 2, 3], vec![u64::MAX; 100]];
        let stream: Vec<u8> = sent.iter().flat_map(|message| encode(message).unwrap()).collect();
        for cut in [1, 3, 4, 5, 64, stream.len()] {
            let (mut frames, mut received) = (Frames::default(), Vec::new());
            for piece in stream.chunks(cut) {
                frames.push(piece);
                while let Some(message) = frames.next::<Vec<u64>>().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent, "cut into {cut}");
        }
    }

    #[test]
    fn a_message_that_was_taken_out_counts_no_more_and_its_memory_is_given_back() {
        let long = encode(&"x".repeat(MAX_MESSAGE / 2)).unwrap();
        let mut frames = Frames::default();
        frames.push(&[&long[..], &long, &long[..5]].concat());
        for left in [long.len() + 5, 5] {
            assert!(frames.next::<String>().unwrap().is_some());
            assert_eq!(frames.len(), left);
        }
        assert!(frames.next::<String>().unwrap().is_none());
        assert!(frames.len() == 5 && frames.bytes.capacity() <= KEPT, "{} bytes", frames.bytes.capacity());
        frames.push(&long[5..]);
        assert!(frames.next::<String>().unwrap().is_some());
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_has_come() {
        let mut frames = Frames::default();
        frames.push(&u32::try_from(MAX_MESSAGE + 1).unwrap().to_le_bytes());
        assert!(frames.next::<u64>().unwrap_err().contains("the most"));
        assert_eq!(encode(&"x".repeat(MAX_MESSAGE - 2)).unwrap().len(), HEAD + MAX_MESSAGE);
        assert!(encode(&"x".repeat(MAX_MESSAGE - 1)).unwrap_err().contains("the most"), "nor is it sent");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_or_waits_for_more(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next::<ClientRequest>() {}
        }
    }
}
