//! A client of the coordinator: allocates devices, runs operations on them, and copies to and from
//! their memory.

mod copies;
mod sent;

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::call::DeviceCall;
use super::deadline_stream::DeadlineStream;
use super::directory::RuntimeDirectory;
use super::error::{CoordinatorError, RequestError, Result};
use super::handshake::{COORDINATOR, NumberedReply, NumberedRequest, PeerRole, connect, garbled};
use super::id::{CommId, GroupId};
use super::metrics::Metrics;
use super::request::{CallProgress, Changes, ClientRequest, CommStatus, DeviceStatus, Reply};
use super::wire::{Frames, IoContext, write};

pub use sent::Sent;

/// A connection with a coordinator.
///
/// Every method fails with [`CoordinatorError::Disconnected`] when the coordinator has ended. What
/// it has ordered goes on then, and the next coordinator knows of it. Every method fails with
/// [`Error::Timeout`](crate::Error::Timeout) when the coordinator does not answer.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    timeout: Duration,
    /// Whether its copies wait until no group is in progress.
    is_behind_groups: bool,
    /// The communicator that devices of its copies belong to. `None`: whichever.
    comm: Option<CommId>,
    /// The number of the newest request.
    number: u64,
    /// The bytes that have come of answers. An answer that comes after its deadline is ignored.
    incoming: Frames,
}

impl Client {
    /// Connects with the coordinator of `directory`.
    ///
    /// A request that is not answered within `timeout` is an error, and so is a copy in which
    /// nothing moves for as long.
    ///
    /// # Errors
    /// [`CoordinatorError::NotRunning`], [`CoordinatorError::Dead`],
    /// [`CoordinatorError::VersionMismatch`], [`CoordinatorError::OtherUser`];
    /// [`Error::Timeout`](crate::Error::Timeout), [`Error::Os`](crate::Error::Os).
    pub fn connect(directory: &RuntimeDirectory, timeout: Duration) -> Result<Self> {
        let (stream, _) = connect(directory, PeerRole::Client, timeout)?;
        Ok(Self {
            stream,
            timeout,
            is_behind_groups: false,
            comm: None,
            number: 0,
            incoming: Frames::default(),
        })
    }

    /// Has each copy of this client begin when nothing is in progress in the communicator of its
    /// device, however long that takes.
    #[must_use]
    pub fn behind_groups(mut self) -> Self {
        self.is_behind_groups = true;
        self
    }

    /// Has copies of this client from now on refused unless their device belongs to `comm`: so
    /// copies in pieces end where it is given to another one. With `None` it may belong to any.
    pub fn keep_to(&mut self, comm: Option<CommId>) {
        self.comm = comm;
    }

