//! Flags of `shmccl ctl`: what a coordinator can be asked.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use shmccl::coordinator::{Collective, DeviceReduceOp, GroupId};
use shmccl::reduce::DataType;

use crate::failure::UsageError;
use crate::flags::n_ranks;
use crate::units::{parse_size, parse_timeout};

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
        #[arg(value_name = "N", value_parser = n_ranks(1))]
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
        flag.map_or(Ok(()), |flag| Err(UsageError::no_effect(flag, operation.name())))
    }
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
