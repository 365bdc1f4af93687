//! Starting the device processes of a job, watching over them, and naming what went wrong first.
//!
//! The launcher re-executes a program (by default itself, with its own arguments) once per rank. Each process finds
//! in its environment which rank it is and the number of an inherited socket, and joins by [`join_from_env`](crate::bootstrap::join_from_env):
//!
//! | variable | value |
//! |---|---|
//! | `SHMCCL_RANK` | the rank, or `proxy` |
//! | `SHMCCL_SIZE` | the number of ranks |
//! | `SHMCCL_SOCKET` | the number of the control socket's descriptor |
//! | `SHMCCL_JOB` | the job id, in hexadecimal |
//! | `SHMCCL_LAUNCHER` | the process id of the launcher |
//! | `SHMCCL_TIMEOUT_MS` | how long to wait for the launcher's Welcome |
//! | `SHMCCL_CHECKSUMS` | 1, where data are to be [checked](Launch::checksums) on their way |
//! | `SHMCCL_CORES` | how many cores to [count on](Launch::cores), where ranks are told |
//! | `SHMCCL_FAULTS` | the [plan of faults](crate::faults), where there is one |
//!
//! One poll loop, in the thread that started the processes, watches sockets, process descriptors, interrupts and
//! output. At the first sign of trouble (hang-up without Bye, broken protocol, failure, interrupt) it tells the
//! [`Observer`] and, over their sockets, everyone else; gives them a time of grace to end by themselves; kills what is left.
//!
//! With [`Launch::detect_hangs`] members beat in shared memory, and it looks at the beats (`hang.rs`).
//!
//! With [`Launch::restart`] a dead rank is started again in its place (`restart.rs`): the loss of it is told, but not the end of the job.
//!
//! Invariants:
//! - When [`Launch::spawn_and_supervise`] returns, in whichever way, no process that it started is left.
//! - A launcher that is itself killed takes its processes along: each asks for the parent-death signal as it joins
//!   (as it starts, with [`Launch::trampoline`]), and joining a dead launcher is an error.
//! - What it leaves in `/dev/shm` then is removed by the janitor of the claim, in jobs whose segments have names (`names.rs`).
//! - No descriptor but its own socket reaches a child.

mod first_cause;
mod grace;
mod hang;
mod job;
mod leftovers;
mod names;
mod observer;
mod pin;
mod process;
mod restart;
mod supervise;

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
#[cfg(feature = "trace")]
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "coordinator")]
pub(crate) use hang::BeatHistory;
pub use hang::HangRule;
pub use job::{LaunchedAs, launch, launch_threads, spawn_threads};
pub use leftovers::{Leftover, clean};
pub use observer::{Observer, OutputLine, OutputStream};
pub use pin::PinPlan;

use crate::bootstrap::{Offer, Options, ProxyMode, SegmentBacking};
use crate::epoch_id::{FIRST_EPOCH, fresh_job_id};
#[cfg(doc)]
use crate::error::Error;
use crate::error::{DeviceName, ExitCause, Result};
use crate::faults::Faults;
use crate::rank::check_n_ranks;
#[cfg(feature = "trace")]
use crate::trace::DEFAULT_RECORDS;

/// How to start a job.
#[derive(Clone, Debug)]
pub struct Launch {
    n_ranks: u32,
    job_id: u64,
    options: Options,
    pin: bool,
    grace: Duration,
    program: Program,
    service: Program,
    trampoline: Option<Program>,
    env: Vec<(OsString, OsString)>,
    capture_output: bool,
    keep_going: bool,
    restarts: u32,
    heed_quit: bool,
    hang_rule: Option<HangRule>,
    #[cfg(feature = "trace")]
    trace: Option<PathBuf>,
    #[cfg(feature = "trace")]
    trace_records: u64,
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: OsString,
    args: Vec<OsString>,
}

impl Program {
    /// A program found in `PATH` or by its path, with arguments.
    pub fn new<A: AsRef<OsStr>>(path: impl AsRef<OsStr>, args: impl IntoIterator<Item = A>) -> Self {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        Self { path: path.as_ref().to_owned(), args }
    }

    /// What starts it.
    #[cfg(feature = "coordinator")]
    pub(crate) fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.path);
        command.args(&self.args);
        command
    }

    /// The running executable with the arguments that it was itself given.
    #[must_use]
    pub fn this() -> Self {
        Self { path: this_executable(), args: std::env::args_os().skip(1).collect() }
    }
}

/// The running executable; by its link in `/proc` when the file has been replaced meanwhile.
fn this_executable() -> OsString {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path.into_os_string(),
        _ => "/proc/self/exe".into(),
    }
}

