//! Requests of clients to the coordinator, and replies.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::call::{AddressRange, DeviceCall};
use super::id::{CommId, DeviceId, GroupId};
use super::metrics::Metrics;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ClientRequest {
    /// Make a communicator of so many devices. Answered when they have met.
    Init {
        /// How many.
        devices: u32,
        /// Whether it goes on after a loss by itself.
        keep_going: bool,
    },
    /// Return how a communicator is doing, or how it has ended.
    Status {
        /// The communicator.
        comm: CommId,
        /// Whether to answer only when nothing is in progress.
        settled: bool,
    },
    /// Return how all communicators are doing, some at a time.
    List {
        /// The lowest number to return.
        from: CommId,
    },
    /// Return how communicators have changed since, the oldest change first, some at a time.
    Changes {
        /// The number of the last change that the client knows. The highest asks for the number of
        /// the newest one alone.
        after: u64,
    },
    /// Return all devices.
    Devices,
    /// Return the figures of the coordinator.
    Metrics,
    /// Start a group: keep calls until it ends.
    GroupStart {
        /// The communicator.
        comm: CommId,
        /// Whether it outlives the loss of a device, and is executed again by those that are left.
        repeats: bool,
    },
    /// Execute a collective operation, in a group or at once.
    Call {
        /// The communicator.
        comm: CommId,
        /// The group that it is for. `None` for the open group, if there is one, and otherwise for
        /// a group of its own.
        group: Option<GroupId>,
        /// The operation.
        call: DeviceCall,
    },
    /// Execute a collective operation as [`ClientRequest::Call`] does, but answered by the status
    /// when it is over, unless it was put into a group.
    Execute {
        /// The communicator.
        comm: CommId,
        /// The group that it is for, as in a call.
        group: Option<GroupId>,
        /// The operation.
        call: DeviceCall,
        /// The devices that it has addresses for, of which some may be lost. If they are named it
        /// is executed again after a loss, by those that are left.
        devices: Option<Vec<DeviceId>>,
    },
    /// End a group: execute its calls.
    GroupEnd {
        /// The communicator.
        comm: CommId,
        /// The group; `None` for the open one.
        group: Option<GroupId>,
        /// Whether to answer only when it has been executed or has failed, by the status then.
        settled: bool,
    },
    /// Cancel a group: execute none of its calls.
    GroupCancel {
        /// The communicator.
        comm: CommId,
        /// The group; `None` for the open one.
        group: Option<GroupId>,
    },
    /// Have a communicator that has failed go on with the devices that are left. Answered when it
    /// does.
    GoOn(CommId),
    /// Have so many free devices join a communicator that is ready. Answered when they are in it.
    Grow {
        /// The communicator.
        comm: CommId,
        /// How many.
        devices: u32,
    },
    /// Write the memory of all devices of a communicator to a directory. Answered when it is on the
    /// disk, or has failed.
    Checkpoint {
        /// The communicator.
        comm: CommId,
        /// The absolute path of the directory.
        directory: String,
    },
    /// Read the memory of all devices of a communicator back from a directory. Answered when that
    /// is done, or has failed.
    Restore {
        /// The communicator.
        comm: CommId,
        /// The absolute path of the directory.
        directory: String,
    },
    /// Return where the memory of a device can be reached.
    Locate {
        /// The device.
        device: DeviceId,
        /// Whether to answer only when nothing is in progress in its communicator.
        settled: bool,
    },
    /// End a communicator when what is in progress is done. Answered when its devices are free.
    Finalize(CommId),
    /// End a communicator at once. Answered when its devices are free.
    Destroy(CommId),
    /// End a communicator at once, if nothing is in progress in it and nobody waits for it.
    /// Answered when its devices are free.
    DestroyIdle {
        /// The communicator.
        comm: CommId,
        /// The open group that nobody is there to end, if there is one.
        abandoned: Option<GroupId>,
    },
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Reply {
    /// How a communicator is doing.
    Status(CommStatus),
    /// How the first communicators are doing.
    List {
        /// The communicators, by number.
        comms: Vec<CommStatus>,
        /// Whether there are more behind them.
        more: bool,
    },
    /// How communicators have changed.
    Changes(Changes),
    /// All devices.
    Devices(Vec<DeviceStatus>),
    /// The figures of the coordinator.
    Metrics(Metrics),
    /// A group was started.
    GroupStarted(StartedGroup),
    /// The group was cancelled: none of its calls was executed.
    GroupCancelled,
    /// How far a call is, or a group that has ended.
    Called(CallProgress),
    /// A checkpoint of this number was written, or read back.
    Checkpoint(u64),
    /// Where the memory of a device can be reached.
    Located(Location),
    /// The communicator has ended, and its devices are free.
    Ended,
}

/// How communicators have changed, since a client has asked before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// How they were doing after each change, the oldest first.
    pub changes: Vec<CommStatus>,
    /// The number of the last of these, behind which the next request asks.
    pub last: u64,
    /// Whether there are more.
    pub more: bool,
    /// Whether some are missing before these: too long ago, or of another coordinator.
    pub is_torn: bool,
}

