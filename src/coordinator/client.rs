//! A client of the coordinator: allocates devices, runs operations on them, and copies to and from their memory.

mod copies;
mod watched;

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::call::DeviceCall;
use super::dial::Address;
use super::directory::RuntimeDirectory;
use super::fault::CoordinatorError;
use super::frame::{Frames, IoContext, broken, write};
use super::greeting::{NumberedReply, NumberedRequest, PeerRole, greet};
use super::hurried::DeadlineStream;
use super::id::{CommId, GroupId};
use super::metrics::Metrics;
use super::refusal::RequestError;
use super::request::{CommStatus, DeviceStatus, Reply, Request};
use crate::error::{Error, Result};

const COORDINATOR: &str = "coordinator";

/// What is waited in when a coordinator does not answer.
const ASKING: &str = "asking the coordinator";

/// A connection with a coordinator.
///
/// Every method fails with [`CoordinatorError::Lost`] when the coordinator has ended: what it ordered goes on, and the next coordinator
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
        greet(&stream, PeerRole::Client, greeting(timeout))?;
        Ok(Self { stream, timeout, number: 0, incoming: Frames::default() })
    }

    /// Makes a communicator of so many free devices, which goes on by itself after a loss if it is to keep going.
    ///
    /// # Errors
    /// [`RequestError::NotEnoughDevices`], [`RequestError::BadSize`], [`RequestError::NotFormed`].
    pub fn init(&mut self, devices: u32, keep_going: bool) -> Result<CommStatus> {
        self.status_of(Request::Init { devices, keep_going })
    }

    /// How a communicator is doing, or has ended; where it is to be settled, when nothing is in progress any more.
    ///
    /// # Errors
    /// [`RequestError::NoSuchComm`]; [`RequestError::Ended`] where 4,096 others have ended since, or another coordinator has.
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
    /// [`RequestError::GroupOpen`], and those of [`Client::call`].
    pub fn start_group(&mut self, comm: CommId) -> Result<GroupId> {
        match self.ask(Request::GroupStart(comm))? {
            Reply::GroupStarted(group) => Ok(group),
            _ => Err(unexpected()),
        }
    }

    /// Puts a collective operation into this group; or, if none is named, into the one that is open; or, if none is, executes it at once
    /// as a group of its own. [`Client::status`] tells how that ends.
    ///
    /// # Ordering
    /// Groups of a communicator are executed one after the other, and what was copied to its devices before the call is their input. A
    /// copy that is made while a group is in progress is in no order with it, whichever client makes it: it may read a result before,
    /// during or after it is written, and overwrite an input at any time. [`Client::status`] that is to be settled comes first.
    ///
    /// # Errors
    /// [`RequestError::NoSuchGroup`], [`RequestError::GroupFull`], [`RequestError::GroupTooLarge`]; [`RequestError::OutOfRange`], [`RequestError::WrongCount`] and
    /// the like for the call itself; [`RequestError::Failed`] and
    /// [`RequestError::WrongState`] for a communicator that takes none. Nothing has changed then.
    pub fn call(&mut self, comm: CommId, group: Option<GroupId>, call: DeviceCall) -> Result<CallProgress> {
        match self.ask(Request::Call { comm, group, call })? {
            Reply::Queued { group, calls } => Ok(CallProgress::Queued { group, calls }),
            Reply::InProgress(group) => Ok(CallProgress::InProgress(group)),
            _ => Err(unexpected()),
        }
    }

    /// Ends this group, or the one that is open; its calls are executed together. Returns its number.
    ///
    /// # Errors
    /// [`RequestError::GroupOpen`], [`RequestError::NoSuchGroup`], and those of [`Client::call`].
    pub fn end_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<u64> {
        match self.ask(Request::GroupEnd { comm, group })? {
            Reply::InProgress(group) => Ok(group),
            _ => Err(unexpected()),
        }
    }

    /// Gives up this group, or the one that is open; nothing of it is executed.
    ///
    /// # Errors
    /// [`RequestError::GroupOpen`], [`RequestError::NoSuchGroup`].
    pub fn cancel_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<()> {
        match self.ask(Request::GroupCancel { comm, group })? {
            Reply::GroupCancelled => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Has a communicator that has failed go on with the devices that are left.
    ///
    /// # Errors
    /// [`RequestError::Failed`] when they cannot; [`RequestError::WrongState`] when it has not failed.
    pub fn go_on(&mut self, comm: CommId) -> Result<CommStatus> {
        self.status_of(Request::GoOn(comm))
    }

    /// Has so many free devices join a communicator that is ready: all of them or none. They have the ranks behind those that there
    /// are, and an epoch begins.
    ///
    /// # Errors
    /// [`RequestError::NotEnoughDevices`], [`RequestError::BadSize`], [`RequestError::GroupOpen`]; [`RequestError::WrongState`] while a group is in
    /// progress: nothing has changed. [`RequestError::NotGrown`] when they did not come together; [`RequestError::Failed`] when the
    /// communicator had failed before, or has grown and lost a device.
    pub fn grow(&mut self, comm: CommId, devices: u32) -> Result<CommStatus> {
        self.status_of(Request::Grow { comm, devices })
    }

    /// Has all devices of a communicator that is ready write what has been used of their memory to `directory`, each its own and all at
    /// a time, and returns the number of the checkpoint there. It counts as a group; what clients copy meanwhile may or may not be in it.
    /// One that was there before stays valid until this one is whole and on the disk, whatever happens.
    ///
    /// # Errors
    /// [`RequestError::CheckpointFailed`], after which the communicator is ready and everything is as before; [`RequestError::Failed`] when it
    /// failed itself, by the loss of a device; [`RequestError::WrongState`], [`RequestError::BadDirectory`]; [`Error::Timeout`] when it takes
    /// longer than an answer may, and goes on.
    pub fn checkpoint(&mut self, comm: CommId, directory: impl AsRef<Path>) -> Result<u64> {
        let directory = whole_path(directory.as_ref())?;
        self.checkpoint_by(Request::Checkpoint { comm, directory })
    }

    /// Has all devices of a communicator that is ready read back what [`Client::checkpoint`] has written to `directory`, and returns the
    /// number of that. It is of as many devices, of as much memory each, and whichever has the rank reads what that rank has written.
    /// Everything is looked at before a byte changes.
    ///
    /// # Errors
    /// Those of [`Client::checkpoint`].
    pub fn restore(&mut self, comm: CommId, directory: impl AsRef<Path>) -> Result<u64> {
        let directory = whole_path(directory.as_ref())?;
        self.checkpoint_by(Request::Restore { comm, directory })
    }

    /// Ends a communicator when what is in progress is done, and gives its devices back.
    ///
    /// # Errors
    /// [`RequestError::Failed`], [`RequestError::Ended`], [`RequestError::GroupOpen`].
    pub fn finalize(&mut self, comm: CommId) -> Result<()> {
        self.end(Request::Finalize(comm))
    }

    /// Ends a communicator at once, and gives back those of its devices that live.
    ///
    /// # Errors
    /// [`RequestError::Ended`].
    pub fn destroy(&mut self, comm: CommId) -> Result<()> {
        self.end(Request::Destroy(comm))
    }

    fn status_of(&mut self, request: Request) -> Result<CommStatus> {
        match self.ask(request)? {
            Reply::Status(status) => Ok(status),
            _ => Err(unexpected()),
        }
    }

    fn checkpoint_by(&mut self, request: Request) -> Result<u64> {
        match self.ask(request)? {
            Reply::Checkpoint(number) => Ok(number),
            _ => Err(unexpected()),
        }
    }

    fn end(&mut self, request: Request) -> Result<()> {
        match self.ask(request)? {
            Reply::Ended => Ok(()),
            _ => Err(unexpected()),
        }
    }

    fn ask(&mut self, request: Request) -> Result<Reply> {
        self.ask_within(request, self.timeout)
    }

    fn ask_within(&mut self, request: Request, patience: Duration) -> Result<Reply> {
        self.number += 1;
        let exchange = IoContext { peer: COORDINATOR, operation: ASKING, patience };
        let mut stream = DeadlineStream::new(&self.stream, patience);
        write(&mut stream, &NumberedRequest { number: self.number, request }, exchange).inspect_err(
            |error| {
                if matches!(error, Error::Coordinator { fault: CoordinatorError::TooLong { .. } }) {
                    return;
                }
                // Half a question may have gone: nothing that comes after it makes sense.
                let _ = self.stream.shutdown(Shutdown::Both);
            },
        )?;
        loop {
            let answer: NumberedReply = match self.incoming.next().map_err(garbled)? {
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
                return answer.reply.map_err(RequestError::error);
            }
        }
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProgress {
    /// It was put into a group that is open, and is executed when that ends.
    Queued {
        /// Which.
        group: GroupId,
        /// How many calls it has with this one.
        calls: usize,
    },
    /// It is in progress, as a group of its own of this number.
    InProgress(u64),
}

/// The directory as devices know it, wherever they were started.
fn whole_path(directory: &Path) -> Result<String> {
    let refused = |is: &str| {
        let directory = directory.display().to_string().chars().take(64).collect();
        RequestError::BadDirectory { directory, is: is.to_owned() }.error()
    };
    let whole = std::path::absolute(directory).map_err(|_| refused("cannot be found"))?;
    whole.into_os_string().into_string().map_err(|_| refused("is no text in UTF-8"))
}

/// Takes in what has come, or comes in time.
fn receive(stream: &mut DeadlineStream<'_>, incoming: &mut Frames) -> std::io::Result<()> {
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
/// [`CoordinatorError::Nobody`], [`CoordinatorError::Dead`], [`CoordinatorError::Unusable`], [`Error::Timeout`], [`Error::ResourceLimit`].
pub(super) fn connect(directory: &RuntimeDirectory, patience: Duration) -> Result<UnixStream> {
    const OPERATION: &str = "connecting with the coordinator";
    let path = directory.socket();
    let dialled = Address::of_path(&path).and_then(|address| address.dial(patience));
    dialled.map_err(|error| match error.kind() {
        ErrorKind::NotFound => CoordinatorError::Nobody { path }.error(),
        ErrorKind::ConnectionRefused => CoordinatorError::Dead { path }.error(),
        _ => match broken(error, IoContext { peer: COORDINATOR, operation: OPERATION, patience }) {
            Error::Os { source, .. } => {
                CoordinatorError::at("connecting with the coordinator at", &path, source)
            }
            error => error,
        },
    })
}

/// What a coordinator is given to answer a greeting.
pub(super) fn greeting(patience: Duration) -> IoContext {
    IoContext { peer: COORDINATOR, operation: "greeting the coordinator", patience }
}

fn unexpected() -> Error {
    garbled("an answer to another question".to_owned())
}

fn garbled(what: String) -> Error {
    CoordinatorError::Garbled { peer: COORDINATOR, what }.error()
}
