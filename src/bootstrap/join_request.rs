//! How a process that no launcher started comes to a meeting.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use bytemuck::Zeroable;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::control_channel::{ControlChannel, WaitGuard};
use super::member::Joining;
use super::message::{
    self, ANY_RANK, Bye, ControlMessage, Hosted, JoinRequest, LAYOUT_VERSION, MemberRefusal, Met, Rejected,
};
use super::options::Options;
use super::process_mark::ProcessMark;
use super::socket::{ControlSocket, Deadline, Incoming, resource_error, send, try_receive};
use crate::epoch_id::{FIRST_EPOCH, fresh_job_id};
use crate::error::{DeviceName, Error, Result};
use crate::rank::{MAX_RANKS, Rank, check_n_ranks};

/// The last words of a host: what it says once its own time is up.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The place where processes with the same id meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeetingPoint {
    /// Name of the host's socket in the abstract namespace, from which it vanishes with the host.
    pub(crate) name: String,
    /// The number of the new job.
    pub(crate) job_id: u64,
    /// The epoch of its communicator.
    pub(crate) epoch: u64,
}

impl MeetingPoint {
    pub(super) fn address(&self) -> Result<UnixAddr> {
        UnixAddr::new_abstract(self.name.as_bytes())
            .map_err(|errno| Error::os("naming the socket of a meeting", errno))
    }
}

/// The rank that a process claims in a meeting. A joining rank claims none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankClaim {
    pub(crate) rank: Rank,
    pub(crate) n_ranks: u32,
    /// How many of these ranks are claimed. The others are for joining ranks.
    pub(crate) n_members: u32,
}

impl RankClaim {
    /// Returns what asks for this rank in a meeting of job `job_id`.
    fn request(self, job_id: u64, options: &Options) -> JoinRequest {
        let Self { rank, n_ranks, n_members } = self;
        JoinRequest {
            header: JoinRequest::header(job_id),
            layout_version: LAYOUT_VERSION,
            rank: rank.get(),
            n_ranks,
            n_members,
            backing: options.backing.code(),
            reserved: 0,
            heap_len: options.heap_len,
            timeout_ms: milliseconds(options.timeout),
        }
    }
}

/// Enters a meeting with the claim `part`, and joins the job when all have come. Meanwhile `guard`
/// checks.
///
/// # Errors
/// - [`Error::NoMeeting`].
/// - [`Error::RankTaken`], [`Error::Mismatch`] or [`Error::PeerLost`] when the meeting has failed
///   for everybody.
/// - [`Error::Timeout`] names a missing rank.
/// - [`Error::Layout`] when the two sides do not fit, or one runs as another user.
/// - [`Error::ResourceLimit`], here or at the host.
pub(crate) fn meet(
    point: &MeetingPoint,
    part: RankClaim,
    options: &Options,
    guard: Option<WaitGuard>,
) -> Result<Joining> {
    let request = part.request(point.job_id, options);
    let mut joining = come(point, &request, options.timeout, guard)?;
    // No launcher has decided the options for all.
    joining.options = options.clone();
    Ok(joining)
}

/// Enters a meeting as a joining rank. It takes the first free rank for one, and the others'
/// options except their timeout. Meanwhile `guard` checks.
///
/// # Errors
/// Fails as [`meet`] does, or with [`Error::NoPlace`].
pub(crate) fn meet_as_joiner(
    point: &MeetingPoint,
    timeout: Duration,
    guard: Option<WaitGuard>,
) -> Result<Joining> {
    let request = JoinRequest {
        header: JoinRequest::header(point.job_id),
        layout_version: LAYOUT_VERSION,
        rank: ANY_RANK,
        timeout_ms: milliseconds(timeout),
        ..JoinRequest::zeroed()
    };
    let mut joining = come(point, &request, timeout, guard)?;
    joining.options.timeout = timeout;
    Ok(joining)
}

