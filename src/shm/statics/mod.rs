//! Static objects as symmetric memory: `.data` and `.bss` of the executable, mapped over in place.
//!
//! [`map_over`] writes the writable part of the executable behind RELRO into a memory file, and
//! maps the file over the same addresses. So `&x` stays. The ranks of a job give each other their
//! files as they meet, and map those of the others elsewhere: a [`StaticsWindow`]. An object of a
//! peer is at the same offset there: the layouts (`description`) were compared.
//!
//! # Order
//! Every rank has mapped over before it gives its file away, and peers write only what they were
//! given. So no copy overwrites what a peer has written.
//!
//! Nothing else may write to the range from the first page that is copied until the file is mapped:
//! it would be lost. So a constructor calls this, and it refuses where there is another thread.
//! [`STATICS`] can say that such a thread, of a shared library, does no harm. This code may itself
//! lie in the executable, with its statics. So it allocates nothing, takes no lock and writes only
//! to its stack in between.
//!
//! # Memory
//! Only pages that were touched are copied. The rest of a large `.bss` is a hole of the file, and
//! gets memory when it is touched, as without all this. So these pages are not committed: where the
//! machine has no memory left, a store ends by SIGBUS or the kernel kills some process. Core dumps
//! hold the range.
//!
//! # Forks
//! A child of a fork gets a copy in place (`forks.rs`). In a program that is linked statically the
//! C library's own data lie in the range. The child would use them together with its parent, until
//! a handler is called. It has none of the range instead, and ends by SIGSEGV. Such a program
//! starts others by `posix_spawn`, `system` or `vfork`. A bare `clone` is not caught, and its child
//! shares.
//!
//! | file | what |
//! |---|---|
//! | `executable` | what is loaded, and which range of the executable it is |
//! | `elf` | builds and objects, as files tell of them |
//! | `description` | what a rank tells of its layout, and how two differ |
//! | `object` | the object at an address, for errors |
//! | `fault` | why static objects, or an address, are not symmetric |
//! | `window` | the static objects of all ranks |
//!
//! Tried by its unit tests and the C library's `programs`.

mod description;
mod elf;
mod executable;
mod fault;
mod object;
mod window;

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, mmap};
use nix::sys::signal::{SigSet, SigmaskHow};

use super::limits::{self, Store};
use super::mapping::Mapping;
use super::segment::memfd;
use super::{PAGE, forks, to_usize};
use crate::error::{Error, Result};
use description::LayoutDescription;
use executable::{ExecutableRange, loaded_files};
pub use fault::StaticsFault;
pub use object::{ObjectKind, StrayObject};
pub use window::{JobStatics, StaticsWindow};

/// The variable that says whether static objects are symmetric.
pub const STATICS: &str = "SHMCCL_STATICS";

/// What errors say was being done.
const SHARING: &str = "sharing the static objects";

/// How many entries of `/proc/self/pagemap` are read at once.
const ENTRIES: usize = 512;

/// The bits of such an entry that say that there is a page, in memory or swapped.
const TOUCHED: u64 = 0b11 << 62;

/// What became of this process's static objects, once it was asked.
static OUTCOME: OnceLock<MappingOutcome> = OnceLock::new();

#[derive(Debug)]
enum MappingOutcome {
    Mapped(OwnStatics),
    Unwanted,
    Failed(Arc<Error>),
}

/// The static objects of this process, in a file that peers can map.
#[derive(Debug)]
pub(crate) struct OwnStatics {
    file: Arc<OwnedFd>,
    mapping: Mapping,
    /// How many forks have led to the process that has mapped them.
    forks: u64,
}

impl OwnStatics {
    /// Returns the file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns what [`STATICS`] says: `1` or `0`. Nothing is `None`.
///
/// # Errors
/// [`Error::Setting`] for another value.
pub fn switch() -> Result<Option<bool>> {
    match std::env::var_os(STATICS).as_ref().map(|text| text.to_str()) {
        None | Some(Some("")) => Ok(None),
        Some(Some("0")) => Ok(Some(false)),
        Some(Some("1")) => Ok(Some(true)),
        Some(_) => Err(Error::Setting { variable: STATICS, expected: "1, or 0 for none" }),
    }
}

/// Makes the static objects of this process's executable shared memory, in place, if that
/// `is_wanted`. The first call decides.
///
/// # Safety
/// No other thread writes to static objects of the executable meanwhile. A constructor that comes
/// before those of the program is a place to call it.
///
/// # Errors
/// [`Error::NotSymmetric`] with the reason why it was not possible. Whoever uses static objects of
/// a job gets it as well.
pub unsafe fn map_over(is_wanted: Result<bool>) -> Result<()> {
    let outcome = OUTCOME.get_or_init(|| {
        let map_if = |is_wanted: bool| {
            if !is_wanted {
                return Ok(MappingOutcome::Unwanted);
            }
            // SAFETY: the caller's duty is the same.
            let own = unsafe { map() };
            own.map(MappingOutcome::Mapped)
        };
        is_wanted.and_then(map_if).unwrap_or_else(|error| MappingOutcome::Failed(error.into()))
    });
    match outcome {
        MappingOutcome::Failed(source) => Err(StaticsFault::Failed(Arc::clone(source)).into()),
        MappingOutcome::Mapped(_) | MappingOutcome::Unwanted => Ok(()),
    }
}

/// Returns the static objects of this process, if they are symmetric. In a child of a fork they are
/// the child's own.
pub(crate) fn own() -> Result<&'static OwnStatics, StaticsFault> {
    match OUTCOME.get() {
        Some(MappingOutcome::Mapped(own)) if own.forks == forks::count() => Ok(own),
        Some(MappingOutcome::Mapped(_)) => Err(StaticsFault::Forked),
        Some(MappingOutcome::Failed(source)) => Err(StaticsFault::Failed(Arc::clone(source))),
        Some(MappingOutcome::Unwanted) | None if switch().is_ok_and(|on| on == Some(false)) => {
            Err(StaticsFault::SwitchedOff)
        }
        Some(MappingOutcome::Unwanted) => Err(StaticsFault::NoRank),
        None => Err(StaticsFault::NotAsked),
    }
}

