//! The errors of the coordinator: what is wrong with it or with the way to it, and why it refuses a
//! request.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::call::{AddressRange, Bytes, MAX_CALLS, MAX_OPERANDS, MAX_PATH};
use super::id::{CommId, DeviceId, GroupId};
use super::request::CommState;
use crate::bootstrap::resource_error;
use crate::error::Error;
use crate::rank::MAX_RANKS;

/// The result of the operations of this module.
pub type Result<T, E = CoordinatorError> = std::result::Result<T, E>;

/// Why a coordinator, or a device of it, cannot be reached or does not do what is asked.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The directory of the sockets is not private.
    #[error(
        "{} {is}, expected a directory of mode 0700 of this user; remove it, or set XDG_RUNTIME_DIR",
        path.display()
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// What it is instead.
        is: &'static str,
    },
    /// The system refuses to work with the directory of the sockets, or with one of them.
    #[error("{action} {} failed: {why}; set XDG_RUNTIME_DIR to a directory of this user", path.display())]
    Unusable {
        /// What was attempted.
        action: &'static str,
        /// The directory, or the socket.
        path: PathBuf,
        /// The system's own error.
        why: std::io::Error,
    },
    /// The path of the socket in this directory is longer than the system allows.
    #[error(
        "the path of the socket {} has {} bytes, expected {most} at most; \
         set XDG_RUNTIME_DIR to a directory with a shorter one",
        path.display(), path.as_os_str().len()
    )]
    LongPath {
        /// The socket.
        path: PathBuf,
        /// The longest that the system takes.
        most: usize,
    },
    /// No coordinator listens there.
    #[error("no coordinator listens at {}; start one with `shmccl coordinator`", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The coordinator that listened there is dead.
    #[error(
        "the coordinator that listened at {} is dead; start one with `shmccl coordinator` and the same \
         flags: it takes the place of the dead one, and takes over those of its devices that live",
        path.display()
    )]
    Dead {
        /// The socket.
        path: PathBuf,
    },
    /// The directory has a coordinator.
    #[error(
        "a coordinator is running already at {}; end that one, or set XDG_RUNTIME_DIR to another directory",
        path.display()
    )]
    AlreadyRunning {
        /// The directory.
        path: PathBuf,
    },
    /// A device of a pool has not registered.
    #[error("{how}; a program that is to be a device calls Device::from_env first of all, and serves")]
    NotStarted {
        /// Which device, and what has become of it.
        how: String,
    },
    /// The other side is of another version.
    #[error("this is shmccl {mine}, and the other side is shmccl {theirs}; use the same version on both")]
    VersionMismatch {
        /// The version of this side.
        mine: &'static str,
        /// The version of the other side.
        theirs: String,
    },
    /// The other side is another user's process.
    #[error(
        "the other side runs as user {theirs}, and this as user {mine}; \
         a coordinator serves its own user only"
    )]
    OtherUser {
        /// The user of this side.
        mine: u32,
        /// The user of the other side.
        theirs: u32,
    },
    /// The connection has ended.
    #[error("the {peer} has ended, or has hung up; what runs is not disturbed by that")]
    Disconnected {
        /// The other side.
        peer: &'static str,
    },
    /// The other side has sent a message that the protocol does not have.
    #[error("the {peer} does not speak this protocol: {what}")]
    Protocol {
        /// The other side.
        peer: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A message to the other side is too long. Nothing was sent.
    #[error("the message to the {peer} is too long: {what}")]
    MessageTooLong {
        /// The other side.
        peer: &'static str,
        /// How long it is.
        what: String,
    },
    /// The coordinator, or the device, refuses the request.
    #[error(transparent)]
    Refused(#[from] RequestError),
    /// The engine, or the system, reports an error.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// Why a request was refused. Nothing has changed, unless the variant says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum RequestError {
    /// The pool has fewer free devices than were asked for.
    #[error(
        "{asked} devices were asked for, and {free} of {devices} are free; start more with \
         `shmccl device`, or give some back with `shmccl ctl finalize`"
    )]
    NotEnoughDevices {
        /// How many were asked for.
        asked: u32,
        /// How many are free.
        free: usize,
        /// How many there are.
        devices: usize,
    },
    /// No communicator can have that many devices.
    #[error("a communicator of {asked} devices was asked for, expected 1 to {MAX_RANKS}")]
    BadSize {
        /// How many were asked for.
        asked: u32,
    },
    /// The devices did not come together. Those that live are free again when they have noticed.
    #[error("the communicator did not come about: {why}")]
    NotFormed {
        /// Why.
        why: String,
    },
    /// The devices did not join. The communicator is as before, unless it has lost a device
    /// meanwhile.
    #[error("communicator {comm} did not grow: {why}; `shmccl ctl status {comm}` tells how it is doing")]
    NotGrown {
        /// The communicator.
        comm: CommId,
        /// Why.
        why: String,
    },
    /// There never was such a communicator.
    #[error("there is no communicator {comm}; `shmccl ctl status` lists those that there are")]
    NoSuchComm {
        /// The communicator that was named.
        comm: CommId,
    },
    /// The communicator was finalized or destroyed, or all its devices were lost.
    #[error("communicator {comm} has ended{}; make another one with `shmccl ctl init`", because(.why.as_deref()))]
    Ended {
        /// The communicator.
        comm: CommId,
        /// Why, where no request has ended it and the coordinator remembers.
        why: Option<String>,
    },
    /// The communicator is not in a state in which it takes the request.
    #[error("communicator {comm} is {state}, and this takes one that is {needs}")]
    WrongState {
        /// The communicator.
        comm: CommId,
        /// The state of the communicator.
        state: CommState,
        /// The states in which it would take the request.
        needs: String,
    },
    /// The communicator has failed.
    #[error(
        "communicator {comm} has failed ({why}); `shmccl ctl go-on {comm}` goes on with the devices that \
         are left, `shmccl ctl destroy {comm}` ends it"
    )]
    Failed {
        /// The communicator.
        comm: CommId,
        /// Why.
        why: String,
    },
    /// A group is open, or none is.
    #[error("communicator {comm} has {}", if *.open {
        "a group that has not ended; end or cancel it first"
    } else {
        "no group to end; start one first"
    })]
    GroupOpen {
        /// The communicator.
        comm: CommId,
        /// Whether a group is open.
        open: bool,
    },
    /// The group that was named is not open.
    #[error(
        "communicator {comm} has no open group {group}: it was ended or cancelled, or is gone since the \
         communicator has failed or the coordinator was restarted; start another one"
    )]
    NoSuchGroup {
        /// The communicator that was named.
        comm: CommId,
        /// The group that was named.
        group: GroupId,
    },
    /// A group has as many calls as it may have.
    #[error("the group has {MAX_CALLS} calls, which is the most; end it and start another one")]
    GroupFull,
    /// The calls of a group would take too much memory of a device. The group is as before.
    ///
    /// All operands are copied out of that memory before the first call is executed, and the
    /// results into it after the last.
    #[error(
        "the operands of the group would have {bytes} bytes on device {device}, and {most} is the most, \
         {MAX_OPERANDS} times its memory; end it and start another one"
    )]
    GroupTooLarge {
        /// The device.
        device: DeviceId,
        /// How many bytes there would be.
        bytes: u64,
        /// How many there may be.
        most: u64,
    },
    /// A checkpoint was not written, or not read back.
    ///
    /// The communicator, the memory of its devices and the previous checkpoint are as before.
    #[error("communicator {comm} is as before, without this checkpoint: {why}")]
    CheckpointFailed {
        /// The communicator.
        comm: CommId,
        /// Why.
        why: String,
    },
    /// The name of a directory cannot be sent to devices.
    #[error("the directory {directory} {is}; name it by its whole path, of {MAX_PATH} bytes at most")]
    BadDirectory {
        /// The first characters of the name.
        directory: String,
        /// What is wrong with it.
        is: String,
    },
    /// There are not as many addresses as devices.
    #[error(
        "{given} addresses were given, and the communicator has {devices} devices; \
         give one for each, in the order of the ranks"
    )]
    WrongCount {
        /// How many were given.
        given: usize,
        /// How many devices there are.
        devices: usize,
    },
    /// The root is not a rank.
    #[error("the root is rank {root}, and the communicator has {devices} devices; ranks begin at 0")]
    NoSuchRoot {
        /// The rank that was named.
        root: u32,
        /// How many devices there are.
        devices: usize,
    },
    /// The operation is none that devices can be asked for.
    #[error("{operation} is no operation of devices, expected one of `DeviceCall::OPERATIONS`")]
    BadOperation {
        /// Its name.
        operation: String,
    },
    /// The operator is not defined on the type of the elements.
    #[error("{why}")]
    BadOperator {
        /// Which ones are.
        why: String,
    },
    /// A range of bytes reaches past a device's addresses.
    #[error(
        "{} bytes at {:#x} of device {device} are out of range: its addresses are {:#x} to {:#x}",
        .bytes.len, .bytes.address, .range.min, .range.max
    )]
    OutOfRange {
        /// The device.
        device: DeviceId,
        /// The bytes.
        bytes: Bytes,
        /// The addresses of the device.
        range: AddressRange,
    },
    /// There is no such device.
    #[error("there is no device {device}; `shmccl ctl devices` lists those that there are")]
    NoSuchDevice {
        /// The device that was named.
        device: DeviceId,
    },
    /// The device belongs to no communicator, or no longer to the one that the request is about.
    #[error("device {device} belongs to no communicator; `shmccl ctl init` makes one")]
    NotAllocated {
        /// The device.
        device: DeviceId,
    },
    /// A table that the coordinator keeps for clients is full.
    #[error("no {what} left: all {limit} are in use")]
    Exhausted {
        /// What has run out.
        what: String,
        /// How many there are.
        limit: usize,
    },
    /// The system did not let the device do it.
    #[error("device {device} failed: {why}")]
    DeviceFailed {
        /// The device.
        device: DeviceId,
        /// Why.
        why: String,
    },
}

impl CoordinatorError {
    /// Returns the error of a system call on the directory, or on a socket in it: the want of a
    /// resource, or [`CoordinatorError::Unusable`].
    pub(super) fn at(action: &'static str, path: &Path, why: impl Into<std::io::Error>) -> Self {
        match resource_error(action, why.into()) {
            Error::Os { source: why, .. } => Self::Unusable { action, path: path.to_owned(), why },
            // Of a directory it means more often that this user may not.
            Error::Refused { source: why, .. } if why.kind() == ErrorKind::PermissionDenied => {
                Self::Unusable { action, path: path.to_owned(), why }
            }
            error => error.into(),
        }
    }
}

/// Writes the message and its causes in one line, as the error of the engine does.
impl fmt::Debug for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(error) => fmt::Debug::fmt(error, f),
            error => write!(f, "{error}"),
        }
    }
}

/// Returns a reason between brackets, where there is one.
fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(" ({why})"))
}
