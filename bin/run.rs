//! `shmccl run`: starts a program as the device processes of a job, and ends as its first cause says.
//!
//! The service process and the trampoline are this same executable, under two hidden commands. The trampoline binds
//! every rank to the life of the launcher before the program takes its place, so that programs which know nothing of
//! this library go down with it as well.

pub(crate) mod flags;
mod lines;
mod orphans;
mod program;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use shmccl::Error;
use shmccl::bootstrap::{ProxyMode, SegmentBacking};
use shmccl::collective::tuning::Table;
use shmccl::comm::{JoinedAs, join_job};
use shmccl::error::ExitCause;
use shmccl::heap::layout::HeapShape;
use shmccl::launch::{JobOutcome, Launch, Program};

use crate::{failure, log, output};
use flags::{BecomeArgs, RunArgs};
use lines::Lines;
use orphans::Orphans;

/// What `shmccl run --help` ends with.
pub(crate) const HELP: &str = "\
Exit code: 0 when every rank has ended well (with --keep-going, when one has); otherwise that of the first rank that failed, 128 plus the number of \
the signal that killed it, or that stopped the launcher; 1 when it left no code, and when the job could not be \
started; 2 wrong usage; 126 when the program cannot be executed, 127 when it does not exist.

The first Ctrl-C (or SIGTERM, SIGHUP) is passed on to all ranks, which then have some time to end (--grace); a second \
one kills them. SIGQUIT (Ctrl-\\) prints what every rank is doing, and who holds the others up; the job goes on. What ranks print goes where the launcher's output goes; what is typed goes to rank 0.";

/// Hidden commands, as `main.rs` names them.
const SERVICE: &str = "proxy-service";
const TRAMPOLINE: &str = "become";

/// The exit code of a shell for a program that ends by a signal is this much above its number.
const BY_SIGNAL: i32 = 128;

/// Runs the command; the exit code is the first cause's.
///
/// # Errors
/// When the job cannot be started.
pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    args.check()?;
    if let Err(refusal) = program::check(&args.program[0]) {
        output::error(&refusal.to_string());
        return Ok(refusal.exit_code());
    }
    check_directory(&args.segment)?;
    Table::load()?;
    let orphans = Orphans::adopt();
    let launch = job(args)?;
    if !args.quiet {
        output::note(&launch.plan().describe());
        log::hint_of_ranks().iter().for_each(|hint| output::note(hint));
    }
    let mut lines = Lines::new(launch.job_id());
    let outcome = launch.supervise(&mut lines);
    drop(orphans);
    finish(outcome, lines)
}

/// The exit code of a job with this `outcome`. That what it printed found no reader decides only where nothing else went wrong.
///
/// # Errors
/// Why its output could not be printed, or what the library has to say that is not a rank's failure.
fn finish(outcome: shmccl::Result<JobOutcome>, lines: Lines) -> Result<u8> {
    let has_ended_it = lines.have_ended_the_job();
    let closed = lines.closed().context(output::CANNOT_WRITE);
    match outcome {
        Ok(outcome) => {
            for (device, cause) in &outcome.lost {
                output::note(&format!("{device} {cause}; the others went on"));
            }
            closed.map(|()| failure::DONE)
        }
        Err(Error::Interrupted { .. }) if has_ended_it => closed.map(|()| failure::DONE),
        Err(error) => {
            if let Some(unread) = closed.err().filter(|unread| !failure::is_closed_pipe(unread)) {
                output::note(&failure::chain(&unread));
            }
            conclude(error)
        }
    }
}

/// Sees to it that segments in files can be made.
///
/// # Errors
/// When their directory is not there.
fn check_directory(backing: &SegmentBacking) -> Result<()> {
    let SegmentBacking::Files(directory) = backing else { return Ok(()) };
    let metadata = std::fs::metadata(directory);
    if !metadata.with_context(|| format!("cannot keep segments in {directory}"))?.is_dir() {
        bail!("cannot keep segments in {directory}: it is not a directory");
    }
    Ok(())
}

fn job(args: &RunArgs) -> Result<Launch> {
    let this = std::env::current_exe().context("finding this executable")?;
    let (program, program_args) = args.program.split_first().expect("clap asks for a program");
    let mut launch = Launch::new(args.ranks)?
        .program(Program::new(program, program_args))
        .trampoline(Program::new(&this, [TRAMPOLINE, "--"]))
        .service(Program::new(&this, [SERVICE]))
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

/// Names the first cause in one line, and gives its exit code.
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
        Error::Interrupted { signal } => (error.to_string(), BY_SIGNAL + signal),
        _ => return Err(error.into()),
    };
    output::error(&line);
    Ok(u8::try_from(code).ok().filter(|code| *code != failure::DONE).unwrap_or(failure::FAILED))
}

fn code_of(cause: ExitCause) -> i32 {
    match cause {
        ExitCause::Code(code) => code,
        ExitCause::Signal(signal) => BY_SIGNAL + signal,
        ExitCause::Injected(_) => BY_SIGNAL + Signal::SIGKILL as i32,
        _ => failure::FAILED.into(),
    }
}

/// The hidden command that serves the fifos of all ranks until they have left.
///
/// # Errors
/// Those of joining the job, or that no launcher started it.
pub(crate) fn serve() -> Result<u8> {
    match join_job()? {
        Some(JoinedAs::Proxy) => Ok(failure::DONE),
        Some(JoinedAs::Device(_)) | None => anyhow::bail!("this command is for the launcher's own use"),
    }
}

/// The hidden command that becomes a rank's program.
pub(crate) fn become_program(args: &BecomeArgs) -> Result<u8> {
    let (program, program_args) = args.program.split_first().expect("clap asks for a program");
    let error = shmccl::bootstrap::become_program(program, program_args);
    let refusal = program::Refusal::of(program, &error).ok_or(error)?;
    // What one rank cannot execute none can: one line is enough.
    if std::env::var_os("SHMCCL_RANK").is_none_or(|rank| rank == "0") {
        output::error(&refusal.to_string());
    }
    Ok(refusal.exit_code())
}
