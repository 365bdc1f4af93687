//! What all services of a front share.

use shmccl::coordinator::{Client, CommId, CoordinatorError, DeviceId, DeviceStatus, RequestError};

use crate::comms::Comms;
use crate::connections::Connections;
use crate::refusal::Refusal;

/// The longest message by default: a device's memory, and what stands around it.
pub(crate) const MAX_MESSAGE: usize = (64 << 20) + (64 << 10);

/// What all listeners share.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) connections: Connections,
    pub(crate) comms: Comms,
    /// The longest message that is taken or given.
    pub(crate) max_message: usize,
}

impl Front {
    pub(crate) fn new(connections: Connections, max_message: usize) -> Self {
        Self { connections, comms: Comms::default(), max_message }
    }

    /// Forgets the communicators that have ended, by a list of all `devices`.
    ///
    /// # Errors
    /// Returns the errors of the connection.
    pub(crate) fn forget_ended(&self, client: &mut Client, devices: &[DeviceStatus]) -> Result<(), Refusal> {
        let is_there = |comm: &CommId| devices.iter().any(|it| it.comm == Some(*comm));
        for comm in self.comms.all().into_iter().filter(|comm| !is_there(comm)) {
            match client.status(comm, false) {
                // It was made since.
                Ok(status) if !status.state.has_ended() => {}
                Ok(_) | Err(CoordinatorError::Refused(_)) => self.comms.forget(comm),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns the communicator of a device.
///
/// # Errors
/// [`RequestError::NoSuchDevice`], [`RequestError::NotAllocated`]; those of the connection.
pub(crate) fn owner(client: &mut Client, device: DeviceId) -> Result<CommId, Refusal> {
    owner_among(&client.devices()?, device)
}

/// Returns the communicator of a device, by the list of `all`.
///
/// # Errors
/// [`RequestError::NoSuchDevice`], [`RequestError::NotAllocated`].
pub(crate) fn owner_among(all: &[DeviceStatus], device: DeviceId) -> Result<CommId, Refusal> {
    let found = all.iter().find(|it| it.device == device);
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
