//! The poll loop that starts, serves, watches and ends the processes of one job.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use tracing::{debug, info, warn};

use super::first_cause::{FaultNaming, FirstCause};
use super::hang::HangWatch;
use super::held::HeldProgram;
use super::observer::{Observer, OutputBacklog, OutputLine, OutputPipe};
use super::pin::Pinning;
use super::process::{Process, devices};
use super::{JobOutcome, Launch};
use crate::bootstrap::{BlamedMember, BootstrapRoot, MemberId, RootEvent, poll_timeout};
use crate::channel::Control;
use crate::error::{DeviceName, Error, ExitCause, Result};
use crate::logs::LAUNCH;
use crate::shm::HostKernel;
use crate::shm::system::{InterruptWatch, KeptChildren};
use crate::sync::Revocation;
use crate::sync::grace::Grace;

/// The pause before a send that the kernel refused for want of room is tried again.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// The pause before an observer that is not done with the output is asked again.
const OUTPUT_PAUSE: Duration = Duration::from_millis(5);

/// How often an output is read when all processes have ended; more than a pipe holds, where nobody
/// has made it longer than a plain user may.
const MAX_READS_AT_END: usize = 17;

/// Runs a job: see [`Launch::supervise`]. All members get a duplicate of `control`. Ranks that may
/// make names get one of `hold`, and ranks that trace get one of `rings`.
pub(super) fn run(
    launch: &Launch,
    control: &Control,
    hold: Option<BorrowedFd<'_>>,
    rings: Option<BorrowedFd<'_>>,
    observer: &mut dyn Observer,
) -> Result<JobOutcome> {
    let began = Instant::now();
    let interrupts = InterruptWatch::start(launch.heed_quit)?;
    let _kept = KeptChildren::start();
    let segment = control.descriptor().expect("this process has made it");
    let mut job = SupervisedJob {
        launch,
        pinning: launch.pinning(),
        control,
        kernel: HostKernel::detect(),
        root: BootstrapRoot::new(launch.offer(), segment, rings, hold)?,
        processes: Vec::new(),
        pipes: Vec::new(),
        interrupts,
        first_cause: FirstCause::new(devices(launch).count()),
        naming: FaultNaming::new(control.clone()),
        interrupted: None,
        held: launch.held_program(),
        restarts_left: launch.restarts,
        restarted: Vec::new(),
        hangs: launch.hang_rule.map(|rule| HangWatch::new(rule, control, devices(launch).count())),
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
    pub(super) launch: &'o Launch,
    pub(super) pinning: Pinning,
    control: &'o Control,
    kernel: HostKernel,
    pub(super) root: BootstrapRoot,
    /// The processes in the order of their ids.
    pub(super) processes: Vec<Process>,
    pub(super) pipes: Vec<OutputPipe>,
    interrupts: Option<InterruptWatch>,
    pub(super) first_cause: FirstCause,
    pub(super) naming: FaultNaming,
    /// The first interrupt, and whether it came before any failure.
    interrupted: Option<(Signal, bool)>,
    /// The program of the ranks, if they may be started again.
    pub(super) held: Option<HeldProgram>,
    pub(super) restarts_left: u32,
    /// The restarted members in order, each with the cause of its death by name.
    pub(super) restarted: Vec<(DeviceName, ExitCause)>,
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
        for device in devices(self.launch) {
            let started = self.start_process(device, false)?;
            debug!(target: LAUNCH, %device, pid = started.process.pid().as_raw(), "started");
            self.processes.push(started.process);
            self.pipes.extend(started.pipes);
            self.root.add_member(started.socket, self.pinning.placement(device));
        }
        Ok(())
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = MemberId> + Clone + use<> {
        (0..self.processes.len()).map(MemberId)
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
        self.restart_the_dead();
        if self.only_lost_ones_are_left() && !self.has_ended() {
            self.begin_grace();
        }
        if self.ending.as_mut().is_some_and(|ending| ending.is_over(HostKernel::clock())) {
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
        let is_full = self.observer.backlog() == OutputBacklog::Full;
        for (index, pipe) in self.pipes.iter().enumerate() {
            if let Some(descriptor) = pipe.descriptor().filter(|_| !is_full) {
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
            ready.ids.extend(self.ids());
        }
        ready.ids.sort_unstable();
        ready.ids.dedup();
        Ok(ready)
    }

    /// Returns how long the loop may sleep when nothing happens.
    fn patience(&self) -> Option<Duration> {
        let until_kill = self.ending.map(|ending| ending.patience(HostKernel::clock()));
        let until_retry = self.root.has_backlog().then_some(BACKLOG_PAUSE);
        let until_look = self.hangs.as_ref().map(HangWatch::patience);
        let until_taken = (self.observer.backlog() > OutputBacklog::None).then_some(OUTPUT_PAUSE);
        let all = [until_kill, until_retry, until_look, until_taken, self.until_restart()];
        all.into_iter().flatten().min()
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
        self.control.revoke(&self.kernel, Revocation::Aborted(None));
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
                RootEvent::Left(id) if self.processes[id.0].is_reported => {}
                RootEvent::Left(id) => self.processes[id.0].has_left = true,
                RootEvent::Returned(id) => self.first_cause.clear(id),
                RootEvent::Blamed(id, blamed) => self.first_cause.record_blame(id, blamed),
                // The launcher's own doing.
                RootEvent::Lost(id, _) if self.processes[id.0].was_killed => {}
                RootEvent::Lost(id, cause) => self.note_failure(id, cause),
                // A rank that has left is not lost to the job, though it may have failed.
                RootEvent::Reported(id, lost) if self.root.has_left(lost) => {
                    self.first_cause.record_blame(id, BlamedMember { id: lost, is_late: false });
                }
                RootEvent::Reported(id, lost) => {
                    let (by, device) = (self.root.device(id), self.root.device(lost));
                    warn!(target: LAUNCH, %device, %by, "reported lost");
                    self.first_cause.record_blame(id, BlamedMember { id: lost, is_late: false });
                    self.take_for_lost(lost);
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
            unfinished || self.first_cause.cause(id).is_some() || process.restart_deadline.is_some();
        match process.failure() {
            Some(cause) => self.note_failure(id, cause),
            None if process.was_killed || !is_missed => {}
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
        if !self.ids().any(|id| self.is_rank(id) && self.root.has_joined(id)) {
            return;
        }
        let never_joins = |id: &MemberId| {
            let process = &self.processes[id.0];
            let is_gone = process.has_ended() || self.root.is_absent(*id);
            is_gone
                && !process.was_killed
                && !self.root.has_joined(*id)
                && self.first_cause.cause(*id).is_none()
        };
        for id in self.ids().filter(never_joins).collect::<Vec<_>>() {
            let ended = self.processes[id.0].has_ended();
            self.note_failure(id, if ended { ExitCause::Code(0) } else { ExitCause::HungUp });
        }
    }

    /// Ends the proxy service when all ranks have ended and none has joined: it has nobody to
    /// serve.
    fn stop_idle_service(&mut self) {
        let (ranks, services): (Vec<_>, Vec<_>) = self.ids().partition(|&id| self.is_rank(id));
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
        self.root.declare_lost(id, matches!(cause, ExitCause::Hung(_)));
        self.take_for_lost(id);
    }

    /// Ends the epoch by a loss and reports it to the observer, both once. Restarts the member, or
    /// ends the job, unless it goes on.
    fn take_for_lost(&mut self, id: MemberId) {
        if !std::mem::replace(&mut self.processes[id.0].is_reported, true) {
            let device = self.root.device(id);
            let reason = match device {
                DeviceName::Rank(rank) => Revocation::PeerLost(rank),
                DeviceName::Proxy => Revocation::ProxyLost,
            };
            self.control.revoke(&self.kernel, reason);
            self.observer.on_loss(device);
        }
        self.mark_for_restart(id);
        self.begin_grace_unless_going_on(id);
    }

    /// Returns whether all members that still run were lost to the others, which went on without
    /// them.
    fn only_lost_ones_are_left(&self) -> bool {
        let mut left = self.ids().filter(|id| !self.processes[id.0].has_ended());
        let is_lost = |id: MemberId| self.processes[id.0].is_reported && !self.root.has_left(id);
        (self.launch.keep_going && left.all(is_lost)) || self.only_returning_are_left()
    }

    pub(super) fn begin_grace_unless_going_on(&mut self, lost: MemberId) {
        if !self.launch.keep_going && !self.can_restart(lost) {
            self.begin_grace();
        }
    }

    fn begin_grace(&mut self) {
        self.ending.get_or_insert_with(|| Grace::begin(self.launch.grace, HostKernel::clock()));
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
            if came_first || self.launch.keep_going || cause.is_none_or(by_the_same) {
                return Err(Error::Interrupted { signal: signal as i32 });
            }
        }
        let mut lost: Vec<_> = self.failures().collect();
        let first = cause.map(|(id, cause)| (self.root.device(id), cause));
        if let Some((device, cause)) = first.or_else(|| self.first_given_up(&lost))
            && !(self.launch.keep_going && self.has_succeeded(&lost))
        {
            return Err(Error::DeviceFailed { device, cause: self.naming.name(device, cause) });
        }
        lost.iter_mut().for_each(|(device, cause)| *cause = self.naming.name(*device, *cause));
        let (ready_after, restarted) = (self.ready_after, self.restarted);
        Ok(JobOutcome { ready_after, ran_for: self.began.elapsed(), lost, restarted })
    }

    /// Returns one of the killed members that others had lost before.
    fn first_given_up(&self, lost: &[(DeviceName, ExitCause)]) -> Option<(DeviceName, ExitCause)> {
        let is_reported =
            |device| self.ids().any(|id| self.root.device(id) == device && self.processes[id.0].is_reported);
        lost.iter().find(|(device, _)| is_reported(*device)).or_else(|| lost.first()).copied()
    }

    /// Returns whether some rank has ended well and is not among the `lost`.
    fn has_succeeded(&self, lost: &[(DeviceName, ExitCause)]) -> bool {
        let is_lost = |id| lost.iter().any(|(failed, _)| *failed == self.root.device(id));
        self.ids().any(|id| self.is_rank(id) && !is_lost(id))
    }

    /// Returns all failures. They include members that had to be killed when the others were done:
    /// for a successor, that is the failure of its predecessor.
    fn failures(&self) -> impl Iterator<Item = (DeviceName, ExitCause)> {
        let killed = ExitCause::Signal(Signal::SIGKILL as i32);
        self.ids().filter_map(move |id| {
            let process = &self.processes[id.0];
            let was_killed = process.was_killed && !process.was_stopped_idle;
            let of_killed = || was_killed.then(|| self.first_cause.failure(id).unwrap_or(killed));
            Some((self.root.device(id), self.first_cause.cause(id).or_else(of_killed)?))
        })
    }
}
