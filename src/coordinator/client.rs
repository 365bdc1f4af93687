//! A client of the coordinator: allocates devices, runs operations on them, and copies to and from their memory.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::call::{Bytes, DeviceCall};
use super::dial::Address;
use super::directory::RuntimeDirectory;
use super::fault::Fault;
use super::frame::{Exchange, Frames, broken, read, write};
use super::greeting::{Answer, CopyOrder, Direction, Question, Role, greet};
use super::hurried::Hurried;
use super::id::{CommId, DeviceId, GroupId};
use super::metrics::Metrics;
use super::refusal::Refusal;
use super::request::{CommStatus, DeviceStatus, Location, Reply, Request};
use crate::error::{Error, Result};

const COORDINATOR: &str = "coordinator";
const DEVICE: &str = "device";

/// What is waited in when a coordinator, or a device, does not answer.
const ASKING: &str = "asking the coordinator";
const COPYING: &str = "copying to or from a device";

/// A connection with a coordinator.
///
/// Every method fails with [`Fault::Lost`] when the coordinator has ended: what it ordered goes on, and the next coordinator
/// knows of it. [`Error::Timeout`] says that it does not answer.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    timeout: Duration,
    number: u64,
    /// What has come of answers. One that comes after its deadline is passed over.
    incoming: Frames,
}

impl Client {
    /// Connects with the coordinator of `directory`. What it asks is answered within `timeout`, or is an error; a copy is one when
    /// nothing moves for as long.
    ///
    /// # Errors
    /// [`Error::Coordinator`] when there is none, or one of another version or user; [`Error::Timeout`], [`Error::Os`].
    pub fn connect(directory: &RuntimeDirectory, timeout: Duration) -> Result<Self> {
        let stream = connect(directory, timeout)?;
        greet(&stream, Role::Client, COORDINATOR, timeout)?;
        Ok(Self { stream, timeout, number: 0, incoming: Frames::default() })
    }

    /// Makes a communicator of so many free devices, which goes on by itself after a loss if it is to keep going.
    ///
    /// # Errors
    /// [`Refusal::NotEnoughDevices`], [`Refusal::BadSize`], [`Refusal::NotFormed`].
    pub fn init(&mut self, devices: u32, keep_going: bool) -> Result<CommStatus> {
        self.status_of(Request::Init { devices, keep_going })
    }

    /// How a communicator is doing, or has ended; where it is to be settled, when nothing is in progress any more.
    ///
    /// # Errors
    /// [`Refusal::NoSuchComm`]; [`Refusal::Ended`] where 4,096 others have ended since, or another coordinator has.
    pub fn status(&mut self, comm: CommId, settled: bool) -> Result<CommStatus> {
        self.status_of(Request::Status { comm, settled })
    }

