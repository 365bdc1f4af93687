//! Copies of a client to and from a device's memory, over connections of their own.

use std::io::{ErrorKind, Read, Write};

use super::watched::{DEVICE, Watched};
use super::{Client, unexpected};
use crate::coordinator::call::Bytes;
use crate::coordinator::frame::{Exchange, broken, read, write};
use crate::coordinator::greeting::{CopyOrder, Direction, Role, greet_by};
use crate::coordinator::id::DeviceId;
use crate::coordinator::refusal::Refusal;
use crate::coordinator::request::{Reply, Request};
use crate::error::{Error, Result};

/// What is waited in when a device does not answer.
const COPYING: &str = "copying to or from a device";

impl Client {
    /// Copies `source` to the bytes from `address` of a device on. The coordinator only says where the device is.
    ///
    /// # Ordering
    /// When it returns all bytes are there, for groups that are called then, and copies. With a group that is in progress it is in no
    /// order, nor with another copy at the same time: what both have to do with is whatever comes of it. [`Client::status`] that is to be
    /// settled waits until nothing is in progress.
    ///
    /// # Errors
    /// [`Refusal::OutOfRange`], [`Refusal::NotAllocated`], [`Refusal::NoSuchDevice`]: nothing has changed, unless the device is taken from
    /// its communicator meanwhile. [`Fault::Lost`](crate::coordinator::Fault::Lost) when it has died, or counts as lost since it hangs;
    /// [`Error::Timeout`].
    pub fn copy_host_to_device(&mut self, device: DeviceId, address: u64, source: &[u8]) -> Result<()> {
        let bytes = Bytes { address, len: source.len() as u64 };
        let copying = self.copying();
        self.open(device, bytes, Direction::Put)?.have(|stream| {
            stream.write_all(source).map_err(|error| broken(error, copying))?;
            read::<std::result::Result<(), Refusal>>(stream, copying)?.map_err(Refusal::error)
        })
    }

    /// Copies the bytes from `address` of a device on to `target`, in the order that [`Client::copy_host_to_device`] tells: a result is
    /// there when the status of its group is settled, and not as soon as that was called.
    ///
    /// # Errors
    /// Those of [`Client::copy_host_to_device`].
    pub fn copy_device_to_host(&mut self, device: DeviceId, address: u64, target: &mut [u8]) -> Result<()> {
        let bytes = Bytes { address, len: target.len() as u64 };
        let copying = self.copying();
        let mut stream = self.open(device, bytes, Direction::Get)?;
        stream.have(|stream| stream.read_exact(target).map_err(|error| broken(error, copying)))
    }

    /// Copies `len` bytes from `address` of a device on, as [`Client::copy_device_to_host`]. There is made room for them when it is known that the device has them.
    ///
    /// # Errors
    /// Those of [`Client::copy_host_to_device`]; [`Error::ResourceLimit`] when there is no room.
    pub fn read_device(&mut self, device: DeviceId, address: u64, len: u64) -> Result<Vec<u8>> {
        let copying = self.copying();
        let mut stream = self.open(device, Bytes { address, len }, Direction::Get)?;
        let mut target = Vec::new();
        let room = usize::try_from(len).ok().filter(|len| target.try_reserve_exact(*len).is_ok());
        let len = room.ok_or_else(|| Error::ResourceLimit {
            resource: "memory",
            action: "copying from a device",
            remedy: "copy less at a time",
            source: ErrorKind::OutOfMemory.into(),
        })?;
        target.resize(len, 0);
        stream.have(|stream| stream.read_exact(&mut target).map_err(|error| broken(error, copying)))?;
        Ok(target)
    }

    /// Connects with a device, and has it agree to a copy.
    fn open(&mut self, device: DeviceId, bytes: Bytes, direction: Direction) -> Result<Watched<'_>> {
        let Reply::Located(location) = self.ask(Request::Locate(device))? else {
            return Err(unexpected());
        };
        location.range.check(device, bytes).map_err(Refusal::error)?;
        let (copying, comm) = (self.copying(), location.comm);
        let mut stream = Watched::dial(self, device, location)?;
        let Bytes { address, len } = bytes;
        stream.have(|stream| {
            let greeting = Exchange { operation: "greeting the device", ..copying };
            greet_by(stream, Role::Client, greeting)?;
            write(stream, &CopyOrder { device, comm, address, len, direction }, copying)?;
            read::<std::result::Result<(), Refusal>>(stream, copying)?.map_err(Refusal::error)
        })?;
        Ok(stream)
    }

    fn copying(&self) -> Exchange {
        Exchange { peer: DEVICE, operation: COPYING, patience: self.timeout }
    }
}