    /// Returns whether the coordinator has not hung up. It may do so at any time.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        // Nothing is asked for, so nothing but a hang-up is told.
        poll(&mut [PollFd::new(self.stream.as_fd(), PollFlags::empty())], PollTimeout::ZERO) == Ok(0)
    }

    /// Makes a communicator of so many free devices. After a loss it goes on by itself if
    /// `keep_going`.
    ///
    /// # Errors
    /// [`RequestError::NotEnoughDevices`], [`RequestError::BadSize`], [`RequestError::NotFormed`].
    pub fn init(&mut self, devices: u32, keep_going: bool) -> Result<CommStatus> {
        self.status_of(ClientRequest::Init { devices, keep_going })
    }

    /// Returns how a communicator is doing, or how it has ended. Waits until nothing is in progress
    /// if `settled`.
    ///
    /// # Errors
    /// [`RequestError::NoSuchComm`]; [`RequestError::Ended`] where 4,096 others have ended since,
    /// or another coordinator has taken over.
    pub fn status(&mut self, comm: CommId, settled: bool) -> Result<CommStatus> {
        self.status_of(ClientRequest::Status { comm, settled })
    }

    /// Returns how communicators have changed since the change of number `after`: every state that
    /// one was in, however short. Of [`u64::MAX`] it returns the number of the newest change.
    ///
    /// # Errors
    /// Returns the errors of the connection.
    pub fn changes(&mut self, after: u64) -> Result<Changes> {
        let Reply::Changes(mut all) = self.ask(ClientRequest::Changes { after })? else {
            return Err(unexpected());
        };
        while all.more {
            let Reply::Changes(next) = self.ask(ClientRequest::Changes { after: all.last })? else {
                return Err(unexpected());
            };
            all.changes.extend(next.changes);
            (all.last, all.more, all.is_torn) = (next.last, next.more, all.is_torn || next.is_torn);
        }
        Ok(all)
    }

    /// Returns how all communicators are doing.
    ///
    /// # Errors
    /// Returns the errors of the connection.
    pub fn list(&mut self) -> Result<Vec<CommStatus>> {
        let mut all = Vec::<CommStatus>::new();
        loop {
            let from = all.last().map_or(CommId::default(), |last| last.comm.next());
            let Reply::List { comms, more } = self.ask(ClientRequest::List { from })? else {
                return Err(unexpected());
            };
            let is_more = more && !comms.is_empty();
            all.extend(comms);
            if !is_more {
                return Ok(all);
            }
        }
    }

    /// Returns all devices of the pool.
    ///
    /// # Errors
    /// Returns the errors of the connection.
    pub fn devices(&mut self) -> Result<Vec<DeviceStatus>> {
        let Reply::Devices(all) = self.ask(ClientRequest::Devices)? else { return Err(unexpected()) };
        Ok(all)
    }

    /// Returns the figures of the coordinator.
    ///
    /// # Errors
    /// Returns the errors of the connection.
    pub fn metrics(&mut self) -> Result<Metrics> {
        let Reply::Metrics(metrics) = self.ask(ClientRequest::Metrics)? else { return Err(unexpected()) };
        Ok(metrics)
    }

    /// Starts a group: the calls of all clients are kept until it ends.
    ///
    /// A call that names the returned group is never executed alone, even if the group is gone with
    /// its coordinator. A group that loses a device has failed; [`Client::send_start_group`] can
    /// have it repeated.
    ///
    /// # Errors
    /// [`RequestError::GroupOpen`], and those of [`Client::call`].
    pub fn start_group(&mut self, comm: CommId) -> Result<GroupId> {
        let Reply::GroupStarted(started) = self.ask(ClientRequest::GroupStart { comm, repeats: false })?
        else {
            return Err(unexpected());
        };
        Ok(started.group)
    }

    /// Puts a collective operation into `group`, or into the open group if none is named.
    ///
    /// Where no group is open, the call is executed at once as a group of its own.
    /// [`Client::status`] tells how it ends.
    ///
    /// # Ordering
    /// Groups of a communicator are executed one after the other. Bytes that were copied to its
    /// devices before the call are their input. A copy by any client while a group is in progress
    /// is in no order with it. It may read a result before, during or after it is written, and
    /// overwrite an input at any time. Wait for the settled [`Client::status`] first.
    ///
    /// # Errors
    /// [`RequestError::NoSuchGroup`], [`RequestError::GroupFull`], [`RequestError::GroupTooLarge`];
    /// [`RequestError::OutOfRange`], [`RequestError::WrongCount`] and the like for the call itself;
    /// [`RequestError::Failed`] and [`RequestError::WrongState`] for a communicator that takes
    /// none. Nothing has changed then.
    pub fn call(&mut self, comm: CommId, group: Option<GroupId>, call: DeviceCall) -> Result<CallProgress> {
        let Reply::Called(progress) = self.ask(ClientRequest::Call { comm, group, call })? else {
            return Err(unexpected());
        };
        Ok(progress)
    }

    /// Ends `group`, or the open group if none is named; its calls are executed together. Returns
    /// its number.
    ///
    /// # Errors
    /// [`RequestError::GroupOpen`], [`RequestError::NoSuchGroup`], and those of [`Client::call`].
    pub fn end_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<u64> {
        let Reply::Called(CallProgress::InProgress(group)) =
            self.ask(ClientRequest::GroupEnd { comm, group, settled: false })?
        else {
            return Err(unexpected());
        };
        Ok(group)
    }

    /// Cancels `group`, or the open group if none is named; none of its calls is executed.
    ///
    /// # Errors
    /// [`RequestError::GroupOpen`], [`RequestError::NoSuchGroup`].
    pub fn cancel_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<()> {
        let Reply::GroupCancelled = self.ask(ClientRequest::GroupCancel { comm, group })? else {
            return Err(unexpected());
        };
        Ok(())
    }

    /// Has a communicator that has failed go on with the devices that are left.
    ///
    /// Where a group has failed, devices that had executed it take back what it has overwritten of
    /// its own inputs, so it can be called again. A device to which a client has copied meanwhile
    /// keeps what it has.
    ///
    /// # Errors
    /// [`RequestError::Failed`] when they cannot; [`RequestError::WrongState`] when it has not
    /// failed.
    pub fn go_on(&mut self, comm: CommId) -> Result<CommStatus> {
        self.status_of(ClientRequest::GoOn(comm))
    }

    /// Has so many free devices join a communicator that is ready: all of them or none.
    ///
    /// They have the ranks behind those of the members, and an epoch begins.
    ///
    /// # Errors
    /// [`RequestError::NotEnoughDevices`], [`RequestError::BadSize`], [`RequestError::GroupOpen`];
    /// [`RequestError::WrongState`] while a group is in progress: nothing has changed.
    /// [`RequestError::NotGrown`] when they did not come together; [`RequestError::Failed`] when
    /// the communicator had failed before, or has grown and lost a device.
    pub fn grow(&mut self, comm: CommId, devices: u32) -> Result<CommStatus> {
        self.status_of(ClientRequest::Grow { comm, devices })
    }

    /// Has all devices of a ready communicator write the used part of their memory to `directory`.
    /// Returns the number of the checkpoint there.
    ///
    /// It counts as a group. Bytes that clients copy meanwhile may or may not be in it. The
    /// previous checkpoint stays valid until this one is whole and on the disk, whatever happens.
    ///
    /// # Errors
    /// [`RequestError::CheckpointFailed`], after which the communicator is ready and as before;
    /// [`RequestError::Failed`] when it failed itself, by the loss of a device;
    /// [`RequestError::WrongState`], [`RequestError::BadDirectory`];
    /// [`Error::Timeout`](crate::Error::Timeout) when it takes longer than an answer may, and goes
    /// on.
    pub fn checkpoint(&mut self, comm: CommId, directory: impl AsRef<Path>) -> Result<u64> {
        let directory = whole_path(directory.as_ref())?;
        self.checkpoint_by(ClientRequest::Checkpoint { comm, directory })
    }

    /// Has all devices of a ready communicator read back what [`Client::checkpoint`] has written to
    /// `directory`. Returns the number of that checkpoint.
    ///
    /// The communicator has as many devices as the checkpoint, with as much memory each. Each
    /// device reads what its rank has written. All is checked before a byte changes.
    ///
    /// # Errors
    /// Fails as [`Client::checkpoint`] does.
    pub fn restore(&mut self, comm: CommId, directory: impl AsRef<Path>) -> Result<u64> {
        let directory = whole_path(directory.as_ref())?;
        self.checkpoint_by(ClientRequest::Restore { comm, directory })
    }

    /// Ends a communicator when what is in progress is done, and gives its devices back.
    ///
    /// # Errors
    /// [`RequestError::Failed`], [`RequestError::Ended`], [`RequestError::GroupOpen`].
    pub fn finalize(&mut self, comm: CommId) -> Result<()> {
        self.end(ClientRequest::Finalize(comm))
    }

    /// Ends a communicator at once, and gives back those of its devices that live.
    ///
    /// # Errors
    /// [`RequestError::Ended`].
    pub fn destroy(&mut self, comm: CommId) -> Result<()> {
        self.end(ClientRequest::Destroy(comm))
    }

    /// Ends a communicator at once if nothing is in progress in it, nobody waits for it, and no
    /// group takes calls but one that was `abandoned`; between that look and the end nothing can
    /// begin.
    ///
    /// # Errors
    /// [`RequestError::WrongState`] where it is not idle; [`RequestError::Ended`].
    pub fn destroy_idle(&mut self, comm: CommId, abandoned: Option<GroupId>) -> Result<()> {
        self.end(ClientRequest::DestroyIdle { comm, abandoned })
    }

    fn status_of(&mut self, request: ClientRequest) -> Result<CommStatus> {
        let Reply::Status(status) = self.ask(request)? else { return Err(unexpected()) };
        Ok(status)
    }

    fn checkpoint_by(&mut self, request: ClientRequest) -> Result<u64> {
        let Reply::Checkpoint(number) = self.ask(request)? else { return Err(unexpected()) };
        Ok(number)
    }

    fn end(&mut self, request: ClientRequest) -> Result<()> {
        let Reply::Ended = self.ask(request)? else { return Err(unexpected()) };
        Ok(())
    }

    fn ask(&mut self, request: ClientRequest) -> Result<Reply> {
        self.ask_within(request, self.timeout)
    }

    fn ask_within(&mut self, request: ClientRequest, patience: Duration) -> Result<Reply> {
        self.number += 1;
        let mut stream = DeadlineStream::new(&self.stream, patience);
        post(&self.stream, &mut stream, &NumberedRequest { number: self.number, request }, patience)?;
        loop {
            if let Some(reply) = answer_to(self.number, &mut self.incoming)? {
                return Ok(reply?);
            }
            receive(&mut stream, &mut self.incoming).map_err(|error| context(patience).error(error))?;
        }
    }
}

