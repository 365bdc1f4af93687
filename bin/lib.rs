//! The command `shmccl`, the only part of the project that prints. It is a library so that other
//! packages, such as the one for Python, can have the program without a second engine.
//!
//! Tried by its unit tests, `command` and `environments`.
#![forbid(unsafe_code)]

mod clean;
mod compare;
mod ctl;
mod device_job;
mod doctor;
mod execution_plan;
mod failure;
mod file;
mod flags;
mod grpc;
mod host;
mod jobs;
mod log;
mod nccl_table;
mod output;
mod perf;
mod plan;
mod planned;
mod plot;
mod pool;
mod ps;
mod report;
mod run;
mod table;
mod top;
mod tune;
mod tuning;
mod units;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{Resettable, styling};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::signal::{SigSet, Signal};

use compare::flags::CompareArgs;
use ctl::flags::CtlArgs;
use perf::flags::PerfArgs;
use plan::PlanArgs;
use pool::flags::{CoordinatorArgs, DeviceArgs};
use run::flags::{BecomeArgs, RunArgs};

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

const SIZES: &str = "\
SHMCCL_LOG=launch=debug,info logs events of jobs to stderr, by subsystem and level. A command logs \
what its own processes do: launch in run, coordinator in coordinator, meeting, epoch and proxy in \
device, perf, compare and tune. The ranks of run are programs of their own, and log to the \
subscriber of `tracing` that they install.
Sizes are numbers with K, M, G or T behind them (4K, 64MiB, 1.5M), all powers of two.
Tables go to stdout, everything else to stderr. NO_COLOR turns colour off.
Exit code: 0 done, 1 failed or wrong data, 2 wrong usage, 128 plus the number of the signal that \
stopped a job.
";

/// How long a reader of the output of a command that has failed may take.
const LAST_WORDS: Duration = Duration::from_millis(400);

/// Shared-memory collective communication between the processes of one host.
#[derive(Debug, Parser)]
#[command(name = "shmccl", version, styles = STYLES, after_help = SIZES, max_term_width = 100)]
struct Cli {
    /// The command.
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Measure latencies, bandwidths and rates, each beside the machine's own limit
    Perf(PerfArgs),
    /// Start a program as device processes, supervise them, and end them together
    #[command(after_help = run::HELP)]
    Run(RunArgs),
    /// Compare direct with proxied channels, or algorithms, and name the crossover
    #[command(after_help = compare::HELP)]
    Compare(CompareArgs),
    /// Measure which collective algorithms are best here, and write a tuning table
    #[command(after_help = tune::HELP)]
    Tune(tune::TuneArgs),
    /// Check this machine: cores, memory, limits, and what to do about them
    Doctor(doctor::DoctorArgs),
    /// Prove, show, draw, compare or import execution plans of MSCCL++
    Plan(PlanArgs),
    /// Serve a pool of devices, until Ctrl-C
    #[command(after_help = pool::HELP)]
    Coordinator(CoordinatorArgs),
    /// Be a device of the coordinator's pool, until Ctrl-C
    Device(DeviceArgs),
    /// Ask the coordinator for communicators, and run operations on them
    #[command(after_help = ctl::HELP)]
    Ctl(CtlArgs),
    /// Serve the pool over gRPC, by the program shmccl-grpc
    Grpc(grpc::GrpcArgs),
    /// List the jobs of this user on this host
    Ps(ps::PsArgs),
    /// Print what every rank of a job is doing, and which ranks the others wait for
    #[command(after_help = report::HELP)]
    Report(report::ReportArgs),
    /// Watch what the ranks of all jobs do
    #[command(after_help = top::HELP)]
    Top(top::TopArgs),
    /// Remove what dead jobs have left in /dev/shm, and the sockets of dead coordinators
    #[command(after_help = clean::HELP)]
    Clean(clean::CleanArgs),
    /// A device process of a measuring job
    #[command(hide = true)]
    PerfDevice,
    /// A device process of a job that runs an execution plan
    #[command(hide = true)]
    PlanDevice,
    /// A device process of a tuning job
    #[command(hide = true)]
    TuneDevice,
    /// The proxy service process of a job
    #[command(hide = true)]
    ProxyService,
    /// Becomes a program, bound to the life of the launcher
    #[command(hide = true)]
    Become(BecomeArgs),
}

