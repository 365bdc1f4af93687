//! Why the coordinator, or a device, does not do what a client asks.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::call::{AddressRange, Bytes, MAX_CALLS, MAX_OPERANDS};
use super::id::{CommId, DeviceId, GroupId};
use super::request::CommState;
use super::work::MAX_PATH;
use crate::rank::MAX_RANKS;

/// Why something was refused. Nothing has changed, unless the variant says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum RequestError {
    /// The pool has fewer free devices than were asked for.
    #[error(
        "{asked} devices were asked for, and {free} of {devices} are free; start more with `shmccl device`, or give some back \
         with `shmccl ctl finalize`"
    )]
    NotEnoughDevices {
        /// How many were asked for.
        asked: u32,
        /// How many are free.
        free: usize,
        /// How many there are.
        devices: usize,
    },
    /// No communicator has so many devices.
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
    /// The devices did not join. The communicator is what it was, unless it has lost a device meanwhile.
    #[error("communicator {comm} did not grow: {why}; `shmccl ctl status {comm}` tells how it is doing")]
    NotGrown {
        /// Which.
        comm: CommId,
        /// Why.
        why: String,
    },
    /// There never was such a communicator.
    #[error("there is no communicator {comm}; `shmccl ctl status` lists those that there are")]
    NoSuchComm {
        /// Which was named.
        comm: CommId,
    },
    /// The communicator was finalized or destroyed, or all its devices were lost.
    #[error("communicator {comm} has ended{}; make another one with `shmccl ctl init`", Because(.why.as_deref()))]
    Ended {
        /// Which.
        comm: CommId,
        /// Why, where that is remembered and nobody has asked for it.
        why: Option<String>,
    },
    /// The communicator is not in a state in which it takes the request.
    #[error("communicator {comm} is {state}, and this takes one that is {needs}")]
    WrongState {
        /// Which.
        comm: CommId,
        /// Its state.
        state: CommState,
        /// What it would have to be.
        needs: String,
    },
    /// The communicator has failed.
    #[error(
        "communicator {comm} has failed ({why}); `shmccl ctl go-on {comm}` goes on with the devices that are left, `shmccl ctl \
         destroy {comm}` ends it"
    )]
    Failed {
        /// Which.
        comm: CommId,
        /// Why.
        why: String,
    },
    /// A group is open, or none is.
    #[error("communicator {comm} has {}", if *.open { "a group that has not ended; end or cancel it first" } else { "no group to end; start one first" })]
    GroupOpen {
        /// Which.
        comm: CommId,
        /// Whether there is one.
        open: bool,
    },
    /// The group that was named is not open.
    #[error(
        "communicator {comm} has no open group {group}: it was ended or cancelled, or is gone since the communicator has failed or \
         the coordinator was restarted; start another one"
    )]
    NoSuchGroup {
        /// The communicator that it was said to be on.
        comm: CommId,
        /// Which.
        group: GroupId,
    },
    /// A group has as many calls as it may have.
    #[error("the group has {MAX_CALLS} calls, which is the most; end it and start another one")]
    GroupFull,
    /// The calls of a group would take too much memory of a device: their operands are copied out of it before the first is executed, and
    /// into it after the last. The group is what it was.
    #[error(
        "the operands of the group would have {bytes} bytes on device {device}, and {most} is the most, {MAX_OPERANDS} times its \
         memory; end it and start another one"
    )]
    GroupTooLarge {
        /// Which.
        device: DeviceId,
        /// How many there would be.
        bytes: u64,
        /// How many there may be.
        most: u64,
    },
    /// A checkpoint was not written, or not read back. The communicator and the memory of its devices are what they were, and so is the
    /// checkpoint before.
    #[error("communicator {comm} is what it was, without this checkpoint: {why}")]
    CheckpointFailed {
        /// Which.
        comm: CommId,
        /// Why.
        why: String,
    },
    /// A directory cannot be told to devices.
    #[error("the directory {directory} {is}; name it by its whole path, of {MAX_PATH} bytes at most")]
    BadDirectory {
        /// What it begins with.
        directory: String,
        /// What is wrong with it.
        is: String,
    },
    /// There are not as many addresses as devices.
    #[error(
        "{given} addresses were given, and the communicator has {devices} devices; give one for each, in the order of the ranks"
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
        /// Which was named.
        root: u32,
        /// How many there are.
        devices: usize,
    },
    /// A range of bytes reaches past a device's addresses.
    #[error(
        "{} bytes at {:#x} of device {device} are out of range: its addresses are {:#x} to {:#x}", .bytes.len, .bytes.address,
        .range.min, .range.max
    )]
    OutOfRange {
        /// Which.
        device: DeviceId,
        /// The bytes.
        bytes: Bytes,
        /// Its addresses.
        range: AddressRange,
    },
    /// There is no such device.
    #[error("there is no device {device}; `shmccl ctl devices` lists those that there are")]
    NoSuchDevice {
        /// Which was named.
        device: DeviceId,
    },
    /// The device belongs to no communicator, or not to the one that it did.
    #[error("device {device} belongs to no communicator; `shmccl ctl init` makes one")]
    NotAllocated {
        /// Which.
        device: DeviceId,
    },
    /// Something that the coordinator keeps for a client is full.
    #[error("no {what} left: all {limit} are in use")]
    Exhausted {
        /// What.
        what: String,
        /// How many there are.
        limit: usize,
    },
    /// The system did not let the device do it.
    #[error("device {device} failed: {why}")]
    DeviceFailed {
        /// Which.
        device: DeviceId,
        /// Why.
        why: String,
    },
}

/// A reason between brackets, where there is one.
struct Because<'a>(Option<&'a str>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}
