//! The way of a device to the next coordinator, which it goes without waiting: that one may be stopped, or be anybody.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use nix::poll::PollFlags;

use super::COORDINATOR;
use crate::coordinator::dial::Address;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::fault::Fault;
use crate::coordinator::greeting::{Greeting, PATIENCE, Role, VERSION, Welcome, check_peer};
use crate::coordinator::link::Link;
use crate::error::{Error, Result};

/// A coordinator that was greeted, and has not answered yet.
#[derive(Debug)]
pub(super) struct Door {
    link: Link,
    until: Instant,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Knocked {
    /// It has not answered yet.
    Waits(Door),
    /// It has.
    Open(Link, Welcome),
    /// It has hung up, or does not answer.
    Shut,
}

impl Door {
    /// Greets the coordinator of `directory`, if there is one.
    ///
    /// # Errors
    /// [`Fault::OtherUser`]; [`Error::Os`] when there is none, or it has no time.
    pub(super) fn knock(directory: &RuntimeDirectory) -> Result<Self> {
        let stream = Address::of_path(&directory.socket()).and_then(|address| address.dial_at_once());
        let stream = stream.map_err(|error| Error::os("connecting with the next coordinator", error))?;
        check_peer(&stream)?;
        let mut link = Link::new(stream)?;
        link.send(&Greeting { shmccl: VERSION.to_owned(), role: Role::Device });
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
    /// [`Fault::Version`], [`Fault::Refused`], [`Fault::Garbled`].
    pub(super) fn listen(mut self) -> Result<Knocked> {
        self.link.flush();
        self.link.read();
        let welcome = self.link.next::<Welcome>();
        let welcome = welcome.map_err(|what| Fault::Garbled { peer: COORDINATOR, what }.error())?;
        if let Some(welcome) = welcome {
            return Ok(Knocked::Open(self.link, welcome.check()?));
        }
        let is_over = self.link.is_over() || self.until <= Instant::now();
        Ok(if is_over { Knocked::Shut } else { Knocked::Waits(self) })
    }
}
