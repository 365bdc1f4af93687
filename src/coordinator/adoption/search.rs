//! A device without a coordinator: how it looks for the next one, and when it gives up.
//!
//! It never waits for a coordinator, since that one may be stopped, or be any process: it connects
//! without blocking, and takes the answer when it comes.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use crate::coordinator::assignment::StartedDevice;
use crate::coordinator::deadline_stream::Address;
use crate::coordinator::directory::RuntimeDirectory;
use crate::coordinator::error::{CoordinatorError, Result};
use crate::coordinator::handshake::{Hello, HelloReply, PATIENCE, PeerRole, check_peer, garbled};
use crate::coordinator::id::DeviceId;
use crate::coordinator::wire::PeerConnection;
use crate::error::Error;
use crate::shm::HostKernel;
use crate::sync::grace::Grace;

/// How often a device without a coordinator looks for one.
const LOOK: Duration = Duration::from_millis(20);

/// How long the socket of a coordinator may be missing until that counts as an end in order, and
/// not as a restart.
const MISSING: Duration = Duration::from_secs(1);

/// What a device does when it has lost its coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::coordinator) enum OnCoordinatorLoss {
    /// Waits for the next coordinator for ever: the device was started by hand.
    WaitForEver,
    /// Ends.
    End,
    /// Waits so long for the next coordinator, if its own was killed and so has left its socket.
    /// Ends if its own has ended in order.
    WaitFor(Duration),
}

/// How long a device may have no coordinator. A pause hardly counts: the next coordinator may have
/// been paused, too.
#[derive(Clone, Copy, Debug)]
struct Absence {
    left: Grace,
    /// While there is no socket either.
    missing: Option<Grace>,
}

/// A coordinator that was greeted and has not answered yet.
#[derive(Debug)]
struct Attempt {
    connection: PeerConnection,
    until: Instant,
}

/// A device's search for a coordinator.
#[derive(Debug)]
pub(in crate::coordinator) struct CoordinatorSearch {
    device: DeviceId,
    directory: RuntimeDirectory,
    on_loss: OnCoordinatorLoss,
    absence: Absence,
    /// The coordinator that was found, if one was.
    attempt: Option<Attempt>,
    /// When it looks again.
    looks_at: Instant,
}

/// The outcome of one step of a search.
#[derive(Debug)]
pub(in crate::coordinator) enum Searched {
    /// It goes on.
    InVain,
    /// A coordinator has taken the device.
    Found(PeerConnection, HelloReply),
    /// The device is to end.
    GivenUp,
}

impl CoordinatorSearch {
    /// Begins a search. It looks at first after a moment, as a coordinator that drops a device at
    /// once is not to be kept busy by it.
    pub(in crate::coordinator) fn new(
        device: DeviceId,
        directory: &RuntimeDirectory,
        on_loss: OnCoordinatorLoss,
    ) -> Self {
        let absence = Absence::begin(on_loss, HostKernel::clock());
        let looks_at = Instant::now() + LOOK;
        Self { device, directory: directory.clone(), on_loss, absence, attempt: None, looks_at }
    }

