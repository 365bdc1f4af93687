//! Devices whose coordinator was killed, and which whoever follows it has taken over, or may. Their parent is dead: who ends in order ends
//! them, too, as it ends what it has started itself.

use std::os::fd::OwnedFd;

use super::device::StartedDevice;
use super::directory::RuntimeDirectory;
use super::sendoff;

/// Ends those of `directory`, of which this process has the lock, registered or not, and waits for that.
pub(super) fn end(directory: &RuntimeDirectory) {
    let waits = |it: &StartedDevice| it.is_orphan && it.assignment.outlives.is_some();
    let all = StartedDevice::all(directory).unwrap_or_default().into_iter().filter(waits);
    let living: Vec<OwnedFd> = all.filter_map(|it| it.hold(directory)).collect();
    sendoff::end(&living);
}
