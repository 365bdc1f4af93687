//! What `shmccl ctl put-h2d` copies to a device: a file piece by piece, and what only its end tells the length of as a whole.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use shmccl::coordinator::{AddressRange, Client, DeviceId};

/// A file of no more bytes is read as a whole, whatever it is said to hold: of some that the kernel makes up nobody knows before.
const SMALL: u64 = 1 << 20;

/// Copies a file, or the standard input, to a device. A pipe is read as far as the device has room for it, before anything is copied.
///
/// # Errors
/// Before anything is read or copied, when there is no such device, or it belongs to nothing; before anything is copied, when there is
/// more than the device has addresses for.
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

/// How many bytes are left of a regular file; `None` where that cannot be told.
fn length(source: &mut File) -> Option<u64> {
    let found = source.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(found.len().saturating_sub(source.stream_position().ok()?))
}

/// How many bytes a device has from `address` on.
fn room(range: AddressRange, address: u64) -> u64 {
    if address < range.min { 0 } else { range.max.saturating_sub(address) }
}

/// All that comes, or `None` where it is more than there is room for. A little more is read all the same: how long it is the device
/// then tells itself.
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
