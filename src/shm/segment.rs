//! What there is to map: a descriptor with a header in its first bytes and pages behind the rest.
//!
//! | backing | made of | resizable by others | left behind by `kill -9` | memory is taken |
//! |---|---|---|---|---|
//! | anonymous | sealed memfd | no | nothing | at `commit` |
//! | named | `/dev/shm/NAME`, by the `shared_memory` crate | yes | the name | at `create` |
//! | file | any file that can be mapped | yes | the file, which is its point | at `commit` |
//!
//! Memory is taken by `fallocate`; where a file system or a sandbox refuses that, by writing what
//! is there once more. No core dump holds a segment unless it is asked to
//! (`Mapping::take_into_dumps`).
//!
//! Life: `create` (length set, sealed, header page committed, header described) -> the owner
//! commits and initialises what it needs -> [`SegmentHeader::publish`] (edge H1) -> peers
//! [`attach`](Segment::attach) by descriptor, or by name. An attached segment has the right kind,
//! length and header, or is refused with the first thing that differs.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapOptions;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{SFlag, fstat};

pub use super::PAGE;
use super::cells::CellRef;
use super::limits::{self, Store};
use super::mapping::Mapping;
use super::ranges::{Range, Ranges};
use super::{in_bounds, named, to_usize};
use crate::error::{Error, Result, check_layout};
use crate::sync::header::{Creator, Expected, Identity, SegmentHeader};

/// The longest segment, in bytes.
pub const MAX_LEN: u64 = 1 << 40;

/// The most that is committed by one system call, so that a signal costs little repeated work.
const COMMIT_STEP: u64 = 64 << 20;

/// The most that is read and written at once where nothing else commits.
const REWRITE_STEP: u64 = 256 << 10;

/// What errors say was being done.
const COMMITTING: &str = "committing memory of a segment";

const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// What a segment is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Memory without a name, reached by its descriptor only.
    #[default]
    Anonymous,
    /// Memory with a name in `/dev/shm`, for processes outside the job. The name goes when the
    /// creator's last handle does.
    Named(String),
    /// A file; its contents survive.
    File(PathBuf),
}

/// A segment that this process created or attached.
#[derive(Debug)]
pub struct Segment {
    source: SegmentHandle,
    store: Store,
    len: u64,
    header: CellRef<SegmentHeader>,
    /// What this process has committed so far.
    committed: Mutex<Ranges>,
}

#[derive(Debug)]
enum SegmentHandle {
    Descriptor(Arc<OwnedFd>),
    Named(named::NamedSegment),
}

impl Segment {
    /// Makes a segment of `len` bytes, reserved but (except a named one) not yet committed, with a
    /// header that is described but not yet published.
    ///
    /// A file that holds a segment already keeps its contents; only the header is written anew. One
    /// creator at a time can have a file.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length that is zero, not a multiple of [`PAGE`] or beyond
    /// [`MAX_LEN`], and for a bad name; [`Error::ResourceLimit`]; [`Error::Layout`] for a file that
    /// holds something else; [`Error::Os`].
    pub fn create(backing: &Backing, len: u64, identity: Identity) -> Result<Self> {
        check_len("segment length", len)?;
        let describe = |segment: Self| {
            segment.commit(0, PAGE)?;
            segment.header.describe(identity, len, Creator::this_process());
            Ok(segment)
        };
        match backing {
            Backing::Anonymous => describe(Self::over(
                SegmentHandle::Descriptor(Arc::new(memfd(c"shmccl", len)?)),
                Store::Memory,
                len,
            )?),
            Backing::Named(name) => {
                let source = SegmentHandle::Named(named::NamedSegment::create(name, len)?);
                let mut segment = Self::over(source, Store::SharedMemoryFileSystem, len)?;
                segment.committed.get_mut().unwrap_or_else(PoisonError::into_inner).add(0, len);
                describe(segment)
            }
            Backing::File(path) => {
                let (file, existed) = named::open_file(path)?;
                let segment = Self::in_file(file, len).and_then(describe);
                if segment.is_err() && !existed {
                    // Best effort: the error that is being returned matters more.
                    let _ = std::fs::remove_file(path);
                }
                segment
            }
        }
    }

