//! Orders of the coordinator to a device, and reports of a device.
//!
//! Neither answers the other: a device reports its whole state whenever that changes, and an order
//! names the state to reach. So a report means the same if it comes twice, late, or to a
//! coordinator that has not given the order.

use serde::{Deserialize, Serialize};

use super::call::{AddressRange, GroupWork, MAX_PATH};
use super::id::{CommId, DeviceId, MAX_NUMBER};
use super::request::GroupOutcome;
use crate::rank::MAX_RANKS;

/// The longest text in a report, in bytes.
pub(super) const MAX_TEXT: usize = 1 << 10;

/// The longest report on all ranks where a group has failed by a wait, in bytes.
pub(super) const MAX_REPORT: usize = 16 << 10;

/// The weight of a failure that is not the consequence of another one, as far as is known.
pub(super) const CAUSE: u8 = 2;

/// An order to a device. A device ignores an order that does not fit its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum DeviceOrder {
    /// Make the id under which the members meet.
    Host(CommFormation),
    /// Meet the others under `id`, as a newcomer if it is not their first epoch.
    Join {
        /// The communicator.
        formation: CommFormation,
        /// The number of groups so far.
        groups: u64,
        /// How the newest one has ended, where that is known.
        last: Option<GroupOutcome>,
        /// The text of the id.
        id: String,
    },
    /// Meet newcomers under `id`, and go on with them.
    Grow {
        /// The communicator after growing: the members as they are, and the newcomers behind them.
        formation: CommFormation,
        /// The text of the id.
        id: String,
        /// The lost members, if growing is called off. Devices that are with the others already
        /// stay with them, and all others are as before. If a member is lost, the epoch ends.
        off: Option<Vec<DeviceId>>,
    },
    /// Execute a group.
    Run {
        /// The communicator.
        comm: CommId,
        /// The epoch that the order is meant for.
        epoch: u64,
        /// Its number, from 1 up.
        group: u64,
        /// The work of the group.
        work: GroupWork,
    },
    /// Give up `lost`, and go on with the other members.
    GoOn {
        /// The communicator.
        comm: CommId,
        /// The epoch that has failed.
        epoch: u64,
        /// The number of the attempt, from 1 up.
        attempt: u32,
        /// The number of groups so far, with failed ones.
        groups: u64,
        /// How the newest one has ended, where that is known.
        last: Option<GroupOutcome>,
        /// The members that are not to be waited for.
        lost: Vec<DeviceId>,
    },
    /// Leave the communicator.
    Leave {
        /// The communicator.
        comm: CommId,
        /// Whether to leave together with the others, when all is done. Otherwise at once.
        gracefully: bool,
    },
}

/// The description of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CommFormation {
    /// Its number.
    pub(super) comm: CommId,
    /// The coordinator that made it. Another one may use a number again that no device has reported
    /// to it yet.
    pub(super) incarnation: u64,
    /// The epoch, from 1 up.
    pub(super) epoch: u64,
    /// Its devices, in the order of their ranks.
    pub(super) members: Vec<DeviceId>,
    /// Whether it goes on after a loss by itself.
    pub(super) keep_going: bool,
}

/// The state of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceReport {
    /// Counts the reports of a connection. The highest one is the newest.
    pub(super) version: u64,
    /// The number of orders that have come over this connection.
    pub(super) heard: u64,
    /// How long it waits for other devices.
    pub(super) timeout_ms: u64,
    /// Its addresses.
    pub(super) range: AddressRange,
    /// The name of the socket where its memory can be reached.
    pub(super) socket: String,
    /// Its communicator, if it is in one.
    pub(super) membership: Option<DeviceMembership>,
}

/// The membership of a device in a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceMembership {
    /// The communicator, its epoch, and the members of that epoch.
    pub(super) formation: CommFormation,
    /// Whether it has come together with the other members.
    pub(super) has_met: bool,
    /// The number of groups so far, with the present one.
    pub(super) groups: u64,
    /// Its phase in the communicator.
    pub(super) phase: DevicePhase,
    /// How the newest group has ended, as far as the device was in it or was told.
    pub(super) last: Option<GroupOutcome>,
}

/// The kind of a failure that a device reports. A revocation or a loss is the consequence of
/// another failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FailureKind {
    /// Another device has ended the epoch.
    Revoked,
    /// Another device was lost to it, or has reported a failure.
    PeerLost,
    /// It has waited until its timeout.
    Timeout,
    /// It has failed for another reason.
    Other,
}

