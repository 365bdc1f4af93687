//! Meetings to which nobody has come yet: one thread of the process waits at all of them.
//!
//! An id costs a socket until a process comes, and a thread of its own only from then on, or when
//! its patience is over. The waiting thread ends with the last of them.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::SigSet;
use nix::unistd::{pipe2, read, write};

use super::socket::{poll_timeout, resource_error};
use crate::error::Result;
use crate::shm::HostKernel;
use crate::shm::undivided::{ProcessMutex, spawn};
use crate::shm::unforked::Unforked;
use crate::sync::grace::Grace;

/// A meeting to which nobody has come.
pub(super) struct WaitingHost {
    pub(super) listener: Unforked<UnixListener>,
    /// What is left of the host's patience.
    pub(super) patience: Option<Grace>,
    /// Leads the meeting, in a thread of its own.
    pub(super) lead: Box<dyn FnOnce(Unforked<UnixListener>, Option<Grace>) + Send>,
}

/// The thread that waits, and what it has not heard of yet.
struct Waiter {
    new: Vec<WaitingHost>,
    wake: OwnedFd,
}

/// A child of a fork has no such thread.
static WAITER: ProcessMutex<Option<Waiter>> = ProcessMutex::new();

/// Has somebody wait until the first process comes to a meeting, or until its patience is over.
///
/// # Errors
/// [`Error::ResourceLimit`](crate::error::Error::ResourceLimit).
pub(super) fn wait_for_first(host: WaitingHost) -> Result<()> {
    WAITER.with(|waiter| {
        if let Some(waiter) = waiter {
            waiter.new.push(host);
            // A pipe that is full wakes it all the same.
            let _ = write(&waiter.wake, &[0]);
            return Ok(());
        }
        *waiter = Some(Waiter::start(host)?);
        Ok(())
    })
}

impl Waiter {
    fn start(first: WaitingHost) -> Result<Self> {
        let pipe = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK);
        let (woken, wake) = pipe.map_err(|errno| resource_error("opening a pipe", errno.into()))?;
        let wait = move || {
            // Signals are the application's. It cannot fail with a valid set.
            let _ = SigSet::all().thread_block();
            wait_at_all(&woken);
        };
        spawn("shmccl meetings", wait).map_err(|error| resource_error("starting a thread", error))?;
        Ok(Self { new: vec![first], wake })
    }
}

/// Waits at all meetings, until there is none.
fn wait_at_all(woken: &OwnedFd) {
    let mut hosts = Vec::new();
    while take_new(&mut hosts) {
        let left = hosts.iter().filter_map(|host: &WaitingHost| host.patience.as_ref());
        let patience = left.map(Grace::next_look).min();
        let listeners = hosts.iter().map(|host| host.listener.as_fd());
        let all = listeners.chain([woken.as_fd()]);
        let mut polled: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let failed = poll(&mut polled, poll_timeout(patience)).is_err_and(|errno| errno != Errno::EINTR);
        // Without a poll nobody would be heard: each host waits by itself.
        let has_come: Vec<_> = polled.iter().map(|it| failed || it.any().unwrap_or(false)).collect();
        let _ = read(woken, &mut [0; 64]);
        let mut has_come = has_come.into_iter();
        let now = HostKernel::clock();
        let is_over = |host: &mut WaitingHost| host.patience.as_mut().is_some_and(|left| left.is_over(now));
        // `|`, as each counts the time that has passed.
        let over = hosts.extract_if(.., |host| is_over(host) | has_come.next().unwrap_or(false));
        over.for_each(lead);
    }
}

/// Takes the meetings that are new. Returns whether there are any; without one the thread is over.
fn take_new(hosts: &mut Vec<WaitingHost>) -> bool {
    WAITER.with(|waiter| {
        hosts.extend(waiter.iter_mut().flat_map(|waiter| std::mem::take(&mut waiter.new)));
        if hosts.is_empty() {
            *waiter = None;
        }
        !hosts.is_empty()
    })
}

/// Leads a meeting in a thread of its own, which inherits that all signals are blocked. Where there
/// is none to be had the others wait for it.
fn lead(host: WaitingHost) {
    let (give, taken) = std::sync::mpsc::sync_channel::<WaitingHost>(1);
    let run = |host: WaitingHost| (host.lead)(host.listener, host.patience);
    match spawn("shmccl meeting", move || taken.recv().into_iter().for_each(run)) {
        Ok(_) => drop(give.send(host)),
        Err(_) => run(host),
    }
}
