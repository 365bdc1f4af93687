//! The host of a meeting, in the process that made the id. Until a process comes, one thread waits
//! for all meetings of the process (`waiting_hosts`). Then the host is a thread of its own.
//!
//! It receives the ranks and is the root of their bootstrap. It ends with Go, or when the meeting
//! has failed. The job does not need it afterwards: life locks show deaths, as between processes of
//! one launcher. A host that dies before Go ends the meeting, because every socket hangs up.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, bind, listen, setsockopt, socket, sockopt,
};

use super::join_request::MeetingPoint;
use super::join_request::Rejection;
use super::meeting::{AssembledRanks, LateRounds, Meeting};
use super::options::{Options, Placement};
use super::root::{BootstrapRoot, MemberId, Offer, RootEvent};
use super::socket::{poll_timeout, resource_error};
use super::waiting_hosts::{WaitingHost, wait_for_first};
use crate::error::{Error, Result};
use crate::logs::step;
use crate::rank::Rank;
use crate::shm::HostKernel;
use crate::shm::unforked::Unforked;
use crate::sync::grace::Grace;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 128;

/// The pause before a send that the kernel refused for want of room is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// How long assembled ranks have to join in any case, however late the host received the last of
/// them.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// How long a member that was heard after the deadline has for its next message.
const REPLY: Duration = Duration::from_millis(10);

/// A meeting point that listens, and accepts no connection yet.
#[derive(Debug)]
pub(crate) struct MeetingHost {
    listener: Unforked<UnixListener>,
    point: MeetingPoint,
    /// How long the host waits if no rank comes.
    patience: Option<Duration>,
    /// Whether those who come after a failure are told of it.
    lingers: bool,
    /// The rank that hosts it, which those are told who come by a name.
    rank: Option<Rank>,
}

impl MeetingHost {
    /// Opens the meeting point.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] or [`Error::Os`].
    pub(crate) fn open(point: MeetingPoint) -> Result<Self> {
        let address = point.address()?;
        let open = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
            setsockopt(&listener, sockopt::PassCred, &true)?;
            bind(listener.as_raw_fd(), &address)?;
            listen(&listener, Backlog::new(BACKLOG)?)?;
            Ok(listener.into())
        };
        let listener =
            Unforked::open(open).map_err(|errno: Errno| resource_error("opening a meeting", errno.into()))?;
        Ok(Self { listener, point, patience: None, lingers: true, rank: None })
    }

    /// Returns another descriptor of the listening socket, as a forked process has one.
    #[cfg(test)]
    pub(super) fn try_clone_listener(&self) -> std::io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// Lets it wait so long at most for the first rank.
    pub(crate) fn for_at_most(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Lets it tell those who come which rank it is of.
    pub(crate) fn of_rank(self, rank: Rank) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// Lets it end as the meeting fails.
    pub(crate) fn ending_as_it_fails(self) -> Self {
        Self { lingers: false, ..self }
    }

    /// Starts to wait for processes. When all have come, a thread of the meeting makes the control
    /// segment for their number by `make_control`.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`].
    pub(crate) fn start<C: AsFd>(
        self,
        make_control: impl FnOnce(u32) -> Result<C> + Send + 'static,
    ) -> Result<()> {
        let Self { listener, point, patience, lingers, rank } = self;
        let patience = patience.map(|patience| Grace::begin(patience, HostKernel::clock()));
        // The thread goes on by itself: it ends with the meeting, at the latest with the process.
        let lead = Box::new(move |listener, patience| {
            let meeting = Meeting::new(listener, point.job_id, patience);
            let meeting = match rank {
                Some(rank) => meeting.hosted_by(rank),
                None => meeting,
            };
            let meeting = if lingers { meeting } else { meeting.ending_as_it_fails() };
            if let Some(assembled) = meeting.assemble() {
                run_root(assembled, &point, make_control);
            }
        });
        wait_for_first(WaitingHost { listener, patience, lead })
    }
}