/// Enters the meeting of this `name` with the claim `part`. Whoever comes first hosts it: `host`
/// opens the meeting at a point with that name, or fails because another one has.
///
/// # Errors
/// Fails as [`meet`] does, and with [`Error::PeerLost`] of the host.
pub(crate) fn meet_by_name(
    name: &str,
    part: RankClaim,
    options: &Options,
    host: impl Fn(MeetingPoint) -> Result<()>,
) -> Result<Joining> {
    let rank = part.rank;
    let deadline = Deadline::after(options.timeout);
    let (socket, job_id, host) = loop {
        let point = MeetingPoint { name: name.to_owned(), job_id: fresh_job_id(), epoch: FIRST_EPOCH };
        match reach(&point, options.timeout) {
            Ok(socket) => {
                if let Some((job_id, host)) = hear_host(&socket, options.timeout)? {
                    break (socket, job_id, host);
                }
                // That meeting has just ended. The next host may be this rank.
            }
            Err(Error::NoMeeting { .. }) => match host(point) {
                Ok(()) => continue,
                Err(Error::Os { source, .. }) if source.raw_os_error() == Some(Errno::EADDRINUSE as i32) => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
        if deadline.waited() > options.timeout {
            return Err(Error::timed_out(MEETING, None, deadline.waited()));
        }
        // Another rank has the name, and does not listen yet.
        let _ = poll(&mut [], PollTimeout::from(1_u8));
    };
    let request = part.request(job_id, options);
    let lost = |error| match error {
        Error::Revoked { by: None, .. } if host != rank => Error::PeerLost { rank: host },
        error => error,
    };
    let mut joining = say(socket, job_id, &request, options.timeout, None).map_err(lost)?;
    joining.options = options.clone();
    Ok(joining)
}

/// Hears which job a host is of, and which rank it is; `None` where its meeting is over.
///
/// # Errors
/// [`Error::NoMeeting`] names a host that has died.
fn hear_host(socket: &OwnedFd, timeout: Duration) -> Result<Option<(u64, Rank)>> {
    let mut deadline = Deadline::after(timeout.saturating_add(LAST_WORDS));
    loop {
        match try_receive(socket.as_fd())? {
            Incoming::Message(bytes, _) if message::read::<Bye>(&bytes).is_some() => return Ok(None),
            Incoming::Message(bytes, _) => {
                let hosted = message::read::<Hosted>(&bytes);
                let found = message::header_of(&bytes).map_or(0, |header| u64::from(header.version));
                let (what, expected) = ("bootstrap version", message::VERSION.into());
                let hosted = hosted.ok_or(Error::Layout { what, expected, found })?;
                return Ok(Some((hosted.header.job_id, Rank::new(hosted.rank, MAX_RANKS)?)));
            }
            Incoming::Nothing => deadline.wait_a_while(socket, MEETING, Duration::MAX)?,
            Incoming::HungUp | Incoming::NoDescriptors => {
                let ended = peer(socket).filter(ProcessMark::ends_in_a_moment);
                return ended.map_or(Ok(None), |host| Err(Error::died_on_its_way(host.pid())));
            }
        }
    }
}

/// Knocks, and says Hello when all have come.
fn come(
    point: &MeetingPoint,
    request: &JoinRequest,
    timeout: Duration,
    guard: Option<WaitGuard>,
) -> Result<Joining> {
    say(reach(point, timeout)?, point.job_id, request, timeout, guard)
}

/// Says the request to a host, and Hello when all have come.
fn say(
    socket: ControlSocket,
    job_id: u64,
    request: &JoinRequest,
    timeout: Duration,
    guard: Option<WaitGuard>,
) -> Result<Joining> {
    let mut channel = ControlChannel { socket, job_id, n_ranks: MAX_RANKS, guard, last_words: LAST_WORDS };
    channel.send(request, &[])?;
    let (met, _) = channel.receive::<Met>(timeout, MEETING)?;
    check_n_ranks(met.n_ranks)?;
    channel.n_ranks = met.n_ranks;
    let rank = Rank::new(met.rank, met.n_ranks)?;
    Joining::begin(channel, DeviceName::Rank(rank), timeout)
}

fn milliseconds(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
}

/// Returns whether a host listens at `point`, without asking for a rank.
pub(crate) fn is_hosted(point: &MeetingPoint) -> bool {
    reach(point, LAST_WORDS).is_ok_and(|socket| {
        // Whoever says nothing may have been a rank that has died.
        let bye = Bye { header: Bye::header(point.job_id) };
        let _ = send(socket.as_fd(), bytemuck::bytes_of(&bye), &[]);
        true
    })
}

/// Connects to the host, which has to be of the same user.
pub(super) fn reach(point: &MeetingPoint, timeout: Duration) -> Result<ControlSocket> {
    let deadline = Deadline::after(timeout);
    let wrap = |errno: Errno| resource_error("coming to a meeting", errno.into());
    let own = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).map_err(wrap)?;
    // Bounds the wait for a host that does not accept. Zero would mean for ever.
    let patience = timeout.clamp(Duration::from_millis(1), Duration::from_secs(1 << 30));
    let patience = TimeVal::milliseconds(i64::try_from(patience.as_millis()).unwrap_or(i64::MAX));
    setsockopt(&own, sockopt::SendTimeout, &patience).map_err(wrap)?;
    loop {
        match connect(own.as_raw_fd(), &point.address()?) {
            Ok(()) => break,
            Err(Errno::EINTR) => {}
            Err(Errno::ECONNREFUSED) => return Err(Error::NoMeeting { source: Errno::ECONNREFUSED.into() }),
            Err(Errno::EAGAIN) => {
                return Err(Error::timed_out(MEETING, None, deadline.waited()));
            }
            Err(errno) => return Err(wrap(errno)),
        }
    }
    let own = ControlSocket::new(own);
    check_user(&own)?;
    Ok(own)
}

/// Checks that the process at the other end runs as the same user.
pub(super) fn check_user(socket: &OwnedFd) -> Result<()> {
    let peer = getsockopt(socket, sockopt::PeerCredentials)
        .map_err(|errno| Error::os("asking who is at the other end", errno))?;
    let own = nix::unistd::geteuid().as_raw();
    if peer.uid() == own {
        return Ok(());
    }
    Err(Error::Layout { what: MemberRefusal::User.what(), expected: own.into(), found: peer.uid().into() })
}

/// Returns the process that opened the other end; `None` where that cannot be known.
pub(super) fn peer(socket: &OwnedFd) -> Option<ProcessMark> {
    let peer = getsockopt(socket, sockopt::PeerCredentials).ok()?;
    ProcessMark::of(u32::try_from(peer.pid()).ok()?)
}

/// The operation that a timeout of a meeting names.
pub(super) const MEETING: &str = "meeting the other ranks";

/// A value on which all ranks of a meeting have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    NRanks,
    HeapLen,
    Backing,
    Members,
}

