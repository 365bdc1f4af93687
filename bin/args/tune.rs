//! Flags of `shmccl tune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{JobArgs, ProxyMode, n_ranks};
use crate::units::parse_timeout;

/// Numbers of ranks where the user does not say which.
const RANKS: [u32; 3] = [2, 4, 8];

/// What is measured, and where it goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct TuneArgs {
    /// Numbers of device processes to measure with, such as 2,4,8 [default: 2,4,8; 2 with --quick]
    #[arg(short = 'g', long, value_name = "LIST", value_delimiter = ',', value_parser = n_ranks(2))]
    ranks: Vec<u32>,
    /// Measure few sizes, and each for a shorter time
    #[arg(long)]
    pub(crate) quick: bool,
    /// How long to measure in all, such as 30s or 5m; the largest sizes may take a little longer [default: 2m; 20s with --quick]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    time: Option<Duration>,
    /// Where the tuning table goes [default: the file that SHMCCL_TUNING names, or else shmccl/tuning.toml in $XDG_CONFIG_HOME or
    /// ~/.config]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write every figure to a file as well; with - to standard output, and the table to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The longest that any wait may take, such as 500ms, 30s or 2m
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "30s")]
    timeout: Duration,
    /// Leave it to the scheduler on which cores ranks run
    #[arg(long)]
    no_pin: bool,
}

impl TuneArgs {
    /// The numbers of ranks, each once, by size.
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

    /// How long to measure in all.
    pub(crate) fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs(if self.quick { 20 } else { 120 }))
    }

    /// How device processes are started.
    pub(crate) fn job(&self) -> JobArgs {
        JobArgs { proxy: ProxyMode::Thread, heap: None, timeout: self.timeout, no_pin: self.no_pin }
    }
}
