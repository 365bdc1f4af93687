//! Collectives of old, over an active set: ranks whose distance is a power of two. Their words are
//! those of `pSync`, an array of the program, which are zero between calls.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{self, Ordering};

use crate::collectives::TeamOperands;
use crate::control::ROUNDS;
use crate::fail::fatal;
use crate::reduce::PairOperator;
use crate::sync::{StridedRanks, TeamGroup};
use crate::world::world;

/// Longs of an array `pSync`, as the header has it.
const SYNC_SIZE: usize = 16;

const _: () = assert!(ROUNDS < SYNC_SIZE && size_of::<c_long>() == 8, "its words are those of a group");

/// Returns the group of an active set.
fn group(start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long) -> TeamGroup {
    let world = world();
    let wrong = || -> ! {
        fatal(format_args!(
            "no active set: PE_start {start}, logPE_stride {log_stride}, PE_size {size} of {} PEs",
            world.n
        ))
    };
    let (Ok(count), Ok(log_stride)) = (usize::try_from(size), u32::try_from(log_stride)) else { wrong() };
    // Numbers of PEs are of this type, so a longer stride leads to none.
    let Some(stride) = 1_i32.checked_shl(log_stride).filter(|stride| *stride > 0) else { wrong() };
    let stride = stride as isize;
    let ranks = StridedRanks { start: start as isize, stride, size: count };
    let is_whole = count > 0 && start >= 0 && count <= world.n && ranks.member(count - 1) < world.n;
    let me = if is_whole { ranks.index_of(world.me) } else { None };
    let Some(me) = me else { wrong() };
    TeamGroup { ranks, me, words: sync.cast_const().cast() }
}

pub(crate) fn sync(start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long) {
    group(start, log_stride, size, sync).sync("shmem_sync");
}

pub(crate) fn barrier(start: c_int, log_stride: c_int, size: c_int, sync: *mut c_long) {
    atomic::fence(Ordering::SeqCst);
    group(start, log_stride, size, sync).sync("shmem_barrier");
}

/// # Safety
/// All members have the elements at both ends.
pub(crate) unsafe fn broadcast<T: Copy>(
    dest: *mut T,
    source: *const T,
    count: usize,
    root: c_int,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    sync: *mut c_long,
) {
    let group = group(start, log_stride, size, sync);
    let root = usize::try_from(root).ok().filter(|root| *root < group.ranks.size);
    let Some(root) = root else { fatal("shmem_broadcast: PE_root is not in the active set") };
    // SAFETY: the caller's duties are the same.
    unsafe { group.broadcast(TeamOperands::new(dest, source, count), root, false) };
}

/// # Safety
/// As for [`broadcast`]; `dest` has room for all.
pub(crate) unsafe fn collect<T: Copy>(
    dest: *mut T,
    source: *const T,
    count: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    sync: *mut c_long,
) {
    // SAFETY: the caller's duties are the same.
    unsafe { group(start, log_stride, size, sync).collect(TeamOperands::new(dest, source, count)) };
}

/// # Safety
/// As for [`collect`].
pub(crate) unsafe fn fcollect<T: Copy>(
    dest: *mut T,
    source: *const T,
    count: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    sync: *mut c_long,
) {
    // SAFETY: the caller's duties are the same.
    unsafe { group(start, log_stride, size, sync).fcollect(TeamOperands::new(dest, source, count)) };
}

/// # Safety
/// As for [`collect`], at both ends.
pub(crate) unsafe fn alltoall<T: Copy>(
    dest: *mut T,
    source: *const T,
    count: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    sync: *mut c_long,
) {
    // SAFETY: the caller's duties are the same.
    unsafe { alltoalls(dest, source, 1, 1, count, start, log_stride, size, sync) };
}

/// # Safety
/// As for [`alltoall`], with the strides.
pub(crate) unsafe fn alltoalls<T: Copy>(
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    count: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    sync: *mut c_long,
) {
    let group = group(start, log_stride, size, sync);
    // SAFETY: the caller's duties are the same.
    unsafe { group.alltoalls(TeamOperands::new(dest, source, count), dst, sst) };
}

/// # Safety
/// All members have the elements at both ends, which are the same or apart.
pub(crate) unsafe fn reduce<O: PairOperator<T>, T: Copy>(
    dest: *mut T,
    source: *const T,
    count: c_int,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    _work: *mut T,
    sync: *mut c_long,
) {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's duties are the same.
    unsafe { group(start, log_stride, size, sync).reduce::<O, T>(TeamOperands::new(dest, source, count)) };
}