    /// Returns the descriptor to poll, and for which events, if there is one.
    pub(in crate::coordinator) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let connection = self.attempt.as_ref().map(|attempt| &attempt.connection);
        connection.map(|connection| (connection.descriptor(), connection.interest()))
    }

    /// Returns when the next step is due, at the latest.
    pub(in crate::coordinator) fn due(&self) -> Instant {
        self.attempt.as_ref().map_or(self.looks_at, |attempt| attempt.until)
    }

    /// Looks for a coordinator if it is time, or for the answer of the one that was found.
    ///
    /// # Errors
    /// [`CoordinatorError::VersionMismatch`], [`CoordinatorError::OtherUser`],
    /// [`CoordinatorError::Refused`].
    pub(in crate::coordinator) fn step(&mut self) -> Result<Searched> {
        let attempt = match self.attempt.take() {
            Some(attempt) => Ok(attempt),
            None if self.looks_at > Instant::now() => return Ok(Searched::InVain),
            None => Attempt::begin(&self.directory),
        };
        self.looks_at = Instant::now() + LOOK;
        let answered = attempt.and_then(|mut attempt| Ok((attempt.answer()?, attempt)));
        match answered {
            Ok((Some(reply), attempt)) => return Ok(Searched::Found(attempt.connection, reply)),
            Ok((None, attempt)) => {
                self.absence.missing = None;
                self.attempt = Some(attempt).filter(|attempt| !attempt.is_over());
            }
            Err(
                error @ (CoordinatorError::VersionMismatch { .. }
                | CoordinatorError::OtherUser { .. }
                | CoordinatorError::Refused(_)),
            ) => return Err(error),
            // The coordinator is not there yet, has no time, or is another program.
            Err(error) if self.absence.is_over(self.on_loss, &error, HostKernel::clock()) => {
                self.sweep();
                return Ok(Searched::GivenUp);
            }
            Err(_) => {}
        }
        Ok(Searched::InVain)
    }

    /// Removes the socket of the dead coordinator, if no other device waits at it for longer.
    fn sweep(&self) {
        let limit = match self.on_loss {
            OnCoordinatorLoss::WaitFor(limit) => Some(limit),
            OnCoordinatorLoss::WaitForEver | OnCoordinatorLoss::End => None,
        };
        let is_last = || !is_outlived(self.device, limit, &self.directory);
        let _ = self.directory.sweep(false, is_last);
    }
}

impl Attempt {
    /// Greets the coordinator of `directory`, if there is one.
    ///
    /// # Errors
    /// [`CoordinatorError::OtherUser`]; [`Error::Os`] when there is none, or its backlog is full.
    fn begin(directory: &RuntimeDirectory) -> Result<Self> {
        let stream = Address::of_path(&directory.socket()).and_then(|address| address.connect_at_once());
        let stream = stream.map_err(|error| Error::os("connecting with the next coordinator", error))?;
        check_peer(&stream)?;
        let mut connection = PeerConnection::new(stream)?;
        connection.send(&Hello::new(PeerRole::Device));
        Ok(Self { connection, until: Instant::now() + PATIENCE })
    }

    /// Takes the answer, if it has come.
    ///
    /// # Errors
    /// [`CoordinatorError::VersionMismatch`], [`CoordinatorError::Refused`],
    /// [`CoordinatorError::Protocol`].
    fn answer(&mut self) -> Result<Option<HelloReply>> {
        self.connection.flush();
        self.connection.read();
        let reply = self.connection.next::<HelloReply>().map_err(garbled)?;
        reply.map(HelloReply::check).transpose()
    }

    /// Returns whether no answer comes: the coordinator has hung up, or the time is over.
    fn is_over(&self) -> bool {
        self.connection.is_over() || self.until <= Instant::now()
    }
}

impl Absence {
    fn begin(on_loss: OnCoordinatorLoss, now: Duration) -> Self {
        let limit = match on_loss {
            OnCoordinatorLoss::WaitFor(limit) => limit,
            OnCoordinatorLoss::WaitForEver | OnCoordinatorLoss::End => Duration::MAX,
        };
        Self { left: Grace::begin(limit, now), missing: None }
    }

    /// Notes how the way to a coordinator has failed. Returns whether the device gives up.
    fn is_over(&mut self, on_loss: OnCoordinatorLoss, error: &CoordinatorError, now: Duration) -> bool {
        let has_waited = self.left.is_over(now);
        let kind = match error {
            CoordinatorError::Engine(Error::Os { source, .. }) => source.kind(),
            _ => ErrorKind::Other,
        };
        if kind != ErrorKind::NotFound {
            self.missing = None;
        }
        match (on_loss, kind) {
            (OnCoordinatorLoss::End, ErrorKind::NotFound | ErrorKind::ConnectionRefused) => true,
            (OnCoordinatorLoss::WaitFor(_), ErrorKind::NotFound) => {
                self.missing.get_or_insert_with(|| Grace::begin(MISSING, now)).is_over(now)
            }
            (OnCoordinatorLoss::WaitFor(_), ErrorKind::ConnectionRefused) => has_waited,
            _ => false,
        }
    }
}

