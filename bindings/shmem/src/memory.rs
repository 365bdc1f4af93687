//! Memory that all ranks allocate and free together.

use std::ffi::{c_long, c_void};

use shmccl::Error;

use crate::fail::{fatal, note, or_fatal};
use crate::sync;
use crate::world::world;

/// The alignment of memory that asks for none: a pair of cache lines.
const ALIGNMENT: usize = 128;

/// The largest alignment: that of the heaps themselves.
const LARGEST_ALIGNMENT: usize = 2 << 20;

pub(crate) fn malloc(size: usize) -> *mut c_void {
    allocate("shmem_malloc", size, ALIGNMENT)
}

pub(crate) fn malloc_with_hints(size: usize, _hints: c_long) -> *mut c_void {
    allocate("shmem_malloc_with_hints", size, ALIGNMENT)
}

pub(crate) fn align(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() || alignment > LARGEST_ALIGNMENT {
        note(format_args!("shmem_align: an alignment of {alignment}, expected a power of two up to 2 MiB"));
        return std::ptr::null_mut();
    }
    allocate("shmem_align", size, alignment.max(ALIGNMENT))
}

pub(crate) fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(len) = count.checked_mul(size) else { return std::ptr::null_mut() };
    let address = allocate("shmem_calloc", len, ALIGNMENT);
    if !address.is_null() {
        // SAFETY: as many bytes were allocated, and no rank uses them before all have come here.
        unsafe { address.cast::<u8>().write_bytes(0, len) };
        sync::barrier_all();
    }
    address
}

/// # Safety
/// No rank uses `old` any more.
pub(crate) unsafe fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        return allocate("shmem_realloc", size, ALIGNMENT);
    }
    if size == 0 {
        free(old);
        return std::ptr::null_mut();
    }
    let Some(region) = world().allocations.get(old.addr()) else { unknown("shmem_realloc", old) };
    let new = allocate("shmem_realloc", size, ALIGNMENT);
    if !new.is_null() {
        let kept = usize::try_from(region.len).map_or(size, |len| len.min(size));
        // SAFETY: both have as many bytes, and are different allocations.
        unsafe { std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), kept) };
        free(old);
    }
    new
}

pub(crate) fn free(address: *mut c_void) {
    if address.is_null() {
        return;
    }
    let world = world();
    let Some(region) = world.allocations.remove(address.addr()) else { unknown("shmem_free", address) };
    or_fatal(world.with(|comm| comm.free_region(region)), "shmem_free");
}

/// Frees what the program has not freed, in the same order on all ranks.
pub(crate) fn free_all() {
    let world = world();
    for region in world.allocations.take_all() {
        or_fatal(world.with(|comm| comm.free_region(region)), "shmem_finalize");
    }
}

fn unknown(call: &str, address: *mut c_void) -> ! {
    fatal(format_args!("{call}: {address:p} was not allocated, or is free already"))
}

/// Allocates on all ranks, or returns NULL on all.
fn allocate(call: &str, size: usize, alignment: usize) -> *mut c_void {
    if size == 0 {
        return std::ptr::null_mut();
    }
    let world = world();
    match world.with(|comm| comm.alloc_region(size as u64, alignment as u64)) {
        Ok(region) => {
            let address = world.address(region);
            world.allocations.insert(address, region);
            std::ptr::with_exposed_provenance_mut(address)
        }
        Err(
            error @ (Error::OutOfMemory { .. } | Error::ResourceLimit { .. } | Error::FailedElsewhere { .. }),
        ) => {
            note(format_args!("{call}: {error}"));
            std::ptr::null_mut()
        }
        Err(error) => fatal(format_args!("{call}: {error}")),
    }
}