impl Cli {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// Returns the errors of clap, among them help and version.
    fn read() -> Result<Self, clap::Error> {
        let matches = as_read(Self::command()).try_get_matches()?;
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut Self::command()))?;
        if let (Command::Perf(args), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
            args.given = perf::flags::given(matches);
        }
        Ok(cli)
    }
}

/// Lets values be negative numbers, so that the error for `-1` names the value and not an unknown
/// flag. Takes a variable of the environment that is empty for one that is not set.
fn as_read(command: clap::Command) -> clap::Command {
    let takes_values = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    let has_variable = |arg: clap::Arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(Resettable::Reset),
        _ => arg,
    };
    command.mut_args(|arg| has_variable(takes_values(arg))).mut_subcommands(as_read)
}

/// The stack that the command needs, with room for more.
const STACK: usize = 2 << 20;

/// Does what the arguments of this process ask for, and returns what it exits with.
#[must_use]
pub fn main() -> ExitCode {
    // Whatever the starter has blocked: Ctrl-C and SIGTERM end every command. A write past
    // `ulimit -f` is an error, and not the end.
    let has_limit = getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| limit != RLIM_INFINITY);
    let blocked = if has_limit { SigSet::from(Signal::SIGXFSZ) } else { SigSet::empty() };
    let _ = blocked.thread_set_mask();
    // Under `ulimit -s 64` the definitions of all flags do not fit.
    let is_small = getrlimit(Resource::RLIMIT_STACK).is_ok_and(|(limit, _)| limit < STACK as u64);
    let elsewhere = is_small.then(|| std::thread::Builder::new().stack_size(STACK).spawn(run_command));
    match elsewhere {
        Some(Ok(thread)) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Some(Err(_)) | None => run_command(),
    }
}

fn run_command() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return conclude(explain(&error)),
    };
    conclude(execute(&cli).and_then(|code| {
        output::settle(None);
        output::failure()
            .filter(|_| code == failure::DONE)
            .map_or(Ok(code), Err)
            .context(output::CANNOT_WRITE)
    }))
}

fn execute(cli: &Cli) -> anyhow::Result<u8> {
    log::start()?;
    match &cli.command {
        Command::Perf(args) => perf::run(args),
        Command::Run(args) => run::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Coordinator(args) => pool::coordinate(args),
        Command::Device(args) => pool::be_device(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Grpc(args) => grpc::become_front(&args.arguments),
        Command::Ps(args) => ps::run(args),
        Command::Report(args) => report::run(args),
        Command::Top(args) => top::run(args),
        Command::Clean(args) => clean::run(args),
        Command::ProxyService => run::serve(),
        Command::Become(args) => run::become_program(args),
        Command::TuneDevice => tune::device::run().map(|()| failure::DONE),
        Command::PlanDevice => plan::device::run().map(|()| failure::DONE),
        Command::PerfDevice => perf::device::run().map(|()| failure::DONE),
    }
}

/// Prints an error in one line, and returns the exit code.
fn conclude(outcome: anyhow::Result<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) if failure::is_closed_pipe(&error) => ExitCode::from(failure::DONE),
        Err(error) => {
            output::error(&failure::chain(&error));
            output::settle(Some(LAST_WORDS));
            ExitCode::from(failure::exit_code(&error))
        }
    }
}

/// Returns the innermost command that the words name, such as `shmccl ctl status`.
fn named_command(words: impl IntoIterator<Item = OsString>) -> String {
    let (mut command, mut name) = (Cli::command(), "shmccl".to_owned());
    for word in words {
        // Flags and their values are skipped.
        if let Some(within) = command.find_subcommand(word).cloned() {
            name = format!("{name} {}", within.get_name());
            command = within;
        }
    }
    name
}

