//! Mapping a file over the writable range of the executable, in place.
#![allow(unsafe_code, reason = "memory is exchanged behind the addresses of static objects")]

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap};
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::address::{pointer, to_usize};
use crate::forks::handle_forks;
use crate::shared::SharedImage;
use crate::{ExecutableRange, PAGE};

/// How many entries of `/proc/self/pagemap` are read at once.
const ENTRIES: usize = 512;

/// The bits of such an entry that say that there is a page, in memory or swapped.
const TOUCHED: u64 = 0b11 << 62;

/// Copies what is touched of the range into `file`, and maps the file over it. `has_room` says
/// later, in each fork, whether there is memory for a copy of so many bytes.
///
/// # Safety
/// Until it returns, no other thread writes to the range, forks, or calls this. Nobody ever
/// shortens the file. Whoever else has it writes only to what this process lets them.
///
/// # Errors
/// Of kind `InvalidInput` for a file that is shorter than the range, and `AlreadyExists` when the
/// range was mapped over before. Those of the system.
pub unsafe fn map_over(
    range: ExecutableRange,
    file: OwnedFd,
    has_room: fn(u64) -> bool,
) -> io::Result<&'static SharedImage> {
    if SharedImage::get().is_some() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let file = File::from(file);
    if file.metadata()?.len() < range.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    handle_forks();
    let pagemap = File::open("/proc/self/pagemap").ok();
    let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    // SAFETY: `find` has returned the executable's own memory, which is mapped for good. The caller
    // answers for other threads, and signals are blocked.
    let moved = unsafe { move_into(&file, &range, pagemap.as_ref()) };
    let _ = signals.map(|signals| signals.thread_set_mask());
    moved?;
    if range.holds_c_library() {
        let (start, len) = (pointer(range.start()), to_usize(range.len()));
        // SAFETY: mapped just above. Contents stay as they are.
        let _ = unsafe { madvise(start.cast(), len, MmapAdvise::MADV_DONTFORK) };
    }
    Ok(SharedImage::new(file.into(), range, has_room).keep())
}

/// Copies what is touched of the range into `file`, and maps the file over it.
///
/// # Safety
/// The range is mapped, readable and writable, and nothing but this writes to it meanwhile. The
/// file is as long.
unsafe fn move_into(file: &File, range: &ExecutableRange, pagemap: Option<&File>) -> Result<(), Errno> {
    let n_pages = range.len() / PAGE;
    let mut entries = [0; ENTRIES];
    for first in (0..n_pages).step_by(ENTRIES) {
        let entries = &mut entries[..to_usize(n_pages - first).min(ENTRIES)];
        let at = (range.start() / PAGE + first) * 8;
        let is_told =
            pagemap.is_some_and(|map| map.read_exact_at(bytemuck::cast_slice_mut(entries), at).is_ok());
        for (page, entry) in (first..).zip(&*entries) {
            // Of the executable's file also what nobody has looked at yet.
            if !is_told || entry & TOUCHED != 0 || page * PAGE < range.len_in_file() {
                // SAFETY: it is a page of the range, which the caller answers for.
                unsafe { write_page(file, range.start() + page * PAGE, page * PAGE) }?;
            }
        }
    }
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    let (at, len) = (NonZeroUsize::new(to_usize(range.start())), NonZeroUsize::new(to_usize(range.len())));
    // SAFETY: it replaces the range by its copy, byte for byte. The caller answers for the file.
    unsafe { mmap(at, len.ok_or(Errno::EINVAL)?, access, flags, file, 0) }.map(drop)
}

/// Writes the page at `address` to `offset` of the file. It asks the system itself: sanitizers look
/// into the C library's function, and find the gaps between objects.
///
/// # Safety
/// The page is mapped and readable.
unsafe fn write_page(file: &File, address: u64, offset: u64) -> Result<(), Errno> {
    let call = libc::SYS_pwrite64;
    // SAFETY: the system reads the page, which the caller answers for.
    let written = unsafe { libc::syscall(call, file.as_raw_fd(), address, PAGE, offset) };
    match u64::try_from(written) {
        Ok(PAGE) => Ok(()),
        Ok(_) => Err(Errno::ENOSPC),
        Err(_) => Err(Errno::last()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicU8, Ordering};

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    static OBJECT: AtomicU8 = AtomicU8::new(5);

    /// Memory that nothing has touched.
    static UNTOUCHED: [AtomicU8; 1 << 20] = [const { AtomicU8::new(0) }; 1 << 20];

    fn file(len: u64) -> OwnedFd {
        let file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file.into()
    }

    /// Does what the test below has to do in a process of its own.
    fn map_over_and_look() {
        let range = ExecutableRange::find().unwrap();
        // SAFETY: the other thread of this process waits for this one.
        let map = |len| unsafe { map_over(range, file(len), |_| true) };
        assert_eq!(map(range.len() - 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(OBJECT.swap(6, Ordering::Relaxed), 5);
        let image = map(range.len() + PAGE).unwrap();
        assert_eq!(map(range.len()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(image.is_shared() && image.base().as_ptr().addr() as u64 == range.start());
        let others = File::from(image.file().try_clone_to_owned().unwrap());
        let offset = std::ptr::from_ref(&OBJECT).addr() as u64 - range.start();
        let mut seen = [0];
        others.read_exact_at(&mut seen, offset).unwrap();
        assert_eq!(seen, [6], "it has kept its value");
        others.write_all_at(&[7], offset).unwrap();
        assert_eq!(OBJECT.load(Ordering::Relaxed), 7, "others write to it");
        OBJECT.store(8, Ordering::Relaxed);
        others.read_exact_at(&mut seen, offset).unwrap();
        assert_eq!(seen, [8], "others read it");
        let pages = crate::private::pages_of(image.owned_file(), 0, range.len());
        let copied: u64 = pages.iter().map(|(from, to)| to - from).sum();
        let at = UNTOUCHED.as_ptr().addr() as u64;
        assert!(at.wrapping_sub(range.start()) < range.len());
        assert!(copied < range.len() - UNTOUCHED.len() as u64 / 2, "{copied} of {} bytes", range.len());
    }

    #[test]
    fn objects_keep_their_places_and_values_and_are_shared() {
        const ALONE: &str = "SHMCCL_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            return map_over_and_look();
        }
        let name = "map::tests::objects_keep_their_places_and_values_and_are_shared";
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
