//! The poll loop that starts, serves, watches and ends the processes of one job.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use tracing::{debug, info, warn};

use super::first_cause::FirstCause;
use super::hang::HangWatch;
use super::observer::Observer;
use super::observer::{OutputLine, OutputPipe};
use super::process::{Process, devices};
use super::restart::{Grace, RestartState};
use super::{JobOutcome, Launch};
use crate::bootstrap::{BootstrapRoot, MemberId, RootEvent, poll_timeout};
use crate::error::{DeviceName, Error, ExitCause, Result};
use crate::logs::LAUNCH;
use crate::shm::system::InterruptWatch;

/// The pause before a send that the kernel refused for want of room is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// How often an output is read when all processes have ended; more than a pipe holds.
const MAX_READS_AT_END: usize = 64;

/// Runs a job: see [`Launch::spawn_and_supervise`]. Ranks that may make names get a duplicate of
/// `hold`, and ranks that trace get one of `rings`.
pub(super) fn run(
    launch: &Launch,
    control: BorrowedFd<'_>,
    hold: Option<BorrowedFd<'_>>,
    rings: Option<BorrowedFd<'_>>,
    observer: &mut dyn Observer,
) -> Result<JobOutcome> {
    let began = Instant::now();
    let interrupts = InterruptWatch::start(launch.heed_quit)
        .map_err(|error| Error::os("catching the signals that interrupt a job", error))?;
    let mut job = SupervisedJob {
        root: BootstrapRoot::new(launch.offer(), control)?.with_trace(rings)?.with_hold(hold)?,
        processes: Vec::new(),
        pipes: Vec::new(),
        interrupts,
        first_cause: FirstCause::new(devices(launch).count()),
        reported: vec![false; devices(launch).count()],
        interrupted: None,
        grace: launch.grace,
        keep_going: launch.keep_going,
        restarts: RestartState::new(launch),
        hangs: HangWatch::new(launch, control)?,
        ending: None,
        began,
        ready_after: None,
        observer,
    };
    let (job_id, n_ranks) = (launch.job_id, launch.n_ranks);
    info!(target: LAUNCH, job = format_args!("{job_id:016x}"), n_ranks, "starting a job");
    job.start()?;
    while !job.has_ended() {
        job.watch()?;
    }
    info!(target: LAUNCH, after = ?began.elapsed(), "all processes have ended");
    job.conclude()
}

pub(super) struct SupervisedJob<'o> {
    pub(super) root: BootstrapRoot,
    /// In the order of ids.
    pub(super) processes: Vec<Process>,
    pub(super) pipes: Vec<OutputPipe>,
    interrupts: Option<InterruptWatch>,
    pub(super) first_cause: FirstCause,
    /// The losses that the observer knows of, by member.
    pub(super) reported: Vec<bool>,
    /// The first interrupt, and whether it came before any failure.
    interrupted: Option<(Signal, bool)>,
    pub(super) grace: Duration,
    /// Whether the job goes on after a loss.
    keep_going: bool,
    /// The restarts of lost members.
    pub(super) restarts: RestartState<'o>,
    /// The detector of hanging members, if one is asked for.
    pub(super) hangs: Option<HangWatch>,
    /// The time after which all remaining processes are killed; set at the first sign of trouble.
    pub(super) ending: Option<Grace>,
    began: Instant,
    pub(super) ready_after: Option<Duration>,
    pub(super) observer: &'o mut dyn Observer,
}

/// The findings of a poll.
#[derive(Default)]
struct Ready {
    interrupts: bool,
    ids: Vec<MemberId>,
    pipes: Vec<usize>,
}

