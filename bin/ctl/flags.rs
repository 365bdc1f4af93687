//! Flags of `shmccl ctl`: the requests to a coordinator.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use shmccl::collective::Operation;
use shmccl::coordinator::{DeviceCall, GroupId};
use shmccl::reduce::{DataType, ReduceOp};

use crate::failure::UsageError;
use crate::flags::n_ranks;
use crate::units::{parse_size, parse_timeout};

/// Flags of `shmccl ctl`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CtlArgs {
    /// The longest time to wait for an answer
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_timeout, default_value = "60s")]
    pub(crate) timeout: Duration,
    /// The request.
    #[command(subcommand)]
    pub(crate) ask: Ask,
}

/// A request to a coordinator, or to a device of it.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Ask {
    /// Make a communicator of N free devices
    Init {
        /// Number of devices
        #[arg(value_name = "N", value_parser = n_ranks(1))]
        devices: u32,
        /// After a loss, go on with the remaining devices, without a request
        #[arg(short, long)]
        keep_going: bool,
    },
    /// Print the state of one communicator, or of all
    ///
    /// Each communicator takes one line. If the last group of the named one failed by a timeout,
    /// more lines follow. They say what every rank was doing, and which ranks the others waited
    /// for.
    Status {
        /// The communicator
        comm: Option<u64>,
        /// Wait until nothing is in progress; exit with 1 if the communicator has failed or was
        /// destroyed, or its last group has failed
        #[arg(short, long, requires = "comm")]
        wait: bool,
        /// Write the list to a file as well; - is standard output, and sends the lines to standard
        /// error
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// List the devices, their addresses and their communicators
    Devices {
        /// Write the list to a file as well; - is standard output, and sends the table to standard
        /// error
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Print the metrics of the coordinator, in the text format of Prometheus
    Metrics,
    /// Start, end or cancel a group of calls, which are executed together
    ///
    /// A group has 64 calls at most. Their operands together may have twice the bytes of a device.
    #[command(subcommand)]
    Group(GroupEdge),
    /// Call a collective operation on device memory
    ///
    /// If a group is open on the communicator, the call joins it, and is executed at `group end`.
    /// Otherwise the call is in progress when the command returns. The printed line says which.
    /// With --group, a script never executes the call outside its group.
    Call(CallArgs),
    /// Go on with the remaining devices, after a failure
    GoOn {
        /// The communicator
        comm: u64,
    },
    /// Add N free devices to a communicator that is ready: all of them or none
    Grow {
        /// The communicator
        comm: u64,
        /// Number of devices
        #[arg(value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        devices: u32,
    },
    /// Write the memory of all devices of a communicator to a directory, in parallel
    ///
    /// Only used memory is written, with checksums. The previous checkpoint stays valid until the
    /// new one is complete and on the disk. If writing fails the communicator stays ready; if a
    /// device dies meanwhile the communicator fails.
    Checkpoint {
        /// The communicator
        comm: u64,
        /// The directory; made if it does not exist
        directory: PathBuf,
    },
    /// Read the memory of all devices of a communicator back from a directory, in parallel
    ///
    /// Everything is checked before a byte changes: the number of devices, their memory, and all
    /// checksums.
    Restore {
        /// The communicator
        comm: u64,
        /// The directory
        directory: PathBuf,
    },
    /// Copy a file, or the standard input, to a device
    ///
    /// Input that is too long for the device is an error, and changes nothing. A file of more than
    /// 1 MiB is copied piece by piece; if reading fails midway, the error says how far the copy
    /// came. Any other input, such as a pipe, is read into memory first. The data are in place for
    /// all later calls. They are not ordered with a group in progress: wait for that first, with
    /// `shmccl ctl status COMM --wait`.
    PutH2d {
        /// The device
        device: u32,
        /// The address to copy to, such as 0x1000
        #[arg(value_parser = parse_address)]
        address: u64,
        /// The file [default: the standard input]
        file: Option<PathBuf>,
    },
    /// Copy from a device to the standard output
    ///
    /// The copy is not ordered with a group in progress. To read a result, first wait with `shmccl
    /// ctl status COMM --wait`.
    GetD2h {
        /// The device
        device: u32,
        /// The address to copy from, such as 0x1000
        #[arg(value_parser = parse_address)]
        address: u64,
        /// Number of bytes, such as 4096, 4K or 0x1000
        #[arg(value_parser = parse_length)]
        len: u64,
    },
    /// End a communicator after what is in progress, and give its devices back
    Finalize {
        /// The communicator
        comm: u64,
    },
    /// End a communicator at once, and give its living devices back
    Destroy {
        /// The communicator
        comm: u64,
    },
}

/// The two ends of a group.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum GroupEdge {
    /// Queue the calls that follow, and print the name of the group
    Start {
        /// The communicator
        comm: u64,
    },
    /// Execute the queued calls
    End(OpenGroupArgs),
    /// Drop the queued calls
    Cancel(OpenGroupArgs),
}

/// A group of a communicator.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OpenGroupArgs {
    /// The communicator
    pub(crate) comm: u64,
    /// Only this group, by the name that `start` has printed [default: the open one]
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupId>,
}

/// A call of a collective operation.
#[derive(Clone, Debug, Args)]
pub(crate) struct CallArgs {
    /// The communicator
    pub(crate) comm: u64,
    /// The operation.
    #[arg(value_parser = parse_operation, help = format!("One of {}", operations()))]
    pub(crate) operation: Operation,
    /// Elements that a rank sends to each other rank, or receives from it
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: u64,
    /// Type of the elements: float64, int32, bfloat16, ...
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float32")]
    pub(crate) data_type: DataType,
    /// Operator of a reduction: sum, prod, min, max, avg, band, bor or bxor [default: sum]
    #[arg(short, long)]
    pub(crate) op: Option<ReduceOp>,
    /// Root, if the operation has one [default: 0]
    #[arg(short, long, value_name = "RANK")]
    pub(crate) root: Option<u32>,
    /// Addresses of the input, one for each rank, or one for all
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',', required = true, value_parser = parse_address)]
    pub(crate) send: Vec<u64>,
    /// Addresses of the output [default: those of the input]
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',', value_parser = parse_address)]
    pub(crate) recv: Option<Vec<u64>>,
    /// Put the call into this group, or do nothing [default: the open group, if there is one]
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupId>,
}

impl CallArgs {
    /// Refuses flags that have no effect on the operation.
    ///
    /// # Errors
    /// The flag without effect.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let operation = self.operation;
        let idle = [
            (self.op.is_some() && !operation.reduces(), "--op"),
            (self.root.is_some() && !operation.has_root(), "--root"),
        ];
        let flag = idle.into_iter().find_map(|(is_idle, flag)| is_idle.then_some(flag));
        flag.map_or(Ok(()), |flag| Err(UsageError::no_effect(flag, operation.name())))
    }
}

/// Reads the name of an operation of devices.
fn parse_operation(text: &str) -> Result<Operation, String> {
    let known = text.parse().ok().filter(|operation| DeviceCall::OPERATIONS.contains(operation));
    known.ok_or_else(|| format!("expected {}", operations()))
}

/// Returns the names of the operations of devices.
fn operations() -> String {
    DeviceCall::OPERATIONS.map(Operation::name).join(", ")
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
        for text in ["", "0x", "x", "-1", "4Q", "1.3K", "0x4K"] {
            assert!(parse_length(text).is_err(), "{text}");
        }
    }
}
