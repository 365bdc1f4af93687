//! What the coordinator tells a device to do, and what a device says of itself.
//!
//! Neither is an answer to the other: a device reports its whole state whenever that changes, and orders say where it is to get.
//! So a report that comes twice, late, or to a coordinator that did not give the order, says the same.

use serde::{Deserialize, Serialize};

use super::call::{GroupWork, MAX_PATH};
use super::id::{CommId, DeviceId, MAX_NUMBER};
use super::request::GroupOutcome;
use crate::rank::MAX_RANKS;

/// How long a text in a report may be.
pub(super) const MAX_TEXT: usize = 1 << 10;

/// The most bytes of what a device tells of all ranks where a group has failed by a wait.
pub(super) const MAX_REPORT: usize = 16 << 10;

/// The weight of a failure that is not the consequence of another one, as far as can be told.
pub(super) const CAUSE: u8 = 2;

/// What a device is to do next. It ignores what does not fit its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DeviceOrder {
    /// Make the id under which the members meet.
    Host(CommFormation),
    /// Meet the others under `id`; where it is not their first epoch, as a newcomer.
    Join {
        /// Which communicator.
        formation: CommFormation,
        /// How many groups have been.
        groups: u64,
        /// What came of the newest one, where it is known.
        last: Option<GroupOutcome>,
        /// The text of the id.
        id: String,
    },
    /// Meet newcomers under `id`, and go on with them.
    Grow {
        /// What it is to be then: the members as they are, and the newcomers behind them.
        formation: CommFormation,
        /// The text of the id.
        id: String,
        /// It is called off: who is with the others already stays with them, everybody else is where they were. These members
        /// are given up, if any, which ends their epoch.
        off: Option<Vec<DeviceId>>,
    },
    /// Execute a group.
    Run {
        /// Which communicator.
        comm: CommId,
        /// The epoch that it is meant for.
        epoch: u64,
        /// Its number, from 1 up.
        group: u64,
        /// What it consists of.
        work: GroupWork,
    },
    /// Give up `lost`, and go on with the rest.
    GoOn {
        /// Which communicator.
        comm: CommId,
        /// The epoch that has failed.
        epoch: u64,
        /// How many times it has been tried before, and one.
        attempt: u32,
        /// How many groups have been, failed ones among them.
        groups: u64,
        /// What came of the newest one, where it is known.
        last: Option<GroupOutcome>,
        /// Who is not to be waited for.
        lost: Vec<DeviceId>,
    },
    /// Leave the communicator.
    Leave {
        /// Which.
        comm: CommId,
        /// Together with the others, when all is done; or else at once.
        gracefully: bool,
    },
}

/// A communicator that is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommFormation {
    /// Its number.
    pub comm: CommId,
    /// The coordinator that made it. One that was restarted may use a number again of which it has not heard yet.
    pub incarnation: u64,
    /// The epoch, from 1 up.
    pub epoch: u64,
    /// Its devices, in the order of their ranks.
    pub members: Vec<DeviceId>,
    /// Whether it goes on after a loss without being told.
    pub keep_going: bool,
}

/// The state of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceReport {
    /// Counts the reports of a connection. The highest one is the newest.
    pub version: u64,
    /// How many orders have come over this connection.
    pub heard: u64,
    /// How long it waits for other devices.
    pub timeout_ms: u64,
    /// What it belongs to.
    pub membership: Option<DeviceMembership>,
}

/// A device's place in a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceMembership {
    /// Which communicator, which epoch of it, and the members of that.
    pub formation: CommFormation,
    /// Whether it has come together with the other members.
    pub has_met: bool,
    /// How far it is.
    pub phase: DevicePhase,
    /// What came of the newest group, as far as it has been told, or was in it.
    pub last: Option<GroupOutcome>,
}

/// What kind of failure a device tells of. Those of a revocation or a loss are consequences of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It was told by others that the epoch has ended.
    Revoked,
    /// Another device was lost to it, or told it of a failure.
    PeerLost,
    /// It has waited in vain.
    Timeout,
    /// It has failed by itself.
    Other,
}

/// How growing has ended in vain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedGrowth {
    /// The text of the id.
    pub id: String,
    /// Why.
    pub why: String,
}

impl FailureKind {
    /// How near it is to the cause: a higher one explains a lower one.
    pub(super) const fn weight(self) -> u8 {
        match self {
            Self::Revoked => 0,
            Self::PeerLost => 1,
            Self::Timeout | Self::Other => CAUSE,
        }
    }
}

