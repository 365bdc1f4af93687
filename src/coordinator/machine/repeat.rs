//! Groups that are executed again after a loss, by the devices that are left.
//!
//! A client asks for that when it starts a group, or with a call that it executes alone. When an
//! epoch ends before all members have executed the group, those that had executed it take it back
//! as they go on (`device/undo.rs`). Then the group begins anew in the next epoch, under the next
//! number. A repeat is in progress until it succeeds or is given up. Until then nobody is told that
//! nothing is in progress, and no other group begins.
//!
//! | the epoch ends | then |
//! |---|---|
//! | while the group takes calls | it stays open, and takes more |
//! | while it is executed | the members go on, and execute it again |
//! | for the last try, or nobody can go on | the communicator has failed, as by any group |
//!
//! Only an all_reduce means the same on fewer devices: it has no root that may be lost, and no
//! blocks that count ranks. A group with another operation is not repeated.
//!
//! The next coordinator knows of no repeat: for it the group has succeeded or failed as any.

use super::CoordinatorMachine;
use super::comm::{Comm, CommStage, WaitCondition};
use crate::collective::Operation;
use crate::coordinator::call::{DeviceCall, GroupWork};
use crate::coordinator::error::RequestError;
use crate::coordinator::id::DeviceId;

/// How often a group is tried that fails each time. No communicator has more devices to lose.
pub(super) const MOST_TRIES: u32 = 64;

/// A group that is in progress until it succeeds, or has failed [`MOST_TRIES`] times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    /// The calls, with an address for each member of the present epoch.
    pub(crate) calls: Vec<DeviceCall>,
    /// How often it has failed.
    pub(crate) failures: u32,
}

/// Returns whether a call means the same on fewer devices.
pub(super) fn can_repeat(call: &DeviceCall) -> bool {
    call.operation == Operation::AllReduce
}

/// Returns a call with addresses for the devices of `from` as one for those of `to`.
///
/// # Errors
/// [`RequestError::WrongCount`] where a device of `to` has no address; [`RequestError::NoSuchRoot`]
/// where the root is not among them.
pub(super) fn call_among(
    mut call: DeviceCall,
    from: &[DeviceId],
    to: &[DeviceId],
) -> Result<DeviceCall, RequestError> {
    for given in [call.send.len(), call.recv.len()] {
        if given != from.len() {
            return Err(RequestError::WrongCount { given, devices: from.len() });
        }
    }
    if from == to {
        return Ok(call);
    }
    let place = |device: &DeviceId| from.iter().position(|it| it == device);
    let places: Option<Vec<usize>> = to.iter().map(place).collect();
    let places = places.ok_or(RequestError::WrongCount { given: from.len(), devices: to.len() })?;
    let root = (0..).zip(&places).find_map(|(rank, place)| (*place == call.root as usize).then_some(rank));
    call.root = match root {
        Some(root) => root,
        None if can_repeat(&call) => 0,
        None => return Err(RequestError::NoSuchRoot { root: call.root, devices: to.len() }),
    };
    for addresses in [&mut call.send, &mut call.recv] {
        *addresses = places.iter().map(|place| addresses[*place]).collect();
    }
    Ok(call)
}

/// Returns the calls of a group as those of the devices that are left.
fn calls_among(calls: Vec<DeviceCall>, from: &[DeviceId], to: &[DeviceId]) -> Option<Vec<DeviceCall>> {
    calls.into_iter().map(|call| call_among(call, from, to).ok()).collect()
}

impl Comm {
    /// Returns whether a group takes calls that outlives a loss.
    pub(super) fn has_lasting_group(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.repeats)
    }

    /// Drops the group that takes calls, unless it outlives a loss.
    pub(super) fn drop_open_group(&mut self) {
        self.open.take_if(|open| !open.repeats);
    }

    /// Has groups that outlive a loss be groups of `members`, who are about to be in the next
    /// epoch.
    pub(super) fn carry_groups_over(&mut self, members: &[DeviceId]) {
        self.drop_open_group();
        let from = &self.members;
        self.open = self.open.take().and_then(|mut open| {
            open.calls = calls_among(open.calls, from, members)?;
            Some(open)
        });
        self.repeat = self.repeat.take().and_then(|mut repeat| {
            repeat.calls = calls_among(repeat.calls, from, members)?;
            Some(repeat)
        });
    }

    /// Counts a failure of the group that is repeated. Returns whether it is to be tried again.
    pub(super) fn is_tried_again(&mut self) -> bool {
        self.repeat.iter_mut().for_each(|repeat| repeat.failures += 1);
        self.repeat.take_if(|repeat| repeat.failures >= MOST_TRIES);
        self.repeat.is_some()
    }
}

impl CoordinatorMachine {
    /// Begins the next try of a group that is repeated, if there is one, in a communicator that is
    /// ready. Returns whether it has.
    pub(super) fn try_again(&mut self, comm: &mut Comm) -> bool {
        let Some(repeat) = &comm.repeat else { return false };
        comm.groups += 1;
        comm.stage = CommStage::Running { work: GroupWork::Calls(repeat.calls.clone()) };
        self.counts.started += 1;
        for (_, condition) in &mut comm.waiting {
            if *condition == WaitCondition::Begun {
                *condition = WaitCondition::Settled;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::{DataType, ReduceOp};

    fn call(operation: Operation, root: u32) -> DeviceCall {
        DeviceCall {
            operation,
            data_type: DataType::F64,
            op: ReduceOp::Sum,
            root,
            count: 1,
            send: vec![10, 20, 30],
            recv: vec![11, 21, 31],
        }
    }

    #[test]
    fn whoever_is_left_keeps_the_addresses_that_it_had() {
        let from = [7, 9, 5].map(DeviceId::new);
        let among = |collective, root, to: &[u32]| {
            let to: Vec<_> = to.iter().copied().map(DeviceId::new).collect();
            call_among(call(collective, root), &from, &to)
        };
        let left = among(Operation::AllReduce, 1, &[7, 5]).unwrap();
        assert_eq!((left.send, left.recv, left.root), (vec![10, 30], vec![11, 31], 0));
        assert_eq!(among(Operation::Broadcast, 2, &[7, 5]).unwrap().root, 1);
        let rootless = Err(RequestError::NoSuchRoot { root: 1, devices: 2 });
        assert_eq!(among(Operation::Broadcast, 1, &[7, 5]), rootless);
        let joined = Err(RequestError::WrongCount { given: 3, devices: 2 });
        assert_eq!(among(Operation::AllReduce, 0, &[7, 8]), joined, "a newcomer has none");
        let short = call_among(call(Operation::AllReduce, 0), &from[..2], &from[..2]);
        assert_eq!(short, Err(RequestError::WrongCount { given: 3, devices: 2 }));
    }
}
