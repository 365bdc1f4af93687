//! Sends and receives records with descriptors over a `SOCK_SEQPACKET` socket, and hangs up.
//! Nothing here blocks or raises SIGPIPE.

use std::io::IoSlice;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, sendmsg, setsockopt,
    shutdown, socketpair, sockopt,
};

use super::message::MAX_MESSAGE;
use crate::error::{ALLOW_CALL, Error, Result};
use crate::shm::system::{ReceivedMessage, receive};
use crate::shm::{HostKernel, limits};
use crate::sync::grace::Grace;
use crate::sync::interrupt::{INTERRUPT_INTERVAL, interrupt_check, is_interrupted};

/// Makes a connected pair of control sockets, the root's end first, closed on exec.
///
/// The root's end asks for the credentials of senders from the start: the kernel attaches them as a
/// message is sent.
///
/// # Errors
/// [`Error::ResourceLimit`] or [`Error::Os`].
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let make = || {
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(|errno| (errno, "the system call socketpair"))?;
        setsockopt(&pair.0, sockopt::PassCred, &true)
            .map_err(|errno| (errno, "the system call setsockopt"))?;
        Ok(pair)
    };
    make().map_err(|(errno, call): (Errno, _)| call_error("opening a control socket", call, errno))
}

/// A socket that hangs up as it is dropped.
///
/// Closing a descriptor hangs up only if nobody else has it. A forked process has it until it
/// executes a program, or for ever. This hangs up at once nevertheless.
#[derive(Debug)]
pub(super) struct ControlSocket(Option<OwnedFd>);

impl ControlSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(Some(socket))
    }

    /// Returns the socket, which stays open.
    pub(super) fn into_socket(mut self) -> OwnedFd {
        self.0.take().expect("taken by this call alone")
    }
}

impl Deref for ControlSocket {
    type Target = OwnedFd;
    fn deref(&self) -> &OwnedFd {
        self.0.as_ref().expect("there until it is consumed")
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            hang_up(socket);
        }
    }
}

/// Ends the connection over `socket`, or the accepting of new ones, even if others have the
/// descriptor.
pub(super) fn hang_up(socket: &impl AsFd) {
    // A socket that was never connected, or whose peer is gone, has no other end.
    let _ = shutdown(socket.as_fd().as_raw_fd(), Shutdown::Both);
}

/// Returns whether the other end of `socket` has hung up. Its earlier messages may still be unread.
pub(super) fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    // Poll reports nothing but a hang-up without being asked.
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found > 0)
}

/// Returns the error for a system call that may fail for want of descriptors or processes.
pub(crate) fn resource_error(action: &'static str, source: std::io::Error) -> Error {
    let (resource, remedy) = match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN) => (
            "processes or threads",
            "raise `ulimit -u` or the pids limit of the container; `ulimit -d` or `ulimit -v`, where they are set",
        ),
        Some(Errno::ENOMEM) => ("memory", "free some, or start fewer ranks"),
        Some(Errno::EPERM) => {
            return Error::Refused { action, needs: "a system call", remedy: ALLOW_CALL, source };
        }
        _ => return Error::os(action, source),
    };
    Error::ResourceLimit { resource, action, remedy, source }
}

/// Returns the error for a system call, `needs`, that a sandbox may refuse, or that may fail like
/// those of [`resource_error`].
pub(crate) fn call_error(
    action: &'static str,
    needs: &'static str,
    source: impl Into<std::io::Error>,
) -> Error {
    limits::refused_call(action, needs, source.into()).unwrap_or_else(|source| resource_error(action, source))
}

/// Returns another descriptor of the same thing.
///
/// # Errors
/// [`Error::ResourceLimit`] of `action`.
pub(crate) fn duplicate(descriptor: &impl AsFd, action: &'static str) -> Result<OwnedFd> {
    let needs = "the system call fcntl";
    descriptor.as_fd().try_clone_to_owned().map_err(|error| call_error(action, needs, error))
}

/// Sends one message; `Err(EAGAIN)` when the socket is full.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> std::result::Result<(), Errno> {
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let ancillary = if raw.is_empty() { &rights[..0] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], ancillary, flags, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The result of [`try_receive`].
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A message, its bytes and what came along.
    Message(Vec<u8>, ReceivedMessage),
    /// Nothing yet.
    Nothing,
    /// The peer hung up.
    HungUp,
    /// This process may not open the descriptors that came with the message.
    NoDescriptors,
}

/// Takes one message if there is one.
///
/// # Errors
/// [`Error::Os`] when the socket itself fails, which no peer can cause.
pub(crate) fn try_receive(socket: BorrowedFd<'_>) -> Result<Incoming> {
    let mut buffer = vec![0; MAX_MESSAGE + 1];
    let mut was_reset = false;
    loop {
        let error = match receive(socket, &mut buffer) {
            Ok(received) if received.len == 0 => return Ok(Incoming::HungUp),
            Ok(received) if received.truncated && received.len <= MAX_MESSAGE => {
                return Ok(Incoming::NoDescriptors);
            }
            Ok(received) => {
                buffer.truncate(received.len);
                return Ok(Incoming::Message(buffer, received));
            }
            Err(error) => error,
        };
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINTR) => {}
            Some(Errno::EAGAIN) => return Ok(Incoming::Nothing),
            // The peer closed with unread messages in its queue. The kernel says so once, before
            // the peer's own messages.
            Some(Errno::ECONNRESET) if !was_reset => was_reset = true,
            Some(Errno::ECONNRESET) => return Ok(Incoming::HungUp),
            _ => return Err(call_error("reading the control socket", "the system call recvmsg", error)),
        }
    }
}

/// The start of a wait, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Instant,
    grace: Grace,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self { start: Instant::now(), grace: Grace::begin(limit, HostKernel::clock()) }
    }

    /// Makes a deadline that no pause puts off, for a wait after which nobody is to blame.
    pub(crate) fn by_the_clock(limit: Duration) -> Self {
        Self { start: Instant::now(), grace: Grace::by_the_clock(limit, HostKernel::clock()) }
    }

    /// Returns how long ago the wait began.
    pub(crate) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until `socket` has something to read, at most for `nap`.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`] of `operation`.
    pub(crate) fn wait_a_while(
        &mut self,
        socket: &OwnedFd,
        operation: &'static str,
        nap: Duration,
    ) -> Result<()> {
        let is_over = self.grace.is_over(HostKernel::clock());
        let nap = interrupt_check().map_or(nap, |_| nap.min(INTERRUPT_INTERVAL));
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, poll_timeout(Some(self.grace.next_look().min(nap)))) {
            Ok(0) if is_over => Err(Error::timed_out(operation, None, self.waited())),
            Ok(0) | Err(Errno::EINTR) if is_interrupted() => Err(Error::Cancelled { operation }),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::os("waiting on the control socket", errno)),
        }
    }
}

/// Returns a poll timeout that does not end before `duration` has passed, up to the longest there
/// is. `None` is for ever.
pub(crate) fn poll_timeout(duration: Option<Duration>) -> PollTimeout {
    let Some(duration) = duration else { return PollTimeout::NONE };
    let ms = duration.as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(i32::try_from(ms).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
}
