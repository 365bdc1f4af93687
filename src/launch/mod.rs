//! Starts the device processes of a job, watches them, and names what went wrong first.
//!
//! The launcher re-executes a program, by default itself with its own arguments, once per rank.
//! Each process finds its rank and the number of an inherited socket in its environment, and joins
//! by [`join_from_env`](crate::bootstrap::join_from_env):
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
//! | `SHMCCL_DUMP_HEAP` | 1, where core dumps hold the rank's [heap](crate::bootstrap::DUMP_HEAP) |
//! | `SHMCCL_STATICS` | 0, where static objects are not to be [symmetric](crate::shm::statics) |
//! | `SHMCCL_FAULTS` | the [list of faults](crate::faults), where there is one |
//!
//! One poll loop, in the thread that started the processes, watches sockets, process descriptors,
//! interrupts and output. The first sign of trouble is a hang-up without Bye, a broken protocol, a
//! failure or an interrupt. The loop then tells the [`Observer`] and all other members, gives them
//! a time of grace to end by themselves, and kills those that are left.
//!
//! With [`Launch::detect_hangs`] the loop also looks at the members' heartbeats (`hang.rs`). With
//! [`Launch::restart`] it restarts a dead rank in its place (`restart.rs`): the others learn of the
//! loss, and the job goes on.
//!
//! Invariants:
//! - When [`Launch::supervise`] returns, no process that it started is left.
//! - A launcher that is killed takes its processes along. Each asks for the parent-death signal as
//!   it joins, or as it starts with [`Launch::trampoline`]. Joining a dead launcher is an error.
//! - The janitor of the claim removes the names that a killed launcher leaves in `/dev/shm`
//!   (`names.rs`).
//! - A child inherits its own socket and no other descriptor.
//!
//! Tried by its unit tests, `launch`, `command run::` and `environments places:: signals::
//! replaced::`.

mod cores;
mod first_cause;
mod hang;
mod held;
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
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(feature = "coordinator")]
pub(crate) use cores::claim as claim_core;
#[cfg(feature = "coordinator")]
pub(crate) use hang::BeatHistory;
pub use hang::HangRule;
pub use job::{LaunchedAs, launch, launch_threads, spawn_threads};
pub use leftovers::{Leftover, clean};
pub use observer::{Observer, OutputBacklog, OutputLine, OutputStream};
pub use pin::Pinning;

use crate::bootstrap::{Offer, Options, ProxyMode, SegmentBacking};
use crate::epoch_id::{FIRST_EPOCH, fresh_job_id};
#[cfg(doc)]
use crate::error::Error;
use crate::error::{DeviceName, ExitCause, Result};
use crate::faults::Faults;
use crate::rank::check_n_ranks;
use crate::trace::DEFAULT_RECORDS;

/// The settings of a job to be started.
#[derive(Clone, Debug)]
pub struct Launch {
    n_ranks: u32,
    job_id: u64,
    options: Options,
    pin: bool,
    one_core_each: bool,
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
    trace: Option<PathBuf>,
    trace_records: u64,
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The running executable, if it is none.
    path: Option<OsString>,
    args: Vec<OsString>,
}

impl Program {
    /// Names a program in `PATH` or by its path, with arguments.
    pub fn new<A: AsRef<OsStr>>(path: impl AsRef<OsStr>, args: impl IntoIterator<Item = A>) -> Self {
        Self { path: Some(path.as_ref().to_owned()), ..Self::this_with(args) }
    }

    /// Returns the running executable with its own arguments.
    #[must_use]
    pub fn this() -> Self {
        Self::this_with(std::env::args_os().skip(1))
    }

    /// Returns the running executable with other arguments. It is the image that runs, also when
    /// its file is replaced or removed meanwhile.
    pub fn this_with<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self { path: None, args: args.into_iter().map(|arg| arg.as_ref().to_owned()).collect() }
    }

    fn path(&self) -> OsString {
        self.path.clone().unwrap_or_else(this_executable)
    }

    /// Returns the command that starts it.
    pub(crate) fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(self.path());
        command.args(&self.args);
        command
    }
}

/// Where the system shows the image that runs, whatever became of its file.
const THIS_IMAGE: &str = "/proc/self/exe";