    /// Takes over the descriptor of a segment that a peer created.
    ///
    /// A descriptor of an anonymous segment is refused if it can still be resized.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what does not match: kind, seals, length, or a field of the header
    /// (see [`SegmentHeader::check`]); [`Error::ResourceLimit`]; [`Error::Os`].
    pub fn attach(fd: OwnedFd, backing: AttachAs, expected: &Expected) -> Result<Self> {
        let store = match backing {
            AttachAs::Sealed => Store::Memory,
            AttachAs::Unsealed => Store::File,
        };
        let len = check_descriptor(fd.as_fd(), expected)?;
        if store == Store::Memory {
            check_seals(fd.as_fd())?;
        }
        Self::attach_checked(SegmentHandle::Descriptor(Arc::new(fd)), store, len, expected)
    }

    /// Attaches the named segment `name`.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach); [`Error::Os`] when there is none; [`Error::Layout`] when it
    /// belongs to another user, or when its creator has not published it yet.
    pub fn attach_named(name: &str, expected: &Expected) -> Result<Self> {
        let source = named::NamedSegment::attach(name, expected)?;
        let len = source.mapping().len();
        Self::attach_checked(SegmentHandle::Named(source), Store::SharedMemoryFileSystem, len, expected)
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `false`: a segment has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns its header.
    #[must_use]
    pub fn header(&self) -> &CellRef<SegmentHeader> {
        &self.header
    }

    /// Returns how a peer that is given the descriptor has to attach it.
    #[must_use]
    pub fn attach_as(&self) -> AttachAs {
        match self.store {
            Store::Memory => AttachAs::Sealed,
            Store::SharedMemoryFileSystem | Store::File => AttachAs::Unsealed,
        }
    }

    /// Takes memory (or space in the file) for `len` bytes at `offset`, so that stores there cannot
    /// fail any more.
    ///
    /// Committing what is committed already costs nothing. On an error part of the range may be
    /// committed.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::ResourceLimit`] when there is not enough.
    pub fn commit(&self, offset: u64, len: u64) -> Result<()> {
        let (start, end) = self.pages(offset, len)?;
        let mut committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = committed.missing(start, end);
        limits::check_memory(COMMITTING, self.store, total(&missing))?;
        for (from, to) in missing {
            allocate(self.as_fd(), self.store, from, to - from)?;
            committed.add(from, to);
        }
        Ok(())
    }

    /// Checks that `n_segments` like this one could commit that range, each of them; takes nothing.
    ///
    /// # Errors
    /// Fails as [`commit`](Self::commit) does.
    pub(crate) fn check_room(&self, offset: u64, len: u64, n_segments: u32) -> Result<()> {
        let (start, end) = self.pages(offset, len)?;
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = total(&committed.missing(start, end));
        limits::check_memory(COMMITTING, self.store, missing.saturating_mul(n_segments.into()))
    }

    /// Returns a range rounded outwards to pages; the segment ends at one, so the end stays within.
    fn pages(&self, offset: u64, len: u64) -> Result<Range> {
        if !in_bounds(offset, len, self.len) {
            return Err(Error::OutOfRange { what: "segment", offset, len, limit: self.len });
        }
        let start = offset / PAGE * PAGE;
        Ok((start, if len == 0 { start } else { (offset + len).next_multiple_of(PAGE) }))
    }

    /// Maps the whole segment, wherever the system likes.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] when the address space is limited; [`Error::Os`].
    pub fn map(&self) -> Result<Mapping> {
        match &self.source {
            SegmentHandle::Named(named) => Ok(named.mapping().clone()),
            SegmentHandle::Descriptor(fd) => map(fd, self.len),
        }
    }

    /// Returns its descriptor.
    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        match &self.source {
            SegmentHandle::Descriptor(fd) => fd,
            SegmentHandle::Named(named) => named.descriptor(),
        }
    }

