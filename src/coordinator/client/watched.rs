//! A connection with a device that is looked after: where nothing moves, the coordinator is asked whether the device is still what it was.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::Client;
use crate::coordinator::dial::Address;
use crate::coordinator::fault::CoordinatorError;
use crate::coordinator::frame::{IoContext, broken};
use crate::coordinator::greeting::check_peer;
use crate::coordinator::id::DeviceId;
use crate::coordinator::refusal::RequestError;
use crate::coordinator::request::{Location, Reply, Request};
use crate::error::{Error, Result};

pub(super) const DEVICE: &str = "device";

/// How long nothing moves before the coordinator is asked, and how long it may take to answer that.
const QUIET: Duration = Duration::from_secs(1);

/// A connection over which nothing may move for as long as a client waits, and no longer than its device is known to live.
#[derive(Debug)]
pub(super) struct WatchedStream<'c> {
    stream: UnixStream,
    place: LocatedDevice<'c>,
    /// What the coordinator has said, where that has ended it.
    verdict: Option<Error>,
}

/// Where a device was when it was asked for.
#[derive(Debug)]
struct LocatedDevice<'c> {
    client: &'c mut Client,
    device: DeviceId,
    location: Location,
}

impl<'c> WatchedStream<'c> {
    /// Connects with the device at `location`, as the coordinator of `client` has told.
    ///
    /// # Errors
    /// [`CoordinatorError::Lost`], [`CoordinatorError::OtherUser`]; a [`RequestError`] of the coordinator; [`Error::Timeout`], [`Error::Os`].
    pub(super) fn dial(client: &'c mut Client, device: DeviceId, location: Location) -> Result<Self> {
        let exchange =
            IoContext { peer: DEVICE, operation: "connecting with a device", patience: client.timeout };
        let address =
            Address::of_name(&location.socket).map_err(|error| Error::os(exchange.operation, error))?;
        let (mut place, since) = (LocatedDevice { client, device, location }, Instant::now());
        let stream = loop {
            let error = match address.dial(place.slice()) {
                Ok(stream) => break stream,
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::ConnectionRefused => return Err(CoordinatorError::Lost { peer: DEVICE }.error()),
                ErrorKind::TimedOut if !place.is_over(since) => place.look()?,
                _ => return Err(broken(error, exchange)),
            }
        };
        check_peer(&stream)?;
        let slice = Some(place.slice());
        let set = stream.set_read_timeout(slice).and_then(|()| stream.set_write_timeout(slice));
        set.map_err(|error| Error::os("setting a deadline", error))?;
        Ok(Self { stream, place, verdict: None })
    }

    /// Does something over it. What the coordinator says of the device is why it failed, where it has said something.
    ///
    /// # Errors
    /// Those of `action`, [`CoordinatorError::Lost`], a [`RequestError`] of the coordinator.
    pub(super) fn have<T>(&mut self, action: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        action(self).map_err(|error| self.verdict.take().unwrap_or(error))
    }

    /// Tries until something moves.
    fn patiently(&mut self, mut attempt: impl FnMut(&UnixStream) -> io::Result<usize>) -> io::Result<usize> {
        let since = Instant::now();
        loop {
            match attempt(&self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.place.is_over(since) => {}
                moved => return moved,
            }
            if let Err(verdict) = self.place.look() {
                self.verdict = Some(verdict);
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

impl Read for WatchedStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patiently(|mut stream| stream.read(buffer))
    }
}

impl Write for WatchedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.patiently(|mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl LocatedDevice<'_> {
    /// How long it is waited at a time. A deadline of zero would be none.
    fn slice(&self) -> Duration {
        self.client.timeout.clamp(Duration::from_millis(1), QUIET)
    }

    fn is_over(&self, since: Instant) -> bool {
        since.elapsed() >= self.client.timeout
    }

    /// Asks the coordinator whether the device is where it was. One that does not answer, or is dead, says nothing of the device.
    ///
    /// # Errors
    /// [`CoordinatorError::Lost`] when it is not, a [`RequestError`] when it is not to be had any more.
    fn look(&mut self) -> Result<()> {
        let Location { comm, socket, .. } = &self.location;
        match self.client.ask_within(Request::Locate(self.device), QUIET) {
            Ok(Reply::Located(now)) if (now.comm, &now.socket) == (*comm, socket) => Ok(()),
            Ok(Reply::Located(_)) => Err(CoordinatorError::Lost { peer: DEVICE }.error()),
            Err(Error::Coordinator { fault: CoordinatorError::Refused(refusal) }) => Err(match refusal {
                RequestError::NoSuchDevice { .. } => CoordinatorError::Lost { peer: DEVICE }.error(),
                refusal => refusal.error(),
            }),
            _ => Ok(()),
        }
    }
}