/// An attempt to grow that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FailedGrowth {
    /// The text of the id.
    pub(super) id: String,
    /// Why.
    pub(super) why: String,
}

impl FailureKind {
    /// Returns how near it is to the cause. A failure explains those of a lower weight.
    pub(super) const fn weight(self) -> u8 {
        match self {
            Self::Revoked => 0,
            Self::PeerLost => 1,
            Self::Timeout | Self::Other => CAUSE,
        }
    }
}

impl CommFormation {
    /// Returns the number of its devices.
    pub(super) fn n_ranks(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// Returns the rank of `device`, if that is a member.
    pub(super) fn rank_of(&self, device: DeviceId) -> Option<u32> {
        (0..).zip(&self.members).find_map(|(rank, member)| (*member == device).then_some(rank))
    }

    /// Returns whether it is possible: its numbers can be counted on from, and its members can be
    /// ranks.
    fn is_sound(&self) -> bool {
        let unique: std::collections::BTreeSet<_> = self.members.iter().collect();
        self.comm.is_sound()
            && self.epoch < MAX_NUMBER
            && (1..=MAX_RANKS as usize).contains(&self.members.len())
            && unique.len() == self.members.len()
    }
}

impl DeviceReport {
    /// Returns the communicator that the device is in.
    pub(super) fn comm(&self) -> Option<CommId> {
        self.membership.as_ref().map(|membership| membership.formation.comm)
    }
}

impl DeviceMembership {
    /// Returns whether it is possible, and short enough to be kept.
    pub(super) fn is_sound(&self) -> bool {
        let last = self.last.iter().filter_map(|last| last.failure.as_deref());
        let next = match &self.phase {
            DevicePhase::Growing { formation, .. } => Some(formation),
            _ => None,
        };
        std::iter::once(&self.formation).chain(next).all(CommFormation::is_sound)
            && self.groups < MAX_NUMBER
            && self.phase.texts().into_iter().all(|text| text.len() <= MAX_TEXT)
            && self.phase.directory().is_none_or(|directory| directory.len() <= MAX_PATH)
            // The coordinator has put the name of a device before it.
            && last.into_iter().all(|failure| failure.len() <= 2 * MAX_TEXT)
            && self.last.iter().filter_map(|last| last.report.as_ref()).all(|it| it.len() <= MAX_REPORT)
    }

    /// Returns whether the device is a newcomer that is not with the members of its epoch yet.
    pub(super) fn is_outside(&self) -> bool {
        self.formation.epoch > 1 && !self.has_met
    }
}

impl DevicePhase {
    /// Returns its texts: an id, or why something has failed.
    fn texts(&self) -> [&str; 2] {
        match self {
            Self::Hosting(Some(text))
            | Self::Joining(text)
            | Self::Growing { id: text, .. }
            | Self::Unmet(text)
            | Self::Failed { why: text, .. } => [text, ""],
            Self::Ready(Some(FailedGrowth { id, why })) => [id, why],
            Self::Hosting(None) | Self::Ready(None) | Self::Running(_) | Self::GoingOn(_) | Self::Leaving => {
                [""; 2]
            }
        }
    }

    /// Returns the directory of the checkpoint that is written or read, if one is.
    fn directory(&self) -> Option<&str> {
        match self {
            Self::Running(work) => work.as_ref()?.directory(),
            _ => None,
        }
    }
}

/// The phase of a device in its communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum DevicePhase {
    /// It hosts the meeting, or is about to.
    ///
    /// The text is that of the id; `None` until there is one.
    Hosting(Option<String>),
    /// It is about to meet the others under the id of this text.
    Joining(String),
    /// It has not met the others, for this reason.
    Unmet(String),
    /// It is idle. An attempt to grow may have failed since the newest group.
    Ready(Option<FailedGrowth>),
    /// It executes a group: this one, for a coordinator that has not ordered it.
    Running(Option<GroupWork>),
    /// A group has failed, or an attempt to go on.
    Failed {
        /// The number of attempts to go on.
        attempt: u32,
        /// Why.
        why: String,
        /// The kind of the failure.
        kind: FailureKind,
        /// The device that it has waited for in vain, or has lost, where that is known.
        culprit: Option<DeviceId>,
    },
    /// It goes on with the other members, in the attempt of this number, from 1 up.
    GoingOn(u32),
    /// It meets newcomers.
    Growing {
        /// The communicator after growing.
        formation: CommFormation,
        /// The text of the id.
        id: String,
    },
    /// It is leaving.
    Leaving,
}