/// Returns whether another device of `directory` lives that waits for the next coordinator for
/// longer than `limit`, or may do so.
fn is_outlived(device: DeviceId, limit: Option<Duration>, directory: &RuntimeDirectory) -> bool {
    let waits = |it: &StartedDevice| it.device != device && it.assignment.outlives > limit;
    StartedDevice::all(directory).map_or(true, |all| all.iter().any(waits))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::coordinator::assignment::Assignment;
    use crate::testing::wait_until;

    fn error(kind: ErrorKind) -> CoordinatorError {
        Error::os("connecting", std::io::Error::from(kind)).into()
    }

    #[test]
    fn a_device_gives_up_as_it_was_told_and_never_where_somebody_listens() {
        let (missing, refused, busy) =
            (error(ErrorKind::NotFound), error(ErrorKind::ConnectionRefused), error(ErrorKind::WouldBlock));
        let second = Duration::from_secs(1);
        for (on_loss, expected) in [
            (OnCoordinatorLoss::WaitForEver, [false, false]),
            (OnCoordinatorLoss::End, [true, true]),
            (OnCoordinatorLoss::WaitFor(Duration::from_secs(59)), [false, true]),
            (OnCoordinatorLoss::WaitFor(Duration::from_secs(3600)), [false, false]),
        ] {
            let mut absence = Absence::begin(on_loss, Duration::ZERO);
            (0..60).for_each(|at| assert!(!absence.is_over(on_loss, &busy, at * second)));
            let is_over =
                [&missing, &refused].map(|error| absence.clone().is_over(on_loss, error, 60 * second));
            assert_eq!(is_over, expected, "{on_loss:?}");
            assert!(!absence.is_over(on_loss, &busy, 60 * second));
        }
        // A coordinator that is started again at once is there at the next look.
        let on_loss = OnCoordinatorLoss::WaitFor(Duration::from_secs(3600));
        let mut replaced = Absence::begin(on_loss, Duration::ZERO);
        let mut looks = (0..).map(|look| look * second / 20);
        let mut look = |error| replaced.is_over(on_loss, error, looks.next().unwrap());
        let n_looks = (1..).find(|_| look(&missing)).unwrap();
        assert_eq!(n_looks, 21, "it is gone for good");
        assert!(!look(&refused) && !look(&missing));
    }

    #[test]
    fn devices_of_a_directory_are_found_however_it_was_named_until_they_end() {
        let path = std::env::temp_dir().join(format!("shmccl-started-{}", std::process::id()));
        let [this, other] = ["this", "other"].map(|name| {
            std::fs::create_dir_all(&path).unwrap();
            RuntimeDirectory::at(path.join(name)).unwrap()
        });
        let assignment = |seconds| Assignment {
            memory: 4096,
            timeout: Duration::from_secs(1),
            core: None,
            outlives: Some(Duration::from_secs(seconds)),
        };
        let start = |assignment: &Assignment, directory: &RuntimeDirectory| {
            let mut command = Command::new("sleep");
            command.arg("1000").envs(assignment.variables(directory));
            command.current_dir(&path).spawn().unwrap()
        };
        let mut near = start(&assignment(1), &this);
        let mut far = start(&assignment(9), &other);
        let mut same = start(&assignment(2), &RuntimeDirectory::unchecked("./this"));
        let found = || {
            let mut all = StartedDevice::all(&this).unwrap();
            all.sort_by_key(|it| it.device);
            all
        };
        let expected = [(near.id(), 1), (same.id(), 2)].map(|(process, seconds)| StartedDevice {
            device: DeviceId::new(process),
            assignment: assignment(seconds),
            is_orphan: false,
        });
        wait_until("they have become what they are", || found() == expected);
        let waits = |process: u32, seconds| {
            is_outlived(DeviceId::new(process), Some(Duration::from_secs(seconds)), &this)
        };
        assert!(waits(near.id(), 1), "the other one waits for two seconds");
        assert!(!waits(same.id(), 2) && !waits(near.id(), 2), "whoever waits as long gives up as well");
        near.kill().unwrap();
        wait_until("one has ended", || found() == expected[1..]);
        [&mut same, &mut far].into_iter().for_each(|child| child.kill().unwrap());
        [near, same, far].iter_mut().for_each(|child| _ = child.wait().unwrap());
        std::fs::remove_dir_all(path).unwrap();
    }
}
