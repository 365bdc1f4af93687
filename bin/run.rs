//! `shmccl run`: starts a program as the device processes of a job, and ends with the exit code of
//! the first cause.
//!
//! The service process and the trampoline are this same executable, under two hidden commands. The
//! trampoline binds every rank to the life of the launcher before the program takes its place. So
//! programs that do not know this library end with the launcher, too.
//!
//! Tried by its unit tests, `command run::` and `environments signals::`.

pub(crate) mod flags;
mod lines;
mod program;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use shmccl::Error;
use shmccl::bootstrap::{ProxyMode, SegmentBacking};
use shmccl::collective::PLANS_VARIABLE;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::ExitCause;
use shmccl::heap::layout::HeapShape;
use shmccl::launch::{JobOutcome, Launch, Program};

use crate::{failure, log, output, tuning};
use flags::{BecomeArgs, RunArgs};
use lines::Lines;

/// Ends the help.
pub(crate) const HELP: &str = "\
Exit code: 0 when every rank has ended well (with --keep-going, when one has). Otherwise it is that \
of the first rank that failed, or 128 plus the number of the signal that killed it or stopped the \
launcher. It is 1 when that rank left no code, and when the job could not be started; 2 for wrong \
usage; 126 when the program cannot be executed, 127 when it does not exist.

The first Ctrl-C (or SIGTERM, SIGHUP) is passed on to all ranks, which then have some time to end \
(--grace); a second one kills them. SIGQUIT (Ctrl-\\) prints what every rank is doing, and which \
ranks the others wait for; the job goes on. The output of ranks goes to that of the launcher; rank 0 \
reads the input.";

/// Hidden commands, as `main.rs` names them.
const SERVICE: &str = "proxy-service";
const TRAMPOLINE: &str = "become";

/// The least time that a reader of the last output has.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The longest time for killed processes to end.
const ORPHANS_PATIENCE: Duration = Duration::from_secs(5);

/// Makes this process the parent of all orphans of its descendants, and kills them when it is
/// dropped. Children that existed before (an `exec` keeps them) are spared.
#[derive(Debug)]
struct Orphans {
    spared: Vec<Pid>,
}

/// Runs the command. The exit code is that of the first cause.
///
/// # Errors
/// Returns the errors of starting the job.
pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    args.check()?;
    if let Err(refusal) = program::check(&args.program[0]) {
        output::error(&refusal.to_string());
        return Ok(refusal.exit_code());
    }
    check_directory(&args.segment)?;
    args.job.check_plans()?;
    if args.quiet {
        tuning::check()?
    } else {
        tuning::check_and_note()?
    }
    output::detach();
    let orphans = Orphans::adopt();
    let launch = job(args)?;
    if !args.quiet {
        output::note(&launch.pinning().to_string());
        log::hint_of_ranks().iter().for_each(|hint| output::note(hint));
    }
    let mut lines = Lines::new(launch.job_id());
    let outcome = launch.supervise(&mut lines);
    drop(orphans);
    finish(outcome, &lines, args.grace)
}

/// Returns the exit code of a job with this `outcome`. A closed output decides only if nothing else
/// went wrong. After a failure or an interrupt, output that nobody takes within `grace` is lost.
///
/// # Errors
/// Returns the errors of printing the output, and those of the library but for failures of ranks.
fn finish(outcome: shmccl::Result<JobOutcome>, lines: &Lines, grace: Duration) -> Result<u8> {
    let closed = || output::failure().map_or(Ok(()), Err).context(output::CANNOT_WRITE);
    match outcome {
        Ok(outcome) => {
            for (device, cause) in &outcome.lost {
                output::note(&format!("{device} {cause}; the others went on"));
            }
            output::settle(None);
            closed().map(|()| failure::DONE)
        }
        Err(Error::Interrupted { .. }) if lines.have_ended_the_job() => closed().map(|()| failure::DONE),
        Err(error) => {
            let code = conclude(error);
            output::settle(Some(grace.max(LAST_WORDS)));
            if let Some(unread) = closed().err().filter(|unread| !failure::is_closed_pipe(unread)) {
                output::note(&failure::chain(&unread));
            }
            code
        }
    }
}

/// Checks that segments in files can be made.
///
/// # Errors
/// A directory that does not exist.
fn check_directory(backing: &SegmentBacking) -> Result<()> {
    let SegmentBacking::Files(directory) = backing else { return Ok(()) };
    let metadata = std::fs::metadata(directory);
    if !metadata.with_context(|| format!("cannot keep segments in {directory}"))?.is_dir() {
        bail!("cannot keep segments in {directory}: it is not a directory");
    }
    Ok(())
}

