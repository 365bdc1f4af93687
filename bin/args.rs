//! The command line: what each command takes, and the checks that go past one flag.

mod collective;
mod hang;
mod heeded;
mod launch;
mod matrix;
mod pool;
mod seeing;
mod test;
mod tune;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, builder::styling};
use serde::{Deserialize, Serialize};
use shmccl::rank::MAX_RANKS;

pub(crate) use collective::CollectiveArgs;
pub(crate) use hang::HangArgs;
use heeded::given;
pub(crate) use launch::{BecomeArgs, RunArgs};
pub(crate) use matrix::MatrixArgs;
pub(crate) use pool::{Ask, CallArgs, CoordinatorArgs, CtlArgs, DeviceArgs, GroupEdge, parse_memory};
pub(crate) use seeing::{CleanArgs, PsArgs, ReportArgs, TopArgs};
pub(crate) use test::Test;
pub(crate) use tune::TuneArgs;

use crate::failure::UsageError;
use crate::sizes::{climb, format_size, ladder, parse_size};
use crate::units::parse_timeout;
use crate::{clean, compare, ctl, run, top, tune as tuning};

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

const SIZES: &str = "SHMCCL_LOG=launch=debug,info has turns in the life of jobs told on stderr, by subsystem and level, as far as this \
                     command's own processes see them: launch in run, coordinator in coordinator, meeting, epoch and proxy in device, \
                     perf, compare and tune. The ranks of run are programs of their own, and print what a subscriber of `tracing` \
                     prints that they install.\n\
                     Sizes are whole numbers with K, M, G or T behind them (4K, 64MiB), all powers of two.\n\
                     Tables go to stdout, everything else to stderr. NO_COLOR turns colour off.\n\
                     Exit code: 0 done, 1 failed or wrong data, 2 wrong usage.\n";

/// Shared-memory collective communication between the processes of one host.
#[derive(Debug, Parser)]
#[command(name = "shmccl", version, styles = STYLES, after_help = SIZES, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure latencies, bandwidths and rates, each beside the machine's own limit
    Perf(PerfArgs),
    /// Start a program as device processes, watch over them, and end them together
    #[command(after_help = run::HELP)]
    Run(RunArgs),
    /// Compare direct with proxied channels, or algorithms, and name the crossover
    #[command(after_help = compare::HELP)]
    Compare(CompareArgs),
    /// Measure which collective algorithms are best here, and write a tuning table
    #[command(after_help = tuning::HELP)]
    Tune(TuneArgs),
    /// Check this machine: cores, memory, limits, and what to do about them
    Doctor(DoctorArgs),
    /// Serve a pool of devices, until Ctrl-C
    #[command(after_help = crate::pool::HELP)]
    Coordinator(CoordinatorArgs),
    /// Be a device of the coordinator's pool, until Ctrl-C
    Device(DeviceArgs),
    /// Ask the coordinator for communicators, and run operations on them
    #[command(after_help = ctl::HELP)]
    Ctl(CtlArgs),
    /// List the jobs of this user on this host
    Ps(PsArgs),
    /// Tell what every rank of a job is doing, and who holds the others up
    #[command(after_help = crate::report::HELP)]
    Report(ReportArgs),
    /// Watch what the ranks of all jobs do
    #[command(after_help = top::HELP)]
    Top(TopArgs),
    /// Remove what dead jobs have left in /dev/shm, and the sockets of dead coordinators
    #[command(after_help = clean::HELP)]
    Clean(CleanArgs),
    /// A device process of a measuring job
    #[command(hide = true)]
    PerfDevice,
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

/// How device processes are started, for every command that starts them.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobArgs {
    /// Where the proxies run: in a thread of each device process, or in one service process for all
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = ProxyMode::Thread)]
    pub(crate) proxy: ProxyMode,
    /// Symmetric heap of every rank [default: 256MiB, or what a test needs]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = "SHMCCL_HEAP", hide_env_values = true)]
    pub(crate) heap: Option<u64>,
    /// The longest that any wait may take, such as 500ms, 30s or 2m
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// Leave it to the scheduler on which cores ranks and proxies run
    #[arg(long)]
    pub(crate) no_pin: bool,
}