/// How a job went that ended well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobOutcome {
    /// Time from the call to the moment when all members were ready; `None` when they never joined.
    pub ready_after: Option<Duration>,
    /// Time from the call to the end of the last process.
    pub ran_for: Duration,
    /// Who was lost on the way, in the order of ids, and how; only with [`Launch::keep_going`].
    pub lost: Vec<(DeviceName, ExitCause)>,
    /// Who was started again, in that order, and how it had ended; only with [`Launch::restart`].
    pub restarted: Vec<(DeviceName, ExitCause)>,
}

impl Launch {
    /// A job of `n_ranks` device processes of the running executable.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number of ranks out of range.
    pub fn new(n_ranks: u32) -> Result<Self> {
        check_n_ranks(n_ranks)?;
        Ok(Self {
            n_ranks,
            job_id: fresh_job_id(),
            options: Options::default(),
            pin: true,
            grace: Duration::from_secs(2),
            program: Program::this(),
            service: Program::this(),
            trampoline: None,
            env: Vec::new(),
            capture_output: false,
            keep_going: false,
            restarts: 0,
            heed_quit: false,
            hang_rule: None,
            #[cfg(feature = "trace")]
            trace: None,
            #[cfg(feature = "trace")]
            trace_records: DEFAULT_RECORDS,
        })
    }

    /// Sets the length of each rank's part of the symmetric heap, in bytes.
    #[must_use]
    pub fn heap_len(mut self, heap_len: u64) -> Self {
        self.options.heap_len = heap_len;
        self
    }

    /// Sets who executes triggers; a service process is started along with the ranks.
    #[must_use]
    pub fn proxy(mut self, proxy: ProxyMode) -> Self {
        self.options.proxy = proxy;
        self
    }

    /// Sets where segments come from.
    #[must_use]
    pub fn backing(mut self, backing: SegmentBacking) -> Self {
        self.options.backing = backing;
        self
    }

    /// Sets how long the ranks' waits may take, in the bootstrap and afterwards.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// Sets whether processes are pinned to cores.
    #[must_use]
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Sets how long the others may take to end by themselves after the first has failed, or after an interrupt; 2 s unless it is set.
    ///
    /// Of a time in which the launcher itself was held up, as the others may have been, no more counts than a tenth of `grace`, or 1 ms.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the program that every rank runs.
    #[must_use]
    pub fn program(mut self, program: Program) -> Self {
        self.program = program;
        self
    }

    /// Sets the program that the proxy service process runs.
    #[must_use]
    pub fn service(mut self, service: Program) -> Self {
        self.service = service;
        self
    }

    /// Starts the ranks' program through another one that calls [`become_program`](crate::bootstrap::become_program) with the arguments it gets
    /// after its own.
    ///
    /// Programs that join late or never are then bound to the life of the launcher all the same.
    #[must_use]
    pub fn trampoline(mut self, trampoline: Program) -> Self {
        self.trampoline = Some(trampoline);
        self
    }

    /// Adds an environment variable to all processes.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets whether output is handed to [`Observer::on_output`] by lines instead of going where the launcher's goes.
    #[must_use]
    pub fn capture_output(mut self, capture_output: bool) -> Self {
        self.capture_output = capture_output;
        self
    }

