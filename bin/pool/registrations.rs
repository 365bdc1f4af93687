//! Which devices of a coordinator have registered. A device that ends before that was described
//! badly, or finds the system in a bad state.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::coordinator::{DeviceEnd, DeviceId};

use crate::output;

/// The devices that have registered, and the first that has failed to.
#[derive(Clone, Debug, Default)]
pub(super) struct Registrations(Arc<Mutex<RegistrationState>>);

#[derive(Debug, Default)]
struct RegistrationState {
    come: BTreeSet<DeviceId>,
    /// Whether the pool goes on if a device fails to register, as it has others to lose.
    goes_on: bool,
    /// The first device that has failed to register, if that has ended the pool.
    failed: Option<String>,
}

impl Registrations {
    /// Sets whether the pool has other devices, taken over or about to be.
    pub(super) fn goes_on_with(&self, others: usize) {
        self.state().goes_on = others > 0;
    }

    pub(super) fn note_come(&self, device: DeviceId) {
        self.state().come.insert(device);
    }

    /// Reports the end of a device, and returns whether another one is started in its place. A
    /// device that has not registered ends the pool, as Ctrl-C would. The pool goes on if it has
    /// other devices, or if the device was told to end.
    pub(super) fn note_end(&self, end: &DeviceEnd) -> bool {
        let mut state = self.state();
        let has_come = state.come.remove(&end.device);
        let told = if has_come { end.to_string() } else { format!("{end} before it had registered") };
        if end.is_to_be_followed(has_come) {
            output::note(&format!("{told}; started again ({} more times at most)", end.restarts - 1));
            return true;
        }
        if has_come {
            output::note(&format!("{told}; the others go on"));
            return false;
        }
        if state.goes_on || end.was_restarted || end.was_taken_over || end.was_told() {
            output::note(&format!("{told}, and the pool goes on without it"));
            return false;
        }
        if state.failed.is_none() {
            state.failed = Some(told);
            // The process id is that of this process.
            let _ = kill(Pid::this(), Signal::SIGTERM);
        }
        false
    }

    /// Fails if a device has ended the pool.
    ///
    /// # Errors
    /// The end of that device.
    pub(super) fn verdict(&self) -> Result<()> {
        match self.state().failed.take() {
            Some(failed) => bail!("{failed}, so the pool has ended; what was wrong it has told above"),
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, RegistrationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
