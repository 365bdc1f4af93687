//! Messages on a stream: four bytes of length, least first, then JSON.

use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::fault::CoordinatorError;
use crate::error::{Error, Result};

/// The longest message: room for a full group on the largest communicator.
pub(super) const MAX_MESSAGE: usize = 512 << 10;

const HEAD: usize = 4;

/// How much memory a connection keeps in either direction while nothing goes there: that of usual messages.
pub(super) const KEPT: usize = 4 << 10;

/// A message as it goes over the stream.
///
/// # Errors
/// What is wrong with it: it is longer than the other side takes.
pub(super) fn encode<T: Serialize>(message: &T) -> std::result::Result<Vec<u8>, String> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, message).expect("messages have nothing that JSON has not");
    let len = check_length(bytes.len() - HEAD)?;
    bytes[..HEAD].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    Ok(bytes)
}

/// What has come of a stream, to be taken out message by message.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// How many of them were taken out.
    taken: usize,
}

impl Frames {
    /// Appends what has come.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.forget_taken();
        self.bytes.extend_from_slice(bytes);
    }

    /// How many bytes have not been taken out: those of messages that are whole, and of the one that is not.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether there is something to take out: a message that is whole, or what can never become one.
    pub(super) fn has_next(&self) -> bool {
        !matches!(self.whole(), Ok(None))
    }

    /// Takes out the next message, if all of it is there. If not, the memory of those before it is given back.
    ///
    /// # Errors
    /// What is wrong with it. Nothing that comes after it makes sense then.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> std::result::Result<Option<T>, String> {
        let Some(body) = self.whole()? else {
            self.forget_taken();
            return Ok(None);
        };
        let message = serde_json::from_slice(&self.bytes[body.clone()]).map_err(|error| error.to_string())?;
        self.taken = body.end;
        Ok(Some(message))
    }

    /// Where the body of the next message is, if all of it is there.
    fn whole(&self) -> std::result::Result<Option<Range<usize>>, String> {
        let rest = &self.bytes[self.taken..];
        let Some((head, body)) = rest.split_first_chunk::<HEAD>() else { return Ok(None) };
        let (len, begin) = (length(*head)?, self.taken + HEAD);
        Ok((body.len() >= len).then_some(begin..begin + len))
    }

    fn forget_taken(&mut self) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.bytes.shrink_to(KEPT);
            self.taken = 0;
        }
    }
}

fn length(head: [u8; HEAD]) -> std::result::Result<usize, String> {
    check_length(usize::try_from(u32::from_le_bytes(head)).unwrap_or(usize::MAX))
}

fn check_length(len: usize) -> std::result::Result<usize, String> {
    if len > MAX_MESSAGE {
        return Err(format!("a message of {len} bytes, and {MAX_MESSAGE} is the most"));
    }
    Ok(len)
}

/// Whom something is said to or heard from, what for, and how long that is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoContext {
    pub(super) peer: &'static str,
    pub(super) operation: &'static str,
    pub(super) patience: Duration,
}

/// Waits for a message of the peer.
///
/// # Errors
/// [`CoordinatorError::Lost`], [`CoordinatorError::Garbled`]; [`Error::Timeout`] of the operation where the stream has a deadline; [`Error::Os`].
pub(super) fn read<T: DeserializeOwned>(stream: &mut impl Read, exchange: IoContext) -> Result<T> {
    let garbled = |what| CoordinatorError::Garbled { peer: exchange.peer, what }.error();
    let mut head = [0; HEAD];
    stream.read_exact(&mut head).map_err(|error| broken(error, exchange))?;
    let mut body = vec![0; length(head).map_err(garbled)?];
    stream.read_exact(&mut body).map_err(|error| broken(error, exchange))?;
    serde_json::from_slice(&body).map_err(|error| garbled(error.to_string()))
}

/// Sends a message to the peer.
///
/// # Errors
/// Those of [`read`]; [`CoordinatorError::TooLong`], and then nothing was sent.
pub(super) fn write<T: Serialize>(stream: &mut impl Write, message: &T, exchange: IoContext) -> Result<()> {
    let bytes =
        encode(message).map_err(|what| CoordinatorError::TooLong { peer: exchange.peer, what }.error())?;
    stream.write_all(&bytes).map_err(|error| broken(error, exchange))
}

/// The error for a stream that takes or gives no more.
pub(super) fn broken(error: std::io::Error, exchange: IoContext) -> Error {
    let IoContext { peer, operation, patience } = exchange;
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            CoordinatorError::Lost { peer }.error()
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::timed_out(operation, None, patience),
        _ => Error::os(operation, error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            while let Ok(Some(_)) = frames.next::<crate::coordinator::Request>() {}
        }
    }
}
