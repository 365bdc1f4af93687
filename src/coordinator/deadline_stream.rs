//! Streams with a deadline: connecting within a time limit, and a limit for all that goes over one.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::poll;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::bootstrap::poll_timeout;
use crate::shm::HostKernel;
use crate::sync::grace::Grace;

/// The pause between two attempts to connect while the backlog is full. The kernel reports no room.
const PAUSE: Duration = Duration::from_millis(5);

/// The address of a listening socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address(UnixAddr);

impl Address {
    /// # Errors
    /// When the path is too long.
    pub(super) fn of_path(path: &Path) -> Result<Self> {
        Ok(Self(UnixAddr::new(path)?))
    }

    /// # Errors
    /// When the name is too long.
    pub(super) fn of_name(name: &str) -> Result<Self> {
        Ok(Self(UnixAddr::new_abstract(name.as_bytes())?))
    }

    /// Connects, or fails with [`ErrorKind::WouldBlock`] where the backlog is full.
    ///
    /// A blocking `connect` would wait for room in the backlog for ever.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn connect_at_once(&self) -> Result<UnixStream> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &self.0)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Connects within `patience`, or fails with [`ErrorKind::TimedOut`].
    ///
    /// # Errors
    /// The system's.
    pub(super) fn connect_within(&self, patience: Duration) -> Result<UnixStream> {
        let mut grace = Grace::begin(patience, HostKernel::clock());
        loop {
            match self.connect_at_once() {
                Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if grace.is_over(HostKernel::clock()) {
                        return Err(Error::from(ErrorKind::TimedOut));
                    }
                    // A signal only makes the next attempt come sooner.
                    let _ = poll(&mut [], poll_timeout(Some(grace.next_look().min(PAUSE))));
                }
                connected => return connected,
            }
        }
    }
}

/// A stream with one deadline for all that goes over it, however slowly the bytes come.
#[derive(Debug)]
pub(super) struct DeadlineStream<'a> {
    stream: &'a UnixStream,
    grace: Grace,
}

impl<'a> DeadlineStream<'a> {
    /// Gives everything together `limit` from now on. Changes the timeouts of `stream` itself.
    pub(super) fn new(stream: &'a UnixStream, limit: Duration) -> Self {
        Self { stream, grace: Grace::begin(limit, HostKernel::clock()) }
    }

    /// Tries until something moves, or the time is over.
    fn retry(&mut self, mut attempt: impl FnMut(&UnixStream, Duration) -> Result<usize>) -> Result<usize> {
        loop {
            if self.grace.is_over(HostKernel::clock()) {
                return Err(ErrorKind::TimedOut.into());
            }
            match attempt(self.stream, self.grace.next_look()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.retry(|mut stream, patience| {
            stream.set_read_timeout(Some(patience))?;
            stream.read(buffer)
        })
    }
}

impl Write for DeadlineStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.retry(|mut stream, patience| {
            stream.set_write_timeout(Some(patience))?;
            stream.write(bytes)
        })
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_listener_that_takes_nobody_is_given_up_at_the_deadline_and_one_that_is_not_there_at_once() {
        let name = format!("shmccl-deadline-stream-{}", std::process::id());
        let address = Address::of_name(&name).unwrap();
        let refused = address.connect_within(Duration::MAX).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // Nothing accepts: the backlog is full after some.
        let mut waiting = Vec::new();
        let full = loop {
            match address.connect_at_once() {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let late = address.connect_within(Duration::from_millis(20)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        drop(listener.accept().unwrap());
        address.connect_within(Duration::MAX).unwrap();
    }

    #[test]
    fn bytes_that_come_one_by_one_do_not_put_the_deadline_off() {
        let (mut slow, stream) = UnixStream::pair().unwrap();
        let drip = std::thread::spawn(move || {
            while slow.write_all(&[0]).is_ok() {
                let pause = poll_timeout(Some(Duration::from_millis(5)));
                poll(&mut [], pause).unwrap();
            }
        });
        let began = Instant::now();
        let mut limited = DeadlineStream::new(&stream, Duration::from_millis(50));
        let error = limited.read_exact(&mut [0; 1 << 20]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        drop(stream);
        drip.join().unwrap();
    }
}
