//! A member's live end of the control socket after the bootstrap.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{Shutdown, shutdown};

use super::message::{self, Blame, Bye, ControlMessage, Invite, Lost, NotRestarted, Report};
use super::socket::{Deadline, Incoming, duplicate, resource_error, send, try_receive};
use crate::error::{DeviceName, Error, Result};
use crate::rank::{Rank, RankSet};
use crate::shm::undivided::spawn;
use crate::shm::{CellRef, HostKernel};
use crate::sync::HeartbeatCell;

/// An event on a [`ControlLink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A member died, or ended without leaving.
    Lost {
        /// The member.
        device: DeviceName,
        /// How often the launcher had restarted it before.
        restarts: u32,
        /// Whether it may live: it has not beaten for too long.
        hangs: bool,
    },
    /// A lost member is not restarted, because no restart is left.
    NotRestarted(
        /// The member.
        DeviceName,
    ),
    /// The launcher is gone: no process supervises this job any more.
    LauncherGone,
}

/// The control socket of a member of a running job.
///
/// While it is open, the launcher counts the member as alive. Dropping it sends Bye, unless the
/// thread is panicking. A process that ends without Bye was lost, and the launcher tells all
/// others.
#[derive(Debug)]
pub struct ControlLink {
    pub(super) socket: OwnedFd,
    job_id: u64,
    n_ranks: u32,
    open: bool,
}

impl ControlLink {
    pub(crate) fn new(socket: OwnedFd, job_id: u64, n_ranks: u32) -> Self {
        Self { socket, job_id, n_ranks, open: true }
    }

    /// Returns the number of ranks that the launcher has started.
    pub(crate) fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Leaves the job: after this the end of the process, with exit code 0, is not a failure.
    ///
    /// # Errors
    /// [`Error::Revoked`] when the launcher is gone.
    pub fn finalize(mut self) -> Result<()> {
        self.open = false;
        self.send(&Bye { header: Bye::header(self.job_id) })
    }

    /// Reports that this member is about to fail *because* `lost` was lost. So the launcher names
    /// the cause, and knows of the loss before it sees it itself. `restarts` says which process of
    /// that member it is: the report says nothing of a later one.
    pub fn report_loss(&self, lost: DeviceName, restarts: u32) {
        let member = message::member_code(lost);
        // A launcher that is gone, or does not read, has no use for the report.
        let _ = self.send(&Report { header: Report::header(self.job_id), member, restarts });
    }

    /// Reports that `rank` is to blame if this member fails. That rank left too early or, if it
    /// `is_late`, held others up. It does not count as lost because of that. `restarts` is as in a
    /// report of a loss.
    pub(crate) fn blame(&self, rank: Rank, restarts: u32, is_late: bool) {
        let (header, member) = (Blame::header(self.job_id), rank.get());
        let _ = self.send(&Blame { header, member, restarts, is_late: is_late.into(), reserved: 0 });
    }

    /// Sends an invitation through the launcher to restarted `ranks`: they come to the meeting
    /// whose id has this token.
    pub(crate) fn invite(&self, token: [u64; 2], ranks: RankSet) {
        // Without a launcher nobody comes, and that is seen there.
        let _ = self.send(&Invite { header: Invite::header(self.job_id), token, ranks: ranks.words() });
    }

    fn read_event(&self, bytes: &[u8]) -> Option<LinkEvent> {
        let device = |member| message::member_from_code(member, self.n_ranks);
        if let Some(NotRestarted { member, .. }) = message::read::<NotRestarted>(bytes) {
            return device(member).map(LinkEvent::NotRestarted);
        }
        let Lost { member, restarts, hangs, .. } = message::read::<Lost>(bytes)?;
        Some(LinkEvent::Lost { device: device(member)?, restarts, hangs: hangs != 0 })
    }

