//! What the front knows of communicators beyond what the coordinator does: who has made each, its
//! ranks as they were told, its open group, which devices were taken out of it, its streams, and
//! the group of which nobody was told how it has ended.
//!
//! None of it outlives the front. The next one serves the same communicators: ranks are then those
//! of the coordinator, a group that is open there can be ended, all devices are in it again, and
//! only what was lost with it is refused.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shmccl::collective::Operation;
use shmccl::coordinator::{CommId, DeviceCall, DeviceId, StartedGroup};
use shmccl::heap::MIN_ADDRESS;
use shmccl::reduce::{DataType, ReduceOp};

use crate::streams::Streams;

/// The number of a connection of the front.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// An all_reduce in place, at an address of each device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AllReduce {
    pub(crate) count: u64,
    pub(crate) op: ReduceOp,
    /// A device that is not named has its operand at its lowest address.
    pub(crate) addresses: BTreeMap<DeviceId, u64>,
}

/// A group that takes calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientGroup {
    /// Who has started it.
    pub(crate) starter: ConnectionId,
    /// What it is at the coordinator; `None` where calls are executed at once.
    pub(crate) started: Option<StartedGroup>,
}

/// A communicator that was made through this front, or used.
#[derive(Debug, Default)]
pub(crate) struct CommRecord {
    /// The maker of the communicator, if that was a client of this front.
    pub(crate) maker: Option<ConnectionId>,
    /// The devices as the maker was told, by rank, and behind them those that have joined.
    pub(crate) ranks: Vec<DeviceId>,
    pub(crate) open: Option<ClientGroup>,
    /// The devices that have no part in operations any more.
    pub(crate) marked: BTreeSet<DeviceId>,
    pub(crate) streams: Streams,
    /// The newest group before the one that was under way when the coordinator ended.
    pub(crate) untold_after: Option<u64>,
    /// Rises with each use of any communicator.
    used: u64,
}

/// All of them, and the connections that are open.
#[derive(Debug, Default)]
pub(crate) struct Comms(Mutex<CommRecords>);

#[derive(Debug, Default)]
pub(crate) struct CommRecords {
    records: BTreeMap<CommId, CommRecord>,
    connections: HashSet<ConnectionId>,
    uses: u64,
}

impl AllReduce {
    /// Returns the call for a communicator of these `devices`.
    pub(crate) fn on(&self, devices: &[DeviceId]) -> DeviceCall {
        let address = |device| self.addresses.get(device).copied().unwrap_or(MIN_ADDRESS);
        let addresses: Vec<_> = devices.iter().map(address).collect();
        DeviceCall {
            operation: Operation::AllReduce,
            data_type: DataType::F64,
            op: self.op.clone(),
            root: 0,
            count: self.count,
            send: addresses.clone(),
            recv: addresses,
        }
    }
}

impl CommRecord {
    /// Returns what `devices` are called by rank: as the maker was told, if that is known.
    pub(crate) fn ranks_of(&mut self, devices: &[DeviceId]) -> Vec<DeviceId> {
        if self.ranks.is_empty() {
            return devices.to_vec();
        }
        let joined: Vec<_> = devices.iter().filter(|device| !self.ranks.contains(device)).collect();
        self.ranks.extend(joined);
        self.ranks.clone()
    }
}

impl Comms {
    /// Notes a communicator that was made for `maker`.
    ///
    /// Nothing is left of one that had the number before: a coordinator that finds no devices
    /// begins with the first number again.
    pub(crate) fn made(&self, comm: CommId, maker: ConnectionId, devices: &[DeviceId]) {
        self.with(comm, |record| {
            let (maker, ranks) = (Some(maker), devices.to_vec());
            *record = CommRecord { maker, ranks, used: record.used, ..CommRecord::default() };
        });
    }

    /// Has `action` look at the record of a communicator, which is made if there is none.
    pub(crate) fn with<T>(&self, comm: CommId, action: impl FnOnce(&mut CommRecord) -> T) -> T {
        let mut state = self.state();
        state.uses += 1;
        let used = state.uses;
        let record = state.records.entry(comm).or_default();
        record.used = used;
        action(record)
    }

