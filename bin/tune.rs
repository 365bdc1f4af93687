//! `shmccl tune`: which algorithm does which collective operation best on this machine, as a table
//! for the library.
//!
//! | module | what |
//! |---|---|
//! | [`spec`] | what device processes are told to measure, and what they report |
//! | [`device`], [`rounds`] | what they do: algorithms take turns |
//! | [`choices`] | which algorithms are chosen: cases of a table, and what changes by it |
//!
//! Tried by its unit tests and `command tune::`.

mod choices;
pub(crate) mod device;
mod rounds;
mod spec;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Serialize;
use shmccl::collective::tuning::{self, Table};
use shmccl_harness::jobs::LAST_WORDS;

use crate::device_job::{DeviceCommand, carry_out};
use crate::flags::{JobArgs, ProxyPlace, n_ranks};
use crate::host::MachineInfo;
use crate::output::{self, TableLook};
use crate::planned::PlannedTest;
use crate::units::parse_timeout;
use crate::{failure, file};
use spec::{TuneFigure, TuneSpec, VARIABLE};

/// Ends the help.
pub(crate) const HELP: &str = "\
Each algorithm is measured in turns with the built-in choice. It takes the place of the built-in
choice if it is quicker by 5 %, and by more than the built-in choice differs from itself.
Execution plans (--plans) take part as plan:NAME where they fit; programs that have registered them go
by them then, others by the built-in choice.
The table is written anew as a whole. Programs read it as they start: the file of SHMCCL_TUNING
(empty for the built-in table), or else the usual file. With a table, floating-point numbers may be
added up in another order; all ranks get the same bits in any case.";

/// The hidden command that device processes run.
const DEVICE_COMMAND: &str = "tune-device";

/// Numbers of ranks by default.
const RANKS: [u32; 3] = [2, 4, 8];

/// Flags of `shmccl tune`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneArgs {
    /// Numbers of device processes to measure with, such as 2,4,8 [default: 2,4,8; 2 with --quick]
    #[arg(short = 'g', long, value_name = "LIST", value_delimiter = ',', value_parser = n_ranks(2))]
    ranks: Vec<u32>,
    /// Measure few sizes, and each for a shorter time
    #[arg(long)]
    pub(crate) quick: bool,
    /// How long to measure in all, such as 30s or 5m; the largest sizes may take longer [default:
    /// 2m; 20s with --quick]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    time: Option<Duration>,
    /// File for the tuning table [default: that of SHMCCL_TUNING, or else shmccl/tuning.toml in
    /// $XDG_CONFIG_HOME or ~/.config]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write every figure to a file as well; - is standard output, and sends the table to standard
    /// error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The longest time that any wait may take, such as 500ms, 30s or 2m
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "30s")]
    timeout: Duration,
    /// Let the scheduler choose the cores of ranks
    #[arg(long)]
    no_pin: bool,
    /// Measure the MSCCL++ execution plans in this directory that are for as many ranks, too
    // Empty, as the variable may be, it names none.
    #[arg(long, value_name = "DIR", env = "SHMCCL_PLANS", hide_env_values = true,
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    plans: Option<PathBuf>,
}

impl TuneArgs {
    /// Returns the numbers of ranks, each once, in rising order.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        let mut ranks = match (self.ranks.as_slice(), self.quick) {
            ([], true) => RANKS[..1].to_vec(),
            ([], false) => RANKS.to_vec(),
            (given, _) => given.to_vec(),
        };
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Returns how long to measure in all.
    pub(crate) fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs(if self.quick { 20 } else { 120 }))
    }

    /// Returns how device processes are started.
    pub(crate) fn job(&self) -> JobArgs {
        JobArgs {
            proxy: ProxyPlace::Thread,
            heap: None,
            timeout: self.timeout,
            no_pin: self.no_pin,
            plans: self.plans.clone(),
        }
    }
}

/// The file of `--json`.
#[derive(Serialize)]
struct TuneJson<'a> {
    machine: MachineInfo,
    figures: &'a [TuneFigure],
}

/// Measures, chooses, writes the table, and prints what it changes.
///
/// # Errors
/// A job that fails, wrong data, files that cannot be written.
pub(crate) fn run(args: &TuneArgs) -> Result<u8> {
    let specs = specs(args)?;
    let target = target(args)?;
    if args.json.as_deref() == Some(&target) {
        let message = "--json and --output name the same file; give each its own";
        return Err(failure::UsageError::new(message).into());
    }
    for path in args.json.iter().chain([&target]) {
        file::check_writable(path)?;
    }
    let figures = measure(args, &specs)?;
    let wrong = figures.iter().filter(|figure| figure.wrong > 0).count();
    anyhow::ensure!(wrong == 0, "wrong data in {wrong} of {} figures; no table was written", figures.len());
    let choices = choices::choose(&figures)?;
    let table = Table::new(&choices::cases(&choices)).context("making a table of what was measured")?;
    let machine = MachineInfo::detect();
    // Files first: whoever reads the output may stop reading.
    file::write(&target, text(&table, &machine).as_bytes())?;
    if let Some(path) = &args.json {
        file::write_json(path, &TuneJson { machine, figures: &figures })?;
    }
    output::print(&choices::table(TableLook::of_tables(), &choices))?;
    for line in choices::notes(&figures, &choices) {
        output::note(&line);
    }
    output::note(&told(&target, std::env::var_os(tuning::VARIABLE), tuning::usual_file()));
    Ok(failure::DONE)
}