impl CommFormation {
    /// Whether it can be true: numbers that can be counted on from, members that can be ranks.
    fn is_sound(&self) -> bool {
        let unique: std::collections::BTreeSet<_> = self.members.iter().collect();
        self.comm.is_sound()
            && self.epoch < MAX_NUMBER
            && (1..=MAX_RANKS as usize).contains(&self.members.len())
            && unique.len() == self.members.len()
    }
}

impl DeviceMembership {
    /// Whether it can be true, and is not too long to be kept.
    pub(super) fn is_sound(&self) -> bool {
        let last = self.last.iter().filter_map(|last| last.failure.as_deref());
        let next = match &self.phase {
            DevicePhase::Growing { formation, .. } => Some(formation),
            _ => None,
        };
        std::iter::once(&self.formation).chain(next).all(CommFormation::is_sound)
            && self.phase.groups() < MAX_NUMBER
            && self.phase.texts().into_iter().all(|text| text.len() <= MAX_TEXT)
            && self.phase.directory().is_none_or(|directory| directory.len() <= MAX_PATH)
            // The coordinator has put the name of a device in front.
            && last.into_iter().all(|failure| failure.len() <= 2 * MAX_TEXT)
            && self.last.iter().filter_map(|last| last.report.as_ref()).all(|it| it.len() <= MAX_REPORT)
    }

    /// Whether it is a newcomer that is not with the members of its epoch yet.
    pub(super) fn is_outside(&self) -> bool {
        self.formation.epoch > 1 && !self.has_met
    }
}

impl DevicePhase {
    /// What it says in words: an id, or why something failed.
    fn texts(&self) -> [&str; 2] {
        match self {
            Self::Hosting { id } => [id.as_deref().unwrap_or_default(), ""],
            Self::Joining { id: text, .. }
            | Self::Growing { id: text, .. }
            | Self::Unmet { why: text }
            | Self::Failed { why: text, .. } => [text, ""],
            Self::Ready { tried: Some(FailedGrowth { id, why }), .. } => [id, why],
            Self::Ready { tried: None, .. } | Self::Running { .. } | Self::GoingOn { .. } | Self::Leaving => {
                [""; 2]
            }
        }
    }

    /// Where a checkpoint is that is written or read.
    fn directory(&self) -> Option<&str> {
        match self {
            Self::Running { work, .. } => work.as_ref()?.directory(),
            _ => None,
        }
    }

    /// How many groups have been, the present one among them.
    pub(super) fn groups(&self) -> u64 {
        match self {
            Self::Joining { groups, .. }
            | Self::Ready { groups, .. }
            | Self::Failed { groups, .. }
            | Self::GoingOn { groups, .. }
            | Self::Growing { groups, .. } => *groups,
            Self::Running { group, .. } => *group,
            Self::Hosting { .. } | Self::Unmet { .. } | Self::Leaving => 0,
        }
    }
}

/// How far a device is in its communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DevicePhase {
    /// It is about to host the meeting, or does so under this id.
    Hosting {
        /// The text of the id; `None` until there is one.
        id: Option<String>,
    },
    /// It is on its way to the others.
    Joining {
        /// How many groups have been.
        groups: u64,
        /// The text of the id.
        id: String,
    },
    /// It did not meet the others.
    Unmet {
        /// Why.
        why: String,
    },
    /// It has nothing to do.
    Ready {
        /// How many groups have been.
        groups: u64,
        /// How it has tried to grow, in vain, since the newest of them.
        tried: Option<FailedGrowth>,
    },
    /// It executes a group.
    Running {
        /// Its number.
        group: u64,
        /// What it consists of, for a coordinator that has not ordered it.
        work: Option<GroupWork>,
    },
    /// A group has failed, or going on has.
    Failed {
        /// How many groups have been.
        groups: u64,
        /// How many times it has tried to go on.
        attempt: u32,
        /// Why.
        why: String,
        /// What kind of failure it was.
        kind: FailureKind,
        /// Whom it has waited for in vain, or has lost, where that can be told.
        culprit: Option<DeviceId>,
    },
    /// It goes on with the rest.
    GoingOn {
        /// How many groups have been.
        groups: u64,
        /// How many times it has been tried before, and one.
        attempt: u32,
    },
    /// It meets newcomers.
    Growing {
        /// How many groups have been.
        groups: u64,
        /// What it is to be then.
        formation: CommFormation,
        /// The text of the id.
        id: String,
    },
    /// It is leaving.
    Leaving,
}