/// A group that takes calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartedGroup {
    /// The name of the group.
    pub group: GroupId,
    /// The devices that its calls are for, in the order of their ranks. They are the same for as
    /// long as it is open.
    pub devices: Vec<DeviceId>,
    /// The number of the newest group of the communicator. It will have a higher one when it ends.
    pub after: u64,
}

/// How far a call is, as the coordinator answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CallProgress {
    /// It was put into an open group, and is executed when that ends.
    Queued {
        /// The group.
        group: GroupId,
        /// The number of calls in the group with this one.
        calls: usize,
    },
    /// It is in progress, as a group of its own with this number.
    InProgress(u64),
}

/// The state of a communicator.
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
    /// It has ended in order, with all its work done.
    Finalized,
    /// It has ended otherwise: it was destroyed, has lost all devices, or did not come about.
    Destroyed,
}

/// How a communicator is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommStatus {
    /// The communicator.
    pub comm: CommId,
    /// The state of the communicator.
    pub state: CommState,
    /// The epoch: 1, and one more for each loss after which it has gone on, and each time that it
    /// has grown.
    pub epoch: u64,
    /// The devices of the communicator, in the order of their ranks.
    pub devices: Vec<DeviceId>,
    /// The lost ones of them.
    pub lost: Vec<DeviceId>,
    /// The newest group that is over.
    pub last: Option<GroupOutcome>,
    /// Why it has failed or was destroyed, if so.
    pub why: Option<String>,
}

/// How a group has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupOutcome {
    /// The number of the group.
    pub group: u64,
    /// Why it failed; `None` when it succeeded.
    pub failure: Option<String>,
    /// The device by which it failed, where one hangs, was lost or was waited for in vain.
    pub culprit: Option<DeviceId>,
    /// The number of the checkpoint, if the group has written one or read one back.
    pub checkpoint: Option<u64>,
    /// The operations of all ranks at the moment of the failure, in lines, where the group has
    /// failed by a timeout.
    ///
    /// It is as the first device saw them that has reported it, of 16 KiB at most.
    /// [`Client::list`](super::Client::list) returns none. Nor has the status of a communicator one
    /// that has ended before 64 others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
}

impl CommStatus {
    /// Returns it without its long texts.
    pub(super) fn in_short(mut self) -> Self {
        self.last.iter_mut().for_each(|last| last.report = None);
        self
    }
}

impl GroupOutcome {
    /// Returns the failed one of `all` that is nearest to the cause.
    ///
    /// A failure that names another device only reports that the group has failed there.
    pub(super) fn cause(all: &[Self]) -> Option<&Self> {
        let failed = || all.iter().filter(|last| last.failure.is_some());
        failed().find(|last| last.culprit.is_none()).or_else(|| failed().next())
    }
}

/// A device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceStatus {
    /// The device.
    pub device: DeviceId,
    /// The addresses of the device.
    pub range: AddressRange,
    /// The communicator that it belongs to; `None` when it is free.
    pub comm: Option<CommId>,
}

/// Where the memory of a device can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Location {
    /// The communicator that the device belongs to. A client that names another one is refused.
    pub(super) comm: CommId,
    /// The addresses of the device.
    pub(super) range: AddressRange,
    /// The name of its socket in the abstract namespace, which vanishes with the device.
    pub(super) socket: String,
}

impl CommState {
    /// The states of communicators that have not ended.
    pub(super) const LIVING: [Self; 6] =
        [Self::Init, Self::Ready, Self::InProgress, Self::Growing, Self::Failed, Self::Finalizing];

    /// Returns whether the communicator has ended.
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
