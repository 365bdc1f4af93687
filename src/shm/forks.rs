//! What a child of a fork has of shared memory: a copy of its own, as it has of ordinary memory.
//!
//! Shared memory stays shared across a fork, and a private mapping of the same file would show what
//! others write later. So no mapping reaches a child as it is (`MADV_DONTFORK`). Handlers of
//! `pthread_atfork` put something else in its place:
//!
//! | bytes | in the child |
//! |---|---|
//! | lent to the program, by any rank's heap or a device | what they held at the fork |
//! | all others | zero |
//!
//! Static objects of the program (`statics`) stay mapped until the handler in the child puts their
//! copy over them. What this library has of its own may be among them. So the handler reads nothing
//! but what the thread that forks has noted for itself before: where the copy is.
//!
//! The copy is made before the fork, in memory that the parent has for that moment and the child
//! takes over. So the two do not talk to each other, and neither waits for the other. Only what has
//! pages is copied. Where there is no memory for it, the child has none of what was lent, and ends
//! by SIGSEGV if it touches that.
//!
//! # What the copy holds
//! All that happens before the fork, for the thread that forks. Bytes that other threads or peers
//! write meanwhile are old or new, each by itself, as they would be of ordinary memory. It is
//! ordinary memory of the child, also in a core dump.
//!
//! # Locks
//! No thread is amid an [undivided](super::undivided) step, such as starting a thread. The registry
//! is locked from before the fork until after it, in parent and child, and whenever a mapping comes
//! or goes. So no fork finds a mapping that the registry does not know. Whoever holds
//! the lock maps and unmaps, and takes no other lock. The handler in the child allocates nothing
//! and frees nothing: it makes system calls on what was written down before.
//!
//! # Sockets
//! Those that wait for others are the parent's alone (`unforked.rs`).
//!
//! # Other ways to a child
//! `_Fork` and a bare `clone` call no handlers. Such a child has addresses without memory there: it
//! does not share, and it must neither touch nor drop what is left. `vfork` and `posix_spawn`
//! borrow all memory until they execute a program, and cost nothing here.
#![allow(unsafe_code, reason = "system calls that exchange the memory behind addresses")]

use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLockWriteGuard, Weak};

use nix::errno::Errno;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use nix::unistd::{Whence, lseek};

use super::copy::{self, StorePurpose};
use super::limits::{self, Store};
use super::ranges::{Range, Ranges};
use super::undivided::keep_all_outside;
use super::unforked::close_in_child;
use super::{PAGE, to_usize};
use crate::error::{Error, Result};
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// Holes of a mapping up to this length are copied with what is around them: each piece costs the
/// child a system call, and a process has some 65,000 of them.
const SHORT_HOLE: u64 = 64 << 10;

/// How many forks have led to this process since it first mapped something.
static FORKS: AtomicU64 = AtomicU64::new(0);

static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());

/// The locks of the thread that is in a fork.
static HELD: HeldAcrossFork = HeldAcrossFork(UnsafeCell::new(None));

thread_local! {
    /// What the child of this thread's fork does before anything else.
    static IN_PLACE: Cell<Option<ReplacementInPlace>> = const { Cell::new(None) };
}

struct HeldAcrossFork(UnsafeCell<Option<ForkLocks>>);

/// What a fork holds, in the order in which it lets go.
struct ForkLocks {
    registry: MutexGuard<'static, Registry>,
    _steps: Option<RwLockWriteGuard<'static, ()>>,
}

// SAFETY: only the thread that has the lock touches it, between `before_fork` and the end of that
// fork; and in the child that thread's copy, which is the only thread.
unsafe impl Sync for HeldAcrossFork {}

/// All mappings of this process with memory behind them that others share.
#[derive(Debug)]
pub(super) struct Registry {
    /// The mappings by their first address.
    mappings: BTreeMap<u64, SharedMapping>,
    /// The static objects among them, by their first address.
    in_place: Option<u64>,
    /// Where each copied piece lies in `copy`, and where it belongs.
    pieces: Vec<Piece>,
    /// The same of the static objects.
    pieces_in_place: Vec<Piece>,
    /// What the next child takes over: address and length.
    copy: Option<(u64, u64)>,
    /// There is no memory for a copy.
    is_short: bool,
}

#[derive(Debug)]
struct SharedMapping {
    len: u64,
    /// What is mapped, from its first byte on; while somebody has it open.
    descriptor: Weak<OwnedFd>,
    /// The system does not leave it out of children.
    is_inherited: bool,
    /// What the program has of it, in whole pages, by offset.
    lent: Ranges,
}

/// A piece of memory that a child has a copy of.
#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    copy: u64,
    len: u64,
}

