//! The input of `shmccl ctl put-h2d`: files are copied piece by piece, pipes as a whole.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use shmccl::coordinator::{AddressRange, Client, DeviceId};

/// Shorter files are read as a whole. Some files of the kernel do not know their length.
const SMALL: u64 = 1 << 20;

/// Copies a file, or the standard input, to a device. A pipe is read before anything is copied, as
/// far as the device has room.
///
/// # Errors
/// A device that does not exist or belongs to no communicator: nothing was read. Input that is too
/// long: nothing was copied.
pub(super) fn put(client: &mut Client, device: DeviceId, address: u64, file: Option<&Path>) -> Result<()> {
    let range = client.address_range(device)?;
    let name = file.map_or_else(|| "the standard input".to_owned(), |file| file.display().to_string());
    let cannot_read = || format!("cannot read {name}");
    let mut source = open(file).with_context(cannot_read)?;
    match length(&mut source).filter(|len| *len > SMALL) {
        Some(len) => {
            client.write_device(device, address, len, source).with_context(|| format!("cannot copy {name}"))
        }
        None => {
            let bytes = read(&mut source, room(range, address)).with_context(cannot_read)?;
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
fn read(source: impl Read, room: u64) -> std::io::Result<Option<Vec<u8>>> {
    let most = room.max(SMALL);
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_read_as_far_as_there_is_room() {
        let read =
            |len: u64, room| read(std::io::repeat(7).take(len), room).unwrap().map(|it| it.len() as u64);
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
