//! The work of groups as clients order it: collective calls by the addresses of each device's
//! memory, and checkpoints.

use serde::{Deserialize, Serialize};
use std::path::Path;

use super::error::RequestError;
use super::id::DeviceId;
use crate::collective::{Algorithm, Operation};
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

/// Operations and operators travel by their names.
mod by_name {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(named: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(named)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// One collective operation on the memory of all devices of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceCall {
    /// The operation: one of [`DeviceCall::OPERATIONS`].
    #[serde(with = "by_name")]
    pub operation: Operation,
    /// The type of the elements.
    pub data_type: DataType,
    /// The operator of a reduction, one of [`ReduceOp::PLAIN`]; otherwise it is ignored.
    #[serde(with = "by_name")]
    pub op: ReduceOp,
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

impl DeviceCall {
    /// The operations that can be called through the coordinator.
    pub const OPERATIONS: [Operation; Algorithm::OPERATIONS.len()] = Algorithm::OPERATIONS;

    /// Returns the bytes that `rank` of `n_ranks` reads and writes; `None` when they cannot be
    /// counted, or the call has no address for the rank.
    #[must_use]
    pub fn operands(&self, rank: usize, n_ranks: usize) -> Option<(Bytes, Bytes)> {
        let (sent, received) = self.operation.parts(rank, self.root as usize, n_ranks as u64);
        let block = self.count.checked_mul(self.data_type.size() as u64)?;
        let bytes = |addresses: &[u64], blocks: u64| {
            Some(Bytes { address: *addresses.get(rank)?, len: block.checked_mul(blocks)? })
        };
        Some((bytes(&self.send, sent)?, bytes(&self.recv, received)?))
    }

    /// Checks the call against the devices in the order of their ranks, before data move.
    ///
    /// # Errors
    /// [`RequestError::WrongCount`], [`RequestError::NoSuchRoot`], [`RequestError::OutOfRange`],
    /// [`RequestError::BadOperation`], [`RequestError::BadOperator`].
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
        if !Self::OPERATIONS.contains(&self.operation) {
            return Err(RequestError::BadOperation { operation: self.operation.name().to_owned() });
        }
        if self.operation.reduces() {
            Reducer::new(self.data_type, &self.op, 1)
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

    fn call(operation: Operation, count: u64, send: &[u64], recv: &[u64]) -> DeviceCall {
        let (send, recv) = (send.to_vec(), recv.to_vec());
        DeviceCall { operation, data_type: DataType::F64, op: ReduceOp::Sum, root: 1, count, send, recv }
    }

    fn pair() -> [(DeviceId, AddressRange); 2] {
        [
            (DeviceId::new(7), AddressRange { min: 0x1000, max: 0x1100 }),
            (DeviceId::new(9), AddressRange { min: 0x1000, max: 0x1040 }),
        ]
    }

    #[test]
    fn a_call_is_held_against_the_range_of_each_device() {
        let fits = call(Operation::AllReduce, 8, &[0x1000, 0x1000], &[0x10c0, 0x1000]);
        assert_eq!(fits.check(&pair()), Ok(()));
        let past = call(Operation::AllGather, 8, &[0x1000, 0x1000], &[0x1080, 0x1000]);
        let refused = past.check(&pair()).unwrap_err();
        assert!(matches!(refused, RequestError::OutOfRange { device, .. } if device.get() == 9), "{refused}");
        let below = call(Operation::AllReduce, 0, &[0xfff, 0x1000], &[0x1000, 0x1000]);
        assert!(matches!(below.check(&pair()), Err(RequestError::OutOfRange { .. })));
        let empty = call(Operation::AllToAll, 0, &[0x1100, 0x1040], &[0x1000, 0x1000]);
        assert_eq!(empty.check(&pair()), Ok(()), "no bytes may stand at the end");
    }

    #[test]
    fn what_cannot_be_counted_is_out_of_range() {
        for count in [u64::MAX, u64::MAX / 8 + 1, u64::MAX / 16 + 1] {
            let huge = call(Operation::AllGather, count, &[0x1000, 0x1000], &[0x1000, 0x1000]);
            assert!(matches!(huge.check(&pair()), Err(RequestError::OutOfRange { .. })), "{count}");
        }
    }

    #[test]
    fn addresses_for_other_ranks_than_there_are_and_roots_that_are_not_there_are_refused() {
        let three = call(Operation::AllReduce, 1, &[0x1000; 3], &[0x1000; 3]);
        assert_eq!(three.check(&pair()), Err(RequestError::WrongCount { given: 3, devices: 2 }));
        let mut rootless = call(Operation::Broadcast, 1, &[0x1000; 2], &[0x1000; 2]);
        rootless.root = 2;
        assert_eq!(rootless.check(&pair()), Err(RequestError::NoSuchRoot { root: 2, devices: 2 }));
    }

    #[test]
    fn an_operator_that_is_not_defined_on_the_type_is_refused_where_elements_are_combined() {
        let with = |operation, op| DeviceCall { op, ..call(operation, 1, &[0x1000; 2], &[0x1000; 2]) };
        let refused = with(Operation::AllReduce, ReduceOp::BitXor).check(&pair()).unwrap_err();
        assert!(refused.to_string().starts_with("operator bxor is not defined on double; use "), "{refused}");
        assert_eq!(with(Operation::AllGather, ReduceOp::BitXor).check(&pair()), Ok(()));
    }

    #[test]
    fn calls_together_have_no_more_operands_than_twice_what_the_smallest_device_has() {
        // All of the second device is 8 elements.
        let all = call(Operation::AllReduce, 8, &[0x1000; 2], &[0x1000; 2]);
        assert_eq!(check_together([&all].into_iter(), &pair()), Ok(()));
        let one = call(Operation::Broadcast, 1, &[0x1000; 2], &[0x1000; 2]);
        let device = DeviceId::new(9);
        let refused = Err(RequestError::GroupTooLarge { device, bytes: 144, most: 128 });
        assert_eq!(check_together([&all, &one].into_iter(), &pair()), refused);
        let halves = [4, 4].map(|count| call(Operation::AllReduce, count, &[0x1000; 2], &[0x1000; 2]));
        assert_eq!(check_together(halves.iter(), &pair()), Ok(()));
    }

    #[test]
    fn a_call_travels_by_the_names_of_its_operation_and_operator() {
        for operation in DeviceCall::OPERATIONS {
            for op in ReduceOp::PLAIN {
                let call = DeviceCall { op, ..call(operation, 1, &[0x1000], &[0x1000]) };
                let text = serde_json::to_string(&call).unwrap();
                assert_eq!(serde_json::from_str::<DeviceCall>(&text).unwrap(), call, "{text}");
            }
        }
        let text = serde_json::to_string(&call(Operation::AllReduce, 1, &[], &[])).unwrap();
        assert!(text.contains(r#""operation":"all_reduce","#), "{text}");
        for wrong in ["every_reduce", "barrier"] {
            let text = text.replace("all_reduce", wrong);
            let refused = serde_json::from_str::<DeviceCall>(&text).map(|call| call.check(&[]));
            assert!(refused.is_err() || refused.is_ok_and(|checked| checked.is_err()), "{text}");
        }
    }

    #[test]
    fn what_no_device_can_be_asked_for_is_refused() {
        let refused = call(Operation::Send, 1, &[0x1000; 2], &[0x1000; 2]).check(&pair());
        assert!(matches!(&refused, Err(RequestError::BadOperation { operation }) if operation == "send"));
    }
}
