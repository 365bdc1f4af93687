//! The first messages of a connection, by which both sides make sure that they are of one user and
//! one version, and the messages that follow.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::call::Bytes;
use super::deadline_stream::{Address, DeadlineStream};
use super::directory::RuntimeDirectory;
use super::error::{CoordinatorError, RequestError, Result};
use super::id::{CommId, DeviceId};
use super::order::DeviceReport;
use super::request::{ClientRequest, Reply};
use super::wire::{self, IoContext};
use crate::bootstrap::call_error;
use crate::error::Error;

/// The version that both sides of a connection must have, and the number of the format of their
/// messages.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+format.12");

/// How the coordinator is named in errors.
pub(super) const COORDINATOR: &str = "coordinator";

/// How long a side waits for an answer that the other one has no reason to put off.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a peer that has connected may take to greet.
pub(super) const GREETING_TIME: Duration = Duration::from_secs(5);

/// The first message of the side that connects. Every version has these fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// The version.
    pub(super) shmccl: String,
    /// The role of the peer.
    pub(super) role: PeerRole,
}

/// The answer of the side that listens. The connection ends after it if the versions differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HelloReply {
    /// The version.
    pub(super) shmccl: String,
    /// How often a device is to send a heartbeat, in microseconds, if it is to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) heartbeat_us: Option<u64>,
    /// Why the peer is refused, after which the connection ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<RequestError>,
}

impl Hello {
    /// Greets as `role`.
    pub(super) fn new(role: PeerRole) -> Self {
        Self { shmccl: VERSION.to_owned(), role }
    }
}

impl HelloReply {
    /// Accepts a peer.
    pub(super) fn new(heartbeat_us: Option<u64>) -> Self {
        Self { shmccl: VERSION.to_owned(), heartbeat_us, refusal: None }
    }

    /// # Errors
    /// [`CoordinatorError::VersionMismatch`], [`CoordinatorError::Refused`].
    pub(super) fn check(self) -> Result<Self> {
        check_version(&self.shmccl)?;
        match self.refusal {
            Some(refusal) => Err(refusal.into()),
            None => Ok(self),
        }
    }
}

/// The role of a peer that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PeerRole {
    /// It sends requests.
    Client,
    /// A device of the pool.
    Device,
    /// A role of another version.
    #[serde(other)]
    Unknown,
}

/// A message of a device to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum DeviceMessage {
    /// The state of the device: first of all, and whenever that has changed.
    State(Box<DeviceReport>),
    /// A sign that it does not hang.
    Heartbeat,
}

/// A message of a client to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberedRequest {
    pub(super) number: u64,
    pub(super) request: ClientRequest,
}

/// The answer to a [`NumberedRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NumberedReply {
    pub(super) number: u64,
    pub(super) reply: Result<Reply, RequestError>,
}

/// A message of a client to a device. After it and the answer, the bytes themselves follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CopyOrder {
    pub(super) device: DeviceId,
    pub(super) comm: CommId,
    pub(super) bytes: Bytes,
    pub(super) direction: CopyDirection,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CopyDirection {
    /// Bytes go to the device.
    Put,
    /// Bytes come from the device.
    Get,
}

/// Returns the error for a message of the coordinator that makes no sense.
pub(super) fn garbled(what: String) -> CoordinatorError {
    CoordinatorError::Protocol { peer: COORDINATOR, what }
}

/// Returns the process at the other side of `stream`, if it is this user's.
///
/// # Errors
/// [`CoordinatorError::OtherUser`], [`Error::Os`].
pub(super) fn check_peer(stream: &impl AsFd) -> Result<u32> {
    let peer = getsockopt(stream, PeerCredentials).map_err(|errno| {
        call_error("asking who is at the other side", "the system call getsockopt", errno)
    })?;
    let mine = geteuid().as_raw();
    if peer.uid() != mine {
        return Err(CoordinatorError::OtherUser { mine, theirs: peer.uid() });
    }
    Ok(u32::try_from(peer.pid()).unwrap_or_default())
}

