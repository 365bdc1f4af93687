//! Flags of `shmccl run`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shmccl::bootstrap::SegmentBacking;
use shmccl::faults::Faults;
use shmccl::launch::HangRule;
use shmccl::trace::DEFAULT_RECORDS;

use crate::failure::UsageError;
use crate::flags::{JobArgs, n_ranks, parse_misses, parse_period};
use crate::units::parse_time;

/// Flags of `shmccl run`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("heap", |heap| heap.help("Symmetric heap of every rank [default: 256MiB]")))]
pub(crate) struct RunArgs {
    /// Device processes to start
    #[arg(short = 'n', short_alias = 'g', long, value_name = "N", value_parser = n_ranks(1))]
    pub(crate) ranks: u32,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Memory of the heaps: memfd, named:PREFIX (in /dev/shm) or file:DIRECTORY (kept)
    #[arg(long, value_name = "KIND", value_parser = parse_backing, default_value = "memfd")]
    pub(crate) segment: SegmentBacking,
    /// Print the rank before every line of a device process
    #[arg(long)]
    pub(crate) prefix: bool,
    /// Do not end the job when a rank is lost. The others are told, and can go on without it, with
    /// anonymous memory and proxy threads
    #[arg(short, long)]
    pub(crate) keep_going: bool,
    /// How long ranks may take to end after a failure or an interrupt, such as 500ms, 30s or 2m;
    /// then they are killed (0: at once). So long the output that is left waits for its reader
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "2s")]
    pub(crate) grace: Duration,
    /// Restart this many ranks in all that die, each in its place. The others are told, and can
    /// bring them back, with anonymous memory and proxy threads, whatever --segment and --proxy say
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub(crate) restart: u32,
    #[command(flatten)]
    pub(crate) hangs: HangArgs,
    /// Check data by checksums on their way through pipes, posts, staging memory and proxies
    /// (SHMCCL_CHECKSUMS=1); not direct puts, and not operations on heap buffers of peers in place
    #[arg(long)]
    pub(crate) checksums: bool,
    /// Faults to inject, such as kill:rank=1,at=12 or `seed=7;drop:one_in=100`: see SHMCCL_FAULTS
    /// in the documentation
    #[arg(long, value_name = "SPEC", env = "SHMCCL_FAULTS", hide_env_values = true)]
    pub(crate) faults: Option<Faults>,
    /// Write a trace of all ranks and proxies to a file for ui.perfetto.dev, also when the job
    /// fails; not to -, which the ranks print to [default: SHMCCL_TRACE]
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Records of a trace to keep, for the threads of each rank and for its proxy: a power of two,
    /// 32 bytes each [default: 32768]
    #[arg(long, value_name = "N", value_parser = parse_records)]
    trace_records: Option<u64>,
    /// Do not print which rank runs on which core
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM", num_args = 1..)]
    pub(crate) program: Vec<OsString>,
}

/// Flags that say when a rank of `shmccl run` counts as hung.
#[derive(Clone, Debug, Args)]
pub(crate) struct HangArgs {
    /// Count a rank as lost, and kill it, if this many of the last checks found no heartbeat, such
    /// as 5/10. Ranks that join a communicator of the job, or meet without a launcher, are not
    /// checked [default: never]
    #[arg(long, value_name = "MISSES/LOOKS", value_parser = parse_misses)]
    hung_after: Option<(u32, u32)>,
    /// The time between two checks, such as 100ms or 1s; at least 1ms
    #[arg(long, value_name = "TIME", value_parser = parse_period, default_value = "100ms", requires = "hung_after")]
    heartbeat: Duration,
    /// Leave a hung rank as it is, for a debugger, until the others have ended
    #[arg(long, requires = "hung_after")]
    spare_hung: bool,
}

/// Arguments of the trampoline of `shmccl run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BecomeArgs {
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, num_args = 1..)]
    pub(crate) program: Vec<OsString>,
}

const _: () = assert!(DEFAULT_RECORDS == 32768, "the help of --trace-records says so");

