//! Copies of a client to and from a device's memory, over connections of their own.

use std::io::{self, ErrorKind, Read, Write};

use super::watched::{DEVICE, WatchedStream};
use super::{Client, unexpected};
use crate::coordinator::call::{AddressRange, Bytes};
use crate::coordinator::fault::CoordinatorError;
use crate::coordinator::frame::{IoContext, broken, read, write};
use crate::coordinator::greeting::{CopyDirection, CopyOrder, PeerRole, greet_by};
use crate::coordinator::id::DeviceId;
use crate::coordinator::refusal::RequestError;
use crate::coordinator::request::{Location, Reply, Request};
use crate::error::{Error, Result};

/// What is waited in when a device does not answer.
const COPYING: &str = "copying to or from a device";

/// How much is taken of a source at a time: as much as a device takes at a time.
const PIECE: usize = 1 << 20;

impl Client {
    /// The addresses of a device that belongs to a communicator.
    ///
    /// # Errors
    /// [`RequestError::NoSuchDevice`], [`RequestError::NotAllocated`]; [`RequestError::WrongState`] while its communicator comes or goes.
    pub fn address_range(&mut self, device: DeviceId) -> Result<AddressRange> {
        self.locate(device).map(|location| location.range)
    }

    /// Copies `source` to the bytes from `address` of a device on. The coordinator only says where the device is.
    ///
    /// # Ordering
    /// When it returns all bytes are there, for groups that are called then, and copies. With a group that is in progress it is in no
    /// order, nor with another copy at the same time: what both have to do with is whatever comes of it. [`Client::status`] that is to be
    /// settled waits until nothing is in progress.
    ///
    /// # Errors
    /// [`RequestError::OutOfRange`], [`RequestError::NotAllocated`], [`RequestError::NoSuchDevice`]: nothing has changed, unless the device is taken from
    /// its communicator meanwhile. [`CoordinatorError::Lost`] when it has died, or counts as lost since it hangs;
    /// [`Error::Timeout`].
    pub fn copy_host_to_device(&mut self, device: DeviceId, address: u64, source: &[u8]) -> Result<()> {
        let bytes = Bytes { address, len: source.len() as u64 };
        self.put(device, bytes, |stream, copying| {
            stream.write_all(source).map_err(|error| broken(error, copying))
        })
    }

    /// Copies the next `len` bytes of `source` to the bytes from `address` of a device on, as [`Client::copy_host_to_device`], but without
    /// room for all of them: a MiB at a time, for each of which the source has half a minute. It is read only when it is known that the
    /// device has these addresses, and memory for them.
    ///
    /// # Errors
    /// Those of [`Client::copy_host_to_device`]; [`Error::Os`] when the source fails, or ends before that many bytes. Then the device has
    /// whole MiB of what had come of it, from `address` on.
    pub fn write_device(
        &mut self,
        device: DeviceId,
        address: u64,
        len: u64,
        mut source: impl Read,
    ) -> Result<()> {
        let room = usize::try_from(len).map_or(PIECE, |len| len.min(PIECE));
        self.put(device, Bytes { address, len }, |stream, copying| {
            let (mut piece, mut left) = (vec![0; room], len);
            while left > 0 {
                let next = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
                source.read_exact(&mut piece[..next]).map_err(|error| unread(error, len))?;
                stream.write_all(&piece[..next]).map_err(|error| broken(error, copying))?;
                left -= next as u64;
            }
            Ok(())
        })
    }

    /// Has `feed` send what is to be copied to a device.
    fn put(
        &mut self,
        device: DeviceId,
        bytes: Bytes,
        feed: impl FnOnce(&mut WatchedStream<'_>, IoContext) -> Result<()>,
    ) -> Result<()> {
        let copying = self.copying();
        self.open(device, bytes, CopyDirection::Put)?.have(|stream| {
            let fed = feed(stream, copying);
            if fed.as_ref().is_err_and(|error| !is_hang_up(error)) {
                return fed;
            }
            // One that takes no more says why before it hangs up.
            match (fed, read::<std::result::Result<(), RequestError>>(stream, copying)) {
                (_, Ok(Err(refusal))) => Err(refusal.error()),
                (Ok(()), verdict) => verdict.map(drop),
                (hang_up, _) => hang_up,
            }
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
        let mut stream = self.open(device, bytes, CopyDirection::Get)?;
        stream.have(|stream| stream.read_exact(target).map_err(|error| broken(error, copying)))
    }

    /// Copies `len` bytes from `address` of a device on, as [`Client::copy_device_to_host`]. Room is made for them when it is
    /// known that the device has them.
    ///
    /// # Errors
    /// Those of [`Client::copy_host_to_device`]; [`Error::ResourceLimit`] when there is no room.
    pub fn read_device(&mut self, device: DeviceId, address: u64, len: u64) -> Result<Vec<u8>> {
        let copying = self.copying();
        let mut stream = self.open(device, Bytes { address, len }, CopyDirection::Get)?;
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
    fn open(
        &mut self,
        device: DeviceId,
        bytes: Bytes,
        direction: CopyDirection,
    ) -> Result<WatchedStream<'_>> {
        let location = self.locate(device)?;
        location.range.check(device, bytes).map_err(RequestError::error)?;
        let (copying, comm) = (self.copying(), location.comm);
        let mut stream = WatchedStream::dial(self, device, location)?;
        let Bytes { address, len } = bytes;
        stream.have(|stream| {
            let greeting = IoContext { operation: "greeting the device", ..copying };
            greet_by(stream, PeerRole::Client, greeting)?;
            write(stream, &CopyOrder { device, comm, address, len, direction }, copying)?;
            read::<std::result::Result<(), RequestError>>(stream, copying)?.map_err(RequestError::error)
        })?;
        Ok(stream)
    }

    fn locate(&mut self, device: DeviceId) -> Result<Location> {
        match self.ask(Request::Locate(device))? {
            Reply::Located(location) => Ok(location),
            _ => Err(unexpected()),
        }
    }

    fn copying(&self) -> IoContext {
        IoContext { peer: DEVICE, operation: COPYING, patience: self.timeout }
    }
}

/// The error for a source of `len` bytes that gives no more.
fn unread(error: io::Error, len: u64) -> Error {
    let error = match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(error.kind(), format!("it has ended before {len} bytes")),
        _ => error,
    };
    Error::os("reading what is to be copied to a device", error)
}

/// Whether the other side takes no more.
fn is_hang_up(error: &Error) -> bool {
    matches!(error, Error::Coordinator { fault: CoordinatorError::Lost { .. } })
}
