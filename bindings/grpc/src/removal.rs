//! Devices that a client has taken out of a communicator on purpose.
//!
//! Such a device keeps its memory, which can be copied to and from. In an operation it contributes
//! what changes no result, and afterwards its memory is what it was before.

use std::collections::BTreeSet;

use shmccl::coordinator::{Client, CommStatus, DeviceId, DeviceReduceOp, GroupId};
use tonic::Status;

use crate::comms::AllReduce;
use crate::front::Front;
use crate::groups;
use crate::refusal::Refusal;

/// Takes the device of `rank` out of all later operations.
///
/// # Errors
/// `InvalidArgument` for a rank that is not there, `FailedPrecondition` for the last one.
pub(crate) fn mark(front: &Front, status: &CommStatus, rank: u32) -> Result<(), Refusal> {
    let comm = status.comm;
    let device = status.devices.get(rank as usize).copied().ok_or_else(|| {
        let n = status.devices.len();
        Status::invalid_argument(format!("communicator {comm} has no rank {rank}: it has {n} devices"))
    })?;
    front.comms.with(comm, |record| {
        let marked: BTreeSet<_> = record.marked.iter().copied().chain([device]).collect();
        if status.devices.iter().all(|it| marked.contains(it)) {
            let text =
                format!("device {device} is the last one of communicator {comm}; CommDestroy gives it back");
            return Err(Status::failed_precondition(text).into());
        }
        record.marked = marked;
        Ok(())
    })
}

/// Executes `call` among the devices that are not `marked`.
///
/// # Errors
/// `FailedPrecondition` in a group: what a marked device contributes is only known when the group
/// begins. Those of [`groups::call`] and of copies.
pub(crate) fn call(
    client: &mut Client,
    status: &CommStatus,
    marked: &BTreeSet<DeviceId>,
    call: &AllReduce,
    group: Option<GroupId>,
) -> Result<(), Refusal> {
    if group.is_some() {
        let text = "a communicator with a removed device takes no calls in a group that is executed at its end; \
                    call outside of a group, or make another communicator";
        return Err(Status::failed_precondition(text).into());
    }
    groups::settled(client, status.comm)?;
    let of = call.on(&status.devices);
    of.check(&ranges(client, &status.devices)?)?;
    let len = call.count * 8;
    let bytes = neutral(client, status, marked, call)?;
    let mut kept = Vec::new();
    for (device, address) in status.devices.iter().zip(&of.send).filter(|(it, _)| marked.contains(it)) {
        kept.push((*device, *address, client.read_device(*device, *address, len)?));
        client.copy_host_to_device(*device, *address, &bytes)?;
    }
    let outcome = groups::call(client, status.comm, &status.devices, call, None, false);
    for (device, address, bytes) in kept {
        client.copy_host_to_device(device, address, &bytes)?;
    }
    outcome
}

/// Returns the addresses of `devices`.
fn ranges(
    client: &mut Client,
    devices: &[DeviceId],
) -> Result<Vec<(DeviceId, shmccl::coordinator::AddressRange)>, Refusal> {
    devices.iter().map(|device| Ok((*device, client.address_range(*device)?))).collect()
}

/// Returns an operand that changes no result: zeros below zero, which leave the sign of a sum of
/// zeros; ones; or the operand of another device, of which the least or greatest is the same.
fn neutral(
    client: &mut Client,
    status: &CommStatus,
    marked: &BTreeSet<DeviceId>,
    call: &AllReduce,
) -> Result<Vec<u8>, Refusal> {
    let count = usize::try_from(call.count).unwrap_or(usize::MAX);
    let fill = |element: f64| element.to_le_bytes().repeat(count);
    match call.op {
        DeviceReduceOp::Sum => Ok(fill(-0.0)),
        DeviceReduceOp::Prod => Ok(fill(1.0)),
        _ => {
            let addresses = call.on(&status.devices).send;
            let mut others = status.devices.iter().zip(addresses).filter(|(it, _)| !marked.contains(it));
            let Some((device, address)) = others.next() else { return Ok(fill(0.0)) };
            Ok(client.read_device(*device, address, call.count * 8)?)
        }
    }
}
