//! Restarts ranks that have died.
//!
//! A dead rank is restarted as soon as nothing of its process is left and another rank is in the
//! job to come together with. A rank that others have given up, or that has hung up, is killed
//! first if it has not ended within the time of grace. A rank that has left is not
//! restarted, even if it ends with an error: the others do not take it back. Once a rank is back,
//! its failure is forgotten, and cannot be the cause of a later end of the job.
//!
//! When no restart is left, or the system starts no other process, the others learn which rank is
//! not restarted, and do not wait for it.

use std::time::Duration;

use super::process::{Started, start};
use super::supervise::SupervisedJob;
use crate::bootstrap::MemberId;
use crate::error::{DeviceName, ExitCause, Result};
use crate::logs::LAUNCH;
use crate::shm::HostKernel;
use crate::sync::grace::Grace;

impl SupervisedJob<'_> {
    /// Starts the process of a member on its cores, for the first time or `again`.
    pub(super) fn start_process(&self, device: DeviceName, again: bool) -> Result<Started> {
        let _cores = self.pinning.borrow_cores(device);
        start(self.launch, device, again, self.held.as_ref())
    }

    /// Returns the time until the next look at a deadline of a lost member.
    pub(super) fn until_restart(&self) -> Option<Duration> {
        let now = HostKernel::clock();
        self.processes.iter().filter_map(|process| Some(process.restart_deadline?.patience(now))).min()
    }

    /// Returns whether a member that is lost, or may be, can be restarted.
    pub(super) fn can_restart(&self, id: MemberId) -> bool {
        let is_company = |other: MemberId| other != id && self.is_rank(other) && self.root.is_running(other);
        self.restarts_left > 0
            && self.ending.is_none()
            && !self.processes.iter().any(|process| process.was_killed)
            && self.ready_after.is_some()
            && !self.processes[id.0].has_left
            && !self.processes[id.0].cannot_restart
            && self.is_rank(id)
            && self.ids().any(is_company)
    }

    /// Sets a deadline for the end of a lost member that is to be restarted.
    pub(super) fn mark_for_restart(&mut self, id: MemberId) {
        if self.can_restart(id) && !self.processes[id.0].has_ended() {
            let begin = || Grace::begin(self.launch.grace, HostKernel::clock());
            self.processes[id.0].restart_deadline.get_or_insert_with(begin);
        }
    }

    /// Returns whether the restarted members have no running rank left to come together with.
    pub(super) fn only_returning_are_left(&self) -> bool {
        let mut left = self.ids().filter(|id| !self.processes[id.0].has_ended());
        !self.restarted.is_empty() && left.all(|id| self.root.is_returning(id))
    }

    /// Starts those again that have ended and can be, and kills those whose time is up.
    pub(super) fn restart_the_dead(&mut self) {
        for id in self.ids() {
            let process = &mut self.processes[id.0];
            let has_ended = process.has_ended();
            let deadline = &mut process.restart_deadline;
            if deadline.take_if(|grace| grace.is_over(HostKernel::clock())).is_some() && !has_ended {
                process.kill_as_failure();
            }
            match self.first_cause.cause(id).filter(|_| has_ended) {
                Some(cause) if self.can_restart(id) => self.restart(id, cause),
                // It could be when it was lost, but another one has taken the last restart since.
                Some(_) => self.begin_grace_unless_going_on(id),
                None => {}
            }
        }
        self.announce_unrestarted();
    }

    /// Tells the others which lost ranks are not restarted, once all restarts are used up.
    fn announce_unrestarted(&mut self) {
        let is_over = self.restarts_left == 0 && self.launch.restarts > 0;
        for id in self.ids() {
            if is_over && self.processes[id.0].is_reported && self.is_rank(id) {
                self.root.announce_not_restarted(id);
            }
        }
    }

    fn restart(&mut self, id: MemberId, cause: ExitCause) {
        let device = self.root.device(id);
        let started = match self.start_process(device, true) {
            Ok(started) => started,
            Err(error) => {
                tracing::warn!(target: LAUNCH, %device, %error, "cannot be started again");
                self.processes[id.0].cannot_restart = true;
                self.observer.on_restart_failed(device, &error);
                self.root.announce_not_restarted(id);
                return self.begin_grace_unless_going_on(id);
            }
        };
        tracing::info!(target: LAUNCH, %device, pid = started.process.pid().as_raw(), "started again");
        self.processes[id.0] = started.process;
        self.pipes.extend(started.pipes);
        self.root.replace_member(id, started.socket);
        if let Some(watch) = &mut self.hangs {
            watch.forget(id);
        }
        self.first_cause.suspend(id);
        let cause = self.naming.name(device, cause);
        self.restarts_left -= 1;
        self.restarted.push((device, cause));
        self.observer.on_restart(device, cause, self.restarts_left);
    }
}
