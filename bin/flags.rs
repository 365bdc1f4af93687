//! Flags that several commands share: how processes start, which sizes are measured, how many ranks
//! there are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use shmccl::collective::PLANS_VARIABLE;
use shmccl::rank::MAX_RANKS;

use crate::failure::UsageError;
use crate::units::{climb, format_size, ladder, parse_size, parse_timeout};

/// The shortest time between two checks of a heartbeat.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

/// Flags of how device processes start.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobArgs {
    /// Where the proxies run: in a thread of each device process, or in one service process for all
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = ProxyPlace::Thread)]
    pub(crate) proxy: ProxyPlace,
    /// Symmetric heap of every rank [default: 256MiB, or what a test needs]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = "SHMCCL_HEAP", hide_env_values = true)]
    pub(crate) heap: Option<u64>,
    /// The longest time that any wait may take, such as 500ms, 30s or 2m
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// Let the scheduler choose the cores of ranks and proxies. Otherwise a job begins behind the
    /// cores of others
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Do calls by the MSCCL++ execution plans in this directory that are for as many ranks, where
    /// they fit and no algorithm is chosen
    // Empty, as the variable may be, it names none.
    #[arg(long, value_name = "DIR", env = "SHMCCL_PLANS", hide_env_values = true,
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) plans: Option<PathBuf>,
}

impl JobArgs {
    /// Checks that the directory of plans can be read, if there is one.
    ///
    /// # Errors
    /// Its path, and whether the flag or the variable has named it.
    pub(crate) fn check_plans(&self) -> Result<(), UsageError> {
        let Some(directory) = self.plans.as_ref().filter(|named| !named.as_os_str().is_empty()) else {
            return Ok(());
        };
        std::fs::read_dir(directory).map(drop).map_err(|error| unreadable_plans(directory, &error))
    }
}

/// Says that a directory of plans cannot be read, and what has named it.
pub(crate) fn unreadable_plans(directory: &Path, error: &std::io::Error) -> UsageError {
    let is_set = std::env::var_os(PLANS_VARIABLE).is_some_and(|named| named == directory);
    let (from, directory) = (if is_set { PLANS_VARIABLE } else { "--plans" }, directory.display());
    UsageError::new(format!("cannot read the directory of plans {directory} ({from}): {error}"))
}

/// Flags of measuring, in the manner of nccl-tests: sizes, and how often each is measured.
#[derive(Clone, Debug, Args)]
pub(crate) struct SweepArgs {
    /// Smallest size
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse_size, default_value = "8")]
    pub(crate) minbytes: u64,
    /// Largest size; collective operations stop below it if the factor steps over it, as in
    /// nccl-tests
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB")]
    pub(crate) maxbytes: u64,
    /// Factor from one size to the next; 1 steps by bytes (--stepbytes), for collective operations
    /// only
    #[arg(short = 'f', long, value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 4)]
    pub(crate) stepfactor: u64,
    /// Operations to time at each size, at least; 0 only checks results, of collective operations
    /// [default: as many as a fixed time allows]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_iters)]
    pub(crate) iters: Option<u64>,
    /// Operations before the clock starts, at least [default: as many as it takes to settle]
    #[arg(short = 'w', long = "warmup_iters", visible_alias = "warmup-iters", value_name = "N", value_parser = clap::value_parser!(u64).range(..=1_000_000_000))]
    pub(crate) warmup_iters: Option<u64>,
    /// 0 verifies nothing; any other number verifies every operation (nccl-tests: that many)
    #[arg(short = 'c', long, value_name = "N", value_parser = parse_check, default_value = "1")]
    pub(crate) check: u32,
}

/// Where proxies run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProxyPlace {
    /// In a thread of each device process
    #[default]
    Thread,
    /// In one service process for all device processes
    Process,
}

impl From<ProxyPlace> for shmccl::bootstrap::ProxyMode {
    fn from(place: ProxyPlace) -> Self {
        match place {
            ProxyPlace::Thread => Self::Thread,
            ProxyPlace::Process => Self::Process,
        }
    }
}

impl SweepArgs {
    /// Whether data are verified.
    pub(crate) fn check(&self) -> bool {
        self.check > 0
    }

    /// Returns the sizes to measure, from the smallest to the largest.
    ///
    /// # Errors
    /// Flags that name no size.
    pub(crate) fn sizes(&self) -> Result<Vec<u64>, UsageError> {
        self.check_sizes()?;
        if self.iters == Some(0) {
            return Err(UsageError::new(
                "-n 0 times nothing; leave it out for as many as a fixed time allows (only the collective operations of perf are checked without)",
            ));
        }
        Ok(ladder(self.minbytes, self.maxbytes, self.stepfactor))
    }

    /// Returns the sizes of nccl-tests: from the smallest, as far as the factor leads to the
    /// largest.
    ///
    /// # Errors
    /// Flags that name no size.
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

/// Reads how many operations are timed.
fn parse_iters(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(iters @ 0..=1_000_000_000) => Ok(iters),
        _ => Err("expected a number up to 1000000000".to_owned()),
    }
}

/// Reads whether, or how often, results are verified.
fn parse_check(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected 0 for no verifying, or another whole number".to_owned())
}

/// Reads the number of ranks of a measurement.
pub(crate) fn parse_ranks(text: &str) -> Result<u32, String> {
    match text {
        "1" => Err(format!(
            "1 is not in 2..={MAX_RANKS}: a rank alone hands nothing over, and there is nothing to hold it against"
        )),
        _ => n_ranks(2)(text),
    }
}

/// Reads a number of ranks that is `least` or more.
pub(crate) fn n_ranks(least: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| match text.parse::<i64>().map(|number| (number, u32::try_from(number))) {
        Ok((_, Ok(number))) if (least..=MAX_RANKS).contains(&number) => Ok(number),
        Ok((number, _)) => Err(format!("{number} is not in {least}..={MAX_RANKS}")),
        Err(_) => Err(format!("expected a number from {least} to {MAX_RANKS}")),
    }
}

/// Reads how many checks of how many may miss a heartbeat: `5/10`.
pub(crate) fn parse_misses(text: &str) -> Result<(u32, u32), String> {
    let numbers =
        text.split_once('/').and_then(|(misses, looks)| Some((misses.parse().ok()?, looks.parse().ok()?)));
    match numbers {
        Some((misses, looks)) if (1..=looks).contains(&misses) && looks <= 64 => Ok((misses, looks)),
        _ => Err("expected MISSES/LOOKS with 1 <= MISSES <= LOOKS <= 64, such as 5/10".to_owned()),
    }
}

/// Reads a time between two checks of a heartbeat.
pub(crate) fn parse_period(text: &str) -> Result<Duration, String> {
    let period = parse_timeout(text)?;
    if period < SHORTEST {
        return Err("expected at least 1ms".to_owned());
    }
    Ok(period)
}
