//! What all services of a front share.

use shmccl::coordinator::{Client, CommId, DeviceId, RequestError};

use crate::comms::Comms;
use crate::connections::Connections;
use crate::refusal::Refusal;
use crate::streams::Streams;

/// The longest message by default: a device's memory, and what stands around it.
pub(crate) const MAX_MESSAGE: usize = (64 << 20) + (64 << 10);

/// What all listeners share.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) connections: Connections,
    pub(crate) comms: Comms,
    pub(crate) streams: Streams,
    /// The longest message that is taken or given.
    pub(crate) max_message: usize,
}

impl Front {
    pub(crate) fn new(connections: Connections, max_message: usize) -> Self {
        Self { connections, comms: Comms::default(), streams: Streams::default(), max_message }
    }
}

/// Returns the communicator of a device.
///
/// # Errors
/// [`RequestError::NoSuchDevice`], [`RequestError::NotAllocated`]; those of the connection.
pub(crate) fn owner(client: &mut Client, device: DeviceId) -> Result<CommId, Refusal> {
    let found = client.devices()?.into_iter().find(|it| it.device == device);
    let found = found.ok_or(RequestError::NoSuchDevice { device })?;
    Ok(found.comm.ok_or(RequestError::NotAllocated { device })?)
}

/// Returns the device of this number, as it has come in a message.
///
/// # Errors
/// [`RequestError::NoSuchDevice`] for a number that no device has.
pub(crate) fn device_of(number: u64) -> Result<DeviceId, Refusal> {
    let missing = || tonic::Status::not_found(format!("there is no device {number}"));
    Ok(DeviceId::new(u32::try_from(number).map_err(|_| missing())?))
}
