//! Memory of the heap that one rank allocates alone, and the way to that of other ranks.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use shmccl::ArenaBuffer;
use shmccl::heap::{HeapOffset, Region};
use shmccl::shm::undivided::ForkMutex;

use crate::answer::answer;
use crate::arguments::required;
use crate::comm_state::CommState;
use crate::failure::Failure;
use crate::types::{shmcclComm_t, shmcclResult_t};

/// What is allocated, by address.
static ALLOCATED: ForkMutex<BTreeMap<usize, ArenaBuffer<u8>>> = ForkMutex::new(BTreeMap::new());

/// Allocates `size` bytes of this rank's heap, aligned to 64 bytes at least. Other ranks are not
/// concerned. Calls move heap memory without staging it, and windows consist of it. Every function
/// recognises it by its address. Zero bytes are NULL.
///
/// `shmcclOutOfMemory`: the heap is full; ordinary memory serves as well, but slower.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclMemAlloc(
    comm: shmcclComm_t,
    ptr: Option<&mut *mut c_void>,
    size: usize,
) -> shmcclResult_t {
    answer(|| {
        let (state, ptr) = (CommState::get(comm)?, required(ptr, "ptr")?);
        *ptr = std::ptr::null_mut();
        if size > 0 {
            let buffer = state.arena.alloc::<u8>(size)?;
            let start = buffer.span().start().as_ptr();
            ALLOCATED.with(|allocated| allocated.insert(start.addr(), buffer));
            *ptr = start.cast();
        }
        Ok(())
    })
}

/// Frees what `shmcclMemAlloc` has returned, from any thread, also when the communicator was
/// destroyed. NULL is legal. No rank may use the memory any more.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclMemFree(ptr: *mut c_void) -> shmcclResult_t {
    answer(|| {
        if ptr.is_null() {
            return Ok(());
        }
        let freed = ALLOCATED.with(|allocated| allocated.remove(&ptr.addr()));
        let text = format!("ptr is {ptr:p}, expected what shmcclMemAlloc has returned and nobody has freed");
        freed.map(drop).ok_or_else(|| Failure::argument(text))
    })
}

/// Stores which rank's heap holds `size` bytes at `ptr`, and where; -1 for ordinary memory and for
/// heaps of other jobs. The heap of a rank is mapped by all ranks of its job.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclMemLocate(
    comm: shmcclComm_t,
    ptr: *const c_void,
    size: usize,
    rank: Option<&mut c_int>,
    offset: Option<&mut u64>,
) -> shmcclResult_t {
    answer(|| {
        let (rank, offset) = (required(rank, "rank")?, required(offset, "offset")?);
        let place = CommState::get(comm)?.place_of(ptr.addr(), size as u64);
        (*rank, *offset) = place.map_or((-1, 0), |(rank, region)| (rank, region.offset.get()));
        Ok(())
    })
}

/// Stores the address, in this process, of `size` bytes at `offset` of the heap of `rank`. They can
/// be read and written there as long as a communicator of the job is not destroyed. Nothing orders
/// such accesses but calls and signals.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclMemAddress(
    comm: shmcclComm_t,
    rank: c_int,
    offset: u64,
    size: usize,
    ptr: Option<&mut *mut c_void>,
) -> shmcclResult_t {
    answer(|| {
        let (state, ptr) = (CommState::get(comm)?, required(ptr, "ptr")?);
        let member = state.member(rank, "rank")?;
        let region = Region::new(HeapOffset::new(offset), size as u64);
        *ptr = state.span(member, region)?.start().as_ptr().cast();
        Ok(())
    })
}
