//! `shmccl ctl`: asks the coordinator for communicators and operations, and copies to and from
//! devices.
//!
//! Tried by its unit tests and `command coordinator::command:: coordinator::walk::`.

pub(crate) mod flags;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use comfy_table::Cell;
use serde::Serialize;
use shmccl::coordinator::{
    AddressRange, CallProgress, Client, CommId, CommState, CommStatus, CoordinatorError, DeviceCall,
    DeviceId, DeviceStatus, RuntimeDirectory,
};
use shmccl::reduce::ReduceOp;

use crate::output::{self, TableLook};
use crate::{failure, file, table};
use flags::{Ask, CallArgs, CtlArgs, GroupEdge};

/// Ends the help.
pub(crate) const HELP: &str = "\
A session: start `shmccl coordinator` and some of `shmccl device`, each in a terminal of its own, then
  shmccl ctl init 3
  shmccl ctl devices
  echo hello | shmccl ctl put-h2d DEVICE 0x1000
  shmccl ctl call 1 all_reduce -d float64 -n 4 --send 0x1000
  shmccl ctl status 1 --wait
  shmccl ctl grow 1
  shmccl ctl checkpoint 1 saved
  shmccl ctl finalize 1

They find each other in $XDG_RUNTIME_DIR/shmccl, or in /tmp/shmccl-UID where that cannot be.";

/// Shorter files are read as a whole. Some files of the kernel do not know their length.
const SMALL: u64 = 1 << 20;

/// Asks, and prints the answer.
///
/// # Errors
/// Requests that the coordinator refuses, or that do not reach it.
pub(crate) fn run(args: &CtlArgs) -> Result<u8> {
    ask(args).map_err(|error| match error.downcast_ref() {
        Some(CoordinatorError::Engine(shmccl::Error::Timeout { .. })) => anyhow!(
            "{}; it is busy, or stopped and goes on at `kill -CONT` of its process; --timeout gives it longer",
            failure::chain(&error)
        ),
        _ => error,
    })
}

fn ask(args: &CtlArgs) -> Result<u8> {
    if let Ask::Status { json: Some(path), .. } | Ask::Devices { json: Some(path) } = &args.ask {
        file::check_writable(path)?;
    }
    let mut client = Client::connect(&RuntimeDirectory::open()?, args.timeout)?;
    match &args.ask {
        Ask::Init { devices, keep_going } => tell(&client.init(*devices, *keep_going)?)?,
        Ask::Status { comm: Some(comm), wait, json } => {
            let status = client.status(CommId::new(*comm), *wait)?;
            let told = write(json.as_deref(), std::slice::from_ref(&status)).and_then(|()| tell(&status));
            let has_failed = matches!(status.state, CommState::Failed | CommState::Destroyed)
                || status.last.is_some_and(|last| last.failure.is_some());
            let code = if *wait && has_failed { failure::FAILED } else { failure::DONE };
            // A caller that reads only the exit code may have closed the pipe.
            return told.map(|()| code).or_else(|error| match failure::is_closed_pipe(&error) {
                true => Ok(code),
                false => Err(error),
            });
        }
        Ask::Status { comm: None, json, .. } => {
            let list = client.list()?;
            write(json.as_deref(), &list)?;
            list.iter().try_for_each(tell)?;
        }
        Ask::Devices { json } => {
            let devices = client.devices()?;
            write(json.as_deref(), &devices)?;
            output::print(&table(&devices))?;
        }
        Ask::Metrics => output::print(&client.metrics()?.to_string())?,
        Ask::Group(GroupEdge::Start { comm }) => {
            output::print(&format!("{}\n", client.start_group(CommId::new(*comm))?))?;
        }
        Ask::Group(GroupEdge::End(open)) => {
            let group = client.end_group(CommId::new(open.comm), open.group)?;
            tell_progress(open.comm, group)?;
        }
        Ask::Group(GroupEdge::Cancel(open)) => client.cancel_group(CommId::new(open.comm), open.group)?,
        Ask::Call(args) => call(&mut client, args)?,
        Ask::GoOn { comm } => tell(&client.go_on(CommId::new(*comm))?)?,
        Ask::Grow { comm, devices } => tell(&client.grow(CommId::new(*comm), *devices)?)?,
        Ask::Checkpoint { comm, directory } => {
            let (number, place) = (client.checkpoint(CommId::new(*comm), directory)?, directory.display());
            output::print(&format!("communicator {comm}: checkpoint {number} is written to {place}\n"))?;
        }
        Ask::Restore { comm, directory } => {
            let (number, place) = (client.restore(CommId::new(*comm), directory)?, directory.display());
            output::print(&format!("communicator {comm}: checkpoint {number} is read back from {place}\n"))?;
        }
        Ask::PutH2d { device, address, file } => {
            put(&mut client, DeviceId::new(*device), *address, file.as_deref())?;
        }
        Ask::GetD2h { device, address, len } => {
            let bytes = client.read_device(DeviceId::new(*device), *address, *len)?;
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(&bytes).and_then(|()| stdout.flush()).context(output::CANNOT_WRITE)?;
        }
        Ask::Finalize { comm } => client.finalize(CommId::new(*comm))?,
        Ask::Destroy { comm } => client.destroy(CommId::new(*comm))?,
    }
    Ok(failure::DONE)
}

