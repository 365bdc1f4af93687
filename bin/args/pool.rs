//! What the commands around the coordinator take.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use shmccl::coordinator::{Collective, DeviceReduceOp, GroupId};
use shmccl::heap::MIN_ADDRESS;
use shmccl::reduce::DataType;

use super::hang::PoolHangArgs;
use super::heeded;
use crate::failure::UsageError;
use crate::sizes::parse_size;
use crate::units::parse_timeout;

/// The memory of a device, if nothing else is said.
const DEFAULT_MEMORY: &str = "64MiB";

/// The most that a device can have.
const MAX_MEMORY: u64 = (1 << 40) - MIN_ADDRESS;

/// How long a device waits for others, if nothing else is said.
const DEFAULT_TIMEOUT: &str = "30s";

/// Flags of `shmccl coordinator`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CoordinatorArgs {
    /// Start N devices as well, and end them together
    #[arg(short, long, value_name = "N", conflicts_with = "devices", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) number: Option<u32>,
    /// Memory of each of them [default: 64MiB]
    #[arg(long, value_name = "SIZE", requires = "number", value_parser = parse_memory)]
    pub(crate) memory: Option<u64>,
    /// Start the devices that a file lists, and end them together
    #[arg(long, value_name = "FILE")]
    pub(crate) devices: Option<PathBuf>,
    /// How long devices that it has started wait for the next coordinator when this one is killed; then they end [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_timeout)]
    pub(crate) outlive: Option<Duration>,
    /// Start devices again that it has started or taken over and that die, or that it kills as they hang, so often in all; not one that was
    /// told to end, or could not begin. What comes is a new, free device of the same kind, in nobody's place: a communicator that has
    /// lost one goes on without it (`ctl go-on`), and takes the new one in, with empty memory, by `ctl grow`
    #[arg(long, value_name = "TIMES", default_value_t = 0)]
    pub(crate) restart: u32,
    /// Serve metrics for Prometheus over HTTP as well, at a loopback address such as 127.0.0.1:9400, to any user of this machine;
    /// `shmccl ctl metrics` prints the same to you alone
    #[arg(long, value_name = "ADDRESS", value_parser = parse_loopback)]
    pub(crate) metrics: Option<SocketAddr>,
    /// How long a device may leave an order unheard, or take to end what it is in, before it counts as lost
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "5s")]
    pub(crate) patience: Duration,
    /// When a device hangs.
    #[command(flatten)]
    pub(crate) hangs: PoolHangArgs,
}

/// Flags of `shmccl device`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Its memory, from address 0x1000 up
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = DEFAULT_MEMORY)]
    pub(crate) memory: u64,
    /// The longest that it waits for other devices
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = DEFAULT_TIMEOUT)]
    pub(crate) timeout: Duration,
    /// The core that it is to run on [default: any]
    #[arg(long, value_name = "CORE")]
    pub(crate) core: Option<usize>,
}

/// Flags of `shmccl ctl`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CtlArgs {
    /// The longest that an answer may take
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_timeout, default_value = "60s")]
    pub(crate) timeout: Duration,
    /// What to ask.
    #[command(subcommand)]
    pub(crate) ask: Ask,
}

/// What a coordinator, or a device of it, is asked.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Ask {
    /// Make a communicator of N free devices
    Init {
        /// How many devices
        #[arg(value_name = "N", value_parser = super::n_ranks(1))]
        devices: u32,
        /// After a loss, go on with the rest without being told
        #[arg(short, long)]
        keep_going: bool,
    },
    /// Tell how a communicator is doing, or all of them
    ///
    /// It is one line. Where the last group of the one that is named has failed by a wait that has lasted too long, lines follow that tell
    /// what every rank was in then, and who held them up.
    Status {
        /// Which
        comm: Option<u64>,
        /// Wait until nothing is in progress; exit with 1 when it has failed or was destroyed, or its last group has failed
        #[arg(short, long, requires = "comm")]
        wait: bool,
        /// Write the list to a file as well; with - to standard output, and the lines to standard error
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// List the devices, their addresses, and what they belong to
    Devices {
        /// Write the list to a file as well; with - to standard output, and the table to standard error
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Print what the coordinator counts, in the text format of Prometheus
    Metrics,
    /// Start, end or cancel a group of calls, which are executed together
    ///
    /// It has 64 calls at most, and together they read and write no more than twice the bytes that a device has, each operand counted.
    #[command(subcommand)]
    Group(GroupEdge),
    /// Call a collective operation on device memory: at once, as a group of its own; or in the group that is open, if one is
    ///
    /// With a group open on the communicator, whoever has started it, the call is put into that, and nothing is executed before `group
    /// end`; otherwise it is in progress when the command returns. The line that is printed says which. A script that means a group names
    /// it with --group, so that the call is never executed alone should the group be gone.
    Call(CallArgs),
    /// Go on with the devices that are left, after a failure
    GoOn {
        /// Which communicator
        comm: u64,
    },
    /// Have N free devices join a communicator that is ready, all of them or none
    Grow {
        /// Which communicator
        comm: u64,
        /// How many devices
        #[arg(value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        devices: u32,
    },
    /// Write the memory of all devices of a communicator to a directory, in parallel
    ///
    /// What has been used of it is written, with checksums. The checkpoint that was there before stays valid until this one is whole and
    /// on the disk. Where it fails the communicator stays ready; a device that dies meanwhile is a failure of the communicator.
    Checkpoint {
        /// Which communicator
        comm: u64,
        /// Where to; made if it is not there
        directory: PathBuf,
    },
    /// Read the memory of all devices of a communicator back from a directory, in parallel
    ///
    /// Everything is looked at before a byte changes: as many devices, as much memory each, and all checksums.
    Restore {
        /// Which communicator
        comm: u64,
        /// Where from
        directory: PathBuf,
    },
    /// Copy a file, or the standard input, to a device
    ///
    /// More than the device has addresses for is an error, which changes nothing. A file of more than 1 MiB is copied piece by piece, and
    /// one that cannot be read to its end has come as far as that is told; everything else, such as a pipe, is read first, which takes as
    /// much memory as it has bytes. All of it is there for calls that follow. With a group that is in progress it is in no order: wait for that first, with
    /// `shmccl ctl status COMM --wait`.
    PutH2d {
        /// Which device
        device: u32,
        /// Where to, such as 0x1000
        #[arg(value_parser = parse_address)]
        address: u64,
        /// What [default: the standard input]
        file: Option<PathBuf>,
    },
    /// Copy from a device to the standard output
    ///
    /// With a group that is in progress it is in no order: to read a result wait for that first, with `shmccl ctl status COMM --wait`.
    GetD2h {
        /// Which device
        device: u32,
        /// Where from, such as 0x1000
        #[arg(value_parser = parse_address)]
        address: u64,
        /// How many bytes, such as 4096, 4K or 0x1000
        #[arg(value_parser = parse_length)]
        len: u64,
    },
    /// End a communicator when what is in progress is done, and give its devices back
    Finalize {
        /// Which communicator
        comm: u64,
    },
    /// End a communicator at once, and give back those of its devices that live
    Destroy {
        /// Which communicator
        comm: u64,
    },
}

/// Where a group starts, and where it ends.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum GroupEdge {
    /// Keep the calls that follow, and print the name of the group
    Start {
        /// Which communicator
        comm: u64,
    },
    /// Execute them
    End(OpenGroupArgs),
    /// Forget them
    Cancel(OpenGroupArgs),
}

