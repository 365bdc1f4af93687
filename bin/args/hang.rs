//! Flags that say when a rank is taken for hung.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shmccl::launch::HangRule;

use crate::failure::UsageError;
use crate::units::parse_timeout;

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(1);

/// How `shmccl run` finds ranks that hang without dying.
#[derive(Clone, Debug, Args)]
pub(crate) struct HangArgs {
    /// Take a rank for lost, and kill it, when so many of the last so many looks for its heartbeat were in vain, such as 5/10;
    /// not newcomers that join a communicator of the job, nor ranks that meet without a launcher [default: never]
    #[arg(long, value_name = "MISSES/LOOKS", value_parser = parse_misses)]
    hung_after: Option<(u32, u32)>,
    /// The time between two looks, such as 100ms or 1s; at least 1ms
    #[arg(long, value_name = "TIME", value_parser = parse_period, default_value = "100ms", requires = "hung_after")]
    heartbeat: Duration,
    /// Leave a rank that hangs as it is, for a debugger, until the others are through
    #[arg(long, requires = "hung_after")]
    spare_hung: bool,
}

impl HangArgs {
    /// The rule that the flags say, if there is to be one.
    ///
    /// # Errors
    /// When it could never be broken, or always would.
    pub(crate) fn rule(&self) -> Result<Option<HangRule>> {
        let Some((misses, looks)) = self.hung_after else { return Ok(None) };
        let rule = HangRule::new(self.heartbeat, misses, looks)?;
        Ok(Some(if self.spare_hung { rule.sparing() } else { rule }))
    }
}

/// How `shmccl coordinator` finds devices that hang without dying.
#[derive(Clone, Debug, Args)]
pub(crate) struct PoolHangArgs {
    /// Take a device for lost when so many of the last so many looks for its heartbeat were in vain, such as 5/10; or never
    #[arg(long, value_name = "MISSES/LOOKS", value_parser = parse_misses_or_never, default_value = "10/10")]
    hung_after: Misses,
    /// The time between two looks, such as 100ms or 1s; at least 1ms [default: a tenth of --patience]
    #[arg(long, value_name = "TIME", value_parser = parse_period)]
    heartbeat: Option<Duration>,
    /// Leave a device that hangs and that a coordinator has started as it is, for a debugger: otherwise it is killed. However that was
    /// found, by its heartbeat or by --patience
    #[arg(long)]
    spare_hung: bool,
}

/// How many misses of how many looks, if that matters.
#[derive(Clone, Copy, Debug)]
struct Misses(Option<(u32, u32)>);

impl PoolHangArgs {
    /// Whether devices that hang are left as they are.
    pub(crate) fn spares_hung(&self) -> bool {
        self.spare_hung
    }

    /// The rule that the flags say, if there is to be one, for a coordinator of this patience.
    ///
    /// # Errors
    /// When it could never be broken, or always would.
    pub(crate) fn rule(&self, patience: Duration) -> Result<Option<HangRule>> {
        let Some((misses, looks)) = self.hung_after.0 else {
            let told = "--heartbeat is of no use with --hung-after never; leave one of them out";
            return if self.heartbeat.is_none() { Ok(None) } else { Err(UsageError::new(told).into()) };
        };
        let period = self.heartbeat.unwrap_or((patience / 10).max(SHORTEST));
        Ok(Some(HangRule::new(period, misses, looks)?))
    }
}

/// Reads `5/10` or `never`.
fn parse_misses_or_never(text: &str) -> Result<Misses, String> {
    match text {
        "never" => Ok(Misses(None)),
        text => parse_misses(text)
            .map(|misses| Misses(Some(misses)))
            .map_err(|expected| format!("{expected}; or never")),
    }
}

/// Reads a time that is not too short to look in.
fn parse_period(text: &str) -> Result<Duration, String> {
    let period = parse_timeout(text)?;
    if period < SHORTEST {
        return Err("expected at least 1ms".to_owned());
    }
    Ok(period)
}

/// Reads `5/10`.
fn parse_misses(text: &str) -> Result<(u32, u32), String> {
    let numbers =
        text.split_once('/').and_then(|(misses, looks)| Some((misses.parse().ok()?, looks.parse().ok()?)));
    match numbers {
        Some((misses, looks)) if (1..=looks).contains(&misses) && looks <= 64 => Ok((misses, looks)),
        _ => Err("expected MISSES/LOOKS with 1 <= MISSES <= LOOKS <= 64, such as 5/10".to_owned()),
    }
}
