//! Flags of `shmccl perf`, and which tests they ask for.

mod collective;
mod compatible;
mod scope;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use shmccl_harness::test::{Test, TestChannel};

use crate::failure::UsageError;
use crate::flags::{JobArgs, SweepArgs, parse_ranks};
use crate::units::{LONGEST, parse_size, parse_timeout};
use collective::CollectiveArgs;
pub(crate) use scope::given;

/// Flags of `shmccl perf`.
#[derive(Clone, Debug, Args)]
#[command(
    args = compatible::flags(),
    mut_arg("timeout", |timeout| timeout.short('T').value_parser(parse_some_timeout)),
)]
pub(crate) struct PerfArgs {
    /// Tests to run [default: all but trace_cost, p2p and the collective operations]
    #[arg(value_enum, value_name = "TEST")]
    pub(crate) tests: Vec<Test>,
    /// Device processes [default: 2; several numbers for barrier and launch; one for each core for
    /// p2p, from 2 to 8]
    #[arg(short = 'g', long, visible_alias = "ngpus", value_name = "N", value_parser = parse_ranks)]
    pub(crate) ranks: Option<u32>,
    /// The channel to measure [default: both, where a test can use both; memory for collective
    /// operations]
    #[arg(long, value_enum)]
    pub(crate) channel: Option<TestChannel>,
    /// Write the report to a file as well; with - to standard output, and the table to standard
    /// error
    #[arg(short = 'J', long, visible_alias = "output_file", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    #[command(flatten)]
    pub(crate) collective: CollectiveArgs,
    #[command(flatten)]
    pub(crate) matrix: MatrixArgs,
    /// Flags on the command line that do not apply to every test.
    #[arg(skip)]
    pub(crate) given: Vec<&'static str>,
}

/// Flags for `p2p` only. A matrix has room for one size of each kind of figure.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options for p2p")]
pub(crate) struct MatrixArgs {
    /// Size of the puts whose bandwidth is measured, and of all that a rank sends when all send at
    /// once
    #[arg(long, value_name = "SIZE", value_parser = parse_some, default_value = "1MiB")]
    pub(crate) bandwidth_bytes: u64,
    /// Size of the puts whose latency is measured
    #[arg(long, value_name = "SIZE", value_parser = parse_some, default_value = "8")]
    pub(crate) latency_bytes: u64,
    /// Draw the matrix as a heat map as well
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

impl PerfArgs {
    /// Returns the tests that are named, or else all that need no naming.
    fn wanted(&self) -> Vec<Test> {
        if !self.tests.is_empty() {
            return self.tests.clone();
        }
        Test::value_variants().iter().copied().filter(|test| !test.is_on_request()).collect()
    }

    /// Returns the tests to run, each once, and the channels to run each over.
    pub(crate) fn selected(&self) -> Result<Vec<(Test, Vec<TestChannel>)>, UsageError> {
        scope::check(self)?;
        let named = !self.tests.is_empty();
        let mut tests = self.wanted();
        tests.sort_unstable();
        tests.dedup();
        let mut selected = Vec::new();
        for test in tests {
            let possible = test.channels();
            let wanted = |channel: &TestChannel| self.channel.is_none_or(|only| only == *channel);
            let channels: Vec<TestChannel> = possible.iter().copied().filter(wanted).collect();
            match (channels.is_empty() && !possible.is_empty(), self.channel) {
                (false, _) | (true, None) => selected.push((test, channels)),
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
        Ok(selected)
    }
}

/// Reads a timeout; 0 is none, as in nccl-tests: the longest that there is.
fn parse_some_timeout(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(LONGEST) } else { parse_timeout(text) }
}

/// Reads a size of at least a byte.
fn parse_some(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("expected at least a byte".to_owned()),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests;