impl SupervisedJob<'_> {
    /// Starts all processes. If one fails to start, dropping kills the others.
    fn start(&mut self) -> Result<()> {
        for device in devices(self.restarts.launch()) {
            let started = self.restarts.start(device, false)?;
            debug!(target: LAUNCH, %device, pid = started.process.pid().as_raw(), "started");
            self.processes.push(started.process);
            self.pipes.extend(started.pipes);
            self.root.add_member(started.socket, self.restarts.plan().placement(device));
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.processes.iter().all(Process::has_ended)
    }

    /// Does one turn of the loop: waits for an event and acts on it.
    fn watch(&mut self) -> Result<()> {
        let ready = self.poll()?;
        self.first_cause.next_round();
        if ready.interrupts {
            self.take_interrupts();
        }
        for &index in &ready.pipes {
            self.pipes[index].read(&mut |line| self.observer.on_output(line));
        }
        for id in ready.ids {
            self.root.serve(id)?;
            self.take_events();
            let process = &mut self.processes[id.0];
            let joined_ended = process.joined_has_ended();
            let reaped = process.reap();
            if joined_ended || reaped {
                self.check_end(id)?;
            }
        }
        // After all losses of this turn, because an observer may want the end because of one of
        // them.
        if self.interrupted.is_none() && self.observer.wants_end() {
            self.interrupt(Signal::SIGTERM, false);
        }
        self.fail_never_joined();
        self.stop_idle_service();
        self.find_hung();
        self.restart_the_dead()?;
        if self.only_lost_ones_are_left() && !self.has_ended() {
            self.begin_grace();
        }
        if self.ending.as_mut().is_some_and(|ending| ending.is_over(Instant::now())) {
            self.kill_all();
        }
        Ok(())
    }

    fn poll(&self) -> Result<Ready> {
        enum PollSource {
            Interrupts,
            Member(MemberId),
            Pipe(usize),
        }
        let mut sources = Vec::new();
        let mut polled = Vec::new();
        let mut add = |source, descriptor, flags| {
            sources.push(source);
            polled.push(PollFd::new(descriptor, flags));
        };
        if let Some(interrupts) = &self.interrupts {
            add(PollSource::Interrupts, interrupts.descriptor(), PollFlags::POLLIN);
        }
        for (id, socket, wants_to_send) in self.root.sockets() {
            let write = if wants_to_send { PollFlags::POLLOUT } else { PollFlags::empty() };
            add(PollSource::Member(id), socket, PollFlags::POLLIN | write);
        }
        for (index, process) in self.processes.iter().enumerate() {
            for descriptor in process.descriptors() {
                add(PollSource::Member(MemberId(index)), descriptor, PollFlags::POLLIN);
            }
        }
        for (index, pipe) in self.pipes.iter().enumerate() {
            if let Some(descriptor) = pipe.descriptor() {
                add(PollSource::Pipe(index), descriptor, PollFlags::POLLIN);
            }
        }
        match poll(&mut polled, poll_timeout(self.patience())) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::os("watching the device processes", errno)),
        }
        let mut ready = Ready::default();
        for (source, polled) in sources.into_iter().zip(&polled) {
            if !polled.any().unwrap_or(true) {
                continue;
            }
            match source {
                PollSource::Interrupts => ready.interrupts = true,
                PollSource::Member(id) => ready.ids.push(id),
                PollSource::Pipe(index) => ready.pipes.push(index),
            }
        }
        if self.root.has_backlog() {
            ready.ids.extend((0..self.processes.len()).map(MemberId));
        }
        ready.ids.sort_unstable();
        ready.ids.dedup();
        Ok(ready)
    }

    /// Returns how long the loop may sleep when nothing happens.
    fn patience(&self) -> Option<Duration> {
        let until_kill = self.ending.map(|ending| ending.patience(Instant::now()));
        let until_retry = self.root.has_backlog().then_some(BACKLOG_PAUSE);
        let until_look = self.hangs.as_ref().map(HangWatch::patience);
        [until_kill, until_retry, until_look, self.restarts.patience()].into_iter().flatten().min()
    }

    fn take_interrupts(&mut self) {
        while let Some(interrupt) = self.interrupts.as_mut().and_then(InterruptWatch::next) {
            if interrupt.signal == Signal::SIGQUIT {
                self.observer.on_quit();
                continue;
            }
            if self.interrupted.is_some() {
                self.kill_all();
                continue;
            }
            self.interrupt(interrupt.signal, interrupt.from_terminal);
        }
    }

    /// Ends the job by `signal`. The terminal has sent it to all processes already if it is
    /// `from_terminal`.
    fn interrupt(&mut self, signal: Signal, from_terminal: bool) {
        self.interrupted = Some((signal, self.first_cause.is_clean()));
        info!(target: LAUNCH, %signal, "interrupted");
        if !from_terminal {
            for process in &self.processes {
                process.signal(signal);
            }
        }
        self.begin_grace();
        self.observer.on_interrupt();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.root.next_event() {
            match event {
                RootEvent::Joined(id, pid) => {
                    debug!(target: LAUNCH, device = %self.root.device(id), pid, "joined");
                    self.processes[id.0].joined_as(pid);
                }
                RootEvent::Up => {
                    let after = self.began.elapsed();
                    self.ready_after = Some(after);
                    info!(target: LAUNCH, ?after, "all members are ready");
                    self.observer.on_ready(after);
                }
                // A rank that was given up does not leave any more: the others have lost it and
                // wait for its successor.
                RootEvent::Left(id) if self.reported[id.0] => {}
                RootEvent::Left(id) => self.restarts.note_departure(id),
                RootEvent::Returned(id) => self.first_cause.clear(id),
                RootEvent::Blamed(id, lost) => self.first_cause.record_blame(id, lost),
                RootEvent::HeldUp(id, by) => self.first_cause.record_held_up(id, by),
                // The launcher's own doing.
                RootEvent::Lost(id, _) if self.processes[id.0].was_killed() => {}
                RootEvent::Lost(id, cause) => self.note_failure(id, cause),
                // A rank that has left is not lost to the job, though it may have failed.
                RootEvent::Reported(id, lost) if self.root.has_left(lost) => {
                    self.first_cause.record_blame(id, lost)
                }
                RootEvent::Reported(id, lost) => {
                    let (by, device) = (self.root.device(id), self.root.device(lost));
                    warn!(target: LAUNCH, %device, %by, "reported lost");
                    self.first_cause.record_blame(id, lost);
                    self.report_loss(lost);
                    self.mark_for_restart(lost);
                    self.begin_grace_unless_going_on(lost);
                }
            }
        }
    }

    /// Decides whether a member has failed of which a process has ended. Its last messages were
    /// read before.
    fn check_end(&mut self, id: MemberId) -> Result<()> {
        // More may have come between reading and reaping; after this nothing can.
        self.root.serve(id)?;
        self.take_events();
        let process = &self.processes[id.0];
        let unfinished = self.root.has_joined(id) && !self.root.has_left(id);
        // One that others have given up is to be started again, also when it has woken and left.
        let is_missed =
            unfinished || self.first_cause.cause(id).is_some() || self.restarts.is_marked_for_restart(id);
        match process.failure() {
            Some(cause) => self.note_failure(id, cause),
            None if process.was_killed() || !is_missed => {}
            None if process.has_ended() => self.note_failure(id, ExitCause::Code(0)),
            // The process that joined is gone and its wrapper has not ended, or the other way
            // round.
            None if process.has_joined() => {}
            None => self.note_failure(id, ExitCause::HungUp),
        }
        Ok(())
    }

    /// Finds members that will never join while ranks have joined, who would wait for them in vain.
    fn fail_never_joined(&mut self) {
        let ids = || (0..self.processes.len()).map(MemberId);
        if !ids().any(|id| self.is_rank(id) && self.root.has_joined(id)) {
            return;
        }
        let never_joins = |id: &MemberId| {
            let process = &self.processes[id.0];
            let is_gone = process.has_ended() || self.root.is_absent(*id);
            is_gone
                && !process.was_killed()
                && !self.root.has_joined(*id)
                && self.first_cause.cause(*id).is_none()
        };
        for id in ids().filter(never_joins).collect::<Vec<_>>() {
            let ended = self.processes[id.0].has_ended();
            self.note_failure(id, if ended { ExitCause::Code(0) } else { ExitCause::HungUp });
        }
    }

    /// Ends the proxy service when all ranks have ended and none has joined: it has nobody to
    /// serve.
    fn stop_idle_service(&mut self) {
        let (ranks, services): (Vec<_>, Vec<_>) =
            (0..self.processes.len()).map(MemberId).partition(|&id| self.is_rank(id));
        let has_never_come = |id: &MemberId| self.processes[id.0].has_ended() && !self.root.has_joined(*id);
        if ranks.iter().all(has_never_come) {
            services.iter().for_each(|id| self.processes[id.0].stop_idle());
        }
    }

    pub(super) fn is_rank(&self, id: MemberId) -> bool {
        matches!(self.root.device(id), DeviceName::Rank(_))
    }

    pub(super) fn note_failure(&mut self, id: MemberId, cause: ExitCause) {
        warn!(target: LAUNCH, device = %self.root.device(id), %cause, "failed");
        self.first_cause.record_failure(id, cause);
        match cause {
            ExitCause::Hung(_) => self.root.declare_hung(id),
            _ => self.root.declare_lost(id),
        }
        self.report_loss(id);
        self.mark_for_restart(id);
        self.begin_grace_unless_going_on(id);
    }

    /// Reports a loss to the observer, once.
    fn report_loss(&mut self, id: MemberId) {
        if !std::mem::replace(&mut self.reported[id.0], true) {
            self.observer.on_loss(self.root.device(id));
        }
    }

    /// Returns whether all members that still run were lost to the others, which went on without
    /// them.
    fn only_lost_ones_are_left(&self) -> bool {
        let ids = (0..self.processes.len()).map(MemberId);
        let left = ids.filter(|id| !self.processes[id.0].has_ended());
        let are_lost = |id: MemberId| self.reported[id.0] && !self.root.has_left(id);
        (self.keep_going && left.clone().all(are_lost)) || self.only_returning_are_left()
    }

    pub(super) fn begin_grace_unless_going_on(&mut self, lost: MemberId) {
        if !self.keep_going && !self.can_restart(lost) {
            self.begin_grace();
        }
    }

    fn begin_grace(&mut self) {
        let grace = self.grace;
        self.ending.get_or_insert_with(|| Grace::begin(grace, Instant::now()));
    }

    fn kill_all(&mut self) {
        self.ending = None;
        info!(target: LAUNCH, "killing whoever is left");
        for process in &mut self.processes {
            process.kill();
        }
    }

    /// Reads what is left of the output, and names the outcome.
    fn conclude(mut self) -> Result<JobOutcome> {
        for pipe in &mut self.pipes {
            let mut take = |line: OutputLine<'_>| self.observer.on_output(line);
            // A process that outlives its parent may hold the pipe. Its output is not waited for.
            for _ in 0..MAX_READS_AT_END {
                if !pipe.read(&mut take) {
                    break;
                }
            }
            pipe.finish(&mut take);
        }
        let cause = self.first_cause.first_cause();
        if let Some((signal, came_first)) = self.interrupted {
            let by_the_same = |(_, cause)| cause == ExitCause::Signal(signal as i32);
            if came_first || self.keep_going || cause.is_none_or(by_the_same) {
                return Err(Error::Interrupted { signal: signal as i32 });
            }
        }
        let lost: Vec<_> = self.failures().collect();
        let first = cause.map(|(id, cause)| (self.processes[id.0].device(), cause));
        match first.or_else(|| self.first_given_up(&lost)) {
            Some((device, cause)) if !self.keep_going || !self.has_succeeded(&lost) => {
                Err(Error::DeviceFailed { device, cause })
            }
            _ => Ok(JobOutcome {
                ready_after: self.ready_after,
                ran_for: self.began.elapsed(),
                lost,
                restarted: self.restarts.take(),
            }),
        }
    }

    /// Returns one of the killed members that others had lost before.
    fn first_given_up(&self, lost: &[(DeviceName, ExitCause)]) -> Option<(DeviceName, ExitCause)> {
        let was_reported = |(device, _): &&(DeviceName, ExitCause)| {
            self.processes
                .iter()
                .zip(&self.reported)
                .any(|(process, told)| process.device() == *device && *told)
        };
        lost.iter().find(was_reported).or_else(|| lost.first()).copied()
    }

    /// Returns whether some rank has ended well and is not among the `lost`.
    fn has_succeeded(&self, lost: &[(DeviceName, ExitCause)]) -> bool {
        let is_lost = |device| lost.iter().any(|(failed, _)| *failed == device);
        let devices = self.processes.iter().map(Process::device);
        devices.filter(|device| matches!(device, DeviceName::Rank(_))).any(|device| !is_lost(device))
    }

    /// Returns all failures. They include members that had to be killed when the others were done:
    /// for a successor, that is the failure of its predecessor.
    fn failures(&self) -> impl Iterator<Item = (DeviceName, ExitCause)> {
        let killed = ExitCause::Signal(Signal::SIGKILL as i32);
        self.processes.iter().enumerate().filter_map(move |(index, process)| {
            let (id, was_killed) = (MemberId(index), process.was_killed() && !process.was_stopped_idle());
            let of_killed = || was_killed.then(|| self.first_cause.failure(id).unwrap_or(killed));
            Some((process.device(), self.first_cause.cause(id).or_else(of_killed)?))
        })
    }
}