    /// Waits for the next event, at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`], or [`Error::Os`] when the socket fails.
    pub fn wait_event(&self, timeout: Duration) -> Result<LinkEvent> {
        let mut deadline = Deadline::by_the_clock(timeout);
        loop {
            match try_receive(self.socket.as_fd())? {
                Incoming::HungUp => return Ok(LinkEvent::LauncherGone),
                Incoming::Nothing => {
                    deadline.wait_a_while(&self.socket, "waiting for the launcher", Duration::MAX)?;
                }
                Incoming::NoDescriptors => {}
                Incoming::Message(bytes, _) => {
                    if let Some(event) = self.read_event(&bytes) {
                        return Ok(event);
                    }
                }
            }
        }
    }

    /// Starts a thread that calls `on_event` for every event and beats by `heartbeat`, if there is
    /// one. It sleeps in between. The last event is [`LinkEvent::LauncherGone`].
    ///
    /// The watch takes the events: [`ControlLink::wait_event`] returns none of them while it lives.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`].
    pub fn watch(
        &self,
        heartbeat: Option<MemberHeartbeat>,
        on_event: impl FnMut(LinkEvent) + Send + 'static,
    ) -> Result<LinkWatch> {
        let copy = || duplicate(&self.socket, "duplicating the control socket");
        let (own, socket) = (copy()?, copy()?);
        let stopped = Arc::new(Mutex::new(false));
        // Not a member's own link: it never says Bye.
        let ears = Self { socket: own, job_id: self.job_id, n_ranks: self.n_ranks, open: false };
        let seen = Arc::clone(&stopped);
        let thread = spawn("shmccl link", move || ears.listen(heartbeat.as_ref(), &seen, on_event));
        let thread = thread.map_err(|error| resource_error("starting a thread", error))?;
        Ok(LinkWatch { socket, stopped, thread: Some(thread) })
    }

    fn listen(
        &self,
        heartbeat: Option<&MemberHeartbeat>,
        stopped: &Mutex<bool>,
        mut on_event: impl FnMut(LinkEvent),
    ) {
        loop {
            let patience = heartbeat.map_or(Duration::MAX, MemberHeartbeat::beat);
            let event = match self.wait_event(patience) {
                Ok(event) => event,
                Err(Error::Timeout { .. }) => continue,
                // Nothing will be heard any more.
                Err(_) => LinkEvent::LauncherGone,
            };
            if *stopped.lock().unwrap_or_else(PoisonError::into_inner) {
                return;
            }
            on_event(event);
            if event == LinkEvent::LauncherGone {
                return;
            }
        }
    }

    fn send<M: ControlMessage>(&self, message: &M) -> Result<()> {
        send(self.socket.as_fd(), bytemuck::bytes_of(message), &[])
            .map_err(|_| Error::Revoked { by: None, awaited: None })
    }
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        if self.open && !std::thread::panicking() {
            let _ = self.send(&Bye { header: Bye::header(self.job_id) });
        }
    }
}

/// The heartbeat of a member: its cell and its period.
#[derive(Debug)]
pub struct MemberHeartbeat {
    cell: CellRef<HeartbeatCell>,
    every: Duration,
}

impl MemberHeartbeat {
    /// Beats in `cell`, `every` so often.
    pub(crate) fn new(cell: CellRef<HeartbeatCell>, every: Duration) -> Self {
        Self { cell, every }
    }

    /// Beats once, and says how long it is until the next time.
    fn beat(&self) -> Duration {
        self.cell.beat(HostKernel::clock());
        self.every
    }
}

/// A thread that listens to a [`ControlLink`]. Dropping it ends the thread.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
    stopped: Arc<Mutex<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        // Looks like a hang-up on this side and wakes the thread. This member's messages still
        // arrive.
        let is_woken = shutdown(self.socket.as_raw_fd(), Shutdown::Read).is_ok();
        let Some(thread) = self.thread.take() else { return };
        // Where a sandbox refuses that, the thread ends with the next event.
        if is_woken && thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}
