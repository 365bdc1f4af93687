//! The work of groups as clients order it: collective calls by the addresses of each device's
//! memory, and checkpoints.

use std::path::Path;
use std::str::FromStr;

use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Serialize};

use super::error::RequestError;
use super::id::DeviceId;
use crate::collective::Operation;
use crate::heap::{DeviceMemory, MIN_ADDRESS};
use crate::rank::MAX_RANKS;
use crate::reduce::{DataType, ReduceOp, Reducer};

/// The most calls in a group.
pub const MAX_CALLS: usize = 64;

/// How many times the memory of a device the operands of a group may have together: the device
/// needs as much memory again for them. No single call has more.
pub(super) const MAX_OPERANDS: u64 = 2;

/// The longest path of a directory, in bytes. Linux takes no longer one.
pub(super) const MAX_PATH: usize = 4096;

/// The range of addresses of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressRange {
    /// The lowest address.
    pub min: u64,
    /// One past the highest address.
    pub max: u64,
}

/// A range of bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bytes {
    /// The address of the first one.
    pub address: u64,
    /// The number of bytes.
    pub len: u64,
}

/// A collective operation that can be called through the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank gets the reduction of all inputs.
    AllReduce,
    /// The root gets the reduction of all inputs.
    Reduce,
    /// Every rank gets the root's input.
    Broadcast,
    /// Every rank gets all inputs.
    AllGather,
    /// Every rank gets its block of the reduction of all inputs.
    ReduceScatter,
    /// Every rank gets its block of every input.
    AllToAll,
}

/// The operator of a reduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceReduceOp {
    /// Adds.
    #[default]
    Sum,
    /// Multiplies.
    Prod,
    /// Takes the least.
    Min,
    /// Takes the greatest.
    Max,
    /// Adds, and divides by the number of ranks.
    Avg,
    /// Keeps the bits that are set in all inputs.
    #[serde(rename = "band")]
    BitAnd,
    /// Keeps the bits that are set in any input.
    #[serde(rename = "bor")]
    BitOr,
    /// Keeps the bits that are set in an odd number of inputs.
    #[serde(rename = "bxor")]
    BitXor,
}

/// One collective operation on the memory of all devices of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceCall {
    /// The operation.
    pub collective: Collective,
    /// The type of the elements.
    pub data_type: DataType,
    /// The operator of a reduction; otherwise it is ignored.
    pub op: DeviceReduceOp,
    /// The root of an operation that has one; otherwise it is ignored.
    pub root: u32,
    /// The number of elements of a block, which one rank sends to one other or receives from it.
    pub count: u64,
    /// The address of the input, for each rank.
    pub send: Vec<u64>,
    /// The address of the output, for each rank.
    pub recv: Vec<u64>,
}

impl Bytes {
    /// Returns whether some of these bytes are in `other`.
    pub(super) fn overlaps(self, other: Self) -> bool {
        let end = |bytes: Self| bytes.address.saturating_add(bytes.len);
        self.len > 0 && other.len > 0 && self.address < end(other) && other.address < end(self)
    }
}

impl AddressRange {
    pub(super) fn of(memory: &DeviceMemory) -> Self {
        Self { min: MIN_ADDRESS, max: memory.max_address().get() }
    }

    /// # Errors
    /// [`RequestError::OutOfRange`] unless `bytes` of `device` are all in it. No bytes may also
    /// stand at its end.
    pub(super) fn check(self, device: DeviceId, bytes: Bytes) -> Result<(), RequestError> {
        let end = bytes.address.checked_add(bytes.len);
        if bytes.address >= self.min && end.is_some_and(|end| end <= self.max) {
            Ok(())
        } else {
            Err(RequestError::OutOfRange { device, bytes, range: self })
        }
    }
}

impl Collective {
    /// Returns the operation of the library.
    #[must_use]
    pub const fn operation(self) -> Operation {
        match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Reduce => Operation::Reduce,
            Self::Broadcast => Operation::Broadcast,
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::AllToAll => Operation::AllToAll,
        }
    }
}

impl DeviceReduceOp {
    /// Returns the operator of the library.
    #[must_use]
    pub const fn reduce_op(self) -> ReduceOp {
        match self {
            Self::Sum => ReduceOp::Sum,
            Self::Prod => ReduceOp::Prod,
            Self::Min => ReduceOp::Min,
            Self::Max => ReduceOp::Max,
            Self::Avg => ReduceOp::Avg,
            Self::BitAnd => ReduceOp::BitAnd,
            Self::BitOr => ReduceOp::BitOr,
            Self::BitXor => ReduceOp::BitXor,
        }
    }
}

/// The name of no operation or operator that can be called through the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}")]
pub struct UnknownName {
    expected: &'static str,
}

/// Returns what is written as `name` in messages.
fn by_name<T: DeserializeOwned>(name: &str, expected: &'static str) -> Result<T, UnknownName> {
    T::deserialize(name.into_deserializer()).map_err(|_: ValueError| UnknownName { expected })
}

