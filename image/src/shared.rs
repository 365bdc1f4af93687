//! The writable range of the executable, once a file is mapped over it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ExecutableRange;
use crate::address::pointer;

/// What this process has mapped over.
static SHARED: OnceLock<SharedImage> = OnceLock::new();

/// The writable range of the executable as memory that others can map. It is never unmapped.
#[derive(Debug)]
pub struct SharedImage {
    file: OwnedFd,
    range: ExecutableRange,
    /// Whether there is memory for so many bytes.
    has_room: fn(u64) -> bool,
    /// A child of a fork has its own.
    is_forked: AtomicBool,
}

impl SharedImage {
    pub(crate) fn new(file: OwnedFd, range: ExecutableRange, has_room: fn(u64) -> bool) -> Self {
        Self { file, range, has_room, is_forked: AtomicBool::new(false) }
    }

    /// Returns what was mapped over, if anything was.
    pub(crate) fn get() -> Option<&'static Self> {
        SHARED.get()
    }

    /// Keeps what was mapped over.
    pub(crate) fn keep(self) -> &'static Self {
        SHARED.get_or_init(|| self)
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn owned_file(&self) -> &OwnedFd {
        &self.file
    }

    /// Returns its first address.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        pointer(self.range.start())
    }

    /// Returns its range.
    #[must_use]
    pub fn range(&self) -> ExecutableRange {
        self.range
    }

    pub(crate) fn has_room(&self) -> fn(u64) -> bool {
        self.has_room
    }

    /// Returns whether this process shares it still. A child of a fork does not.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        // Relaxed: only the handler of a fork sets it, in the one thread of the child.
        !self.is_forked.load(Ordering::Relaxed)
    }

    /// Takes note that this process is a child of a fork, and has its own.
    pub(crate) fn note_fork(&self) {
        // Relaxed: see `is_shared`.
        self.is_forked.store(true, Ordering::Relaxed);
    }
}