/// Returns the path of the running executable, or its link in `/proc` when the file has been
/// replaced. Without `/proc` it is the path by which it was started.
fn this_executable() -> OsString {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    match std::env::current_exe() {
        Ok(path) if file(&path) == file(Path::new(THIS_IMAGE)) => path.into_os_string(),
        Err(_) if !Path::new("/proc/self").exists() => std::env::args_os().next().unwrap_or_default(),
        _ => THIS_IMAGE.into(),
    }
}

/// The course of a job that ended well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobOutcome {
    /// Time from the call to the moment when all members were ready; `None` when they never joined.
    pub ready_after: Option<Duration>,
    /// Time from the call to the end of the last process.
    pub ran_for: Duration,
    /// The lost members by id, each with its cause; only with [`Launch::keep_going`].
    pub lost: Vec<(DeviceName, ExitCause)>,
    /// The restarted members in order, each with the cause of its end; only with
    /// [`Launch::restart`].
    pub restarted: Vec<(DeviceName, ExitCause)>,
}

/// Declares methods of [`Launch`] that change one setting each.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident($value:ident: $kind:ty): $($field:ident).+ = $set:expr;)*) => {
        impl Launch {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $value: $kind) -> Self {
                    self.$($field).+ = $set;
                    self
                }
            )*
        }
    };
}

settings! {
    /// Sets the length of each rank's part of the symmetric heap, in bytes.
    heap_len(heap_len: u64): options.heap_len = heap_len;

    /// Sets who executes triggers; a service process is started along with the ranks.
    proxy(proxy: ProxyMode): options.proxy = proxy;

    /// Sets where segments come from.
    backing(backing: SegmentBacking): options.backing = backing;

    /// Sets how long the ranks' waits may take, in the bootstrap and afterwards.
    timeout(timeout: Duration): options.timeout = timeout;

    /// Sets whether processes are pinned to cores: with fewer processes than cores, to a set of
    /// cores each.
    pin(pin: bool): pin = pin;

    /// Sets how long the others may take to end by themselves after the first failure or an
    /// interrupt. The default is 2 s.
    ///
    /// A pause of the launcher counts for at most a tenth of `grace`, or 1 ms, because the others
    /// may have been paused too.
    grace(grace: Duration): grace = grace;

    /// Sets the program that every rank runs.
    program(program: Program): program = program;

    /// Sets the program that the proxy service process runs.
    service(service: Program): service = service;

    /// Starts the ranks' program through another one, which calls
    /// [`become_program`](crate::bootstrap::become_program) with the arguments behind its own.
    ///
    /// This binds programs that join late or never to the life of the launcher.
    trampoline(trampoline: Program): trampoline = Some(trampoline);

    /// Hands output to [`Observer::on_output`] by lines, instead of the launcher's own output.
    capture_output(capture_output: bool): capture_output = capture_output;

    /// Lets the job go on when a member is lost. The others learn of the loss and are not ended:
    /// they can [`shrink`](crate::Communicator::shrink). The job ends well when one rank does, and
    /// [`JobOutcome::lost`] names those that did not.
    keep_going(keep_going: bool): keep_going = keep_going;

    /// Sets how often dead ranks are restarted, all of them together: each with the same rank on
    /// the same core. The others learn of the loss and are not ended: they
    /// [`recover`](crate::Communicator::recover).
    ///
    /// - It runs the same file, also where that was replaced or removed meanwhile.
    /// - A rank is restarted when the job is up and another rank lives. A rank that was given up is
    ///   killed first, after the time of grace.
    /// - A death after the last of `restarts` ends the job like any other. The others learn that no
    ///   restart is left, and `recover` fails at once.
    /// - A rank that has dropped its communicator and exits with an error is not restarted: it has
    ///   left, and the others do not take it back. So does a body given to [`Launch::run`]
    ///   that returns an error. A panic is a death.
    /// - Ranks that [`shrink`](crate::Communicator::shrink) need [`Launch::keep_going`] as well.
    ///   The launcher does not know that they go on without the dead, restarts these, and ends the
    ///   job when no restart is left.
    restart(restarts: u32): restarts = restarts;

    /// Sets how many records of 32 bytes are kept of a rank's threads, and of its proxy. It is a
    /// power of two from 1024 to 16777216.
    trace_records(records: u64): trace_records = records;

    /// Finds ranks that hang by `rule`, and treats them as lost. The default is to find none: a
    /// rank in a debugger, or one that somebody has stopped, is left to the deadlines of its peers.
    ///
    /// A rank that hangs ends the epoch like one that dies. The job ends, [goes
    /// on](Self::keep_going), or [restarts](Self::restart) the rank. [`ExitCause::Hung`] says how
    /// long it has been silent. It is killed unless the rule [spares](HangRule::sparing) it, and so
    /// is one that takes long to die because it writes a core file.
    ///
    /// The rule holds for the processes of this launcher, in every epoch that they enter. It does
    /// not hold for ranks that [join](crate::Communicator::join) a communicator of theirs, nor for
    /// ranks without a launcher: the deadlines of their peers find those.
    detect_hangs(rule: HangRule): hang_rule = Some(rule);

    /// Hands SIGQUIT to [`Observer::on_quit`] as a question about the job; it ends nothing then.
    /// That holds also where it was ignored, as in background jobs of a script.
    ///
    /// What ranks do at SIGQUIT is up to their programs. Programs started by
    /// [`become_program`](crate::bootstrap::become_program) ignore it.
    heed_quit(heed_quit: bool): heed_quit = heed_quit;

    /// Sets the faults to inject into this job. An empty plan leaves that to the environment. See
    /// [`crate::faults`].
    faults(faults: Faults): options.faults = faults;

    /// Checks data by checksums on their way, as
    /// [`checksums_from_env`](crate::bootstrap::checksums_from_env) says. `false` leaves that to
    /// the environment.
    checksums(checksums: bool): options.checksums = checksums;

    /// Sets how many cores the ranks count on, as
    /// [`cores_from_env`](crate::bootstrap::cores_from_env) says. Without it the environment
    /// decides. It does not change where processes run.
    cores(cores: NonZeroU32): options.cores = Some(cores);
}