    fn over(source: SegmentHandle, store: Store, len: u64) -> Result<Self> {
        let header = match &source {
            SegmentHandle::Named(named) => named.mapping().cell(0)?,
            SegmentHandle::Descriptor(fd) => map(fd, PAGE)?.cell(0)?,
        };
        Ok(Self { source, store, len, header, committed: Mutex::default() })
    }

    fn attach_checked(source: SegmentHandle, store: Store, len: u64, expected: &Expected) -> Result<Self> {
        let segment = Self::over(source, store, len)?;
        // The length of the file was checked before; here: that the creator meant the same.
        segment.header.check(&Expected { len: Some(len), ..*expected })?;
        Ok(segment)
    }

    /// Makes a segment in an empty file, or takes up the one that a file holds. Changes no other
    /// file.
    fn in_file(file: File, len: u64) -> Result<Self> {
        named::lock_file(&file)?;
        let found = regular_len(file.as_fd())?;
        if found == 0 {
            resize(&file, Store::File, len)?;
        } else {
            check_layout("segment file length", len, found)?;
        }
        // Without a single block it is all zero: a creator died before it wrote anything.
        let stat = fstat(&file).map_err(|errno| Error::os("looking at a descriptor", errno))?;
        let source = SegmentHandle::Descriptor(Arc::new(file.into()));
        let segment = Self::over(source, Store::File, len)?;
        if stat.st_blocks > 0 {
            segment.header.check_fields(&Expected { len: Some(len), identity: None })?;
        }
        Ok(segment)
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().as_fd()
    }
}

/// What kind of descriptor an attaching process accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachAs {
    /// A memfd that cannot be resized.
    #[default]
    Sealed,
    /// A file (or named segment). Its other users are trusted not to truncate it.
    Unsealed,
}

/// Checks a length in bytes that is called `name`.
pub(super) fn check_len(name: &'static str, len: u64) -> Result<()> {
    if len == 0 || len > MAX_LEN || !len.is_multiple_of(PAGE) {
        return Err(Error::invalid(name, len, "a multiple of 4096 bytes, from 4 KiB to 1 TiB"));
    }
    Ok(())
}

/// Makes memory of `len` bytes, sealed at that length. Its `name` shows in `/proc`.
pub(super) fn memfd(name: &CStr, len: u64) -> Result<OwnedFd> {
    let action = "creating an anonymous segment";
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Hardened systems insist on "not executable"; kernels before 6.3 do not know it.
    let no_exec = flags | MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    let fd = match memfd_create(name, no_exec) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        other => other,
    };
    let refused = |errno: Errno| {
        limits::refused_call(action, "the system call memfd_create", errno.into())
            .unwrap_or_else(|source| limits::refused(action, Store::Memory, source))
    };
    let file = File::from(fd.map_err(refused)?);
    resize(&file, Store::Memory, len)?;
    match fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS | SealFlag::F_SEAL_SEAL)) {
        // Where a sandbox refuses it: peers do not resize a segment, and seals only prove that.
        Err(errno) if !limits::is_refusal(errno) => Err(Error::os("sealing an anonymous segment", errno)),
        _ => Ok(file.into()),
    }
}

fn resize(file: &File, store: Store, len: u64) -> Result<()> {
    let action = "setting the length of a segment";
    limits::check_file_size(action, len)?;
    let refused = |source| limits::refused(action, store, source);
    file.set_len(len).map_err(|source| {
        limits::refused_call(action, "the system call ftruncate", source).unwrap_or_else(refused)
    })
}

fn total(ranges: &[Range]) -> u64 {
    ranges.iter().map(|(from, to)| to - from).sum()
}

/// Reserves pages, on file systems without `fallocate` and under those who refuse it as well. Stops
/// for no signal.
pub(super) fn allocate(fd: BorrowedFd<'_>, store: Store, offset: u64, len: u64) -> Result<()> {
    limits::check_file_size(COMMITTING, offset + len)?;
    let mut at = offset;
    while at < offset + len {
        let step = COMMIT_STEP.min(offset + len - at);
        let (from, bytes) = (at.cast_signed(), step.cast_signed());
        match fallocate(fd, FallocateFlags::empty(), from, bytes) {
            Ok(()) => at += step,
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EPERM) => {
                write_anew(fd, at, step).map_err(|source| limits::refused(COMMITTING, store, source))?;
                at += step;
            }
            Err(errno) => return Err(limits::refused(COMMITTING, store, errno)),
        }
    }
    Ok(())
}