impl Term {
    pub(super) const ALL: [Self; 4] = [Self::NRanks, Self::HeapLen, Self::Backing, Self::Members];

    const fn what(self) -> &'static str {
        match self {
            Self::NRanks => "the number of ranks",
            Self::HeapLen => "the length of the heap",
            Self::Backing => "the kind of segment backing",
            Self::Members => "the number of ranks that are no newcomers",
        }
    }
}

/// Why a meeting has failed, from the side of one of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// Two processes claim this rank.
    Taken(Rank),
    /// This rank had not come when the shortest timeout was over.
    Missing(Rank),
    /// The root failed with this `errno`.
    Failed(i32),
    /// There are joiners already for as many ranks as are for them.
    Full(u32),
    /// This process ended before it had a rank.
    Died(u32),
    /// Another rank has come with other terms.
    Differs { term: Term, mine: u64, rank: Rank, theirs: u64 },
}

/// The numbers of the reasons. A term's number is added to the last one.
const TAKEN: u32 = 0;
const MISSING: u32 = 1;
const FAILED: u32 = 2;
const FULL: u32 = 3;
const DIED: u32 = 4;
const DIFFERS: u32 = 5;

impl Rejection {
    /// Returns the root's own failure, as far as a number can say it.
    pub(super) fn of_error(error: &Error) -> Self {
        let errno = match error {
            Error::Os { source, .. } | Error::ResourceLimit { source, .. } => source.raw_os_error(),
            _ => None,
        };
        Self::Failed(errno.unwrap_or(0))
    }