/// How long and over which sizes the measuring commands measure, in the manner of nccl-tests.
#[derive(Clone, Debug, Args)]
pub(crate) struct SweepArgs {
    /// Smallest size
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse_size, default_value = "8")]
    pub(crate) minbytes: u64,
    /// Largest size; collective operations end below it where the factor steps over it, as in nccl-tests
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB")]
    pub(crate) maxbytes: u64,
    /// Factor from one size to the next; 1 steps by bytes, as collective operations can (--stepbytes)
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 4)]
    pub(crate) stepfactor: u64,
    /// Operations to time at each size, at least [default: as many as a fixed time allows]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iters: Option<u64>,
    /// Operations before the clock starts, at least [default: as many as it takes to settle]
    #[arg(short = 'w', long = "warmup_iters", visible_alias = "warmup-iters", value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub(crate) warmup_iters: Option<u64>,
    /// 0 verifies nothing, any other number the data of every operation (nccl-tests: of so many)
    #[arg(short = 'c', long, value_name = "N", value_parser = parse_check, default_value = "1")]
    pub(crate) check: u32,
}

/// Flags of `shmccl perf`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PerfArgs {
    /// Tests to run [default: all but trace_cost, p2p and the collective operations]
    #[arg(value_enum, value_name = "TEST")]
    pub(crate) tests: Vec<Test>,
    /// Device processes [default: 2; several numbers for barrier and launch; one for each core for p2p, from 2 to 8]
    #[arg(short = 'g', long, value_name = "N", value_parser = parse_ranks)]
    pub(crate) ranks: Option<u32>,
    /// The channel to measure [default: both, where a test can use both; memory for collective operations]
    #[arg(long, value_enum)]
    pub(crate) channel: Option<Channel>,
    /// Write the report to a file as well; with - to standard output, and the table to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    #[command(flatten)]
    pub(crate) collective: CollectiveArgs,
    #[command(flatten)]
    pub(crate) matrix: MatrixArgs,
    /// Flags on the command line that not every test heeds.
    #[arg(skip)]
    pub(crate) given: Vec<&'static str>,
}

/// Flags of `shmccl compare`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("maxbytes", |arg| arg.help("Largest size")))]
#[command(mut_arg("stepfactor", |arg| arg.help("Factor from one size to the next, 2 at least")))]
pub(crate) struct CompareArgs {
    /// Compare the ways of a collective operation instead of puts: all_reduce, all_gather, ..., each algorithm that is a loop of its own, direct and
    /// proxied: between two ranks a chain and naive are the tree.
    /// What goes by messages between pairs, as sendrecv and all_to_all_v do, has no choice of algorithms
    #[arg(long, value_name = "OP", value_parser = parse_operation)]
    pub(crate) op: Option<Test>,
    /// Device processes that do the operation [default: 2]
    #[arg(short = 'g', long, value_name = "N", value_parser = parse_ranks, requires = "op")]
    pub(crate) ranks: Option<u32>,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Write the report to a file; with - to standard output, and the tables to standard error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table to a file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the plot to a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Where a comparison goes, besides to the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    /// All of it.
    pub(crate) json: Option<PathBuf>,
    /// Its table.
    pub(crate) csv: Option<PathBuf>,
    /// Its plot.
    pub(crate) svg: Option<PathBuf>,
}

/// Flags of `shmccl doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Device processes that the machine is to carry
    #[arg(short = 'g', long, value_name = "N", value_parser = n_ranks(1), default_value_t = 2)]
    pub(crate) ranks: u32,
    /// Where their proxies would run
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = ProxyMode::Thread)]
    pub(crate) proxy: ProxyMode,
    /// Symmetric heap that each of them would have
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    pub(crate) heap: u64,
    /// Write the findings to a file as well; with - to standard output, and the table to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Channel {
    /// The device thread itself: direct
    Memory,
    /// A proxy, told by a trigger: proxied
    Port,
}

/// Where proxies run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProxyMode {
    /// In a thread of each device process
    Thread,
    /// In one service process for all device processes
    Process,
}

impl Channel {
    /// The name, as on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Port => "port",
        }
    }
}

impl From<ProxyMode> for shmccl::bootstrap::ProxyMode {
    fn from(mode: ProxyMode) -> Self {
        match mode {
            ProxyMode::Thread => Self::Thread,
            ProxyMode::Process => Self::Process,
        }
    }
}

impl Cli {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// What clap has to say: help among it.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let matches = with_negative_numbers(Self::command()).try_get_matches()?;
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut Self::command()))?;
        if let (Command::Perf(args), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
            args.given = given(matches);
        }
        Ok(cli)
    }
}

/// The same command, which takes `-1` for a number, and not for a flag that it has not: so it is told that this number is not one of
/// those that it can be, and of what.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_values = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(takes_values).mut_subcommands(with_negative_numbers)
}

impl SweepArgs {
    /// Whether data are to be verified.
    pub(crate) fn check(&self) -> bool {
        self.check > 0
    }