    /// Sets whether the job goes on when a member is lost. The others are told of the loss, but not ended after it: they can go on
    /// by [`Communicator::shrink`](crate::Communicator::shrink). The job ends well when a rank does; [`JobOutcome::lost`] names those that
    /// did not.
    #[must_use]
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keep_going = keep_going;
        self
    }

    /// Sets how often ranks that have died are started again, all of them together: each in its place, with the same rank and on the
    /// same core. The others are told of the loss, but not ended after it: they bring the rank back by
    /// [`Communicator::recover`](crate::Communicator::recover). A rank is started again when the job is up and another rank lives;
    /// one that was given up is killed first, after the time of grace. A death that comes after the last of `restarts` ends the
    /// job like any other. So does the error exit of a rank that has dropped its communicator, as that of a body given to
    /// [`Launch::run`] has: it has left in peace, and the others do not take it back. A panic is a death.
    ///
    /// When no restart is left for one that has died the others are told so: `recover` fails at once then.
    ///
    /// Ranks that go on by [`Communicator::shrink`](crate::Communicator::shrink) need [`Launch::keep_going`] as well: the launcher does
    /// not know that they go without the dead, starts these again, and ends the job when there are no restarts left.
    #[must_use]
    pub fn restart(mut self, restarts: u32) -> Self {
        self.restarts = restarts;
        self
    }

    /// Has all ranks note what they do, and writes it to `file` when the last one has ended, whatever became of the job: see
    /// [`trace`](crate::trace). That the file cannot be made is told before anything is started. Without this call
    /// `SHMCCL_TRACE` in the launcher's environment names a file. Only jobs that [`Launch::supervise`] or [`Launch::run`] starts are traced.
    #[cfg(feature = "trace")]
    #[must_use]
    pub fn trace(mut self, file: impl Into<PathBuf>) -> Self {
        self.trace = Some(file.into());
        self
    }

    /// Sets how many records are kept of the threads of a rank, and of its proxy: a power of two from 1024 to 16777216, of 32 bytes each.
    #[cfg(feature = "trace")]
    #[must_use]
    pub fn trace_records(mut self, records: u64) -> Self {
        self.trace_records = records;
        self
    }

    /// Has ranks that hang taken for lost, by `rule`. Without one they are not looked for, and that is the default: a rank in
    /// a debugger, or one that somebody has stopped for a while, is nobody's to give up then but its peers', whose waits time out.
    ///
    /// A rank that hangs ends the epoch as one that dies, and what was asked for that holds for it: the job ends with it, or
    /// [goes on](Self::keep_going), or it is [started again](Self::restart). [`ExitCause::Hung`] tells how long it has not beaten. It is killed,
    /// unless the rule [spares](HangRule::sparing) it; also one that takes its time to die, by writing a core file.
    ///
    /// It is for the processes that this launcher starts, in every epoch that they come into. Newcomers to a communicator of theirs
    /// ([`Communicator::join`](crate::Communicator::join)) are not looked at, nor are ranks that meet without a launcher: one of
    /// those that hangs is found by its peers' deadlines.
    #[must_use]
    pub fn detect_hangs(mut self, rule: HangRule) -> Self {
        self.hang_rule = Some(rule);
        self
    }

    /// Sets whether SIGQUIT is a question what the job is doing, which is handed to [`Observer::on_quit`], and ends nothing; also where
    /// it was ignored, as in what a script starts in the background. What ranks do
    /// at SIGQUIT is their programs' business; those that are started by way of
    /// [`become_program`](crate::bootstrap::become_program) ignore it.
    #[must_use]
    pub fn heed_quit(mut self, heed_quit: bool) -> Self {
        self.heed_quit = heed_quit;
        self
    }

    /// Sets what goes wrong on purpose in the processes of this job; a plan of nothing leaves it to what the environment says. See
    /// [`crate::faults`].
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.options.faults = faults;
        self
    }

    /// Sets whether data are checked by checksums on their way, as far as [`checksums_from_env`](crate::bootstrap::checksums_from_env)
    /// says; where not, it is left to the environment.
    #[must_use]
    pub fn checksums(mut self, checksums: bool) -> Self {
        self.options.checksums = checksums;
        self
    }

    /// Tells the ranks how many cores to count on, as [`cores_from_env`](crate::bootstrap::cores_from_env) says; without it, that is left
    /// to the environment. Processes are placed as before.
    #[must_use]
    pub fn cores(mut self, cores: NonZeroU32) -> Self {
        self.options.cores = Some(cores);
        self
    }

    /// How many ranks there will be.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        self.n_ranks
    }

    /// Tells this job from all others of the machine.
    #[must_use]
    pub fn job_id(&self) -> u64 {
        self.job_id
    }

    /// The incarnation of the communicator.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        FIRST_EPOCH
    }

    /// What all members will be told.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where processes will run, given the cores that this process may use; it prints as one line.
    #[must_use]
    pub fn plan(&self) -> PinPlan {
        PinPlan::new(self.n_ranks, self.options.proxy, self.pin)
    }

    /// Starts the processes and returns when the last one has ended.
    ///
    /// Every member is given `control`, which the caller has created. Call it from a thread that stays: the kernel
    /// binds the processes to the life of the thread that starts them. While it runs, SIGINT, SIGTERM and SIGHUP are
    /// caught and passed on; a second one kills at once.
    ///
    /// # Errors
    /// [`Error::DeviceFailed`] names the first cause; [`Error::Interrupted`]; [`Error::ResourceLimit`] or
    /// [`Error::Os`] when a process cannot be started.
    pub fn spawn_and_supervise(
        &self,
        control: BorrowedFd<'_>,
        observer: &mut dyn Observer,
    ) -> Result<JobOutcome> {
        supervise::run(self, control, None, None, observer)
    }

    fn offer(&self) -> Offer {
        let options = self.options.clone();
        let restarting = self.restarts > 0;
        let beat = self.hang_rule.map(|rule| rule.beat());
        Offer { n_ranks: self.n_ranks, epoch: self.epoch(), job_id: self.job_id, options, restarting, beat }
    }
}