/// # Errors
/// [`CoordinatorError::VersionMismatch`] unless `theirs` is the version of this side.
pub(super) fn check_version(theirs: &str) -> Result<()> {
    if theirs == VERSION {
        return Ok(());
    }
    // No more of it than a version can be long.
    let theirs = theirs.chars().filter(|it| !it.is_control()).take(32).collect();
    Err(CoordinatorError::VersionMismatch { mine: VERSION, theirs })
}

/// Greets the side that listens as `role`, within the patience of `context`, which names it.
/// Returns its answer, which is of this version.
///
/// # Errors
/// [`CoordinatorError::OtherUser`], [`CoordinatorError::VersionMismatch`],
/// [`CoordinatorError::Refused`]; those of [`wire::read`].
pub(super) fn greet(stream: &UnixStream, role: PeerRole, context: IoContext) -> Result<HelloReply> {
    check_peer(stream)?;
    let mut stream = DeadlineStream::new(stream, context.patience);
    wire::write(&mut stream, &Hello::new(role), context)?;
    let reply: HelloReply = wire::read(&mut stream, context)?;
    reply.check()
}

/// Connects with the coordinator of `directory`, and greets it as `role`, each within `patience`.
///
/// # Errors
/// [`CoordinatorError::NotRunning`], [`CoordinatorError::Dead`], [`CoordinatorError::Unusable`],
/// [`Error::Timeout`], [`Error::ResourceLimit`]; those of [`greet`].
pub(super) fn connect(
    directory: &RuntimeDirectory,
    role: PeerRole,
    patience: Duration,
) -> Result<(UnixStream, HelloReply)> {
    let connecting = IoContext { peer: COORDINATOR, operation: "connecting with the coordinator", patience };
    let path = directory.socket();
    let connected = Address::of_path(&path).and_then(|address| address.connect_within(patience));
    let stream = connected.map_err(|error| match error.kind() {
        ErrorKind::NotFound => CoordinatorError::NotRunning { path },
        ErrorKind::ConnectionRefused => CoordinatorError::Dead { path },
        _ => match connecting.error(error) {
            CoordinatorError::Engine(Error::Os { source, .. }) => {
                CoordinatorError::at("connecting with the coordinator at", &path, source)
            }
            error => error,
        },
    })?;
    let reply = greet(&stream, role, IoContext { operation: "greeting the coordinator", ..connecting })?;
    Ok((stream, reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;
    use crate::coordinator::call::DeviceCall;
    use crate::reduce::{DataType, ReduceOp};

    #[test]
    fn a_message_that_is_written_otherwise_takes_another_number_of_the_format() {
        let (comm, group) = (CommId::new(3), None);
        let (send, recv) = (vec![4096, 4096], vec![8192, 8192]);
        let (operation, data_type, op) = (Operation::AllReduce, DataType::F64, ReduceOp::Sum);
        let call = DeviceCall { operation, data_type, op, root: 0, count: 5, send, recv };
        let written = [
            ClientRequest::GroupStart { comm, repeats: true },
            ClientRequest::Execute { comm, group, call, devices: None },
        ]
        .map(|request| serde_json::to_string(&NumberedRequest { number: 1, request }).unwrap());
        let call = r#"{"operation":"all_reduce","data_type":"f64","op":"sum","root":0,"count":5,"send":[4096,4096],"recv":[8192,8192]}"#;
        let expected = [
            r#"{"number":1,"request":{"group_start":{"comm":3,"repeats":true}}}"#.to_owned(),
            format!(
                r#"{{"number":1,"request":{{"execute":{{"comm":3,"group":null,"call":{call},"devices":null}}}}}}"#
            ),
        ];
        assert_eq!((VERSION.split_once("+format.").unwrap().1, written), ("12", expected));
    }
}