/// Writes what is there once more, and so has the system find pages for it. Nobody else writes
/// there: what is not committed yet was not handed out.
fn write_anew(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let file = File::from(fd.try_clone_to_owned()?);
    let mut bytes = vec![0; to_usize(len.min(REWRITE_STEP))];
    for at in (offset..offset + len).step_by(bytes.len()) {
        let piece = &mut bytes[..to_usize((offset + len - at).min(REWRITE_STEP))];
        file.read_exact_at(piece, at)?;
        file.write_all_at(piece, at)?;
    }
    Ok(())
}

/// Maps the first `len` bytes of `fd`, which the caller knows to be that long.
pub(super) fn map(fd: &Arc<OwnedFd>, len: u64) -> Result<Mapping> {
    use std::os::fd::AsRawFd;
    Mapping::of_mmap(fd, || MmapOptions::new().len(to_usize(len)).map_raw(fd.as_raw_fd()))
        .map_err(|source| limits::refused_mapping("mapping a segment", source))
}

/// Returns the length of a regular file.
pub(super) fn regular_len(fd: BorrowedFd<'_>) -> Result<u64> {
    let stat = fstat(fd).map_err(|errno| Error::os("looking at a descriptor", errno))?;
    let kind = stat.st_mode & SFlag::S_IFMT.bits();
    check_layout("kind of file", SFlag::S_IFREG.bits().into(), kind.into())?;
    Ok(stat.st_size.cast_unsigned())
}

/// Checks that `fd` can be mapped and is as long as `expected`; tells its length.
pub(super) fn check_descriptor(fd: BorrowedFd<'_>, expected: &Expected) -> Result<u64> {
    let len = regular_len(fd)?;
    check_layout("segment length", expected.len.unwrap_or(len), len)?;
    if len == 0 || len > MAX_LEN || !len.is_multiple_of(PAGE) {
        let expected = expected.len.unwrap_or(PAGE);
        return Err(Error::Layout { what: "segment length", expected, found: len });
    }
    let looking = "looking at a descriptor";
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|errno| {
        limits::refused_call(looking, "the system call fcntl", errno.into())
            .unwrap_or_else(|source| Error::os(looking, source))
    })?;
    let wide = |mode: OFlag| u64::from(mode.bits().cast_unsigned());
    let mode = OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE;
    check_layout("access mode of a segment", wide(OFlag::O_RDWR), wide(mode))?;
    Ok(len)
}

/// Returns whether a sandbox keeps this process, and so its peers, from sealing what could be.
fn may_not_seal(fd: BorrowedFd<'_>, found: SealFlag) -> bool {
    let nothing = fcntl(fd, FcntlArg::F_ADD_SEALS(SealFlag::empty()));
    !found.contains(SealFlag::F_SEAL_SEAL) && nothing.is_err_and(limits::is_refusal)
}

/// Checks that nobody can resize the memory behind `fd`, or keep this process from writing to it.
pub(super) fn check_seals(fd: BorrowedFd<'_>) -> Result<()> {
    // A descriptor that cannot be sealed at all answers EINVAL: no seals.
    let found = match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(bits) => SealFlag::from_bits_retain(bits),
        Err(Errno::EINVAL) => SealFlag::empty(),
        Err(errno) if limits::is_refusal(errno) => return Ok(()),
        Err(errno) => return Err(Error::os("reading the seals of a segment", errno)),
    };
    let wide = |seals: SealFlag| u64::from(seals.bits().cast_unsigned());
    if !found.contains(SEALS) && !may_not_seal(fd, found) {
        return Err(Error::Layout { what: "seals of a segment", expected: wide(SEALS), found: wide(found) });
    }
    // Sealed against writing, a store would fault.
    let unwanted =
        found.intersection(SealFlag::F_SEAL_WRITE | SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE));
    check_layout("write seals of a segment", 0, wide(unwanted))
}

#[cfg(test)]
mod tests;
