//! Requests that do not wait for their answers: for programs with an event loop of their own.
//!
//! A request is sent, and [`Client::answer`] looks for its answer whenever the descriptor of the
//! client is readable, and when [`Sent::next_look`] has passed. A client that waits for an answer
//! sends nothing else.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

use super::{Client, answer_to, context, post, unexpected};
use crate::coordinator::call::DeviceCall;
use crate::coordinator::deadline_stream::DeadlineStream;
use crate::coordinator::error::Result;
use crate::coordinator::handshake::NumberedRequest;
use crate::coordinator::id::{CommId, DeviceId, GroupId};
use crate::coordinator::request::{CallProgress, ClientRequest, CommStatus, Reply, StartedGroup};
use crate::shm::HostKernel;
use crate::sync::grace::Grace;

/// A request that was sent, by the answer that it is for.
#[derive(Debug)]
#[must_use = "the answer comes by `Client::answer`"]
pub struct Sent<T> {
    number: u64,
    read: fn(Reply) -> Option<T>,
    limit: Duration,
    grace: Grace,
}

impl<T> Sent<T> {
    /// Returns how long at most until [`Client::answer`] is to be called again, so that it can tell
    /// that the answer takes too long.
    #[must_use]
    pub fn next_look(&self) -> Duration {
        self.grace.next_look()
    }
}

impl Client {
    /// Sends what [`Client::start_group`] asks for. The answer tells the devices as well.
    ///
    /// A group that `repeats` outlives the loss of a device. When an epoch ends before all devices
    /// have executed the group, those that had executed it take it back. The communicator goes on,
    /// and the devices that are left execute the group again, on the inputs that they had, 64 times
    /// at most. This holds for groups of all_reduces, and while this coordinator lives.
    ///
    /// # Errors
    /// Returns the errors of the connection, as the functions below do. The answer has the errors
    /// of the request.
    pub fn send_start_group(&mut self, comm: CommId, repeats: bool) -> Result<Sent<StartedGroup>> {
        self.send(ClientRequest::GroupStart { comm, repeats }, self.timeout, |reply| match reply {
            Reply::GroupStarted(started) => Some(started),
            _ => None,
        })
    }

    /// Sends what [`Client::call`] asks for.
    ///
    /// # Errors
    /// Fails as [`Client::send_start_group`] does.
    pub fn send_call(
        &mut self,
        comm: CommId,
        group: Option<GroupId>,
        call: DeviceCall,
    ) -> Result<Sent<CallProgress>> {
        self.send(ClientRequest::Call { comm, group, call }, self.timeout, |reply| match reply {
            Reply::Called(progress) => Some(progress),
            _ => None,
        })
    }

    /// Sends what [`Client::call`] asks for, to be answered when the call is over, however long it
    /// takes. The last group of the status is then this one. The answer is `None`, and comes at
    /// once, if the call was put into a group.
    ///
    /// If `devices` are named, the addresses of the call are theirs. Some of them may be lost: the
    /// call is executed by those that are left, and again as a group that repeats
    /// ([`Client::send_start_group`]).
    ///
    /// # Errors
    /// Those of [`Client::send_start_group`].
    pub fn send_execute(
        &mut self,
        comm: CommId,
        group: Option<GroupId>,
        call: DeviceCall,
        devices: Option<Vec<DeviceId>>,
    ) -> Result<Sent<Option<CommStatus>>> {
        let limit = if group.is_some() { self.timeout } else { Duration::MAX };
        let request = ClientRequest::Execute { comm, group, call, devices };
        self.send(request, limit, |reply| match reply {
            Reply::Status(status) => Some(Some(status)),
            Reply::Called(CallProgress::Queued { .. }) => Some(None),
            _ => None,
        })
    }

    /// Sends what [`Client::end_group`] asks for, to be answered when the group is over, however
    /// long it takes. The last group of the status is then this one.
    ///
    /// # Errors
    /// Fails as [`Client::send_start_group`] does.
    pub fn send_execute_group(&mut self, comm: CommId, group: Option<GroupId>) -> Result<Sent<CommStatus>> {
        self.send(ClientRequest::GroupEnd { comm, group, settled: true }, Duration::MAX, status_in)
    }

    /// Sends what [`Client::status`] asks for. The answer may take as long as it does if `settled`.
    ///
    /// # Errors
    /// Fails as [`Client::send_start_group`] does.
    pub fn send_status(&mut self, comm: CommId, settled: bool) -> Result<Sent<CommStatus>> {
        let limit = if settled { Duration::MAX } else { self.timeout };
        self.send(ClientRequest::Status { comm, settled }, limit, status_in)
    }

    /// Sends what [`Client::go_on`] asks for.
    ///
    /// # Errors
    /// Fails as [`Client::send_start_group`] does.
    pub fn send_go_on(&mut self, comm: CommId) -> Result<Sent<CommStatus>> {
        self.send(ClientRequest::GoOn(comm), self.timeout, status_in)
    }

    /// Returns the answer to the newest request, or `None` as long as it has not come.
    ///
    /// # Errors
    /// Returns the errors of the request and of the connection.
    pub fn answer<T>(&mut self, sent: &mut Sent<T>) -> Result<Option<T>> {
        let failed = |error: std::io::Error| Err(context(sent.limit).error(error));
        loop {
            if let Some(reply) = answer_to(sent.number, &mut self.incoming)? {
                return (sent.read)(reply?).map(Some).ok_or_else(unexpected);
            }
            let mut bytes = [0; 16 << 10];
            match recv(self.stream.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return failed(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.incoming.push(&bytes[..len]),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if sent.grace.is_over(HostKernel::clock()) => {
                    return failed(ErrorKind::TimedOut.into());
                }
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return failed(errno.into()),
            }
        }
    }

    fn send<T>(
        &mut self,
        request: ClientRequest,
        limit: Duration,
        read: fn(Reply) -> Option<T>,
    ) -> Result<Sent<T>> {
        self.number += 1;
        let number = self.number;
        let mut stream = DeadlineStream::new(&self.stream, self.timeout);
        post(&self.stream, &mut stream, &NumberedRequest { number, request }, self.timeout)?;
        Ok(Sent { number, read, limit, grace: Grace::begin(limit, HostKernel::clock()) })
    }
}

fn status_in(reply: Reply) -> Option<CommStatus> {
    match reply {
        Reply::Status(status) => Some(status),
        _ => None,
    }
}

impl AsFd for Client {
    /// Returns the descriptor that is readable when an answer has come, or the coordinator has hung
    /// up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsRawFd for Client {
    /// Returns the same descriptor.
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
