//! Copies of a client to and from a device's memory, over connections of their own.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use super::{Client, unexpected};
use crate::coordinator::call::Bytes;
use crate::coordinator::dial::Address;
use crate::coordinator::fault::Fault;
use crate::coordinator::frame::{Exchange, broken, read, write};
use crate::coordinator::greeting::{CopyOrder, Direction, Role, greet};
use crate::coordinator::id::DeviceId;
use crate::coordinator::refusal::Refusal;
use crate::coordinator::request::{Location, Reply, Request};
use crate::error::{Error, Result};

const DEVICE: &str = "device";

/// What is waited in when a device does not answer.
const COPYING: &str = "copying to or from a device";

impl Client {
    /// Copies `source` to the bytes from `address` of a device on. The coordinator only says where the device is.
    ///
    /// # Errors
    /// [`Refusal::OutOfRange`], [`Refusal::NotAllocated`], [`Refusal::NoSuchDevice`]: nothing has changed. [`Fault::Lost`]
    /// when the device has died; [`Error::Timeout`].
    pub fn copy_host_to_device(&mut self, device: DeviceId, address: u64, source: &[u8]) -> Result<()> {
        let bytes = Bytes { address, len: source.len() as u64 };
        let mut stream = self.open(device, bytes, Direction::Put)?;
        let copying = self.copying();
        stream.write_all(source).map_err(|error| broken(error, copying))?;
        read::<std::result::Result<(), Refusal>>(&mut stream, copying)?.map_err(Refusal::error)?;
        Ok(())
    }

    /// Copies the bytes from `address` of a device on to `target`.
    ///
    /// # Errors
    /// Those of [`Client::copy_host_to_device`].
    pub fn copy_device_to_host(&mut self, device: DeviceId, address: u64, target: &mut [u8]) -> Result<()> {
        let bytes = Bytes { address, len: target.len() as u64 };
        let mut stream = self.open(device, bytes, Direction::Get)?;
        let copying = self.copying();
        stream.read_exact(target).map_err(|error| broken(error, copying))
    }

    /// Copies `len` bytes from `address` of a device on. There is made room for them when it is known that the device has them.
    ///
    /// # Errors
    /// Those of [`Client::copy_host_to_device`]; [`Error::ResourceLimit`] when there is no room.
    pub fn read_device(&mut self, device: DeviceId, address: u64, len: u64) -> Result<Vec<u8>> {
        let mut stream = self.open(device, Bytes { address, len }, Direction::Get)?;
        let copying = self.copying();
        let mut target = Vec::new();
        let room = usize::try_from(len).ok().filter(|len| target.try_reserve_exact(*len).is_ok());
        let len = room.ok_or_else(|| Error::ResourceLimit {
            resource: "memory",
            action: "copying from a device",
            remedy: "copy less at a time",
            source: ErrorKind::OutOfMemory.into(),
        })?;
        target.resize(len, 0);
        stream.read_exact(&mut target).map_err(|error| broken(error, copying))?;
        Ok(target)
    }

    /// Connects with a device, and has it agree to a copy.
    fn open(&mut self, device: DeviceId, bytes: Bytes, direction: Direction) -> Result<UnixStream> {
        let Reply::Located(Location { comm, range, socket }) = self.ask(Request::Locate(device))? else {
            return Err(unexpected());
        };
        range.check(device, bytes).map_err(Refusal::error)?;
        let copying = self.copying();
        let dialled = Address::of_name(&socket).and_then(|address| address.dial(self.timeout));
        let mut stream = dialled.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => Fault::Lost { peer: DEVICE }.error(),
            _ => broken(error, Exchange { operation: "connecting with a device", ..copying }),
        })?;
        greet(&stream, Role::Client, DEVICE, self.timeout)?;
        let deadline = stream
            .set_read_timeout(Some(self.timeout))
            .and_then(|()| stream.set_write_timeout(Some(self.timeout)));
        deadline.map_err(|error| Error::os("setting a deadline", error))?;
        let Bytes { address, len } = bytes;
        write(&mut stream, &CopyOrder { device, comm, address, len, direction }, copying)?;
        read::<std::result::Result<(), Refusal>>(&mut stream, copying)?.map_err(Refusal::error)?;
        Ok(stream)
    }

    fn copying(&self) -> Exchange {
        Exchange { peer: DEVICE, operation: COPYING, patience: self.timeout }
    }
}