    pub(super) fn message(self, job_id: u64) -> Rejected {
        let (reason, rank, mine, theirs) = match self {
            Self::Taken(rank) => (TAKEN, rank.get(), 0, 0),
            Self::Missing(rank) => (MISSING, rank.get(), 0, 0),
            Self::Failed(errno) => (FAILED, 0, 0, u64::from(errno.unsigned_abs())),
            Self::Full(places) => (FULL, 0, 0, places.into()),
            Self::Died(pid) => (DIED, 0, 0, pid.into()),
            Self::Differs { term, mine, rank, theirs } => (DIFFERS + term as u32, rank.get(), mine, theirs),
        };
        Rejected { header: Rejected::header(job_id), reason, rank, mine, theirs }
    }

    /// Reads a message; `None` when it says nothing that is known here.
    pub(super) fn from_message(message: Rejected) -> Option<Self> {
        let Rejected { reason, mine, theirs, .. } = message;
        let rank = Rank::new(message.rank, MAX_RANKS).ok()?;
        match reason {
            TAKEN => Some(Self::Taken(rank)),
            MISSING => Some(Self::Missing(rank)),
            FAILED => Some(Self::Failed(i32::try_from(theirs).ok()?)),
            FULL => Some(Self::Full(u32::try_from(theirs).ok()?)),
            DIED => Some(Self::Died(u32::try_from(theirs).ok()?)),
            _ => {
                let term = *Term::ALL.get(reason.checked_sub(DIFFERS)? as usize)?;
                Some(Self::Differs { term, mine, rank, theirs })
            }
        }
    }

    /// Returns the error of a member that has waited that long.
    pub(super) fn into_error(self, waited: Duration) -> Error {
        match self {
            Self::Taken(rank) => Error::RankTaken { rank },
            Self::Missing(rank) => Error::timed_out(MEETING, Some(rank), waited),
            Self::Failed(errno) => {
                resource_error("hosting the meeting", std::io::Error::from_raw_os_error(errno))
            }
            Self::Full(places) => Error::NoPlace { places },
            Self::Died(pid) => Error::died_on_its_way(pid),
            Self::Differs { term, mine, rank, theirs } => {
                Error::Mismatch { what: term.what(), mine, rank, theirs }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_socket() {
        let rank = Rank::known(255);
        let differs = Term::ALL.map(|term| Rejection::Differs { term, mine: 1, rank, theirs: u64::MAX });
        let others = [
            Rejection::Taken(rank),
            Rejection::Missing(rank),
            Rejection::Failed(24),
            Rejection::Full(1),
            Rejection::Died(7),
        ];
        for reason in others.into_iter().chain(differs) {
            assert_eq!(Rejection::from_message(reason.message(7)), Some(reason));
        }
    }

    #[test]
    fn a_process_that_has_died_is_named_once() {
        let error = Rejection::Died(7).into_error(Duration::ZERO);
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(error.to_string().matches("process 7 ended").count(), 1, "{error}");
    }

    #[test]
    fn a_reason_that_nobody_knows_and_a_rank_that_cannot_be_are_not_believed() {
        let message = Rejection::Taken(Rank::known(0)).message(7);
        assert_eq!(Rejection::from_message(Rejected { reason: 9, ..message }), None);
        assert_eq!(Rejection::from_message(Rejected { rank: 256, ..message }), None);
        assert_eq!(Rejection::from_message(Rejected { reason: 2, theirs: u64::MAX, ..message }), None);
    }
}
