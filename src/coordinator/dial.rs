//! Connecting with a socket without waiting for who listens there: a backlog that is full would make `connect` wait for ever.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::poll;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::bootstrap::poll_timeout;

/// How long until it is tried again whether the backlog has room. The kernel tells nobody.
const PAUSE: Duration = Duration::from_millis(5);

/// Where somebody listens.
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

    /// Connects, or fails with [`ErrorKind::WouldBlock`] where that would have to be waited for.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn dial_at_once(&self) -> Result<UnixStream> {
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
    pub(super) fn dial(&self, patience: Duration) -> Result<UnixStream> {
        let began = Instant::now();
        loop {
            match self.dial_at_once() {
                Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = patience.saturating_sub(began.elapsed());
                    if left.is_zero() {
                        return Err(Error::from(ErrorKind::TimedOut));
                    }
                    // A signal only makes the next try come sooner.
                    let _ = poll(&mut [], poll_timeout(Some(left.min(PAUSE))));
                }
                dialled => return dialled,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    #[test]
    fn a_listener_that_takes_nobody_is_given_up_at_the_deadline_and_one_that_is_not_there_at_once() {
        let name = format!("shmccl-dial-{}", std::process::id());
        let address = Address::of_name(&name).unwrap();
        assert_eq!(address.dial(Duration::MAX).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // Nobody accepts: the backlog is full after some.
        let mut waiting = Vec::new();
        let full = loop {
            match address.dial_at_once() {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert_eq!(address.dial(Duration::from_millis(20)).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(listener.accept().unwrap());
        address.dial(Duration::MAX).unwrap();
    }
}