/// Leads those who have met from Hello to Go.
fn run_root<C: AsFd>(
    assembled: AssembledRanks,
    point: &MeetingPoint,
    make_control: impl FnOnce(u32) -> Result<C>,
) {
    let AssembledRanks { sockets, heap_len, deadline } = assembled;
    let n_ranks = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
    // Members keep to their own options. The meeting has checked that these fit.
    let options = Options { heap_len, ..Options::default() };
    let MeetingPoint { job_id, epoch, .. } = *point;
    let offer = Offer { n_ranks, epoch, job_id, options, restarting: false, beat: None };
    let root = make_control(n_ranks)
        .and_then(|control| BootstrapRoot::new(offer, control.as_fd(), None, None))
        .map(BootstrapRoot::trusting);
    match root {
        Ok(mut root) => {
            for socket in sockets {
                root.add_member(socket, Placement { cpu: None, devices: 1, proxies: 0 });
            }
            let deadline =
                deadline.map(|deadline| deadline.max(Grace::begin(LAST_MOMENT, HostKernel::clock())));
            if let Err(error) = serve_until_go(&mut root, deadline) {
                root.send_to_all(&Rejection::of_error(&error).message(job_id));
            }
        }
        Err(error) => {
            let message = Rejection::of_error(&error).message(job_id);
            for socket in &sockets {
                super::meeting::send_to(socket, &message);
            }
        }
    }
}

/// Drives the root until all members have got Go, or one is lost. Its messages outlive it. A
/// message that came by the deadline is read, however late that is noticed.
fn serve_until_go(root: &mut BootstrapRoot, mut deadline: Option<Grace>) -> Result<()> {
    let (mut is_over, mut late_rounds) = (false, LateRounds::default());
    while !is_over || root.has_backlog() {
        let is_late = deadline.as_mut().is_some_and(|deadline| deadline.is_over(HostKernel::clock()));
        let patience =
            if late_rounds.is_none() { deadline.as_ref().map(Grace::next_look) } else { Some(REPLY) };
        let (ids, is_quiet) = wait(root, patience)?;
        if late_rounds.is_last(is_late, is_quiet) {
            if !is_over {
                root.declare_laggards_lost();
            }
            return Ok(());
        }
        for id in ids {
            step("about to serve a member");
            root.serve(id)?;
            if root.is_absent(id) {
                root.declare_lost(id, false);
                is_over = true;
            }
        }
        while let Some(event) = root.next_event() {
            is_over |= matches!(event, RootEvent::Up | RootEvent::Lost(..) | RootEvent::Reported(..));
        }
    }
    Ok(())
}

/// Waits for an event. Returns the members that it may concern, and whether nobody has sent
/// anything.
fn wait(root: &BootstrapRoot, patience: Option<Duration>) -> Result<(Vec<MemberId>, bool)> {
    let (ids, mut polled): (Vec<_>, Vec<_>) =
        root.sockets().map(|(id, socket, _)| (id, PollFd::new(socket, PollFlags::POLLIN))).unzip();
    let until_retry = root.has_backlog().then_some(BACKLOG_PAUSE);
    match poll(&mut polled, poll_timeout([patience, until_retry].into_iter().flatten().min())) {
        Ok(n_ready) => Ok((ids, n_ready == 0)),
        Err(Errno::EINTR) => Ok((ids, false)),
        Err(errno) => Err(Error::os("waiting at a meeting", errno)),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::super::message::{ControlMessage, Hello, LAYOUT_VERSION, Lost, Welcome};
    use super::super::socket::{Incoming, pair, send, try_receive};
    use super::*;
    use crate::bootstrap::message;

    #[test]
    fn what_has_come_by_the_deadline_is_heard_however_late_that_is_noticed() {
        const JOB: u64 = 77;
        let control = memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap();
        let options = Options { heap_len: 1 << 20, ..Options::default() };
        let offer = Offer { n_ranks: 2, epoch: 1, job_id: JOB, options, restarting: false, beat: None };
        let mut root = BootstrapRoot::new(offer, control.as_fd(), None, None).unwrap().trusting();
        let members = [(), ()].map(|()| {
            let (own, theirs) = pair().unwrap();
            root.add_member(own, Placement { cpu: None, devices: 1, proxies: 0 });
            theirs
        });
        let (header, pid) = (Hello::header(JOB), std::process::id());
        let hello = Hello { header, layout_version: LAYOUT_VERSION, pid, member: 1, reserved: 0 };
        send(members[1].as_fd(), bytemuck::bytes_of(&hello), &[]).unwrap();
        serve_until_go(&mut root, Some(Grace::begin(Duration::ZERO, HostKernel::clock()))).unwrap();
        let told = |member: usize| match try_receive(members[member].as_fd()).unwrap() {
            Incoming::Message(bytes, _) => bytes,
            other => panic!("{other:?}"),
        };
        assert!(message::read::<Welcome>(&told(1)).is_some(), "it has said Hello");
        let lost = message::read::<Lost>(&told(1)).unwrap();
        assert_eq!(lost.member, 0, "the one that has said nothing");
    }
}
