//! Flags of `shmccl coordinator` and `shmccl device`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shmccl::heap::MIN_ADDRESS;
use shmccl::launch::HangRule;

use crate::failure::UsageError;
use crate::flags::{SHORTEST, parse_misses, parse_period};
use crate::units::{parse_size, parse_timeout};

/// The memory of a device by default.
const DEFAULT_MEMORY: &str = "64MiB";

/// The most memory of a device.
const MAX_MEMORY: u64 = (1 << 40) - MIN_ADDRESS;

/// The time that a device waits for others by default.
const DEFAULT_TIMEOUT: &str = "30s";

/// Flags of `shmccl coordinator`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CoordinatorArgs {
    /// Start N devices as well, which end with the coordinator
    #[arg(short, long, value_name = "N", conflicts_with = "devices", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) number: Option<u32>,
    /// Memory of each of them [default: 64MiB]
    #[arg(long, value_name = "SIZE", requires = "number", value_parser = parse_memory)]
    pub(crate) memory: Option<u64>,
    /// Start the devices that a file lists, which end with the coordinator
    #[arg(long, value_name = "FILE")]
    pub(crate) devices: Option<PathBuf>,
    /// How long its devices wait for the next coordinator after this one is killed; then they end
    /// [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    pub(crate) outlive: Option<Duration>,
    /// Replace this many devices in all that die, or that were killed as they hang; not one that
    /// was told to end, or could not begin. The replacement is a new, free device of the same kind.
    /// A communicator goes on without the lost device (`ctl go-on`), and takes in the new one by
    /// `ctl grow`, with empty memory
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub(crate) restart: u32,
    /// Serve metrics for Prometheus over HTTP, at a loopback address such as 127.0.0.1:9400, to any
    /// user of this machine; `shmccl ctl metrics` prints them to you alone
    #[arg(long, value_name = "ADDRESS", value_parser = parse_loopback)]
    pub(crate) metrics: Option<SocketAddr>,
    /// How long a device may take to react to an order, or to end its operation, before it counts
    /// as lost
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "5s")]
    pub(crate) patience: Duration,
    /// When a device counts as hung.
    #[command(flatten)]
    pub(crate) hangs: PoolHangArgs,
}

/// Flags that say when a device of `shmccl coordinator` counts as hung.
#[derive(Clone, Debug, Args)]
pub(crate) struct PoolHangArgs {
    /// Count a device as lost if this many of the last checks found no heartbeat, such as 5/10; or
    /// never
    #[arg(long, value_name = "MISSES/LOOKS", value_parser = parse_misses_or_never, default_value = "10/10")]
    hung_after: Misses,
    /// The time between two checks, such as 100ms or 1s; at least 1ms [default: a tenth of
    /// --patience]
    #[arg(long, value_name = "TIME", value_parser = parse_period)]
    heartbeat: Option<Duration>,
    /// Leave a hung device as it is, for a debugger, instead of killing it; for devices that a
    /// coordinator has started, whether heartbeats or --patience told
    #[arg(long)]
    spare_hung: bool,
}

/// How many of how many checks may miss a heartbeat, unless nothing is checked.
#[derive(Clone, Copy, Debug)]
struct Misses(Option<(u32, u32)>);

/// Flags of `shmccl device`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Memory of the device, from address 0x1000 up
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = DEFAULT_MEMORY)]
    pub(crate) memory: u64,
    /// The longest time to wait for other devices
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = DEFAULT_TIMEOUT)]
    pub(crate) timeout: Duration,
    /// The core to run on [default: any]
    #[arg(long, value_name = "CORE")]
    pub(crate) core: Option<usize>,
}

impl PoolHangArgs {
    /// Whether hung devices are left as they are.
    pub(crate) fn spares_hung(&self) -> bool {
        self.spare_hung
    }

    /// Returns the rule for hung devices, if there is one, for a coordinator of this patience.
    ///
    /// # Errors
    /// A rule that never applies, or always.
    pub(crate) fn rule(&self, patience: Duration) -> Result<Option<HangRule>> {
        let Some((misses, looks)) = self.hung_after.0 else {
            let told = "--heartbeat is of no use with --hung-after never; leave one of them out";
            return if self.heartbeat.is_none() { Ok(None) } else { Err(UsageError::new(told).into()) };
        };
        let period = self.heartbeat.unwrap_or((patience / 10).max(SHORTEST));
        Ok(Some(HangRule::new(period, misses, looks)?))
    }
}

/// Reads the memory of a device.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size if size == 0 || size % 4096 != 0 => Err("expected a multiple of 4K above zero".to_owned()),
        size if size > MAX_MEMORY => Err("expected at most 1T less 4K".to_owned()),
        size => Ok(size),
    }
}

/// Reads an address to listen at, which no other host can reach.
fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let expected = "expected a loopback address and a port, such as 127.0.0.1:9400 or [::1]:9400";
    address.filter(|address| address.ip().is_loopback()).ok_or_else(|| expected.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_by_default_what_a_pool_starts() {
        let kind = shmccl::coordinator::DeviceKind::new(1);
        assert_eq!(parse_memory(DEFAULT_MEMORY), Ok(kind.memory));
        assert_eq!(parse_timeout(DEFAULT_TIMEOUT), Ok(kind.timeout));
    }

    #[test]
    fn metrics_are_for_this_host_only() {
        assert!(parse_loopback("127.0.0.1:9400").is_ok() && parse_loopback("[::1]:0").is_ok());
        for text in ["0.0.0.0:9400", "192.0.2.1:1", "localhost", "127.0.0.1", "127.0.0.1:65536"] {
            assert!(parse_loopback(text).is_err(), "{text}");
        }
    }
}