/// How a child replaces what is mapped in `from..to` by its copy.
#[derive(Clone, Copy, Debug)]
struct ReplacementInPlace {
    from: u64,
    to: u64,
    pieces: &'static [Piece],
    /// There is no memory for a copy.
    is_short: bool,
}

/// What an operation lacks in a child that a rank has forked.
pub(crate) const NEEDS_RANK: &str =
    "the process that is the rank, and not a child that it has forked: start that with spawn";

/// The process that has become a rank, and not a child that it has forked.
#[derive(Clone, Copy, Debug)]
pub struct RankProcess {
    forks: u64,
}

impl RankProcess {
    /// Returns this process.
    #[must_use]
    pub fn this() -> Self {
        Self { forks: count() }
    }

    /// Refuses `operation` in a child of the process. It looks at one word, and needs no lock that
    /// another thread may have had at the fork.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    #[inline]
    pub fn check(self, operation: &'static str) -> Result<()> {
        let is_rank = self.forks == count();
        if is_rank { Ok(()) } else { Err(Error::Unavailable { operation, needs: NEEDS_RANK }) }
    }
}

/// Returns how many forks have led to this process since it first mapped something. It has changed
/// in a child of a fork.
#[inline]
pub(crate) fn count() -> u64 {
    plain::load(&FORKS)
}

/// Keeps this process from forking while it is held, and takes note of what is mapped.
pub(super) fn hold() -> MutexGuard<'static, Registry> {
    handle();
    lock()
}

/// Has the handlers called at each fork from now on.
pub(super) fn handle() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the three functions stay where they are: code of this library is not unloaded,
        // and if it were, the C library would forget them with it.
        let refused = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        // Out of memory at the very start. Children have no shared memory then.
        let _ = refused;
    });
}

fn lock() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has children of a fork find in the `len` bytes at `address` what they hold then. The program has
/// them from now on.
pub(super) fn lend(address: u64, len: u64) {
    lock().change(address, len, |mapping, start, end| {
        let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE));
        if !mapping.lent.has(start, end) {
            mapping.lent.add(start, end);
        }
    });
}

/// Takes a [`lend`] back: the program has the bytes no more. What it has in the same pages stays.
pub(super) fn take_back(address: u64, len: u64) {
    lock().change(address, len, |mapping, start, end| {
        mapping.lent.remove(start.next_multiple_of(PAGE), end / PAGE * PAGE);
    });
}

/// Forgets what is mapped in the `len` bytes at `address`, which are about to be unmapped.
pub(super) fn forget(address: u64, len: u64) {
    let mut registry = lock();
    while let Some((&at, _)) = registry.mappings.range(address..address + len).next() {
        registry.mappings.remove(&at);
    }
}

impl Registry {
    const fn new() -> Self {
        Self {
            mappings: BTreeMap::new(),
            in_place: None,
            pieces: Vec::new(),
            pieces_in_place: Vec::new(),
            copy: None,
            is_short: false,
        }
    }

    /// Takes note that the static objects of the program, `len` bytes at `base`, are now what
    /// `descriptor` has open. The program has all of them.
    pub(super) fn add_in_place(&mut self, base: NonNull<u8>, len: u64, descriptor: Weak<OwnedFd>) {
        self.add(base, to_usize(len), true, descriptor);
        let base = base.as_ptr().addr() as u64;
        self.change(base, len, |mapping, start, end| mapping.lent.add(start, end));
        self.in_place = Some(base);
    }

    /// Takes note that `len` bytes of what `descriptor` has open, from its first one on, have just
    /// been mapped at `base`. It `is_inherited` where the system does not leave it out of children.
    pub(super) fn add(
        &mut self,
        base: NonNull<u8>,
        len: usize,
        is_inherited: bool,
        descriptor: Weak<OwnedFd>,
    ) {
        let (base, len) = (base.as_ptr().expose_provenance() as u64, len as u64);
        self.mappings.insert(base, SharedMapping { len, descriptor, is_inherited, lent: Ranges::new() });
    }

    /// Calls `change` with the mapping that has `address`, if one has, and with the offsets where
    /// the `len` bytes begin and end.
    fn change(&mut self, address: u64, len: u64, change: impl FnOnce(&mut SharedMapping, u64, u64)) {
        let Some((base, mapping)) = self.mappings.range_mut(..=address).next_back() else { return };
        let start = address - base;
        if len > 0 && start < mapping.len {
            let end = (start + len).min(mapping.len);
            change(mapping, start, end);
        }
    }