impl RunArgs {
    /// Refuses a trace on standard output, and records without a trace.
    ///
    /// # Errors
    /// The flag or the variable, with the remedy.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let (variable, stdout) = (std::env::var_os("SHMCCL_TRACE"), OsStr::new("-"));
        let (name, trace) = match &self.trace {
            Some(file) => ("--trace ", Some(file.as_os_str())),
            None => ("SHMCCL_TRACE=", variable.as_deref().filter(|file| !file.is_empty())),
        };
        if trace == Some(stdout) {
            return Err(UsageError::new(format!(
                "{name}- would mix the trace with what the ranks print to standard output; name a file"
            )));
        }
        if self.trace_records.is_some() && trace.is_none() {
            return Err(UsageError::new(
                "--trace-records has no effect without --trace or SHMCCL_TRACE; leave it out, or name a file for the trace",
            ));
        }
        Ok(())
    }

    /// Returns how many records are kept, if there is a trace.
    pub(crate) fn trace_records(&self) -> u64 {
        self.trace_records.unwrap_or(DEFAULT_RECORDS)
    }
}

impl HangArgs {
    /// Returns the rule for hung ranks, if there is one.
    ///
    /// # Errors
    /// A rule that never applies, or always.
    pub(crate) fn rule(&self) -> Result<Option<HangRule>> {
        let Some((misses, looks)) = self.hung_after else { return Ok(None) };
        let rule = HangRule::new(self.heartbeat, misses, looks)?;
        Ok(Some(if self.spare_hung { rule.sparing() } else { rule }))
    }
}

/// Reads `memfd`, `named:PREFIX` or `file:DIRECTORY`.
fn parse_backing(text: &str) -> Result<SegmentBacking, String> {
    match text.split_once(':') {
        None if text == "memfd" => Ok(SegmentBacking::Anonymous),
        Some(("named", prefix)) if is_name(prefix) => Ok(SegmentBacking::Named(prefix.to_owned())),
        Some(("file", directory)) if !directory.is_empty() => Ok(SegmentBacking::Files(directory.to_owned())),
        _ => {
            Err("expected memfd, named:PREFIX (letters, digits, '.', '_', '-') or file:DIRECTORY".to_owned())
        }
    }
}

/// Reads the number of records of a trace.
fn parse_records(text: &str) -> Result<u64, String> {
    let legal = |records: &u64| records.is_power_of_two() && (1 << 10..=1 << 24).contains(records);
    let expected = "expected a power of two from 1024 to 16777216, such as 65536";
    text.parse().ok().filter(legal).ok_or_else(|| expected.to_owned())
}

fn is_name(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=190).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::failure::one_line;

    fn parse(words: &[&str]) -> Result<RunArgs, String> {
        let command = RunArgs::augment_args(clap::Command::new("shmccl").no_binary_name(true));
        let matches = command.try_get_matches_from(words).map_err(|error| one_line(&error, "shmccl"))?;
        RunArgs::from_arg_matches(&matches).map_err(|error| one_line(&error, "shmccl"))
    }

    #[test]
    fn run_takes_everything_behind_the_dashes_as_the_program() {
        let run = parse(&["-n", "3", "--prefix", "--", "./prog", "-n", "9", "--prefix"]).unwrap();
        assert_eq!(run.ranks, 3);
        assert_eq!(run.program, ["./prog", "-n", "9", "--prefix"]);
        let none = parse(&["-n", "3"]).unwrap_err();
        assert!(none.contains("PROGRAM") && !none.contains('\n'), "{none}");
        assert!(parse(&["--", "./prog"]).unwrap_err().contains("--ranks"));
    }

    #[test]
    fn as_many_records_are_kept_as_the_help_says() {
        let run = parse(&["-n", "1", "--", "true"]).unwrap();
        let command = RunArgs::augment_args(clap::Command::new("run"));
        let arg = command.get_arguments().find(|arg| arg.get_id() == "trace_records").unwrap();
        let told = format!("[default: {}]", run.trace_records());
        assert!(arg.get_help().unwrap().to_string().ends_with(&told), "{told}");
    }
}
