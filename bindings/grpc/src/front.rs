//! What all services of a front share.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shmccl::Error;
use shmccl::coordinator::{
    Client, CommId, CommStatus, CoordinatorError, DeviceId, DeviceStatus, RequestError,
};

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
    /// In which communicator each device was when it was last looked for.
    owners: Mutex<BTreeMap<DeviceId, CommId>>,
}

impl Front {
    pub(crate) fn new(connections: Connections, max_message: usize) -> Self {
        let owners = Mutex::default();
        Self { connections, comms: Comms::default(), streams: Streams::default(), max_message, owners }
    }

    /// Returns the communicator of a device, once nothing is in progress there.
    ///
    /// # Errors
    /// [`RequestError::NoSuchDevice`], [`RequestError::NotAllocated`]; those of the connection.
    pub(crate) fn settle(&self, client: &mut Client, device: DeviceId) -> Result<CommId, Refusal> {
        let known = self.owners().get(&device).copied();
        if let Some(comm) = known
            && let Ok(status) = settled(client, comm)
            && !status.state.has_ended()
            && status.devices.contains(&device)
        {
            return Ok(comm);
        }
        let comm = self.owner(client, device)?;
        settled(client, comm)?;
        Ok(comm)
    }

    /// Returns the communicator of a device.
    ///
    /// # Errors
    /// [`RequestError::NoSuchDevice`], [`RequestError::NotAllocated`]; those of the connection.
    pub(crate) fn owner(&self, client: &mut Client, device: DeviceId) -> Result<CommId, Refusal> {
        let all = client.devices()?;
        self.note_owners(&all);
        let found = all.iter().find(|it| it.device == device);
        let found = found.ok_or(RequestError::NoSuchDevice { device })?;
        Ok(found.comm.ok_or(RequestError::NotAllocated { device })?)
    }

    fn note_owners(&self, all: &[DeviceStatus]) {
        *self.owners() = all.iter().filter_map(|it| Some((it.device, it.comm?))).collect();
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<DeviceId, CommId>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until nothing is in progress, in a thread of a client.
///
/// # Errors
/// Those of [`Client::status`], but for its timeout.
pub(crate) fn settled(client: &mut Client, comm: CommId) -> Result<CommStatus, Refusal> {
    loop {
        match client.status(comm, true) {
            Err(CoordinatorError::Engine(Error::Timeout { .. })) => {}
            status => return Ok(status?),
        }
    }
}

/// Returns the device of this number, as it has come in a message.
///
/// # Errors
/// [`RequestError::NoSuchDevice`] for a number that no device has.
pub(crate) fn device_of(number: u64) -> Result<DeviceId, Refusal> {
    let missing = || tonic::Status::not_found(format!("there is no device {number}"));
    Ok(DeviceId::new(u32::try_from(number).map_err(|_| missing())?))
}