    /// Has `action` look at the record of a communicator, if there is one.
    pub(crate) fn with_known<T>(&self, comm: CommId, action: impl FnOnce(&mut CommRecord) -> T) -> Option<T> {
        self.state().records.get_mut(&comm).map(action)
    }

    /// Returns the communicators of which there is a record.
    pub(crate) fn all(&self) -> Vec<CommId> {
        self.state().records.keys().copied().collect()
    }

    /// Forgets a communicator that has ended.
    pub(crate) fn forget(&self, comm: CommId) {
        self.state().records.remove(&comm);
    }

    pub(crate) fn connected(&self, connection: ConnectionId) {
        self.state().connections.insert(connection);
    }

    pub(crate) fn disconnected(&self, connection: ConnectionId) {
        self.state().connections.remove(&connection);
    }

    /// Returns the communicators that may be ended for want of devices: those of `connection`, and
    /// those of connections that have gone. The one that was used longest ago is the first, and
    /// none has a group that somebody is there to end.
    pub(crate) fn idle(&self, connection: ConnectionId) -> Vec<CommId> {
        let state = self.state();
        let has_gone = |one: ConnectionId| !state.connections.contains(&one);
        let idle = |record: &CommRecord| {
            let is_open = record.open.as_ref().is_some_and(|open| !has_gone(open.starter));
            !is_open && record.maker.is_some_and(|maker| maker == connection || has_gone(maker))
        };
        let mut found: Vec<_> = state.records.iter().filter(|(_, record)| idle(record)).collect();
        found.sort_by_key(|(_, record)| record.used);
        found.into_iter().map(|(comm, _)| *comm).collect()
    }

    fn state(&self) -> MutexGuard<'_, CommRecords> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_idle_and_of_the_same_connection_or_of_none_is_recycled_the_oldest_first() {
        let comms = Comms::default();
        let [mine, other, gone] = [1, 2, 3].map(ConnectionId);
        [mine, other, gone].into_iter().for_each(|it| comms.connected(it));
        for (number, maker) in [(1, mine), (2, other), (3, gone), (4, mine), (5, mine)] {
            comms.made(CommId::new(number), maker, &[]);
        }
        for (number, starter) in [(4, mine), (5, gone)] {
            let open = ClientGroup { starter, ..ClientGroup::default() };
            comms.with(CommId::new(number), |record| record.open = Some(open));
        }
        comms.with(CommId::new(6), |_| {});
        comms.disconnected(gone);
        comms.with(CommId::new(1), |_| {});
        assert_eq!(comms.idle(mine), [3, 5, 1].map(CommId::new));
    }

    #[test]
    fn a_number_that_is_given_again_stands_for_another_communicator() {
        let (comms, comm, devices) = (Comms::default(), CommId::new(1), [7, 9].map(DeviceId::new));
        comms.made(comm, ConnectionId(1), &devices);
        comms.with(comm, |record| {
            record.open = Some(ClientGroup::default());
            record.marked.insert(devices[0]);
        });
        comms.made(comm, ConnectionId(2), &devices);
        comms.with(comm, |record| {
            assert!(record.open.is_none() && record.marked.is_empty());
            assert_eq!((record.maker, &record.ranks[..]), (Some(ConnectionId(2)), &devices[..]));
        });
    }

    #[test]
    fn devices_that_have_joined_are_ranked_behind_all_that_there_were() {
        let [first, lost, third, newcomer] = [7, 8, 9, 10].map(DeviceId::new);
        let mut record = CommRecord { ranks: vec![first, lost, third], ..CommRecord::default() };
        assert_eq!(record.ranks_of(&[first, third]), [first, lost, third]);
        assert_eq!(record.ranks_of(&[first, third, newcomer]), [first, lost, third, newcomer]);
        assert_eq!(CommRecord::default().ranks_of(&[third]), [third], "of another front");
    }

    #[test]
    fn a_rank_without_an_address_has_its_operand_where_the_memory_begins() {
        let devices = [7, 9].map(DeviceId::new);
        let addresses = BTreeMap::from([(devices[1], 0x2000)]);
        let call = AllReduce { count: 3, op: ReduceOp::Max, addresses }.on(&devices);
        assert_eq!((&call.send, &call.recv), (&vec![0x1000, 0x2000], &vec![0x1000, 0x2000]));
        assert_eq!(call.count, 3);
    }
}