impl FromStr for Collective {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let expected = "all_reduce, reduce, broadcast, all_gather, reduce_scatter or all_to_all";
        by_name(&name.replace('-', "_"), expected)
    }
}

impl FromStr for DeviceReduceOp {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        by_name(name, "sum, prod, min, max, avg, band, bor or bxor")
    }
}

impl DeviceCall {
    /// Returns the bytes that `rank` of `n_ranks` reads and writes; `None` when they cannot be
    /// counted, or the call has no address for the rank.
    #[must_use]
    pub fn operands(&self, rank: usize, n_ranks: usize) -> Option<(Bytes, Bytes)> {
        let (sent, received) = self.collective.operation().blocks(n_ranks as u64);
        let (has_input, has_output) = self.sides(rank);
        let block = self.count.checked_mul(self.data_type.size() as u64)?;
        let bytes = |addresses: &[u64], blocks: u64| {
            Some(Bytes { address: *addresses.get(rank)?, len: block.checked_mul(blocks)? })
        };
        let (sent, received) = (sent * u64::from(has_input), received * u64::from(has_output));
        Some((bytes(&self.send, sent)?, bytes(&self.recv, received)?))
    }

    /// Returns whether `rank` has an input and an output: one of them may be the root's only.
    pub(super) fn sides(&self, rank: usize) -> (bool, bool) {
        let is_root = self.root as usize == rank;
        match self.collective {
            Collective::Reduce => (true, is_root),
            Collective::Broadcast => (is_root, true),
            _ => (true, true),
        }
    }

    /// Checks the call against the devices in the order of their ranks, before data move.
    ///
    /// # Errors
    /// [`RequestError::WrongCount`], [`RequestError::NoSuchRoot`], [`RequestError::OutOfRange`],
    /// [`RequestError::BadOperator`].
    pub fn check(&self, devices: &[(DeviceId, AddressRange)]) -> Result<(), RequestError> {
        let n_ranks = devices.len();
        for given in [self.send.len(), self.recv.len()] {
            if given != n_ranks || n_ranks > MAX_RANKS as usize {
                return Err(RequestError::WrongCount { given, devices: n_ranks });
            }
        }
        if self.root as usize >= n_ranks {
            return Err(RequestError::NoSuchRoot { root: self.root, devices: n_ranks });
        }
        if self.collective.operation().reduces() {
            Reducer::new(self.data_type, &self.op.reduce_op(), 1)
                .map_err(|refused| RequestError::BadOperator { why: refused.to_string() })?;
        }
        for (rank, (device, range)) in devices.iter().enumerate() {
            let beyond = Bytes { address: self.send[rank], len: u64::MAX };
            let (sent, received) = self.operands(rank, n_ranks).unwrap_or((beyond, beyond));
            range.check(*device, sent)?;
            range.check(*device, received)?;
        }
        Ok(())
    }
}

/// The work of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum GroupWork {
    /// Collective operations, which are executed together.
    Calls(Vec<DeviceCall>),
    /// The memory of all devices is written to this directory.
    Checkpoint(String),
    /// The memory of all devices is read back from this directory.
    Restore(String),
}

impl GroupWork {
    /// Returns the directory of a checkpoint.
    pub(super) fn directory(&self) -> Option<&str> {
        match self {
            Self::Calls(_) => None,
            Self::Checkpoint(directory) | Self::Restore(directory) => Some(directory),
        }
    }

    /// # Errors
    /// [`RequestError::BadDirectory`] for a directory that is not the same for all devices,
    /// wherever they were started.
    pub(super) fn check(&self) -> Result<(), RequestError> {
        let Some(directory) = self.directory() else { return Ok(()) };
        let is = match () {
            () if directory.len() > MAX_PATH => "is too long",
            () if directory.contains('\0') => "has a zero byte in it",
            () if !Path::new(directory).is_absolute() => "does not begin with a slash",
            () => return Ok(()),
        };
        let directory = directory.chars().take(64).collect();
        Err(RequestError::BadDirectory { directory, is: is.to_owned() })
    }
}