/// Writes a list to a file, if one is named.
fn write<T: Serialize>(json: Option<&Path>, list: &[T]) -> Result<()> {
    json.map_or(Ok(()), |path| file::write_json(path, &list))
}

fn call(client: &mut Client, args: &CallArgs) -> Result<()> {
    args.check()?;
    let comm = CommId::new(args.comm);
    let devices =
        if args.send.len() == 1 { client.status(comm, false)?.devices.len() } else { args.send.len() };
    let spread = |addresses: &[u64]| match addresses {
        [address] => vec![*address; devices],
        several => several.to_vec(),
    };
    let send = spread(&args.send);
    let recv = args.recv.as_deref().map_or_else(|| send.clone(), spread);
    let (operation, data_type) = (args.operation, args.data_type);
    let op = args.op.clone().unwrap_or(ReduceOp::Sum);
    let root = args.root.unwrap_or_default();
    let call = DeviceCall { operation, data_type, op, root, count: args.count, send, recv };
    match client.call(comm, args.group, call)? {
        CallProgress::InProgress(group) => tell_progress(args.comm, group),
        CallProgress::Queued { group, calls } => output::print(&format!(
            "communicator {comm}: call {calls} of group {group}, which is open; `shmccl ctl group end {comm}` executes it\n"
        )),
    }
}

fn tell_progress(comm: u64, group: u64) -> Result<()> {
    output::print(&format!("communicator {comm}: group {group} in progress\n"))
}

fn tell(status: &CommStatus) -> Result<()> {
    let report = status.last.as_ref().and_then(|last| last.report.as_deref()).unwrap_or_default();
    let lines: String = report.lines().map(|line| format!("  {line}\n")).collect();
    output::print(&format!("{}\n{lines}", describe(status)))
}

/// Describes the state of a communicator in one line.
fn describe(status: &CommStatus) -> String {
    let list = |devices: &[DeviceId]| devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let mut line = format!(
        "communicator {}: {}, epoch {}, devices {}",
        status.comm,
        status.state,
        status.epoch,
        list(&status.devices)
    );
    if !status.lost.is_empty() {
        line.push_str(&format!(", lost {}", list(&status.lost)));
    }
    if let Some(why) = &status.why {
        line.push_str(&format!("; {why}"));
    }
    match &status.last {
        Some(last) => match &last.failure {
            Some(failure) => line + &format!("; group {} failed: {failure}", last.group),
            None => {
                let number =
                    last.checkpoint.map_or_else(String::new, |number| format!(", as checkpoint {number}"));
                line + &format!("; group {} succeeded{number}", last.group)
            }
        },
        None => line,
    }
}

fn table(devices: &[DeviceStatus]) -> String {
    let rows = devices.iter().map(|device| {
        let owner = device.comm.map_or_else(|| "free".to_owned(), |comm| format!("communicator {comm}"));
        let range = format!("{:#x} to {:#x}", device.range.min, device.range.max);
        vec![Cell::new(device.device), Cell::new(range), Cell::new(owner)]
    });
    table::lay_out(TableLook::of_tables(), &["device", "addresses", "belongs to"], 3, rows)
}