impl Launch {
    /// Describes a job of `n_ranks` device processes of the running executable.
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
            one_core_each: false,
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
            trace: None,
            trace_records: DEFAULT_RECORDS,
        })
    }

    /// Pins each process to one core, however many there are. What is measured then does not depend
    /// on what the system does with more.
    #[must_use]
    pub fn one_core_each(mut self) -> Self {
        self.one_core_each = true;
        self
    }

    /// Adds an environment variable to all processes.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Records what all ranks do, and writes it to `file` when the last one has ended, whatever
    /// became of the job: see [`trace`](crate::trace).
    ///
    /// A file that cannot be made is an error before anything is started. Without this call,
    /// `SHMCCL_TRACE` in the launcher's environment names a file. Only [`Launch::supervise`] and
    /// [`Launch::run`] trace.
    #[must_use]
    pub fn trace(mut self, file: impl Into<PathBuf>) -> Self {
        self.trace = Some(file.into());
        self
    }

    /// Returns the number of this job, unique on the machine.
    #[must_use]
    pub fn job_id(&self) -> u64 {
        self.job_id
    }

    /// Returns where processes will run, given the cores that this process may use. It prints as
    /// one line.
    ///
    /// A job claims a core for each process, the first of those that the process may run on. This
    /// process keeps the claims until it ends. What other jobs have claimed comes last: unclaimed
    /// cores are taken alone where they suffice, and otherwise all cores. An earlier job that has
    /// several cores for a process shares the others with later jobs, and the system moves its
    /// threads aside.
    #[must_use]
    pub fn pinning(&self) -> Pinning {
        Pinning::new(self.n_ranks, self.options.proxy, self.pin, self.one_core_each)
    }

    fn held_program(&self) -> Option<held::HeldProgram> {
        let path = self.program.path.as_ref().filter(|_| self.restarts > 0)?;
        held::HeldProgram::find(path)
    }

    fn offer(&self) -> Offer {
        let options = self.options.clone();
        let restarting = self.restarts > 0;
        let beat = self.hang_rule.map(|rule| rule.beat());
        Offer { n_ranks: self.n_ranks, epoch: FIRST_EPOCH, job_id: self.job_id, options, restarting, beat }
    }
}