/// Checks that `calls` are together not too large for one of the devices, which are in the order of
/// their ranks. Each call was checked by itself before.
///
/// # Errors
/// [`RequestError::GroupTooLarge`].
pub(super) fn check_together<'c>(
    calls: impl Iterator<Item = &'c DeviceCall> + Clone,
    devices: &[(DeviceId, AddressRange)],
) -> Result<(), RequestError> {
    for (rank, (device, range)) in devices.iter().enumerate() {
        let operands = calls.clone().filter_map(|call| call.operands(rank, devices.len()));
        let bytes = operands
            .fold(0_u64, |sum, (sent, received)| sum.saturating_add(sent.len).saturating_add(received.len));
        let most = range.max.saturating_sub(range.min).saturating_mul(MAX_OPERANDS);
        if bytes > most {
            return Err(RequestError::GroupTooLarge { device: *device, bytes, most });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(collective: Collective, count: u64, send: &[u64], recv: &[u64]) -> DeviceCall {
        let (send, recv) = (send.to_vec(), recv.to_vec());
        DeviceCall {
            collective,
            data_type: DataType::F64,
            op: DeviceReduceOp::Sum,
            root: 1,
            count,
            send,
            recv,
        }
    }

    fn pair() -> [(DeviceId, AddressRange); 2] {
        [
            (DeviceId::new(7), AddressRange { min: 0x1000, max: 0x1100 }),
            (DeviceId::new(9), AddressRange { min: 0x1000, max: 0x1040 }),
        ]
    }

    #[test]
    fn a_call_is_held_against_the_range_of_each_device() {
        let fits = call(Collective::AllReduce, 8, &[0x1000, 0x1000], &[0x10c0, 0x1000]);
        assert_eq!(fits.check(&pair()), Ok(()));
        let past = call(Collective::AllGather, 8, &[0x1000, 0x1000], &[0x1080, 0x1000]);
        let refused = past.check(&pair()).unwrap_err();
        assert!(matches!(refused, RequestError::OutOfRange { device, .. } if device.get() == 9), "{refused}");
        let below = call(Collective::AllReduce, 0, &[0xfff, 0x1000], &[0x1000, 0x1000]);
        assert!(matches!(below.check(&pair()), Err(RequestError::OutOfRange { .. })));
        let empty = call(Collective::AllToAll, 0, &[0x1100, 0x1040], &[0x1000, 0x1000]);
        assert_eq!(empty.check(&pair()), Ok(()), "no bytes may stand at the end");
    }

    #[test]
    fn what_cannot_be_counted_is_out_of_range() {
        for count in [u64::MAX, u64::MAX / 8 + 1, u64::MAX / 16 + 1] {
            let huge = call(Collective::AllGather, count, &[0x1000, 0x1000], &[0x1000, 0x1000]);
            assert!(matches!(huge.check(&pair()), Err(RequestError::OutOfRange { .. })), "{count}");
        }
    }

    #[test]
    fn addresses_for_other_ranks_than_there_are_and_roots_that_are_not_there_are_refused() {
        let three = call(Collective::AllReduce, 1, &[0x1000; 3], &[0x1000; 3]);
        assert_eq!(three.check(&pair()), Err(RequestError::WrongCount { given: 3, devices: 2 }));
        let mut rootless = call(Collective::Broadcast, 1, &[0x1000; 2], &[0x1000; 2]);
        rootless.root = 2;
        assert_eq!(rootless.check(&pair()), Err(RequestError::NoSuchRoot { root: 2, devices: 2 }));
    }

    #[test]
    fn an_operator_that_is_not_defined_on_the_type_is_refused_where_elements_are_combined() {
        let with = |collective, op| DeviceCall { op, ..call(collective, 1, &[0x1000; 2], &[0x1000; 2]) };
        let refused = with(Collective::AllReduce, DeviceReduceOp::BitXor).check(&pair()).unwrap_err();
        assert!(refused.to_string().starts_with("operator bxor is not defined on double; use "), "{refused}");
        assert_eq!(with(Collective::AllGather, DeviceReduceOp::BitXor).check(&pair()), Ok(()));
    }

    #[test]
    fn calls_together_have_no_more_operands_than_twice_what_the_smallest_device_has() {
        // All of the second device is 8 elements.
        let all = call(Collective::AllReduce, 8, &[0x1000; 2], &[0x1000; 2]);
        assert_eq!(check_together([&all].into_iter(), &pair()), Ok(()));
        let one = call(Collective::Broadcast, 1, &[0x1000; 2], &[0x1000; 2]);
        let device = DeviceId::new(9);
        let refused = Err(RequestError::GroupTooLarge { device, bytes: 144, most: 128 });
        assert_eq!(check_together([&all, &one].into_iter(), &pair()), refused);
        let halves = [4, 4].map(|count| call(Collective::AllReduce, count, &[0x1000; 2], &[0x1000; 2]));
        assert_eq!(check_together(halves.iter(), &pair()), Ok(()));
    }

    #[test]
    fn names_lead_back_to_what_they_name() {
        for collective in [
            Collective::AllReduce,
            Collective::Reduce,
            Collective::Broadcast,
            Collective::AllGather,
            Collective::ReduceScatter,
            Collective::AllToAll,
        ] {
            assert_eq!(collective.operation().name().parse(), Ok(collective));
        }
        assert_eq!("all-reduce".parse(), Ok(Collective::AllReduce));
        assert!("finalize".parse::<Collective>().is_err());
        for op in ReduceOp::PLAIN {
            assert_eq!(op.name().parse().map(DeviceReduceOp::reduce_op), Ok(op));
        }
        assert!("mean".parse::<DeviceReduceOp>().is_err());
    }
}