/// Copies a file, or the standard input, to a device. A pipe is read before anything is copied, as
/// far as the device has room.
///
/// # Errors
/// A device that does not exist or belongs to no communicator: nothing was read. Input that is too
/// long: nothing was copied.
fn put(client: &mut Client, device: DeviceId, address: u64, file: Option<&Path>) -> Result<()> {
    let range = client.address_range(device)?;
    let name = file.map_or_else(|| "the standard input".to_owned(), |file| file.display().to_string());
    let cannot_read = || format!("cannot read {name}");
    let mut source = open(file).with_context(cannot_read)?;
    match length(&mut source).filter(|len| *len > SMALL) {
        Some(len) => {
            client.write_device(device, address, len, source).with_context(|| format!("cannot copy {name}"))
        }
        None => {
            let bytes = read_all(&mut source, room(range, address)).with_context(cannot_read)?;
            let Some(bytes) = bytes else {
                let (room, AddressRange { min, max }) = (room(range, address), range);
                bail!(
                    "{name} has more than the {room} bytes that device {device} has from {address:#x} on: its addresses are {min:#x} to \
                     {max:#x}; nothing was copied"
                );
            };
            Ok(client.copy_host_to_device(device, address, &bytes)?)
        }
    }
}

fn open(file: Option<&Path>) -> std::io::Result<File> {
    match file {
        Some(file) => File::open(file),
        None => std::io::stdin().as_fd().try_clone_to_owned().map(File::from),
    }
}

/// Returns the bytes that are left of a regular file; `None` for any other file.
fn length(source: &mut File) -> Option<u64> {
    let found = source.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(found.len().saturating_sub(source.stream_position().ok()?))
}

/// Returns the bytes that a device has from `address` on.
fn room(range: AddressRange, address: u64) -> u64 {
    if address < range.min { 0 } else { range.max.saturating_sub(address) }
}

/// Reads all input, or returns `None` if it is longer than the room. A little more is read in any
/// case, so that the device can say how long it is.
fn read_all(source: impl Read, room: u64) -> std::io::Result<Option<Vec<u8>>> {
    let most = room.max(SMALL);
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= most))
}

#[cfg(test)]
mod tests {
    use shmccl::coordinator::GroupOutcome;

    use super::*;

    #[test]
    fn a_status_is_one_line() {
        let devices = [11, 12].map(DeviceId::new).to_vec();
        let last = Some(GroupOutcome {
            group: 2,
            failure: Some("device 11 was lost".to_owned()),
            culprit: Some(DeviceId::new(11)),
            checkpoint: None,
            report: None,
        });
        let (comm, lost, why) =
            (CommId::new(1), vec![DeviceId::new(11)], Some("device 11 was lost".to_owned()));
        let failed = CommStatus { comm, state: CommState::Failed, epoch: 1, devices, lost, last, why };
        assert_eq!(
            describe(&failed),
            "communicator 1: failed, epoch 1, devices 11 12, lost 11; device 11 was lost; group 2 failed: device 11 was lost"
        );
    }

    #[test]
    fn what_has_no_end_is_read_as_far_as_there_is_room() {
        let read =
            |len: u64, room| read_all(std::io::repeat(7).take(len), room).unwrap().map(|it| it.len() as u64);
        assert_eq!(read(0, 0), Some(0));
        assert_eq!(read(SMALL, 0), Some(SMALL), "the device says how much that is");
        assert_eq!(read(SMALL + 1, 0), None);
        assert_eq!(read(SMALL + 7, SMALL + 7), Some(SMALL + 7));
        assert_eq!(read(u64::MAX, SMALL + 7), None);
    }

    #[test]
    fn there_is_no_room_outside_of_the_addresses() {
        let range = AddressRange { min: 0x1000, max: 0x3000 };
        let rooms = [0, 0xfff, 0x1000, 0x2fff, 0x3000, u64::MAX].map(|address| room(range, address));
        assert_eq!(rooms, [0, 0, 0x2000, 1, 0, 0]);
    }

    #[test]
    fn a_file_is_as_long_as_what_is_left_of_it_and_a_device_as_long_as_nobody_knows() {
        let path = std::env::temp_dir().join(format!("shmccl-input-{}", std::process::id()));
        std::fs::write(&path, [0; 10]).unwrap();
        let mut file = File::open(&path).unwrap();
        assert_eq!(length(&mut file), Some(10));
        file.seek_relative(4).unwrap();
        assert_eq!(length(&mut file), Some(6));
        file.seek_relative(20).unwrap();
        assert_eq!(length(&mut file), Some(0));
        std::fs::remove_file(path).unwrap();
        assert_eq!(length(&mut File::open("/dev/zero").unwrap()), None);
    }
}