fn job(args: &RunArgs) -> Result<Launch> {
    let (program, program_args) = args.program.split_first().expect("clap asks for a program");
    let mut launch = Launch::new(args.ranks)?
        .program(Program::new(program, program_args))
        .trampoline(Program::this_with([TRAMPOLINE, "--"]))
        .service(Program::this_with([SERVICE]))
        .proxy(ProxyMode::from(args.job.proxy))
        .backing(args.segment.clone())
        .timeout(args.job.timeout)
        .pin(!args.job.no_pin)
        .keep_going(args.keep_going)
        .grace(args.grace)
        .restart(args.restart)
        .checksums(args.checksums)
        .faults(args.faults.clone().unwrap_or_default())
        .heed_quit(true)
        .trace_records(args.trace_records())
        .capture_output(args.prefix);
    if let Some(directory) = &args.job.plans {
        launch = launch.env(PLANS_VARIABLE, directory);
    }
    if let Some(file) = &args.trace {
        launch = launch.trace(file);
    }
    if let Some(rule) = args.hangs.rule()? {
        launch = launch.detect_hangs(rule);
    }
    if let Some(heap_len) = args.job.heap {
        HeapShape::new(args.ranks, heap_len)?;
        launch = launch.heap_len(heap_len);
    }
    Ok(launch)
}

/// Prints the first cause in one line, and returns its exit code.
fn conclude(error: Error) -> Result<u8> {
    let (line, code) = match &error {
        Error::DeviceFailed { device, cause: ExitCause::Code(0) } => {
            (format!("{device} exited with code 0 without leaving the job, while others needed it"), 0)
        }
        Error::DeviceFailed { cause: ExitCause::Hung(_), .. } => {
            let remedy = "see what has stopped it (--spare-hung leaves it to a debugger), or allow more (--hung-after)";
            (format!("{error}; {remedy}"), failure::FAILED.into())
        }
        Error::DeviceFailed { cause, .. } => (error.to_string(), code_of(*cause)),
        Error::Interrupted { signal } => (error.to_string(), failure::BY_SIGNAL + signal),
        _ => return Err(error.into()),
    };
    output::error(&line);
    Ok(u8::try_from(code).ok().filter(|code| *code != failure::DONE).unwrap_or(failure::FAILED))
}

fn code_of(cause: ExitCause) -> i32 {
    match cause {
        ExitCause::Code(code) => code,
        ExitCause::Signal(signal) => failure::BY_SIGNAL + signal,
        ExitCause::Injected(_) => failure::BY_SIGNAL + Signal::SIGKILL as i32,
        _ => failure::FAILED.into(),
    }
}

/// Serves the fifos of all ranks until they have left: a hidden command.
///
/// # Errors
/// Returns the errors of joining the job, and a start without a launcher.
pub(crate) fn serve() -> Result<u8> {
    match join_job()? {
        Some(JoinedAs::Proxy) => Ok(failure::DONE),
        Some(JoinedAs::Device(_)) | None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

/// Becomes the program of a rank: a hidden command.
pub(crate) fn become_program(args: &BecomeArgs) -> Result<u8> {
    let (program, program_args) = args.program.split_first().expect("clap asks for a program");
    let error = shmccl::bootstrap::become_program(program, program_args);
    let refusal = program::ProgramError::of(program, &error).ok_or(error)?;
    // All ranks fail alike: one line is enough.
    if std::env::var_os("SHMCCL_RANK").is_none_or(|rank| rank == "0") {
        output::error(&refusal.to_string());
    }
    Ok(refusal.exit_code())
}

impl Orphans {
    fn adopt() -> Self {
        // If this fails, init adopts orphans as usual.
        let _ = set_child_subreaper(true);
        Self { spared: children() }
    }

    fn left(&self) -> Vec<Pid> {
        children().into_iter().filter(|child| !self.spared.contains(child)).collect()
    }
}

impl Drop for Orphans {
    /// Kills one generation after the other: children of killed processes become children of this
    /// one.
    fn drop(&mut self) {
        let began = Instant::now();
        while began.elapsed() < ORPHANS_PATIENCE {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            for child in left {
                let _ = kill(child, Signal::SIGKILL);
                // The next list shows whether it has gone.
                let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
            }
            std::thread::yield_now();
        }
    }
}

/// Returns the children of all threads of this process.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let numbers = lists.collect::<String>();
    numbers.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}
