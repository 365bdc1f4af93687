//! Restarts ranks that have died.
//!
//! A dead rank is restarted as soon as nothing of its process is left and another rank is in the
//! job to come together with. A rank that others have given up, or that has hung up, is killed
//! first if it has not ended within the time of grace. A rank that has left is not
//! restarted, even if it ends with an error: the others do not take it back. Once a rank is back,
//! its failure is forgotten, and cannot be the cause of a later end of the job.
//!
//! When no restart is left, the others learn which rank is not restarted, and do not wait for it.

use std::time::{Duration, Instant};

use super::Launch;
use super::pin::PinPlan;
use super::process::{Process, Started, devices, start};
use super::supervise::SupervisedJob;
use crate::bootstrap::MemberId;
use crate::error::{DeviceName, ExitCause, Result};
use crate::logs::LAUNCH;

/// Starts ranks, and keeps the state of their restarts.
#[derive(Debug)]
pub(super) struct RestartState<'l> {
    launch: &'l Launch,
    plan: PinPlan,
    left: u32,
    /// The restarted members in order, each with the cause of its end.
    done: Vec<(DeviceName, ExitCause)>,
    /// The times after which lost members that have not ended are killed.
    restart_deadlines: Vec<Option<Grace>>,
    /// Whether each member has left. The others do not take such a member back.
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

    /// Returns the time until the next look at a deadline.
    pub(super) fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        self.restart_deadlines.iter().flatten().map(|grace| grace.patience(now)).min()
    }

    /// Returns whether a member is lost to the others and has a deadline to end.
    pub(super) fn is_marked_for_restart(&self, id: MemberId) -> bool {
        self.restart_deadlines[id.0].is_some()
    }

    /// Records that a member has left.
    pub(super) fn note_departure(&mut self, id: MemberId) {
        self.departed[id.0] = true;
    }

    /// Hands out who was started again.
    pub(super) fn take(&mut self) -> Vec<(DeviceName, ExitCause)> {
        std::mem::take(&mut self.done)
    }
}

impl SupervisedJob<'_> {
    /// Returns whether a member that is lost, or may be, can be restarted.
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

    /// Sets a deadline for the end of a lost member that is to be restarted.
    pub(super) fn mark_for_restart(&mut self, id: MemberId) {
        if self.can_restart(id) && !self.processes[id.0].has_ended() {
            let grace = self.grace;
            self.restarts.restart_deadlines[id.0].get_or_insert_with(|| Grace::begin(grace, Instant::now()));
        }
    }

    /// Returns whether the restarted members have no running rank left to come together with.
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

    /// Tells the others which lost ranks are not restarted, once all restarts are used up.
    fn announce_unrestarted(&mut self) {
        let is_over = self.restarts.left == 0 && self.restarts.launch.restarts > 0;
        for id in (0..self.processes.len()).map(MemberId) {
            if is_over && self.reported[id.0] && self.is_rank(id) {
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
        self.reported[id.0] = false;
        self.restarts.restart_deadlines[id.0] = None;
        self.restarts.left -= 1;
        self.restarts.done.push((device, cause));
        self.observer.on_restart(device, cause, self.restarts.left);
        Ok(())
    }
}

/// The least number of looks while a time of grace passes.
const LOOKS: u32 = 10;

/// The shortest slice. The launcher's polls have about that resolution.
const SHORTEST: Duration = Duration::from_millis(1);

/// A time of grace, in which others may end by themselves.
///
/// It is counted in slices: however late the launcher looks, at most one slice has passed. A pause
/// of the launcher may have paused the others too (a suspended machine, a stopped process group),
/// and that time does not count against them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grace {
    left: Duration,
    slice: Duration,
    looked: Instant,
}

impl Grace {
    /// Begins a time of grace of length `all` at `now`.
    pub(super) fn begin(all: Duration, now: Instant) -> Self {
        Self { left: all, slice: (all / LOOKS).max(SHORTEST), looked: now }
    }

    /// Counts the time since the last look, but at most one slice, and returns whether none is
    /// left.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked).min(self.slice);
        self.left = self.left.saturating_sub(passed);
        self.looked = now;
        self.left.is_zero()
    }

    /// Returns the time until the next look is due.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        self.left.min(self.slice).saturating_sub(now.saturating_duration_since(self.looked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Duration = Duration::from_secs(2);

    #[test]
    fn grace_passes_by_the_clock_where_looks_are_on_time() {
        let mut now = Instant::now();
        let (began, mut grace) = (now, Grace::begin(ALL, now));
        while !grace.is_over(now) {
            now += grace.patience(now);
        }
        assert_eq!(now - began, ALL);
        assert!(grace.patience(now).is_zero() && grace.is_over(now));
    }

    #[test]
    fn of_a_pause_however_long_a_tenth_counts_at_most() {
        let mut now = Instant::now();
        let mut grace = Grace::begin(ALL, now);
        for _ in 0..9 {
            now += ALL * 1000;
            assert!(!grace.is_over(now));
        }
        assert!(!grace.is_over(now), "no time has passed");
        now += ALL / LOOKS;
        assert!(grace.is_over(now));
    }

    #[test]
    fn looks_that_come_early_count_for_what_they_are() {
        let mut now = Instant::now();
        let mut grace = Grace::begin(ALL, now);
        for step in 1..=2000 {
            now += Duration::from_millis(1);
            assert_eq!(grace.is_over(now), step == 2000);
        }
    }

    #[test]
    fn no_grace_is_over_at_once_a_short_one_soon_and_an_endless_one_never() {
        let mut now = Instant::now();
        assert!(Grace::begin(Duration::ZERO, now).is_over(now));
        let (mut short, mut endless) =
            (Grace::begin(Duration::from_nanos(5), now), Grace::begin(Duration::MAX, now));
        now += short.patience(now);
        assert!(short.is_over(now) && !endless.is_over(now));
        assert!(endless.patience(now) > ALL * 1000);
    }
}
