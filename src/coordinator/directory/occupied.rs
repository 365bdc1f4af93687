//! A coordinator that has a directory: the lock that says so, and the socket, which takes the place of that of a dead one at one stroke.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::fcntl::Flock;

use super::RuntimeDirectory;
use super::sweep::{owner_of_pool, remove};
use crate::coordinator::device::Appointed;
use crate::coordinator::dial::Address;
use crate::coordinator::fault::Fault;
use crate::coordinator::greeting::check_peer;
use crate::coordinator::id::DeviceId;
use crate::coordinator::service::is_dead;
use crate::error::Result;
use crate::locks;
use crate::logs::COORDINATOR;
use crate::shm::{SocketFileId, SocketJanitor};
use crate::sync::header::Creator;

/// How long a directory may be locked in which nobody listens: whoever sweeps it has it for a moment, and a coordinator that begins.
const SWEEPING: Duration = Duration::from_secs(1);

/// Says that a coordinator lives. Dropping it removes its socket.
#[derive(Debug)]
pub(in crate::coordinator) struct Occupied {
    _lock: Flock<File>,
    directory: RuntimeDirectory,
    /// Whether the socket is its own.
    listens: bool,
    /// Whether the one before has left its socket, since it was killed.
    pub(in crate::coordinator) follows_dead: bool,
    /// Removes the socket should this process be killed, from before it is there on; if the system lets it. Last: it goes when there is
    /// nothing to be removed any more.
    janitor: Option<SocketJanitor>,
}

impl RuntimeDirectory {
    /// Takes the directory for a coordinator. The socket of one that is dead stays until [`Occupied::listen`].
    ///
    /// # Errors
    /// [`Fault::Running`], [`Error::Os`].
    pub(in crate::coordinator) fn occupy(&self) -> Result<Occupied> {
        let lock = self.lock(SWEEPING)?;
        let follows_dead = self.socket().symlink_metadata().is_ok();
        Ok(Occupied { _lock: lock, directory: self.clone(), listens: false, follows_dead, janitor: None })
    }

    /// Locks it, within `patience` where it is locked and nobody listens.
    pub(super) fn lock(&self, patience: Duration) -> Result<Flock<File>> {
        locks::hold(self.file()?, patience, || !self.is_answered()).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => Fault::Running { path: self.path.clone() }.error(),
            _ => Fault::at("locking the directory", &self.path, error),
        })
    }

    /// Whether somebody listens, though perhaps without room for one more. Of one that was killed a child may have it open that has only
    /// just begun, and is killed with it.
    pub(super) fn is_answered(&self) -> bool {
        match Address::of_path(&self.socket()).and_then(|address| address.dial_at_once()) {
            Ok(stream) => check_peer(&stream)
                .map_or(true, |listener| listener == 0 || !is_dead(DeviceId::new(listener))),
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused),
        }
    }

    fn employ_janitor(&self) -> std::io::Result<SocketJanitor> {
        let name = self.path.file_name().and_then(OsStr::to_str);
        let is_private = name.and_then(owner_of_pool) == Some(Creator::this_process());
        let names = [self.socket(), self.coming()].map(|path| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            CString::new(name).expect("it is one of two constants")
        });
        SocketJanitor::start(&self.path, (&names[0], &names[1]), is_private)
    }
}

impl Occupied {
    pub(in crate::coordinator) fn directory(&self) -> &RuntimeDirectory {
        &self.directory
    }

    /// Listens where a coordinator does, instead of one that is dead: there is no moment without a socket if that has left one.
    ///
    /// # Errors
    /// [`Fault::Unusable`], [`Error::ResourceLimit`].
    pub(in crate::coordinator) fn listen(&mut self) -> Result<UnixListener> {
        self.janitor = self.directory.employ_janitor().inspect_err(note_refusal).ok();
        Appointed::all(&self.directory).unwrap_or_default().into_iter().for_each(|it| self.watch(it));
        let listening = |error| Fault::at("listening at", &self.directory.socket(), error);
        let listener = self.bind().map_err(listening)?;
        self.listens = true;
        Ok(listener)
    }

    /// Has the socket stay for `device` when this process was killed, if it waits there then.
    pub(in crate::coordinator) fn note_registered(&self, device: DeviceId) {
        Appointed::of(device, &self.directory).into_iter().for_each(|it| self.watch(it));
    }

    fn watch(&self, appointed: Appointed) {
        let Some(janitor) = self.janitor.as_ref().filter(|_| appointed.assignment.outlives.is_some()) else {
            return;
        };
        if let Some(process) = appointed.hold(&self.directory) {
            janitor.watch(process.as_fd());
        }
    }

    fn bind(&self) -> std::io::Result<UnixListener> {
        let coming = self.directory.coming();
        // One that was killed at this point has left it.
        remove(&coming)?;
        let listener = UnixListener::bind(&coming)?;
        listener.set_nonblocking(true)?;
        if let Some(janitor) = &self.janitor {
            janitor.mark(SocketFileId::of(&coming)?);
        }
        std::fs::rename(&coming, self.directory.socket())?;
        Ok(listener)
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        // It may be gone; the next coordinator would replace it as well. That of another one, which could not be replaced, is not missed
        // as if it had ended in order.
        let socket = if self.listens { self.directory.socket() } else { self.directory.coming() };
        let _ = std::fs::remove_file(socket);
    }
}

/// What a killed coordinator leaves is then for the next one.
fn note_refusal(error: &std::io::Error) {
    tracing::warn!(target: COORDINATOR, %error, "no janitor; a kill of this process would leave its socket");
}
