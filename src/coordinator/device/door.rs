//! The way of a device to the next coordinator, which it goes without waiting: that one may be stopped, or be anybody.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::poll::PollFlags;

use super::COORDINATOR;
use crate::coordinator::dial::Address;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::fault::CoordinatorError;
use crate::coordinator::greeting::{Hello, HelloReply, PATIENCE, PeerRole, VERSION, check_peer};
use crate::coordinator::link::Connection;
use crate::error::{Error, Result};

/// A coordinator that was greeted, and has not answered yet.
#[derive(Debug)]
pub(super) struct Reconnect {
    link: Connection,
    until: Instant,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum ReconnectState {
    /// It has not answered yet.
    Waits(Reconnect),
    /// It has.
    Open(Connection, HelloReply),
    /// It has hung up, or does not answer.
    Shut,
}

impl Reconnect {
    /// Greets the coordinator of `directory`, if there is one.
    ///
    /// # Errors
    /// [`CoordinatorError::OtherUser`]; [`Error::Os`] when there is none, or it has no time.
    pub(super) fn knock(directory: &RuntimeDirectory) -> Result<Self> {
        let stream = Address::of_path(&directory.socket()).and_then(|address| address.dial_at_once());
        let stream = stream.map_err(|error| Error::os("connecting with the next coordinator", error))?;
        check_peer(&stream)?;
        let mut link = Connection::new(stream)?;
        link.send(&Hello { shmccl: VERSION.to_owned(), role: PeerRole::Device });
        Ok(Self { link, until: Instant::now() + PATIENCE })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.descriptor()
    }

    pub(super) fn interest(&self) -> PollFlags {
        self.link.interest()
    }

    /// When it is not waited for any longer.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Takes the answer, if it has come.
    ///
    /// # Errors
    /// [`CoordinatorError::Version`], [`CoordinatorError::Refused`], [`CoordinatorError::Garbled`].
    pub(super) fn listen(mut self) -> Result<ReconnectState> {
        self.link.flush();
        self.link.read();
        let welcome = self.link.next::<HelloReply>();
        let welcome =
            welcome.map_err(|what| CoordinatorError::Garbled { peer: COORDINATOR, what }.error())?;
        if let Some(welcome) = welcome {
            return Ok(ReconnectState::Open(self.link, welcome.check()?));
        }
        let is_over = self.link.is_over() || self.until <= Instant::now();
        Ok(if is_over { ReconnectState::Shut } else { ReconnectState::Waits(self) })
    }
}
