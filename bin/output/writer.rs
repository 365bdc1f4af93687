//! A thread that writes to a stream, for callers that cannot wait for its reader.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;
use shmccl::launch::OutputBacklog;

/// The most bytes that wait while more lines of ranks are taken.
const FULL: usize = 1 << 20;

/// How much is written at a time.
const PIECE: usize = 64 << 10;

/// How long a caller waits for the reader of a stream that it finds idle. So what it says on two
/// streams comes in order, unless a reader sleeps.
const A_MOMENT: Duration = Duration::from_millis(100);

/// The thread and what it has to write.
#[derive(Clone, Default)]
pub(super) struct OutputWriter(Arc<(Mutex<WriteBacklog>, Condvar)>);

#[derive(Default)]
struct WriteBacklog {
    bytes: Vec<u8>,
    /// Bytes that the thread has taken and not written yet.
    in_hand: usize,
    /// When the reader has taken something, or was found idle.
    moved: Option<Instant>,
    error: Option<Errno>,
}

impl WriteBacklog {
    fn len(&self) -> usize {
        self.bytes.len() + self.in_hand
    }
}

impl OutputWriter {
    /// Starts a thread for `stream`; `None` where there is no room for one.
    pub(super) fn start(stream: impl AsFd + Send + 'static) -> Option<Self> {
        let writer = Self::default();
        let served = writer.clone();
        let builder = std::thread::Builder::new().name("shmccl output".to_owned()).stack_size(64 << 10);
        builder.spawn(move || served.serve(&stream)).ok()?;
        Some(writer)
    }

    fn waiting(&self) -> MutexGuard<'_, WriteBacklog> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes. Those that come after an error are dropped.
    pub(super) fn write(&self, bytes: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.error.is_none() {
            if waiting.len() == 0 {
                waiting.moved = Some(Instant::now());
            }
            waiting.bytes.extend_from_slice(bytes);
            self.0.1.notify_all();
        }
    }

    /// Adds bytes, unless far too many wait already, and gives an idle reader a moment for them.
    pub(super) fn write_and_wait(&self, bytes: &[u8]) {
        let before = self.waiting().len();
        if before < 4 * FULL {
            self.write(bytes);
        }
        if before == 0 {
            self.settle(Some(A_MOMENT));
        }
    }

    pub(super) fn backlog(&self) -> OutputBacklog {
        match self.waiting().len() {
            0 => OutputBacklog::None,
            len if len < FULL => OutputBacklog::Some,
            _ => OutputBacklog::Full,
        }
    }

    pub(super) fn error(&self) -> Option<io::Error> {
        self.waiting().error.map(io::Error::from)
    }

    /// Waits until all is written, or nothing was for the time of `patience`, which may have passed
    /// before; at least a moment. Returns how many bytes are left.
    pub(super) fn settle(&self, patience: Option<Duration>) -> usize {
        let (began, mut waiting) = (Instant::now(), self.waiting());
        while waiting.len() > 0 {
            let idle = waiting.moved.map_or(Duration::ZERO, |moved| moved.elapsed());
            let a_moment = A_MOMENT.saturating_sub(began.elapsed());
            let left = patience.map_or(Duration::MAX, |patience| patience.saturating_sub(idle).max(a_moment));
            if left.is_zero() {
                break;
            }
            let long = left.min(Duration::from_secs(3600));
            waiting = self.0.1.wait_timeout(waiting, long).unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.len()
    }

    fn serve(&self, stream: &impl AsFd) {
        loop {
            let mut waiting = self.waiting();
            while waiting.bytes.is_empty() {
                waiting = self.0.1.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            let bytes = std::mem::take(&mut waiting.bytes);
            waiting.in_hand = bytes.len();
            drop(waiting);
            let written = self.write_all(stream, &bytes);
            let mut waiting = self.waiting();
            if let Err(errno) = written {
                (waiting.error, waiting.bytes) = (Some(errno), Vec::new());
            }
            waiting.in_hand = 0;
            self.0.1.notify_all();
        }
    }

    fn write_all(&self, stream: &impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match write(stream, &bytes[..bytes.len().min(PIECE)]) {
                Ok(written) => {
                    bytes = &bytes[written..];
                    let mut waiting = self.waiting();
                    (waiting.in_hand, waiting.moved) = (bytes.len(), Some(Instant::now()));
                    self.0.1.notify_all();
                }
                Err(Errno::EINTR) => {}
                // Another process has made the stream so, which it shares.
                Err(Errno::EAGAIN) => {
                    let _ = poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use nix::fcntl::OFlag;
    use nix::unistd::pipe2;

    use super::*;

    fn pipe() -> (OwnedFd, OwnedFd) {
        pipe2(OFlag::O_CLOEXEC).unwrap()
    }

    #[test]
    fn nobody_waits_for_a_reader_that_sleeps_and_nothing_is_lost_when_it_wakes() {
        let (reader, end) = pipe();
        let writer = OutputWriter::start(end).unwrap();
        (0..20).for_each(|_| writer.write(&[b'x'; FULL / 10]));
        assert_eq!(writer.backlog(), OutputBacklog::Full);
        assert!(writer.settle(Some(Duration::from_millis(10))) > 0);
        let mut read = 0;
        while read < 20 * (FULL / 10) {
            read += nix::unistd::read(&reader, &mut [0; PIECE]).unwrap();
        }
        assert_eq!((writer.settle(None), writer.backlog()), (0, OutputBacklog::None));
    }

    #[test]
    fn a_reader_that_has_slept_for_long_is_not_waited_for_once_more() {
        let (_reader, end) = pipe();
        let writer = OutputWriter::start(end).unwrap();
        writer.write(&[b'x'; FULL]);
        let hour = Duration::from_secs(3600);
        // Until the pipe is full.
        while writer.settle(Some(A_MOMENT)) == FULL {}
        writer.waiting().moved = Instant::now().checked_sub(hour);
        assert!(writer.settle(Some(hour)) > 0);
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error_and_keeps_nobody_waiting() {
        let (reader, end) = pipe();
        drop(reader);
        let writer = OutputWriter::start(end).unwrap();
        writer.write(b"x");
        assert_eq!(writer.settle(None), 0);
        assert_eq!(writer.error().unwrap().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_stream_that_another_process_has_made_nonblocking_is_waited_for() {
        let (reader, end) = pipe2(OFlag::O_NONBLOCK).unwrap();
        let writer = OutputWriter::start(end).unwrap();
        writer.write(&[b'x'; 4 * PIECE]);
        let mut read = 0;
        while read < 4 * PIECE {
            read += nix::unistd::read(&reader, &mut [0; PIECE]).unwrap_or(0);
        }
        assert!(writer.settle(None) == 0 && writer.error().is_none());
    }
}