fn context(patience: Duration) -> IoContext {
    IoContext { peer: COORDINATOR, operation: "asking the coordinator", patience }
}

/// Sends a request over `connection`, by its `stream` with a deadline.
fn post(
    connection: &UnixStream,
    stream: &mut DeadlineStream<'_>,
    request: &NumberedRequest,
    patience: Duration,
) -> Result<()> {
    write(stream, request, context(patience)).inspect_err(|error| {
        if !matches!(error, CoordinatorError::MessageTooLong { .. }) {
            // Half a request may have gone: nothing that comes after it makes sense.
            let _ = connection.shutdown(Shutdown::Both);
        }
    })
}

/// Takes the answer to request `number` out of what has come, if it is there.
fn answer_to(number: u64, incoming: &mut Frames) -> Result<Option<Result<Reply, RequestError>>> {
    while let Some(answer) = incoming.next::<NumberedReply>().map_err(garbled)? {
        if answer.number > number {
            return Err(unexpected());
        }
        // An answer with a lower number has come after its deadline.
        if answer.number == number {
            return Ok(Some(answer.reply));
        }
    }
    Ok(None)
}

/// Returns the path by which devices know `directory`, wherever they were started.
fn whole_path(directory: &Path) -> Result<String, RequestError> {
    let refused = |is: &str| {
        let directory = directory.display().to_string().chars().take(64).collect();
        RequestError::BadDirectory { directory, is: is.to_owned() }
    };
    let whole = std::path::absolute(directory).map_err(|_| refused("cannot be found"))?;
    whole.into_os_string().into_string().map_err(|_| refused("is no text in UTF-8"))
}

/// Takes in the bytes that have come, or come in time.
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

fn unexpected() -> CoordinatorError {
    garbled("an answer to another request".to_owned())
}
