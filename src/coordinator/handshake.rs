//! How two sides of a connection make sure that they can talk: one user, one version.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::call::AddressRange;
use super::fault::CoordinatorError;
use super::frame::{self, IoContext};
use super::hurried::DeadlineStream;
use super::id::{CommId, DeviceId};
use super::order::DeviceReport;
use super::refusal::RequestError;
use super::request::{Reply, Request};
use crate::error::{Error, Result};

/// What both sides of a connection have to have in common: the version, and the number of the format of their messages.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+format.7");

/// How long a side waits for what the other one has no reason to put off.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How long who has connected may take to say who it is.
pub(super) const GREETING_TIME: Duration = Duration::from_secs(5);

/// The first message of who connects. Whatever the version, it has these fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version.
    pub(super) shmccl: String,
    /// What it is.
    pub(super) role: PeerRole,
}

/// The answer to it, from who listens; the end of the connection, if the versions are not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HelloReply {
    /// The version.
    pub(super) shmccl: String,
    /// How often a device is to give a sign of life, in microseconds, if it is to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) beat_us: Option<u64>,
    /// Why a device is not taken, after which the connection ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<RequestError>,
}

impl HelloReply {
    /// Whoever is greeted with this is let in.
    pub(super) fn new(beat_us: Option<u64>) -> Self {
        Self { shmccl: VERSION.to_owned(), beat_us, refusal: None }
    }

    /// # Errors
    /// [`CoordinatorError::Version`], [`CoordinatorError::Refused`].
    pub(super) fn check(self) -> Result<Self> {
        check_version(&self.shmccl)?;
        match self.refusal {
            Some(refusal) => Err(refusal.error()),
            None => Ok(self),
        }
    }
}

/// What connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeerRole {
    /// Somebody who asks.
    Client,
    /// A device of the pool.
    Device,
    /// What another version may have, and this one does not know.
    #[serde(other)]
    Unknown,
}

/// What a device tells the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum DeviceMessage {
    /// How it is: first of all, and whenever that has changed.
    State { range: AddressRange, socket: String, report: Box<DeviceReport> },
    /// That it does not hang.
    Beat,
}

/// What a client asks the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberedRequest {
    pub(super) number: u64,
    pub(super) request: Request,
}

/// What a client is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberedReply {
    pub(super) number: u64,
    pub(super) reply: std::result::Result<Reply, RequestError>,
}

/// What a client asks a device: after that, and a device's answer, the bytes themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CopyOrder {
    pub(super) device: DeviceId,
    pub(super) comm: CommId,
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) direction: CopyDirection,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CopyDirection {
    /// To the device.
    Put,
    /// From the device.
    Get,
}

/// The process at the other side of `stream`, if it is this user's.
///
/// # Errors
/// [`CoordinatorError::OtherUser`], [`Error::Os`].
pub(super) fn check_peer(stream: &impl AsFd) -> Result<u32> {
    let peer = getsockopt(stream, PeerCredentials)
        .map_err(|errno| Error::os("asking who is at the other side of a socket", errno))?;
    let mine = geteuid().as_raw();
    if peer.uid() != mine {
        return Err(CoordinatorError::OtherUser { mine, theirs: peer.uid() }.error());
    }
    Ok(u32::try_from(peer.pid()).unwrap_or_default())
}

/// # Errors
/// [`CoordinatorError::Version`] unless `theirs` is the version of this side.
pub(super) fn check_version(theirs: &str) -> Result<()> {
    if theirs == VERSION {
        return Ok(());
    }
    // As much of it as a version can be long.
    let theirs = theirs.chars().filter(|it| !it.is_control()).take(32).collect();
    Err(CoordinatorError::Version { mine: VERSION.to_owned(), theirs }.error())
}

/// Greets who listens as `role`, within the patience of `exchange`, which names it. Returns what it answers, which is of this version.
///
/// # Errors
/// [`Error::Coordinator`], [`Error::Timeout`], [`Error::Os`].
pub(super) fn greet(stream: &UnixStream, role: PeerRole, exchange: IoContext) -> Result<HelloReply> {
    check_peer(stream)?;
    greet_by(&mut DeadlineStream::new(stream, exchange.patience), role, exchange)
}

/// As [`greet`], where it was looked who the other side is; the deadline is that of `stream`.
///
/// # Errors
/// Those of [`greet`].
pub(super) fn greet_by(
    stream: &mut (impl Read + Write),
    role: PeerRole,
    exchange: IoContext,
) -> Result<HelloReply> {
    frame::write(stream, &Hello { shmccl: VERSION.to_owned(), role }, exchange)?;
    let welcome: HelloReply = frame::read(stream, exchange)?;
    welcome.check()
}
