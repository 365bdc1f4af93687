//! Copies of a client to and from a device's memory, over connections of their own.
//!
//! Where nothing moves over such a connection, the client asks the coordinator whether the device
//! still lives ([`WatchedStream`]).

use std::io::{self, ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{Client, unexpected};
use crate::coordinator::call::{AddressRange, Bytes};
use crate::coordinator::deadline_stream::Address;
use crate::coordinator::error::{CoordinatorError, RequestError, Result};
use crate::coordinator::handshake::{CopyDirection, CopyOrder, Hello, HelloReply, PeerRole, check_peer};
use crate::coordinator::id::DeviceId;
use crate::coordinator::request::{ClientRequest, Location, Reply};
use crate::coordinator::wire::{IoContext, read, write};
use crate::error::Error;
use crate::shm::HostKernel;
use crate::sync::grace::Grace;

const DEVICE: &str = "device";

/// The most bytes that are taken of a source at a time: as many as a device takes at a time.
const PIECE: usize = 1 << 20;

/// How long nothing moves until the coordinator is asked, and how long its answer may take.
const QUIET: Duration = Duration::from_secs(1);

impl Client {
    /// Returns the addresses of a device that belongs to a communicator.
    ///
    /// # Errors
    /// [`RequestError::NoSuchDevice`], [`RequestError::NotAllocated`]; [`RequestError::WrongState`]
    /// while its communicator comes or goes.
    pub fn address_range(&mut self, device: DeviceId) -> Result<AddressRange> {
        self.locate(device, false).map(|location| location.range)
    }

    /// Copies `source` to the bytes from `address` of a device on. The coordinator only says where
    /// the device is.
    ///
    /// # Ordering
    /// When it returns, all bytes are there for later groups and copies. It is in no order with a
    /// group that is in progress, nor with another copy at the same time: bytes that both touch may
    /// have any value. The settled [`Client::status`] waits until nothing is in progress.
    ///
    /// # Errors
    /// [`RequestError::OutOfRange`], [`RequestError::NotAllocated`],
    /// [`RequestError::NoSuchDevice`]: nothing has changed, unless the device is taken from its
    /// communicator meanwhile. [`CoordinatorError::Disconnected`] when the device has died, or
    /// counts as lost since it hangs; [`Error::Timeout`].
    pub fn copy_host_to_device(&mut self, device: DeviceId, address: u64, source: &[u8]) -> Result<()> {
        let bytes = Bytes { address, len: source.len() as u64 };
        // The device takes none of it if it refuses the order.
        self.put(device, bytes, Answers::Behind, |stream, copying| {
            stream.write_all(source).map_err(|error| copying.error(error))
        })
    }

    /// Copies the next `len` bytes of `source` to the bytes from `address` of a device on, like
    /// [`Client::copy_host_to_device`], but a MiB at a time.
    ///
    /// The source has half a minute for each MiB. It is read only when it is known that the device
    /// has these addresses, and memory for them.
    ///
    /// # Errors
    /// Fails as [`Client::copy_host_to_device`] does, or with [`Error::Os`] when the source fails,
    /// or ends before that many bytes. Then the device has whole MiB of the bytes that had come,
    /// from `address` on.
    pub fn write_device(
        &mut self,
        device: DeviceId,
        address: u64,
        len: u64,
        mut source: impl Read,
    ) -> Result<()> {
        let room = usize::try_from(len).map_or(PIECE, |len| len.min(PIECE));
        self.put(device, Bytes { address, len }, Answers::Ahead, |stream, copying| {
            let (mut piece, mut left) = (vec![0; room], len);
            while left > 0 {
                let next = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
                source.read_exact(&mut piece[..next]).map_err(|error| unread(error, len))?;
                stream.write_all(&piece[..next]).map_err(|error| copying.error(error))?;
                left -= next as u64;
            }
            Ok(())
        })
    }

    /// Has `feed` send the bytes that are to be copied to a device. The answers to the order are
    /// awaited before or after that.
    fn put(
        &mut self,
        device: DeviceId,
        bytes: Bytes,
        answers: Answers,
        feed: impl FnOnce(&mut WatchedStream<'_>, IoContext) -> Result<()>,
    ) -> Result<()> {
        let copying = self.copying();
        self.order(device, bytes, CopyDirection::Put)?.run(|stream| {
            if answers == Answers::Ahead {
                admitted(stream, copying)?;
            }
            let fed = feed(stream, copying);
            let is_hang_up =
                |error: &CoordinatorError| matches!(error, CoordinatorError::Disconnected { .. });
            if fed.as_ref().is_err_and(|error| !is_hang_up(error)) {
                return fed;
            }
            // A device that takes no more sends the reason before it hangs up.
            let mut told = Ok(());
            if answers == Answers::Behind {
                told = admitted(stream, copying);
            }
            let told = told.and_then(|()| Ok(read::<Result<(), RequestError>>(stream, copying)??));
            match (fed, told) {
                (Err(hang_up), Ok(()) | Err(CoordinatorError::Disconnected { .. })) => Err(hang_up),
                (_, told) => told,
            }
        })
    }

    /// Copies the bytes from `address` of a device on to `target`.
    ///
    /// The order with groups and other copies is that of [`Client::copy_host_to_device`]. The
    /// result of a group is there when its status is settled, and not when the call returns.
    ///
    /// # Errors
    /// Fails as [`Client::copy_host_to_device`] does.
    pub fn copy_device_to_host(&mut self, device: DeviceId, address: u64, target: &mut [u8]) -> Result<()> {
        let bytes = Bytes { address, len: target.len() as u64 };
        let copying = self.copying();
        let mut stream = self.open(device, bytes, CopyDirection::Get)?;
        stream.run(|stream| stream.read_exact(target).map_err(|error| copying.error(error)))
    }

    /// Returns `len` bytes from `address` of a device on, like [`Client::copy_device_to_host`], but
    /// allocates memory for them when it is known that the device has them.
    ///
    /// # Errors
    /// Fails as [`Client::copy_host_to_device`] does, or with [`Error::ResourceLimit`] when there
    /// is no memory.
    pub fn read_device(&mut self, device: DeviceId, address: u64, len: u64) -> Result<Vec<u8>> {
        let mut target = Vec::new();
        self.read_device_in_pieces(device, address, len, len, |piece| {
            target = piece;
            ControlFlow::Continue(())
        })?;
        Ok(target)
    }

    /// Hands `len` bytes from `address` of a device on to `sink`, one behind the other, at most
    /// `piece` at a time and as they come, until it breaks. Otherwise like [`Client::read_device`].
    ///
    /// # Errors
    /// Fails as [`Client::read_device`] does. What was handed on before is right.
    pub fn read_device_in_pieces(
        &mut self,
        device: DeviceId,
        address: u64,
        len: u64,
        piece: u64,
        mut sink: impl FnMut(Vec<u8>) -> ControlFlow<()>,
    ) -> Result<()> {
        let copying = self.copying();
        self.open(device, Bytes { address, len }, CopyDirection::Get)?.run(|stream| {
            let mut left = len;
            while left > 0 {
                let next = read_piece(stream, left.min(piece.max(1)), copying)?;
                left -= next.len() as u64;
                if sink(next).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Connects with a device, and has it agree to a copy.
    fn open(
        &mut self,
        device: DeviceId,
        bytes: Bytes,
        direction: CopyDirection,
    ) -> Result<WatchedStream<'_>> {
        let copying = self.copying();
        let mut stream = self.order(device, bytes, direction)?;
        stream.run(|stream| admitted(stream, copying))?;
        Ok(stream)
    }

    /// Connects with a device, and sends it the order for a copy right behind the greeting. The
    /// answers to both are [awaited](admitted) later.
    fn order(
        &mut self,
        device: DeviceId,
        bytes: Bytes,
        direction: CopyDirection,
    ) -> Result<WatchedStream<'_>> {
        let location = self.locate(device, self.is_behind_groups)?;
        if self.comm.is_some_and(|comm| comm != location.comm) {
            return Err(RequestError::NotAllocated { device }.into());
        }
        location.range.check(device, bytes)?;
        let (copying, comm) = (self.copying(), location.comm);
        let mut stream = WatchedStream::connect(self, device, location)?;
        stream.run(|stream| {
            let mut both = Vec::new();
            write(&mut both, &Hello::new(PeerRole::Client), copying)?;
            write(&mut both, &CopyOrder { device, comm, bytes, direction }, copying)?;
            stream.write_all(&both).map_err(|error| copying.error(error))
        })?;
        Ok(stream)
    }

    fn locate(&mut self, device: DeviceId, settled: bool) -> Result<Location> {
        // A group takes as long as it does.
        let patience = if settled { Duration::MAX } else { self.timeout };
        let request = ClientRequest::Locate { device, settled };
        let Reply::Located(location) = self.ask_within(request, patience)? else {
            return Err(unexpected());
        };
        Ok(location)
    }

    /// Returns how long to wait for a device at a time: no longer than the slices in which the
    /// timeout is counted. A timeout of zero would be none.
    fn slice(&self) -> Duration {
        Grace::begin(self.timeout, Duration::ZERO).next_look().clamp(Duration::from_millis(1), QUIET)
    }

    /// Asks the coordinator whether the device is where it was. A coordinator that does not answer,
    /// or is dead, says nothing of the device.
    ///
    /// # Errors
    /// [`CoordinatorError::Disconnected`] when the device is not there, a [`RequestError`] when it
    /// may not be copied to any more.
    fn check(&mut self, device: DeviceId, was: &Location) -> Result<()> {
        match self.ask_within(ClientRequest::Locate { device, settled: false }, QUIET) {
            Ok(Reply::Located(now)) if (now.comm, &now.socket) == (was.comm, &was.socket) => Ok(()),
            Ok(Reply::Located(_)) | Err(CoordinatorError::Refused(RequestError::NoSuchDevice { .. })) => {
                Err(CoordinatorError::Disconnected { peer: DEVICE })
            }
            Err(CoordinatorError::Refused(refusal)) => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    fn copying(&self) -> IoContext {
        IoContext { peer: DEVICE, operation: "copying to or from a device", patience: self.timeout }
    }
}

/// Whether the answers to an order are awaited ahead of the bytes, or behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Ahead,
    Behind,
}

/// Waits until a device agrees to a copy.
fn admitted(stream: &mut WatchedStream<'_>, copying: IoContext) -> Result<()> {
    let greeting = IoContext { operation: "greeting the device", ..copying };
    read::<HelloReply>(stream, greeting)?.check()?;
    Ok(read::<Result<(), RequestError>>(stream, copying)??)
}

/// Returns the next `len` bytes of a device.
fn read_piece(stream: &mut WatchedStream<'_>, len: u64, copying: IoContext) -> Result<Vec<u8>> {
    let mut piece = Vec::new();
    let room = usize::try_from(len).ok().filter(|len| piece.try_reserve_exact(*len).is_ok());
    room.ok_or_else(|| Error::ResourceLimit {
        resource: "memory",
        action: "copying from a device",
        remedy: "copy less at a time",
        source: ErrorKind::OutOfMemory.into(),
    })?;
    // Read part by part, each is in the cache when it is filled.
    let came = stream.take(len).read_to_end(&mut piece).map_err(|error| copying.error(error))?;
    match came as u64 == len {
        true => Ok(piece),
        false => Err(copying.error(ErrorKind::UnexpectedEof.into())),
    }
}

/// Returns the error for a source of `len` bytes that gives no more.
fn unread(error: io::Error, len: u64) -> Error {
    let error = match error.kind() {
        ErrorKind::UnexpectedEof => io::Error::new(error.kind(), format!("it has ended before {len} bytes")),
        _ => error,
    };
    Error::os("reading what is to be copied to a device", error)
}

/// A connection with a device, over which nothing may move for as long as the client waits, and no
/// longer than the device is known to live.
#[derive(Debug)]
struct WatchedStream<'c> {
    stream: UnixStream,
    client: &'c mut Client,
    device: DeviceId,
    /// Where the device was when the client asked.
    location: Location,
    /// Why the coordinator does not let the copy go on, where it has said so.
    ended_by: Option<CoordinatorError>,
}

impl<'c> WatchedStream<'c> {
    /// Connects with the device at `location`, as the coordinator of `client` has answered.
    ///
    /// # Errors
    /// [`CoordinatorError::Disconnected`], [`CoordinatorError::OtherUser`]; a [`RequestError`] of
    /// the coordinator; [`Error::Timeout`], [`Error::Os`].
    fn connect(client: &'c mut Client, device: DeviceId, location: Location) -> Result<Self> {
        let context =
            IoContext { peer: DEVICE, operation: "connecting with a device", patience: client.timeout };
        let address =
            Address::of_name(&location.socket).map_err(|error| Error::os(context.operation, error))?;
        let mut grace = Grace::begin(client.timeout, HostKernel::clock());
        let stream = loop {
            let error = match address.connect_within(client.slice()) {
                Ok(stream) => break stream,
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::ConnectionRefused => return Err(CoordinatorError::Disconnected { peer: DEVICE }),
                ErrorKind::TimedOut if !grace.is_over(HostKernel::clock()) => {
                    client.check(device, &location)?
                }
                _ => return Err(context.error(error)),
            }
        };
        check_peer(&stream)?;
        let slice = Some(client.slice());
        let set = stream.set_read_timeout(slice).and_then(|()| stream.set_write_timeout(slice));
        set.map_err(|error| Error::os("setting a deadline", error))?;
        Ok(Self { stream, client, device, location, ended_by: None })
    }

    /// Runs `action` over the connection. An answer of the coordinator that ends it is the error
    /// then.
    ///
    /// # Errors
    /// Returns the errors of `action`, [`CoordinatorError::Disconnected`], a [`RequestError`] of
    /// the coordinator.
    fn run<T>(&mut self, action: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        action(self).map_err(|error| self.ended_by.take().unwrap_or(error))
    }

    /// Tries until something moves.
    fn retry(&mut self, mut attempt: impl FnMut(&UnixStream) -> io::Result<usize>) -> io::Result<usize> {
        let mut grace = Grace::begin(self.client.timeout, HostKernel::clock());
        loop {
            match attempt(&self.stream) {
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && !grace.is_over(HostKernel::clock()) => {}
                moved => return moved,
            }
            if let Err(error) = self.client.check(self.device, &self.location) {
                self.ended_by = Some(error);
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

impl Read for WatchedStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(|mut stream| stream.read(buffer))
    }
}

impl Write for WatchedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(|mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