/// Prints help and version as clap lays them out, and anything else as one line.
fn explain(error: &clap::Error) -> anyhow::Result<u8> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            error.print().context(output::CANNOT_WRITE)?;
            Ok(failure::DONE)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // An error of stderr cannot be reported.
            let _ = error.print();
            Ok(failure::USAGE)
        }
        _ => {
            output::error(&failure::one_line(error, &named_command(std::env::args_os().skip(1))));
            Ok(failure::USAGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, ValueEnum};

    use super::*;
    use failure::one_line;
    use shmccl_harness::test::Test;

    #[test]
    fn the_command_whose_help_is_named_is_the_innermost_one() {
        for (words, name) in [
            (&[][..], "shmccl"),
            (&["nonsense"], "shmccl"),
            (&["doctor", "--jsn"], "shmccl doctor"),
            (&["ctl", "--timeout", "5s", "put-h2d", "status"], "shmccl ctl put-h2d"),
            (&["ctl", "group", "end", "1"], "shmccl ctl group end"),
        ] {
            assert_eq!(named_command(words.iter().map(OsString::from)), name, "{words:?}");
        }
    }

    #[test]
    fn the_definitions_are_consistent() {
        as_read(Cli::command()).debug_assert();
        PerfArgs::augment_args(clap::Command::new("perf")).debug_assert();
        CompareArgs::augment_args(clap::Command::new("compare")).debug_assert();
        RunArgs::augment_args(clap::Command::new("run")).debug_assert();
    }

    #[test]
    fn a_number_below_zero_is_laid_at_the_door_of_whatever_it_was_meant_for() {
        for (words, told) in [
            (&["ctl", "init", "-1"][..], "invalid value '-1' for '<N>': -1 is not in 1..=256; "),
            (&["ctl", "status", "-1"], "invalid value '-1' for '[COMM]': "),
            (
                &["ctl", "put-h2d", "7", "-4096"],
                "invalid value '-4096' for '<ADDRESS>': expected an address such as",
            ),
            (&["ctl", "group", "end", "-3"], "invalid value '-3' for '<COMM>': "),
            (&["coordinator", "-n", "-3"], "invalid value '-3' for '--number <N>': -3 is not in 1..=1024"),
            (&["coordinator", "--restart", "-1", "-n", "1"], "invalid value '-1' for '--restart <TIMES>': "),
            (&["device", "--core", "-1"], "invalid value '-1' for '--core <CORE>': "),
            (&["perf", "-c", "-1"], "invalid value '-1' for '--check <N>': "),
        ] {
            let words = ["shmccl"].iter().chain(words);
            let refused = as_read(Cli::command()).try_get_matches_from(words).unwrap_err();
            let line = one_line(&refused, "shmccl");
            assert!(line.starts_with(told), "{line}");
        }
        let run = ["shmccl", "run", "-n", "2", "--", "./prog", "-1", "-n", "-2"];
        let matches = as_read(Cli::command()).try_get_matches_from(run).unwrap();
        let Command::Run(args) = Cli::from_arg_matches(&matches).unwrap().command else { panic!("run") };
        assert_eq!(args.program, ["./prog", "-1", "-n", "-2"]);
    }

    #[test]
    fn help_promises_nothing_that_another_command_does() {
        let help =
            |name: &str| Cli::command().find_subcommand_mut(name).unwrap().render_long_help().to_string();
        assert!(help("perf").contains("--stepbytes") && !help("compare").contains("--stepbytes"));
        let told = help("perf").split_whitespace().collect::<Vec<_>>().join(" ");
        let on_request =
            Test::value_variants().iter().filter(|test| test.is_on_request() && !test.is_collective());
        let names: Vec<_> = on_request.map(|test| test.name()).collect();
        let default = format!("[default: all but {} and the collective operations]", names.join(", "));
        assert!(told.contains(&default), "{default}");
    }

    #[test]
    fn run_which_has_no_tests_says_so_of_its_heap() {
        let command = Cli::command();
        let heap = |name: &str| {
            let command = command.find_subcommand(name).unwrap();
            let arg = command.get_arguments().find(|arg| arg.get_id() == "heap").unwrap();
            arg.get_help().unwrap().to_string()
        };
        assert_eq!(heap("run"), "Symmetric heap of every rank [default: 256MiB]");
        assert_eq!(heap("perf"), "Symmetric heap of every rank [default: 256MiB, or what a test needs]");
    }
}
