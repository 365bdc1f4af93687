//! The numbers of devices, communicators, clients and groups.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The limit of the numbers of communicators, epochs and groups. All are lower.
pub(super) const MAX_NUMBER: u64 = 1 << 48;

/// A device in the coordinator's pool: the id of its process, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId(u32);

/// A communicator of the coordinator.
///
/// A number is not used again as long as a device reports it. A coordinator that has started since
/// may use it again before the device has come back, and tells the two apart by the coordinator
/// that made them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CommId(u64);

/// A connection of a client with the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientId(pub(super) u64);

/// An open group. No other group of any communicator or coordinator has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupId {
    /// The coordinator that has it.
    pub(super) incarnation: u64,
    /// The number among the groups of that coordinator.
    pub(super) number: u64,
}

/// A text that names no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the name that the start of a group has returned, such as 5f3a9c-1")]
pub struct InvalidGroupId;

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.incarnation, self.number)
    }
}

impl FromStr for GroupId {
    type Err = InvalidGroupId;

    fn from_str(text: &str) -> Result<Self, InvalidGroupId> {
        let (incarnation, number) = text.split_once('-').ok_or(InvalidGroupId)?;
        let incarnation = u64::from_str_radix(incarnation, 16).map_err(|_| InvalidGroupId)?;
        Ok(Self { incarnation, number: number.parse().map_err(|_| InvalidGroupId)? })
    }
}

impl DeviceId {
    /// Names the device that is the process of that number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl CommId {
    /// Names the communicator of that number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether it can be counted on from.
    pub(super) const fn is_sound(self) -> bool {
        self.0 < MAX_NUMBER
    }

    /// Returns the number after it.
    pub(super) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_group_leads_back_to_it() {
        let group = GroupId { incarnation: u64::MAX - 7, number: 12 };
        assert_eq!(group.to_string().parse(), Ok(group));
        for text in ["", "1", "x-1", "1-", "-1", "1-1-1"] {
            assert_eq!(text.parse::<GroupId>(), Err(InvalidGroupId), "{text}");
        }
    }
}