    /// Finds what is lent and has pages, and room for a copy of it.
    fn plan_copy(&mut self) {
        self.pieces.clear();
        self.pieces_in_place.clear();
        let mut total = 0;
        for (base, mapping) in &self.mappings {
            let is_in_place = self.in_place == Some(*base);
            let pieces = if is_in_place { &mut self.pieces_in_place } else { &mut self.pieces };
            for (from, to) in mapping.data() {
                pieces.push(Piece { address: base + from, copy: total, len: to - from });
                total += to - from;
            }
        }
        let copy = if total > 0 { room_for(total) } else { None };
        self.is_short = total > 0 && copy.is_none();
        self.copy = copy.map(|copy| (copy, total));
        let all = self.pieces.iter_mut().chain(&mut self.pieces_in_place);
        all.for_each(|piece| piece.copy += copy.unwrap_or(0));
    }

    /// Copies what was planned, the static objects last. Returns how the child replaces these. It
    /// changes nothing, since what it would change may be among them.
    fn copy_lent(&self) -> Option<ReplacementInPlace> {
        for piece in self.copy.iter().flat_map(|_| &self.pieces) {
            let (from, to) = (pointer(piece.address), pointer(piece.copy));
            // SAFETY: the source is mapped, since whoever unmaps takes the lock that this thread
            // has. The target was made just above. Payload may change meanwhile, as the trust
            // model says.
            unsafe { copy::copy(from.as_ptr(), to.as_ptr(), to_usize(piece.len), StorePurpose::Get) };
        }
        let from = self.in_place?;
        let mapping = &self.mappings[&from];
        let descriptor = mapping.descriptor.upgrade()?;
        let is_whole = |piece: &Piece| piece.read_from(&descriptor, piece.address - from);
        let is_short = self.is_short || !self.pieces_in_place.iter().all(is_whole);
        // SAFETY: the pieces stay where they are until the next fork, which comes after the end of
        // this one.
        let pieces = unsafe { &*std::ptr::from_ref(&*self.pieces_in_place) };
        Some(ReplacementInPlace { from, to: from + mapping.len, pieces, is_short })
    }

    /// Gives the parent's copy back.
    fn drop_copy(&mut self) {
        if let Some((copy, len)) = self.copy.take() {
            // SAFETY: made in `copy_lent`, and used by nothing but this registry.
            let _ = unsafe { munmap(pointer(copy).cast(), to_usize(len)) };
        }
    }

    /// Puts private memory in the place of every mapping, but for the static objects, which are
    /// private by now.
    fn make_private(&mut self) {
        let in_place = self.in_place.take();
        for (base, mapping) in self.mappings.iter().filter(|(base, _)| in_place != Some(**base)) {
            mapping.replace(*base, self.is_short);
        }
        if self.copy.take().is_some() {
            self.pieces.iter().for_each(|piece| piece.move_to_its_place());
        }
        // They are this process's own from now on, and a fork of it copies them as it should.
        std::mem::forget(std::mem::take(&mut self.mappings));
    }
}

impl SharedMapping {
    /// Returns what is lent and has pages, by offset.
    fn data(&self) -> Vec<Range> {
        let Some(descriptor) = self.descriptor.upgrade() else { return self.lent.iter().collect() };
        let mut data: Vec<Range> = Vec::new();
        for (start, end) in self.lent.iter() {
            let first = data.len();
            let mut at = start;
            while let Some((from, to)) = next_data(&descriptor, at, end) {
                match data.get_mut(first..).and_then(<[Range]>::last_mut) {
                    Some(last) if from - last.1 <= SHORT_HOLE => last.1 = to,
                    _ => data.push((from, to)),
                }
                at = to;
            }
        }
        data
    }

    /// Puts private memory in its place at `base`: zero, or none where there `is_no` memory for
    /// what was lent of it.
    fn replace(&self, base: u64, is_no: bool) {
        let place = if self.is_inherited { MapFlags::MAP_FIXED } else { MapFlags::MAP_FIXED_NOREPLACE };
        // SAFETY: nothing of this process uses the addresses but what was mapped there before the
        // fork: this takes only what is free, or is that mapping.
        let map = |access| unsafe { map_private(base, self.len, access, place) };
        let is_none = is_no && self.lent.iter().next().is_some();
        let whole = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let wanted = if is_none { ProtFlags::PROT_NONE } else { whole };
        // Where the system counts strictly, it may not grant addresses that nothing uses.
        let _ = map(wanted).or_else(|| map(ProtFlags::PROT_NONE));
    }
}

impl Piece {
    /// Moves the copy to where the program looks for it.
    fn move_to_its_place(&self) {
        let len = to_usize(self.len);
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        let (copy, place) = (pointer(self.copy).cast(), pointer(self.address).cast());
        // SAFETY: the copy was made before the fork, for this process. Its place is one that
        // `replace` has just filled, where nothing but views of the program looks.
        if unsafe { mremap(copy, len, len, flags, Some(place)) }.is_err() {
            // SAFETY: as above. Rather no memory than zeros.
            let _ = unsafe { map_private(self.address, self.len, ProtFlags::PROT_NONE, MapFlags::MAP_FIXED) };
        }
    }

