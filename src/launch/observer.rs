//! Who is told what happens to a job while it is supervised.

use std::time::Duration;

#[cfg(doc)]
use super::Launch;
use super::output::OutputLine;
use crate::error::{DeviceName, ExitCause};

/// Who is told what happens to a job. Its methods are called from the thread that supervises, which goes on when they
/// return. A closure over the name of a lost member is an observer too.
pub trait Observer {
    /// A member was lost: it died, failed, hung up or broke the protocol. Called once for each, at once; the place to
    /// revoke the epoch in the control segment.
    fn on_loss(&mut self, device: DeviceName);

    /// A member hangs: it has not beaten for so long, and was taken for lost; it `is_killed` at once, or left as it is. Only with
    /// [`Launch::detect_hangs`], and after [`Observer::on_loss`].
    fn on_hang(&mut self, device: DeviceName, silent: Duration, is_killed: bool) {
        let _ = (device, silent, is_killed);
    }

    /// The launcher was told to stop by a signal, which it has passed on, or by [`Observer::wants_end`].
    fn on_interrupt(&mut self) {}

    /// A rank that had ended so has been started again in its place; that can be done so many times more.
    fn on_restart(&mut self, device: DeviceName, cause: ExitCause, left: u32) {
        let _ = (device, cause, left);
    }

    /// The launcher was asked by SIGQUIT what the job is doing; only with [`Launch::heed_quit`].
    fn on_quit(&mut self) {}

    /// All members are ready, so long after the launch began.
    fn on_ready(&mut self, after: Duration) {
        let _ = after;
    }

    /// The name of a segment was removed from `/dev/shm`: the process `creator` of an earlier job was killed and has left it.
    /// Called before anything is started.
    fn on_stale_name(&mut self, name: &str, creator: u64) {
        let _ = (name, creator);
    }

    /// A process has printed a line; only with [`Launch::capture_output`].
    fn on_output(&mut self, line: OutputLine<'_>) {
        let _ = line;
    }

    /// Whether the job is to end. Asked whenever something has happened, until the job is interrupted; at a yes it ends as if the
    /// launcher had been sent a SIGTERM, also where that signal is ignored.
    fn wants_end(&mut self) -> bool {
        false
    }
}

impl<F: FnMut(DeviceName)> Observer for F {
    fn on_loss(&mut self, device: DeviceName) {
        self(device);
    }
}
