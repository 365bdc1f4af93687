//! Devices whose coordinator was killed, and which whoever follows it has taken over, or may. Their parent is dead: who ends in order ends
//! them, too, as it ends what it has started itself.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;

use super::device::Appointed;
use super::directory::RuntimeDirectory;
use super::fleet::GRACE;
use crate::bootstrap::poll_timeout;
use crate::shm::system::{pidfd_kill, pidfd_signal};

/// Ends those of `directory`, of which this process has the lock, registered or not, and waits for that. One that takes too long is killed.
pub(super) fn end(directory: &RuntimeDirectory) {
    let mut living = find(directory);
    living.iter().for_each(|device| pidfd_signal(device.as_fd(), Signal::SIGTERM));
    let until = Instant::now() + GRACE;
    while !living.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            living.iter().for_each(|device| pidfd_kill(device.as_fd()));
            return;
        }
        let mut polled: Vec<_> =
            living.iter().map(|device| PollFd::new(device.as_fd(), PollFlags::POLLIN)).collect();
        let _ = poll(&mut polled, poll_timeout(Some(left)));
        let ended: Vec<_> = polled.iter().map(|it| it.any().unwrap_or(true)).collect();
        let mut ended = ended.into_iter();
        living.retain(|_| !ended.next().unwrap_or_default());
    }
}

fn find(directory: &RuntimeDirectory) -> Vec<OwnedFd> {
    let waits = |it: &Appointed| it.is_orphan && it.assignment.outlives.is_some();
    let all = Appointed::all(directory).unwrap_or_default().into_iter().filter(waits);
    all.filter_map(|it| it.hold(directory)).collect()
}