    /// Reads the piece into its copy from `offset` of the file that is mapped in its place, and
    /// returns whether there was all of it. It asks the system itself: sanitizers find gaps between
    /// objects when somebody reads all of them.
    fn read_from(&self, file: &OwnedFd, offset: u64) -> bool {
        let mut done = 0;
        while done < self.len {
            let (target, left) = (self.copy + done, self.len - done);
            // SAFETY: the system writes to the copy, which `room_for` has made for this piece.
            let read =
                unsafe { libc::syscall(libc::SYS_pread64, file.as_raw_fd(), target, left, offset + done) };
            match u64::try_from(read) {
                Ok(read @ 1..) => done += read,
                _ => return false,
            }
        }
        true
    }
}

impl ReplacementInPlace {
    /// Moves the copy over what is mapped, piece by piece, and maps zeros in between. What this
    /// needs to run is in one place or the other at any time.
    fn make(self) {
        let whole = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let (access, pieces) =
            if self.is_short { (ProtFlags::PROT_NONE, &[][..]) } else { (whole, self.pieces) };
        let mut at = self.from;
        for piece in pieces {
            // SAFETY: there were no pages between the pieces: what was there reads as zero.
            let _ = unsafe { map_private(at, piece.address - at, access, MapFlags::MAP_FIXED) };
            piece.move_to_its_place();
            at = piece.address + piece.len;
        }
        // SAFETY: as above; or there is no memory for what was there.
        let _ = unsafe { map_private(at, self.to - at, access, MapFlags::MAP_FIXED) };
    }
}

/// Maps memory of this process's own at `address`, in that `place`. No bytes are nothing.
///
/// # Safety
/// Nothing uses what the call takes away, or else finds the same there.
unsafe fn map_private(address: u64, len: u64, access: ProtFlags, place: MapFlags) -> Option<()> {
    let (at, len) = (NonZeroUsize::new(to_usize(address)), NonZeroUsize::new(to_usize(len))?);
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | place;
    // SAFETY: the caller answers for the addresses.
    unsafe { mmap_anonymous(at, len, access, flags) }.ok().map(drop)
}

/// Takes `total` bytes of this process's own, if the machine and the control group have so many.
fn room_for(total: u64) -> Option<u64> {
    limits::check_memory("copying shared memory for a child", Store::Memory, total).ok()?;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let len = NonZeroUsize::new(to_usize(total))?;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
    // SAFETY: the system chooses addresses where nothing is mapped.
    let base = unsafe { mmap_anonymous(None, len, access, flags) }.ok()?;
    Some(base.as_ptr().expose_provenance() as u64)
}

/// Finds the next pages of a file from `at` on, and before `end`. All of it, where the file system
/// does not tell.
fn next_data(file: &OwnedFd, at: u64, end: u64) -> Option<Range> {
    let seek = |from: u64, whence| lseek(file.as_fd(), from.cast_signed(), whence).map(i64::cast_unsigned);
    if at >= end {
        return None;
    }
    match seek(at, Whence::SeekData) {
        Err(Errno::ENXIO) => None,
        Err(_) => Some((at, end)),
        Ok(from) if from >= end => None,
        Ok(from) => {
            let to = seek(from, Whence::SeekHole).unwrap_or(end).next_multiple_of(PAGE);
            Some((from / PAGE * PAGE, to.min(end)))
        }
    }
}

fn pointer(address: u64) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(to_usize(address))).expect("nothing is mapped at null")
}

extern "C" fn before_fork() {
    let steps = keep_all_outside();
    let mut registry = lock();
    registry.plan_copy();
    // SAFETY: this thread has the registry's lock, so no other one looks.
    let held = unsafe { (*HELD.0.get()).insert(ForkLocks { registry, _steps: steps }) };
    // The copy of static objects may have all of this as the child needs it: these locks are held.
    IN_PLACE.set(held.registry.copy_lent());
}

extern "C" fn in_parent() {
    IN_PLACE.set(None);
    // SAFETY: this thread has had the lock since `before_fork`.
    let held = unsafe { (*HELD.0.get()).take() };
    if let Some(mut held) = held {
        held.registry.drop_copy();
    }
}

extern "C" fn in_child() {
    // Until then, objects of this library may be its parent's.
    IN_PLACE.take().into_iter().for_each(ReplacementInPlace::make);
    // SAFETY: as in `in_parent`; there is no other thread.
    let held = unsafe { (*HELD.0.get()).take() };
    plain::add(&FORKS, 1);
    if let Some(mut held) = held {
        held.registry.make_private();
    }
    close_in_child();
}
