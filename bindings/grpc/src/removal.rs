//! Devices that a client has taken out of a communicator on purpose.
//!
//! Such a device keeps its memory, which can be copied to and from. In an operation it contributes
//! what changes no result, and afterwards its memory is what it was before.

use std::collections::BTreeSet;

use shmccl::coordinator::{Client, CommId, CommStatus, DeviceId};
use shmccl::reduce::ReduceOp;
use tonic::Status;

use crate::comms::AllReduce;
use crate::connections::{Connections, Pace};
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

/// Returns the refusal of a call in a group that is executed at its end. What a marked device
/// contributes is only known when the group begins.
pub(crate) fn in_a_group() -> Refusal {
    let text = "a communicator with a removed device takes no calls in a group that is executed at its end; \
                call outside of a group, or make another communicator";
    Status::failed_precondition(text).into()
}

/// Executes `call` among the `devices` that are not `marked`. Returns whether it was executed, and
/// not put into a group.
///
/// # Errors
/// Returns the errors of [`groups::call`] and of copies.
pub(crate) async fn call(
    coordinator: &Connections,
    comm: CommId,
    devices: &[DeviceId],
    marked: BTreeSet<DeviceId>,
    call: &AllReduce,
) -> Result<bool, Refusal> {
    groups::status_of(coordinator, comm, true).await?;
    let (all, of) = (devices.to_vec(), call.clone());
    let set = move |client: &mut Client| {
        client.keep_to(Some(comm));
        set_neutral(client, &all, &marked, &of)
    };
    let kept = coordinator.ask(Pace::Slow, set).await?;
    let outcome = groups::call(coordinator, comm, devices, call, None, false).await;
    let restore = move |client: &mut Client| {
        client.keep_to(Some(comm));
        for Kept { device, address, bytes } in kept {
            client.copy_host_to_device(device, address, &bytes)?;
        }
        Ok(())
    };
    coordinator.ask(Pace::Slow, restore).await?;
    outcome
}

/// Bytes of a marked device from before an operation.
struct Kept {
    device: DeviceId,
    address: u64,
    bytes: Vec<u8>,
}

/// Has `marked` ones of `devices` contribute what changes no result. Returns what they had there.
fn set_neutral(
    client: &mut Client,
    devices: &[DeviceId],
    marked: &BTreeSet<DeviceId>,
    call: &AllReduce,
) -> Result<Vec<Kept>, Refusal> {
    let of = call.on(devices);
    of.check(&ranges(client, devices)?)?;
    let len = call.count * 8;
    let operand = neutral(client, devices, marked, call)?;
    let mut kept = Vec::new();
    for (device, address) in devices.iter().zip(&of.send).filter(|(it, _)| marked.contains(it)) {
        let (device, address) = (*device, *address);
        kept.push(Kept { device, address, bytes: client.read_device(device, address, len)? });
        client.copy_host_to_device(device, address, &operand)?;
    }
    Ok(kept)
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
    devices: &[DeviceId],
    marked: &BTreeSet<DeviceId>,
    call: &AllReduce,
) -> Result<Vec<u8>, Refusal> {
    let count = usize::try_from(call.count).unwrap_or(usize::MAX);
    let fill = |element: f64| element.to_le_bytes().repeat(count);
    match call.op {
        ReduceOp::Sum => Ok(fill(-0.0)),
        ReduceOp::Prod => Ok(fill(1.0)),
        _ => {
            let addresses = call.on(devices).send;
            let mut others = devices.iter().zip(addresses).filter(|(it, _)| !marked.contains(it));
            let Some((device, address)) = others.next() else { return Ok(fill(0.0)) };
            Ok(client.read_device(*device, address, call.count * 8)?)
        }
    }
}