    /// How all communicators are doing.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn list(&mut self) -> Result<Vec<CommStatus>> {
        let mut all = Vec::<CommStatus>::new();
        loop {
            let from = all.last().map_or(CommId::default(), |last| last.comm.next());
            let Reply::List { comms, more } = self.ask(Request::List { from })? else {
                return Err(unexpected());
            };
            let is_more = more && !comms.is_empty();
            all.extend(comms);
            if !is_more {
                return Ok(all);
            }
        }
    }

    /// All devices of the pool.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn devices(&mut self) -> Result<Vec<DeviceStatus>> {
        match self.ask(Request::Devices)? {
            Reply::Devices(all) => Ok(all),
            _ => Err(unexpected()),
        }
    }

    /// The figures of the coordinator.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn metrics(&mut self) -> Result<Metrics> {
        match self.ask(Request::Metrics)? {
            Reply::Metrics(metrics) => Ok(metrics),
            _ => Err(unexpected()),
        }
    }

    /// Starts a group: calls are kept until it ends, whoever makes them. A call that names it, as this returns it, is never
    /// executed alone, should the group be gone with its coordinator.
    ///
    /// # Errors
    /// [`Refusal::GroupOpen`], and those of [`Client::call`].
    pub fn start_group(&mut self, comm: CommId) -> Result<GroupId> {
        match self.ask(Request::GroupStart(comm))? {
            Reply::GroupStarted(group) => Ok(group),
            _ => Err(unexpected()),
        }
    }

    /// Puts a collective operation into this group; or, if none is named, into the one that is open; or executes it, if none is.
    /// Returns the number of the group that is in progress, if that is so; [`Client::status`] tells how it ends.
    ///
    /// # Errors
    /// [`Refusal::NoSuchGroup`]; [`Refusal::OutOfRange`], [`Refusal::WrongCount`] and the like for the call itself; [`Refusal::Failed`] and
    /// [`Refusal::WrongState`] for a communicator that takes none. Nothing has changed then.
    pub fn call(&mut self, comm: CommId, group: Option<GroupId>, call: DeviceCall) -> Result<Option<u64>> {
        match self.ask(Request::Call { comm, group, call })? {
            Reply::Queued(_) => Ok(None),
            Reply::InProgress(group) => Ok(Some(group)),
            _ => Err(unexpected()),
        }
    }

    /// Ends this group, or the one that is open; its calls are executed together. Returns its number.
    ///
    /// # Errors
    /// [`Refusal::GroupOpen`], [`Refusal::NoSuchGroup`], and those of [`Client::call`].
    pub fn end_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<u64> {
        match self.ask(Request::GroupEnd { comm, group })? {
            Reply::InProgress(group) => Ok(group),
            _ => Err(unexpected()),
        }
    }

    /// Gives up this group, or the one that is open; nothing of it is executed.
    ///
    /// # Errors
    /// [`Refusal::GroupOpen`], [`Refusal::NoSuchGroup`].
    pub fn cancel_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<()> {
        match self.ask(Request::GroupCancel { comm, group })? {
            Reply::GroupCancelled => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Has a communicator that has failed go on with the devices that are left.
    ///
    /// # Errors
    /// [`Refusal::Failed`] when they cannot; [`Refusal::WrongState`] when it has not failed.
    pub fn go_on(&mut self, comm: CommId) -> Result<CommStatus> {
        self.status_of(Request::GoOn(comm))
    }

    /// Has so many free devices join a communicator that is ready: all of them or none. They have the ranks behind those that there
    /// are, and an epoch begins.
    ///
    /// # Errors
    /// [`Refusal::NotEnoughDevices`], [`Refusal::BadSize`], [`Refusal::GroupOpen`]; [`Refusal::WrongState`] while a group is in
    /// progress: nothing has changed. [`Refusal::NotGrown`] when they did not come together; [`Refusal::Failed`] when the
    /// communicator had failed before, or has grown and lost a device.
    pub fn grow(&mut self, comm: CommId, devices: u32) -> Result<CommStatus> {
        self.status_of(Request::Grow { comm, devices })
    }

    /// Ends a communicator when what is in progress is done, and gives its devices back.
    ///
    /// # Errors
    /// [`Refusal::Failed`], [`Refusal::Ended`], [`Refusal::GroupOpen`].
    pub fn finalize(&mut self, comm: CommId) -> Result<()> {
        self.end(Request::Finalize(comm))
    }

    /// Ends a communicator at once, and gives back those of its devices that live.
    ///
    /// # Errors
    /// [`Refusal::Ended`].
    pub fn destroy(&mut self, comm: CommId) -> Result<()> {
        self.end(Request::Destroy(comm))
    }

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

    fn status_of(&mut self, request: Request) -> Result<CommStatus> {
        match self.ask(request)? {
            Reply::Status(status) => Ok(status),
            _ => Err(unexpected()),
        }
    }

    fn end(&mut self, request: Request) -> Result<()> {
        match self.ask(request)? {
            Reply::Ended => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn copying(&self) -> Exchange {
        Exchange { peer: DEVICE, operation: COPYING, patience: self.timeout }
    }

    fn ask(&mut self, request: Request) -> Result<Reply> {
        self.number += 1;
        let exchange = Exchange { peer: COORDINATOR, operation: ASKING, patience: self.timeout };
        let mut stream = Hurried::new(&self.stream, self.timeout);
        write(&mut stream, &Question { number: self.number, request }, exchange).inspect_err(|error| {
            if matches!(error, Error::Coordinator { fault: Fault::TooLong { .. } }) {
                return;
            }
            // Half a question may have gone: nothing that comes after it makes sense.
            let _ = self.stream.shutdown(Shutdown::Both);
        })?;
        loop {
            let answer: Answer = match self.incoming.next().map_err(garbled)? {
                Some(answer) => answer,
                None => {
                    receive(&mut stream, &mut self.incoming).map_err(|error| broken(error, exchange))?;
                    continue;
                }
            };
            if answer.number > self.number {
                return Err(unexpected());
            }
            // One with a lower number has come too late for who asked.
            if answer.number == self.number {
                return answer.reply.map_err(Refusal::error);
            }
        }
    }
}

/// Takes in what has come, or comes in time.
fn receive(stream: &mut Hurried<'_>, incoming: &mut Frames) -> std::io::Result<()> {
    let mut bytes = [0; 16 << 10];
    match stream.read(&mut bytes) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(len) => {
            incoming.push(&bytes[..len]);
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(error),
    }
}

/// Connects with the coordinator of `directory`, within `patience`.
///
/// # Errors
/// [`Fault::Nobody`], [`Error::Timeout`], [`Error::Os`].
pub(super) fn connect(directory: &RuntimeDirectory, patience: Duration) -> Result<UnixStream> {
    const OPERATION: &str = "connecting with the coordinator";
    let path = directory.socket();
    let dialled = Address::of_path(&path).and_then(|address| address.dial(patience));
    dialled.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Fault::Nobody { path }.error(),
        _ => broken(error, Exchange { peer: COORDINATOR, operation: OPERATION, patience }),
    })
}

fn unexpected() -> Error {
    garbled("an answer to another question".to_owned())
}

fn garbled(what: String) -> Error {
    Fault::Garbled { peer: COORDINATOR, what }.error()
}
