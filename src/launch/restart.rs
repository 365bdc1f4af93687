//! Starting ranks again that have died.
//!
//! A dead rank is started again as soon as nothing of its process is left, provided that another rank is in the job, with whom it
//! can come together. One that others have given up, or that has hung up, is killed first when it has not ended within the
//! time of grace. Nobody is started for one that has left in peace, also when it ends with an error: the others do not take it back.
//! Once a rank is back among the others its failure is forgotten: if the job fails later, that is not why.
//!
//! When no restart is left the others are told for whom nobody is started, so that they do not wait to take that rank back.

use std::time::{Duration, Instant};

use super::grace::Grace;
use super::pin::PinPlan;
use super::process::{Started, devices, start};
use super::supervise::SupervisedJob;
use super::{Launch, process::Process};
use crate::bootstrap::MemberId;
use crate::error::{DeviceName, ExitCause, Result};
use crate::logs::LAUNCH;

/// How ranks are started, and started again.
#[derive(Debug)]
pub(super) struct RestartState<'l> {
    launch: &'l Launch,
    plan: PinPlan,
    left: u32,
    /// Who was started again, and how it had ended.
    done: Vec<(DeviceName, ExitCause)>,
    /// After which a member is killed that is lost and has not ended.
    restart_deadlines: Vec<Option<Grace>>,
    /// Who has left in peace: the others do not take it back, however it ends.
    departed: Vec<bool>,
}

impl<'l> RestartState<'l> {
    pub(super) fn new(launch: &'l Launch) -> Self {
        let n_members = devices(launch).count();
        let (restart_deadlines, departed) = (vec![None; n_members], vec![false; n_members]);
        Self {
            launch,
            plan: launch.plan(),
            left: launch.restarts,
            done: Vec::new(),
            restart_deadlines,
            departed,
        }
    }

    pub(super) fn launch(&self) -> &'l Launch {
        self.launch
    }

    pub(super) fn plan(&self) -> &PinPlan {
        &self.plan
    }

    /// Starts the process of a member on its core, for the first time or `again`.
    pub(super) fn start(&self, device: DeviceName, again: bool) -> Result<Started> {
        let core = self.plan.borrow_core(device);
        let started = start(self.launch, device, again);
        drop(core);
        started
    }

    /// How long until it is to be seen whether the next one is to be killed.
    pub(super) fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        self.restart_deadlines.iter().flatten().map(|grace| grace.patience(now)).min()
    }

    /// Whether a member is lost to the others and was to end within its time.
    pub(super) fn is_marked_for_restart(&self, id: MemberId) -> bool {
        self.restart_deadlines[id.0].is_some()
    }

    /// Notes that a member has left in peace.
    pub(super) fn note_departure(&mut self, id: MemberId) {
        self.departed[id.0] = true;
    }

    /// Hands out who was started again.
    pub(super) fn take(&mut self) -> Vec<(DeviceName, ExitCause)> {
        std::mem::take(&mut self.done)
    }
}

impl SupervisedJob<'_> {
    /// Whether a member that is lost, or may be, can be started again.
    pub(super) fn can_restart(&self, id: MemberId) -> bool {
        let is_company = |other: MemberId| other != id && self.is_rank(other) && self.root.is_running(other);
        let has_company = (0..self.processes.len()).map(MemberId).any(is_company);
        self.restarts.left > 0
            && self.ending.is_none()
            && !self.processes.iter().any(Process::was_killed)
            && self.ready_after.is_some()
            && !self.restarts.departed[id.0]
            && self.is_rank(id)
            && has_company
    }

    /// Sets a time for the end of a member that is lost to the others, if it is to be started again.
    pub(super) fn mark_for_restart(&mut self, id: MemberId) {
        if self.can_restart(id) && !self.processes[id.0].has_ended() {
            let grace = self.grace;
            self.restarts.restart_deadlines[id.0].get_or_insert_with(|| Grace::begin(grace, Instant::now()));
        }
    }

    /// Whether nobody is in the job any more with whom those that were started again could come together.
    pub(super) fn only_returning_are_left(&self) -> bool {
        let mut left = (0..self.processes.len()).map(MemberId).filter(|id| !self.processes[id.0].has_ended());
        !self.restarts.done.is_empty() && left.all(|id| self.root.is_returning(id))
    }

    /// Starts those again that have ended and can be, and kills those whose time is up.
    pub(super) fn restart_the_dead(&mut self) -> Result<()> {
        for id in (0..self.processes.len()).map(MemberId) {
            let process: &mut Process = &mut self.processes[id.0];
            let grace = &mut self.restarts.restart_deadlines[id.0];
            if grace.take_if(|grace| grace.is_over(Instant::now())).is_some() && !process.has_ended() {
                process.kill_as_failure();
            }
            let has_ended = self.processes[id.0].has_ended();
            match self.first_cause.cause(id).filter(|_| has_ended) {
                Some(cause) if self.can_restart(id) => self.restart(id, cause)?,
                // It could be when it was lost, but another one has taken the last restart since.
                Some(_) => self.begin_grace_unless_going_on(id),
                None => {}
            }
        }
        self.announce_unrestarted();
        Ok(())
    }

    /// Tells the others of those who are lost and will not be started again, since all restarts are used up.
    fn announce_unrestarted(&mut self) {
        let is_over = self.restarts.left == 0 && self.restarts.launch.restarts > 0;
        for id in (0..self.processes.len()).map(MemberId) {
            if is_over && self.told[id.0] && self.is_rank(id) {
                self.root.announce_not_restarted(id);
            }
        }
    }

    fn restart(&mut self, id: MemberId, cause: ExitCause) -> Result<()> {
        let device = self.root.device(id);
        let started = self.restarts.start(device, true)?;
        tracing::info!(target: LAUNCH, %device, pid = started.process.pid().as_raw(), "started again");
        self.processes[id.0] = started.process;
        self.pipes.extend(started.pipes);
        self.root.replace_member(id, started.socket);
        if let Some(watch) = &mut self.hangs {
            watch.forget(id);
        }
        self.first_cause.suspend(id);
        self.told[id.0] = false;
        self.restarts.restart_deadlines[id.0] = None;
        self.restarts.left -= 1;
        self.restarts.done.push((device, cause));
        self.observer.on_restart(device, cause, self.restarts.left);
        Ok(())
    }
}
