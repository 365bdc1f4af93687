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
//! Static objects of the program, which `shmccl-image` has mapped over, are copied by its handlers.
//! What this library has of its own may be among them. So these are set up first: the copy is made
//! when all locks of a fork are held, and is in place before the handler here.
//!
//! The copy is a [`ChildCopy`], made before the fork. Only what has pages is copied. Where there is
//! no memory for it, the child has none of what was lent, and ends by SIGSEGV if it touches that.
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

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, Once, PoisonError, RwLockWriteGuard, Weak};

use shmccl_image::ChildCopy;
use shmccl_image::private::{Access, map_private, pages_of};

use super::copy::{self, StorePurpose};
use super::limits::{self, Store};
use super::ranges::{Range, Ranges};
use super::undivided::keep_all_outside;
use super::unforked::close_in_child;
use super::{PAGE, to_usize};
use crate::error::{Error, Result};
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// How many forks have led to this process since it first mapped something.
static FORKS: AtomicU64 = AtomicU64::new(0);

static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());

/// The locks of the thread that is in a fork.
static HELD: HeldAcrossFork = HeldAcrossFork(UnsafeCell::new(None));

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
    /// What the next child takes over.
    copy: ChildCopy,
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
        shmccl_image::handle_forks();
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
        Self { mappings: BTreeMap::new(), copy: ChildCopy::new() }
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

    /// Copies all that is lent and has pages.
    fn copy_lent(&mut self) {
        let pieces_of = |(base, mapping): (&u64, &SharedMapping)| {
            let base = *base;
            mapping.data().into_iter().map(move |(from, to)| (base + from, to - from))
        };
        self.copy.plan(self.mappings.iter().flat_map(pieces_of), has_room);
        for piece in self.copy.pieces() {
            // SAFETY: the source is mapped, since whoever unmaps takes the lock that this thread
            // has. The target was made just above. Payload may change meanwhile, as the trust
            // model says.
            unsafe {
                copy::copy(piece.from.as_ptr(), piece.to.as_ptr(), to_usize(piece.len), StorePurpose::Get)
            };
        }
    }

    /// Puts private memory in the place of every mapping.
    fn make_private(&mut self) {
        for (base, mapping) in &self.mappings {
            mapping.replace(*base, self.copy.is_short());
        }
        // SAFETY: these are places that `replace` has just filled, where nothing but views of the
        // program looks.
        unsafe { self.copy.move_to_its_place() };
        // They are this process's own from now on, and a fork of it copies them as it should.
        std::mem::forget(std::mem::take(&mut self.mappings));
    }
}

impl SharedMapping {
    /// Returns what is lent and has pages, by offset.
    fn data(&self) -> Vec<Range> {
        let Some(descriptor) = self.descriptor.upgrade() else { return self.lent.iter().collect() };
        self.lent.iter().flat_map(|(start, end)| pages_of(&descriptor, start, end)).collect()
    }

    /// Puts private memory in its place at `base`: zero, or none where there `is_no` memory for
    /// what was lent of it.
    fn replace(&self, base: u64, is_no: bool) {
        // SAFETY: nothing of this process uses the addresses but what was mapped there before the
        // fork: this takes only what is free, or is that mapping.
        let map = |access| unsafe { map_private(base, self.len, access, self.is_inherited) };
        let is_none = is_no && self.lent.iter().next().is_some();
        let wanted = if is_none { Access::None } else { Access::Whole };
        // Where the system counts strictly, it may not grant addresses that nothing uses.
        let _ = map(wanted).or_else(|| map(Access::None));
    }
}

/// Returns whether the machine and the control group have memory for a copy of so many bytes.
pub(super) fn has_room(total: u64) -> bool {
    limits::check_memory("copying shared memory for a child", Store::Memory, total).is_ok()
}

extern "C" fn before_fork() {
    let steps = keep_all_outside();
    let mut registry = lock();
    registry.copy_lent();
    // SAFETY: this thread has the registry's lock, so no other one looks.
    unsafe { *HELD.0.get() = Some(ForkLocks { registry, _steps: steps }) };
}

extern "C" fn in_parent() {
    // SAFETY: this thread has had the lock since `before_fork`.
    let held = unsafe { (*HELD.0.get()).take() };
    if let Some(mut held) = held {
        held.registry.copy.release();
    }
}

extern "C" fn in_child() {
    // SAFETY: as in `in_parent`; there is no other thread.
    let held = unsafe { (*HELD.0.get()).take() };
    plain::add(&FORKS, 1);
    if let Some(mut held) = held {
        held.registry.make_private();
    }
    close_in_child();
}
