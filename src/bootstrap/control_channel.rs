//! A member's control socket before the job is up: sends what the protocol asks for, and receives
//! the answer or the reason why there is none.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::join_request::Rejection;
use super::link::ControlLink;
use super::message::{self, ControlMessage, Lost, MemberRefusal, NotRestarted, Refused, Rejected, Report};
use super::socket::{ControlSocket, Deadline, Incoming, call_error, resource_error, send, try_receive};
use crate::error::{DeviceName, Error, Result, check_layout};
use crate::logs::step;
use crate::rank::Rank;
use crate::sync::Latch;

/// The control socket before the job is up.
#[derive(Debug)]
pub(super) struct ControlChannel {
    pub(super) socket: ControlSocket,
    pub(super) job_id: u64,
    pub(super) n_ranks: u32,
    /// The guard that checks while this waits.
    pub(super) guard: Option<WaitGuard>,
    /// The time beyond a timeout for which this listens. The root's time is up first, and it can
    /// name who is late.
    pub(super) last_words: Duration,
}

impl ControlChannel {
    /// Sends a message. A root that hung up is noticed by the next [`ControlChannel::receive`],
    /// after the messages that it had sent before.
    pub(super) fn send<M: ControlMessage>(&self, message: &M, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        use nix::errno::Errno;
        step("about to tell the root");
        let sent = send(self.socket.as_fd(), bytemuck::bytes_of(message), descriptors);
        step("told the root");
        match sent {
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
            Err(errno) => Err(call_error("writing to the control socket", "the system call sendmsg", errno)),
        }
    }

    /// Waits `timeout` for an `M`, or for a message that makes it pointless.
    pub(super) fn receive<M: ControlMessage>(
        &self,
        timeout: Duration,
        operation: &'static str,
    ) -> Result<(M, Vec<OwnedFd>)> {
        let mut deadline = Deadline::after(timeout.saturating_add(self.last_words));
        loop {
            let (bytes, received) = match try_receive(self.socket.as_fd())? {
                Incoming::Message(bytes, received) => (bytes, received),
                Incoming::Nothing => {
                    self.check_guard()?;
                    let nap = self.guard.as_ref().map_or(Duration::MAX, |_| GUARD_INTERVAL);
                    deadline.wait_a_while(&self.socket, operation, nap)?;
                    continue;
                }
                Incoming::HungUp => return Err(Error::Revoked { by: None, awaited: None }),
                Incoming::NoDescriptors => {
                    let source = nix::errno::Errno::EMFILE.into();
                    return Err(resource_error("receiving the segments of all ranks", source));
                }
            };
            if let Some(message) = message::read::<M>(&bytes) {
                check_layout("job id", self.job_id, message_job(&bytes))?;
                step("was told by the root");
                return Ok((message, received.descriptors));
            }
            return Err(self.explain(&bytes, deadline));
        }
    }

    /// Returns the socket for the time when the job is up.
    pub(super) fn into_link(self) -> ControlLink {
        ControlLink::new(self.socket.into_socket(), self.job_id, self.n_ranks)
    }

    /// Ends the wait when it was cancelled, which the root sees as a hang-up. Also ends it when the
    /// guard finds a lost rank, and reports that rank to the root.
    fn check_guard(&self) -> Result<()> {
        if self.guard.as_ref().is_some_and(WaitGuard::is_cancelled) {
            return Err(Error::Revoked { by: None, awaited: None });
        }
        let Some(rank) = self.guard.as_ref().and_then(WaitGuard::lost) else { return Ok(()) };
        self.send(&Report { header: Report::header(self.job_id), member: rank.get(), restarts: 0 }, &[])?;
        Err(Error::PeerLost { rank })
    }

    /// Returns the error for a message that is not the awaited one.
    fn explain(&self, bytes: &[u8], deadline: Deadline) -> Error {
        if let Some(lost) = message::read::<Lost>(bytes)
            && let Some(device) = message::member_from_code(lost.member, self.n_ranks)
        {
            return match device {
                DeviceName::Rank(rank) => Error::PeerLost { rank },
                DeviceName::Proxy => Error::ProxyLost,
            };
        }
        if message::read::<NotRestarted>(bytes).is_some() {
            return Error::not_restarted();
        }
        if let Some(refused) = message::read::<Refused>(bytes)
            && let Some(refusal) = MemberRefusal::from_code(refused.reason)
        {
            return Error::Layout { what: refusal.what(), expected: refused.expected, found: refused.found };
        }
        if let Some(rejection) = message::read::<Rejected>(bytes).and_then(Rejection::from_message) {
            return rejection.into_error(deadline.waited());
        }
        let found = message::header_of(bytes).map_or(0, |header| u64::from(header.version));
        Error::Layout { what: "bootstrap version", expected: message::VERSION.into(), found }
    }
}

fn message_job(bytes: &[u8]) -> u64 {
    message::header_of(bytes).map_or(0, |header| header.job_id)
}

/// Checks while a member waits for the root.
///
/// It finds ranks that are lost without the root's knowledge, because they share another epoch. It
/// also ends the wait on a cancel token, or when waiting has become pointless.
#[derive(Clone)]
pub(crate) struct WaitGuard {
    lost: Arc<dyn Fn() -> Option<Rank> + Send + Sync>,
    off: Option<CancelToken>,
    is_vain: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// Cancels a meeting from another thread than the waiting one. A rank that has begun with the
/// others by then stays with them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CancelToken(Arc<Latch>);

impl CancelToken {
    /// Calls it off, for good.
    #[cfg(feature = "coordinator")]
    pub(crate) fn cancel(&self) {
        self.0.open(&crate::shm::HostKernel::detect());
    }
}

/// How often a guard checks.
pub(super) const GUARD_INTERVAL: Duration = Duration::from_millis(5);

impl WaitGuard {
    /// Makes a guard that finds lost ranks by `lost`.
    pub(crate) fn new(lost: impl Fn() -> Option<Rank> + Send + Sync + 'static) -> Self {
        Self { lost: Arc::new(lost), off: None, is_vain: None }
    }

    /// Makes a guard that watches no rank and ends by `off`.
    pub(crate) fn until(off: CancelToken) -> Self {
        Self::new(|| None).or_until(Some(off))
    }

    /// Ends the wait by `off` as well.
    pub(crate) fn or_until(self, off: Option<CancelToken>) -> Self {
        Self { off, ..self }
    }

    /// Ends the wait as well once it `is_vain`, for a reason other than the awaited ranks.
    pub(crate) fn unless(self, is_vain: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_vain: Some(Arc::new(is_vain)), ..self }
    }

    /// Returns whether the wait is to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.off.as_ref().is_some_and(|off| off.0.is_open())
            || self.is_vain.as_ref().is_some_and(|is_vain| is_vain())
    }

    /// Returns a lost rank, if there is one.
    pub(crate) fn lost(&self) -> Option<Rank> {
        (self.lost)()
    }
}

impl std::fmt::Debug for WaitGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WaitGuard").field(&self.lost()).finish()
    }
}