/// Says that the table was written to `target`, and what to do for programs to find it there.
///
/// Programs look where the variable has it `named`, or else at the `usual` place.
fn told(target: &Path, named: Option<OsString>, usual: Option<PathBuf>) -> String {
    let wrote = format!("wrote {}", file::name(target));
    match named.map(PathBuf::from).or(usual) {
        Some(found) if found == target => wrote,
        _ => format!("{wrote}; programs take it where {} names it", tuning::VARIABLE),
    }
}

/// Returns the file for the table: as the user says, or else where programs look for it.
fn target(args: &TuneArgs) -> Result<PathBuf> {
    if let Some(path) = &args.output {
        return Ok(path.clone());
    }
    let named = std::env::var_os(tuning::VARIABLE).filter(|name| !name.is_empty());
    if let Some(named) = named {
        return Ok(named.into());
    }
    let usual = tuning::usual_file()
        .context("there is no home directory for the table; name a file with --output")?;
    if let Some(directory) = usual.parent() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}; name a file with --output", directory.display()))?;
    }
    Ok(usual)
}

/// Makes the spec of a job for each number of ranks, with the execution plans that take part.
///
/// # Errors
/// A directory that cannot be read or has something else in it, or too many plans.
fn specs(args: &TuneArgs) -> Result<Vec<(u32, TuneSpec)>> {
    let directory = args.plans.as_deref().filter(|directory| !directory.as_os_str().is_empty());
    let planned = directory.map_or(Ok(Vec::new()), PlannedTest::all)?;
    let spec = |ranks| Ok((ranks, TuneSpec::new(args.quick, ranks, &planned)?));
    args.ranks().into_iter().map(spec).collect()
}

/// Runs the jobs, and gives each an equal share of the time that is left.
fn measure(args: &TuneArgs, specs: &[(u32, TuneSpec)]) -> Result<Vec<TuneFigure>> {
    let deadline = Instant::now() + args.time();
    let points = |(ranks, spec): &(u32, TuneSpec)| spec.points(*ranks).len() as u64;
    let progress = output::progress(specs.iter().map(points).sum());
    let mut figures: Vec<TuneFigure> = Vec::new();
    for (index, (n_ranks, spec)) in specs.iter().enumerate() {
        progress.set_message(format!("{n_ranks} ranks"));
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let budget_ms = u64::try_from(left).unwrap_or(u64::MAX) / (specs.len() - index) as u64;
        let spec = TuneSpec { budget_ms, ..spec.clone() };
        let order = DeviceCommand {
            command: DEVICE_COMMAND,
            // Figures must not depend on an older table.
            environment: vec![(VARIABLE, serde_json::to_string(&spec)?), (tuning::VARIABLE, String::new())],
            heap_len: spec.heap_len(),
            heap_of: "the scratch of plans (--plans)",
            is_traced: false,
            grace: LAST_WORDS,
        };
        carry_out(order, *n_ranks, &args.job(), &mut |line| {
            figures.push(serde_json::from_str(line).context("reading a figure")?);
            progress.inc(1);
            Ok(())
        })
        .with_context(|| format!("with {n_ranks} ranks"))?;
    }
    progress.finish_and_clear();
    Ok(figures)
}

/// Returns the table with a head that says where it comes from.
fn text(table: &Table, machine: &MachineInfo) -> String {
    let MachineInfo { cpu, cores, version, .. } = machine;
    format!("# Measured by shmccl tune {version} on {cpu}, {cores} cores.\n{table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_no_program_finds_is_written_with_a_hint() {
        let usual = || Some(PathBuf::from("/home/x/tuning.toml"));
        let told =
            |target: &str, named: Option<&str>| told(Path::new(target), named.map(OsString::from), usual());
        assert_eq!(told("/home/x/tuning.toml", None), "wrote /home/x/tuning.toml");
        assert_eq!(told("/a.toml", Some("/a.toml")), "wrote /a.toml");
        for (target, named) in [("a", None), ("/a", Some("/b")), ("/home/x/tuning.toml", Some(""))] {
            let expected = format!("wrote {target}; programs take it where SHMCCL_TUNING names it");
            assert_eq!(told(target, named), expected);
        }
    }
}