/// Returns how many bytes of memory are behind the static objects of this process, where they are
/// symmetric.
pub(crate) fn committed() -> u64 {
    let Ok(own) = own() else { return 0 };
    let file = own.file.try_clone().map(File::from);
    // The last page describes the others.
    file.and_then(|file| file.metadata()).map_or(0, |file| (512 * file.blocks()).saturating_sub(PAGE))
}

/// # Safety
/// As [`map_over`].
unsafe fn map() -> Result<OwnStatics> {
    let files = loaded_files();
    let found = files.first().and_then(|executable| Some((executable, ExecutableRange::find(executable)?)));
    let Some((executable, range)) = found else { return Err(StaticsFault::NoObjects.into()) };
    let n_threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if n_threads > 1 && switch()? != Some(true) {
        return Err(StaticsFault::Threads(n_threads).into());
    }
    let description = LayoutDescription::of(executable, &range);
    let file = File::from(memfd(c"static objects", range.len() + PAGE)?);
    let told = file.write_all_at(description.bytes(), range.len());
    told.map_err(|source| limits::refused(SHARING, Store::Memory, source))?;
    let pagemap = File::open("/proc/self/pagemap").ok();
    let mut registry = forks::hold();
    let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    // SAFETY: `find` has returned the executable's own memory, which is mapped for good. The caller
    // answers for other threads, and signals are blocked.
    let moved = unsafe { move_into(&file, &range, pagemap.as_ref()) };
    let _ = signals.map(|signals| signals.thread_set_mask());
    let base = moved.map_err(|errno| limits::refused(SHARING, Store::Memory, errno))?;
    // SAFETY: mapped just above, readable and writable, and unmapped by nobody.
    let mapping = unsafe { Mapping::lasting(base, to_usize(range.len())) };
    let file = Arc::new(OwnedFd::from(file));
    if range.holds_c_library() {
        mapping.advise(MmapAdvise::MADV_DONTFORK);
    } else {
        registry.add_in_place(base, range.len(), Arc::downgrade(&file));
    }
    drop(registry);
    Ok(OwnStatics { file, mapping, forks: forks::count() })
}

/// Copies what is touched of the range into `file`, and maps the file over it.
///
/// # Safety
/// The range is mapped, readable and writable, and nothing but this writes to it meanwhile.
unsafe fn move_into(
    file: &File,
    range: &ExecutableRange,
    pagemap: Option<&File>,
) -> Result<NonNull<u8>, Errno> {
    let n_pages = range.len() / PAGE;
    let mut entries = [0; ENTRIES];
    for first in (0..n_pages).step_by(ENTRIES) {
        let entries = &mut entries[..to_usize(n_pages - first).min(ENTRIES)];
        let at = (range.low() / PAGE + first) * 8;
        let is_told =
            pagemap.is_some_and(|map| map.read_exact_at(bytemuck::cast_slice_mut(entries), at).is_ok());
        for (page, entry) in (first..).zip(&*entries) {
            // Of the executable's file also what nobody has looked at yet.
            if !is_told || entry & TOUCHED != 0 || page * PAGE < range.len_in_file() {
                // SAFETY: it is a page of the range, which the caller answers for.
                unsafe { write_page(file, range.low() + page * PAGE, page * PAGE) }?;
            }
        }
    }
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
    let (at, len) = (NonZeroUsize::new(to_usize(range.low())), NonZeroUsize::new(to_usize(range.len())));
    // SAFETY: it replaces the range by its copy, byte for byte. The file is as long, see `map`.
    unsafe { mmap(at, len.ok_or(Errno::EINVAL)?, access, flags, file, 0) }.map(NonNull::cast)
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