    /// The sizes to measure, from the smallest to the largest.
    ///
    /// # Errors
    /// Flags that name none.
    pub(crate) fn sizes(&self) -> Result<Vec<u64>, UsageError> {
        self.check_sizes()?;
        Ok(ladder(self.minbytes, self.maxbytes, self.stepfactor))
    }

    /// Those of nccl-tests: from the smallest on, as far as the factor leads to the largest.
    ///
    /// # Errors
    /// Flags that name none.
    pub(crate) fn climbed(&self) -> Result<Vec<u64>, UsageError> {
        self.check_sizes()?;
        Ok(climb(self.minbytes, self.maxbytes, self.stepfactor))
    }

    fn check_sizes(&self) -> Result<(), UsageError> {
        if self.minbytes > self.maxbytes {
            return Err(UsageError::new(format!(
                "--minbytes {} is above --maxbytes {}; swap them or leave one out",
                format_size(self.minbytes),
                format_size(self.maxbytes)
            )));
        }
        if self.minbytes == 0 {
            return Err(UsageError::new(
                "--minbytes is 0 and no factor leads up from there; start at 1 or above, or with a collective operation step by bytes (-i) (-b 1 -e 1 is the cost beside the bytes, the test signal_latency that of a signal alone)",
            ));
        }
        if self.stepfactor == 1 {
            return Err(UsageError::new(
                "--stepfactor 1 steps by bytes, which only the collective operations of perf do; take 2 or more",
            ));
        }
        Ok(())
    }
}

impl CompareArgs {
    /// The files that are named; where none is, three in the current directory.
    pub(crate) fn files(&self) -> Files {
        if self.json.is_none() && self.csv.is_none() && self.svg.is_none() {
            let usual = |kind: &str| Some(PathBuf::from(format!("compare.{kind}")));
            return Files { json: usual("json"), csv: usual("csv"), svg: usual("svg") };
        }
        Files { json: self.json.clone(), csv: self.csv.clone(), svg: self.svg.clone() }
    }
}

impl PerfArgs {
    /// The tests that are named, or else all that need not be.
    fn wanted(&self) -> Vec<Test> {
        if !self.tests.is_empty() {
            return self.tests.clone();
        }
        Test::value_variants().iter().copied().filter(|test| !test.is_on_request()).collect()
    }

    /// The tests to run, each once, and the channels to run each over.
    pub(crate) fn plan(&self) -> Result<Vec<(Test, Vec<Channel>)>, UsageError> {
        heeded::check(self)?;
        let named = !self.tests.is_empty();
        let mut tests = self.wanted();
        tests.sort_unstable();
        tests.dedup();
        let mut plan = Vec::new();
        for test in tests {
            let possible = test.channels();
            let wanted = |channel: &Channel| self.channel.is_none_or(|only| only == *channel);
            let channels: Vec<Channel> = possible.iter().copied().filter(wanted).collect();
            match (channels.is_empty() && !possible.is_empty(), self.channel) {
                (false, _) | (true, None) => plan.push((test, channels)),
                (true, Some(_)) if !named => {}
                (true, Some(asked)) => {
                    let only = possible.iter().map(|channel| channel.name()).collect::<Vec<_>>().join(" or ");
                    return Err(UsageError::new(format!(
                        "{} does not use the {} channel; leave --channel out or say --channel {only}",
                        test.name(),
                        asked.name()
                    )));
                }
            }
        }
        Ok(plan)
    }
}

/// Reads the name of a collective operation, as `perf` does.
fn parse_operation(text: &str) -> Result<Test, String> {
    let named = Test::from_str(text, false).ok().filter(|test| test.is_collective());
    named.ok_or_else(|| {
        let operations = Test::value_variants().iter().copied().filter(|test| test.is_collective());
        let names: Vec<_> = operations.map(Test::name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Reads whether, or how often, results are verified.
fn parse_check(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected 0 for no verifying, or another whole number".to_owned())
}

/// Reads how many ranks do something together that is measured.
fn parse_ranks(text: &str) -> Result<u32, String> {
    match text {
        "1" => Err(format!(
            "1 is not in 2..={MAX_RANKS}: a rank alone hands nothing over, and there is nothing to hold it against"
        )),
        _ => n_ranks(2)(text),
    }
}

/// Reads a number of ranks, `least` of them or more.
fn n_ranks(least: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| match text.parse::<i64>().map(|number| (number, u32::try_from(number))) {
        Ok((_, Ok(number))) if (least..=MAX_RANKS).contains(&number) => Ok(number),
        Ok((number, _)) => Err(format!("{number} is not in {least}..={MAX_RANKS}")),
        Err(_) => Err(format!("expected a number from {least} to {MAX_RANKS}")),
    }
}

#[cfg(test)]
mod tests;
