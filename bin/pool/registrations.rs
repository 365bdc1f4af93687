//! Which devices of a coordinator have come: one that ends before that was not described well, or finds the system not as it should be.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shmccl::coordinator::{DeviceEnd, DeviceId};

use crate::output;

/// Who has come, and who will not.
#[derive(Clone, Debug, Default)]
pub(super) struct Registrations(Arc<Mutex<RegistrationState>>);

#[derive(Debug, Default)]
struct RegistrationState {
    come: BTreeSet<DeviceId>,
    /// Whether the pool goes on though a device fails to come, as it has others to lose.
    goes_on: bool,
    /// The first that has failed to come, where the pool has ended by that.
    failed: Option<String>,
}

impl Registrations {
    /// Of a pool that has taken over so many devices, or is about to.
    pub(super) fn goes_on_with(&self, others: usize) {
        self.state().goes_on = others > 0;
    }

    pub(super) fn note_come(&self, device: DeviceId) {
        self.state().come.insert(device);
    }

    /// Tells of a device that has ended. One that has not come ends the pool with it, as Ctrl-C would, unless that goes on, or the device
    /// was told to end: nothing is wrong with that one, and a Ctrl-C that has told it so ends the pool anyway. Returns whether another one
    /// is to be started in its place: where it can be, and that place has been taken before.
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
            // Nobody but this process has the number.
            let _ = kill(Pid::this(), Signal::SIGTERM);
        }
        false
    }

    /// What has ended the pool, if it was a device.
    ///
    /// # Errors
    /// That.
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
