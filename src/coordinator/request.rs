//! What clients ask of the coordinator, and what they are answered.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::call::{AddressRange, DeviceCall};
use super::id::{CommId, DeviceId, GroupId};
use super::metrics::Metrics;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// A communicator of so many devices. Answered when they have met.
    Init {
        /// How many.
        devices: u32,
        /// Whether it goes on after a loss without being told.
        keep_going: bool,
    },
    /// How a communicator is doing, or how it has ended.
    Status {
        /// Which.
        comm: CommId,
        /// To be answered only when nothing is in progress.
        settled: bool,
    },
    /// How all communicators are doing, some at a time.
    List {
        /// The lowest number that is asked about.
        from: CommId,
    },
    /// All devices.
    Devices,
    /// The figures of the coordinator.
    Metrics,
    /// Calls are to be kept until the group ends.
    GroupStart(CommId),
    /// A collective operation: in a group, or at once.
    Call {
        /// On which communicator.
        comm: CommId,
        /// In this group and no other way; or, if none is named, in the one that is open, if one is.
        group: Option<GroupId>,
        /// What.
        call: DeviceCall,
    },
    /// The calls of the group are to be executed.
    GroupEnd {
        /// On which communicator.
        comm: CommId,
        /// Of this group; or, if none is named, of the one that is open.
        group: Option<GroupId>,
    },
    /// The calls of the group are not to be executed.
    GroupCancel {
        /// On which communicator.
        comm: CommId,
        /// Of this group; or, if none is named, of the one that is open.
        group: Option<GroupId>,
    },
    /// A communicator that has failed is to go on with the devices that are left. Answered when it does.
    GoOn(CommId),
    /// A communicator that is ready is to have so many free devices more. Answered when they are in it.
    Grow {
        /// Which.
        comm: CommId,
        /// How many.
        devices: u32,
    },
    /// The memory of all devices of a communicator is to be written to a directory. Answered when it is on the disk, or failed.
    Checkpoint {
        /// Which.
        comm: CommId,
        /// Where to, from the root of the file system on.
        directory: String,
    },
    /// The memory of all devices of a communicator is to be what was written to a directory. Answered when it is, or failed.
    Restore {
        /// Which.
        comm: CommId,
        /// Where from, from the root of the file system on.
        directory: String,
    },
    /// Where the memory of a device can be reached.
    Locate(DeviceId),
    /// A communicator is not needed any more, once what is in progress is done. Answered when its devices are back.
    Finalize(CommId),
    /// A communicator is to end at once. Answered when its devices are back.
    Destroy(CommId),
}

/// What a client is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// How the communicator that was asked about is doing.
    Status(CommStatus),
    /// How those are doing that come first.
    List {
        /// By number.
        comms: Vec<CommStatus>,
        /// Whether there are others behind them.
        more: bool,
    },
    /// All devices.
    Devices(Vec<DeviceStatus>),
    /// The figures of the coordinator.
    Metrics(Metrics),
    /// A group was started, which is named like this.
    GroupStarted(GroupId),
    /// The group is not open any more, and nothing of it was executed.
    GroupCancelled,
    /// A call was put into a group.
    Queued {
        /// Which.
        group: GroupId,
        /// How many calls it has with this one.
        calls: usize,
    },
    /// A group of this number is in progress.
    InProgress(u64),
    /// A checkpoint of this number was written, or read back.
    Checkpoint(u64),
    /// Where the memory of a device can be reached.
    Located(Location),
    /// The communicator has ended, and its devices are back.
    Ended,
}

/// Where a communicator is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommState {
    /// Its devices are coming together.
    Init,
    /// It takes calls.
    Ready,
    /// It executes a group.
    InProgress,
    /// Devices are joining it.
    Growing,
    /// It has lost a device, or a group has failed.
    Failed,
    /// It is being left.
    Finalizing,
    /// It has ended as it was asked to, with all that it was given done.
    Finalized,
    /// It has ended otherwise: it was destroyed, has lost all devices, or did not come about.
    Destroyed,
}

/// How a communicator is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommStatus {
    /// Which.
    pub comm: CommId,
    /// Where it is in its life.
    pub state: CommState,
    /// The epoch: how often it has gone on after a loss, or grown, and one.
    pub epoch: u64,
    /// Its devices, in the order of their ranks.
    pub devices: Vec<DeviceId>,
    /// Those of them that are lost.
    pub lost: Vec<DeviceId>,
    /// The newest group that is over.
    pub last: Option<GroupOutcome>,
    /// Why it has failed, or was destroyed, where it has or was.
    pub why: Option<String>,
}

/// How a group has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupOutcome {
    /// Its number.
    pub group: u64,
    /// Why it failed; `None` when it succeeded.
    pub failure: Option<String>,
    /// The device that hangs, was lost or was waited for in vain, where it failed by one.
    pub culprit: Option<DeviceId>,
    /// The number of the checkpoint that was written, or read back, where it was that.
    pub checkpoint: Option<u64>,
    /// Where it failed by a wait that has lasted too long: what every rank was in at that moment, in lines, as the first device has seen it
    /// that tells of that. It has 16 KiB at most. [`Request::List`] is answered without it, and so is, after 64 others have ended, how a
    /// communicator has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
}

impl CommStatus {
    /// The same without what takes much room.
    pub(super) fn in_short(mut self) -> Self {
        self.last = self.last.map(GroupOutcome::in_short);
        self
    }
}

impl GroupOutcome {
    /// The same without what takes much room.
    pub(super) fn in_short(self) -> Self {
        Self { report: None, ..self }
    }
}

/// A device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceStatus {
    /// Which.
    pub device: DeviceId,
    /// Its addresses.
    pub range: AddressRange,
    /// The communicator that it belongs to; `None` when it is free.
    pub comm: Option<CommId>,
}

/// Where the memory of a device can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Location {
    /// The communicator that the device belongs to: it lets in nobody who names another one.
    pub comm: CommId,
    /// Its addresses.
    pub range: AddressRange,
    /// The name of its socket in the abstract namespace, from which it vanishes with the device.
    pub socket: String,
}

impl CommState {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Init,
        Self::Ready,
        Self::InProgress,
        Self::Growing,
        Self::Failed,
        Self::Finalizing,
        Self::Finalized,
        Self::Destroyed,
    ];

    /// Whether it is over.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Finalized | Self::Destroyed)
    }
}

impl fmt::Display for CommState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Init => "init",
            Self::Ready => "ready",
            Self::InProgress => "in progress",
            Self::Growing => "growing",
            Self::Failed => "failed",
            Self::Finalizing => "finalizing",
            Self::Finalized => "finalized",
            Self::Destroyed => "destroyed",
        })
    }
}