/// Which group.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OpenGroupArgs {
    /// Which communicator
    pub(crate) comm: u64,
    /// Only this group, as its start has printed it [default: the one that is open]
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupId>,
}

/// A collective operation.
#[derive(Clone, Debug, Args)]
pub(crate) struct CallArgs {
    /// Which communicator
    pub(crate) comm: u64,
    /// all_reduce, reduce, broadcast, all_gather, reduce_scatter or all_to_all
    pub(crate) operation: Collective,
    /// Elements that a rank sends to one other, or gets from it
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: u64,
    /// Type of the elements: float64, int32, bfloat16, ...
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float32")]
    pub(crate) data_type: DataType,
    /// Operator, where it reduces: sum, prod, min, max or avg [default: sum]
    #[arg(short, long)]
    pub(crate) op: Option<DeviceReduceOp>,
    /// Root, where it has one [default: 0]
    #[arg(short, long, value_name = "RANK")]
    pub(crate) root: Option<u32>,
    /// Addresses of the input, one for each rank, or one for all
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',', required = true, value_parser = parse_address)]
    pub(crate) send: Vec<u64>,
    /// Addresses of the output [default: those of the input]
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',', value_parser = parse_address)]
    pub(crate) recv: Option<Vec<u64>>,
    /// Put it into this group, as its start has printed it, or do nothing [default: the group that is open, if one is]
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupId>,
}

/// Reads how much memory a device is to have.
pub(crate) fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        size if size == 0 || size % 4096 != 0 => Err("expected a multiple of 4K above zero".to_owned()),
        size if size > MAX_MEMORY => Err("expected at most 1T less 4K".to_owned()),
        size => Ok(size),
    }
}

impl CallArgs {
    /// Refuses what means nothing to the operation.
    ///
    /// # Errors
    /// The flag.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let operation = self.operation.operation();
        let idle = [
            (self.op.is_some() && !operation.reduces(), "--op"),
            (self.root.is_some() && !operation.has_root(), "--root"),
        ];
        let flag = idle.into_iter().find_map(|(is_idle, flag)| is_idle.then_some(flag));
        flag.map_or(Ok(()), |flag| Err(heeded::idle(flag, operation.name())))
    }
}

/// Reads where to listen: nobody on other hosts is to.
fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: Option<SocketAddr> = text.parse().ok();
    let expected = "expected a loopback address and a port, such as 127.0.0.1:9400 or [::1]:9400";
    address.filter(|address| address.ip().is_loopback()).ok_or_else(|| expected.to_owned())
}

/// Reads an address, decimal or with 0x in front.
fn parse_address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "expected an address such as 0x1000 or 4096".to_owned())
}

/// Reads a number of bytes: a size, or hexadecimal with 0x in front.
fn parse_length(text: &str) -> Result<u64, String> {
    if text.starts_with("0x") { parse_address(text) } else { parse_size(text) }
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

    #[test]
    fn addresses_are_decimal_or_hexadecimal() {
        assert_eq!(parse_address("0x1000"), Ok(4096));
        assert_eq!(parse_address("4096"), Ok(4096));
        for text in ["", "0x", "x", "-1", "0x10000000000000000"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_are_sizes_or_hexadecimal() {
        let lengths = ["16", "4K", "0x10", "1MiB"].map(|text| parse_length(text).unwrap());
        assert_eq!(lengths, [16, 4096, 16, 1 << 20]);
        for text in ["", "0x", "x", "-1", "4Q", "1.5K", "0x4K"] {
            assert!(parse_length(text).is_err(), "{text}");
        }
    }
}
