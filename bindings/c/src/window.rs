//! Windows: memory of all ranks for puts, and the signals that go with them.
//!
//! The first window of a communicator allocates its [`Signals`], and tells the others where they
//! are.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use shmccl::channel::Channel;
use shmccl::heap::{HeapOffset, Region};
use shmccl::{Collectives, Error};

use crate::answer::answer;
use crate::arguments::{data_type, elements, required, unsigned};
use crate::comm_state::CommState;
use crate::failure::Failure;
use crate::group;
use crate::handles::{Handles, Reserved, lock};
use crate::operand::Operand;
use crate::signals::{Semaphores, Signals};
use crate::stream::StreamState;
use crate::types::{DataTypeCode, shmcclComm_t, shmcclResult_t, shmcclStream_t, shmcclWindow_t};

/// A window: where each rank has its part.
pub(crate) struct WindowState {
    /// The handle of its communicator, which it does not keep.
    comm: usize,
    signals: Arc<Signals>,
    parts: Vec<Region>,
}

static WINDOWS: Handles<WindowState, MAX_WINDOWS> = Handles::new(4, "window");

const MAX_WINDOWS: usize = 4096;

/// One kind of signals to wait for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct shmcclWaitSignalDesc_t {
    /// How many signals.
    pub opCnt: c_int,
    /// The rank that sends the signals.
    pub peer: c_int,
    /// The index of the signals, below `SHMCCL_SIGNALS`.
    pub sigIdx: c_int,
}

/// What a rank tells the others of its part of a window.
struct Offer {
    part: Region,
    memory: Option<Semaphores>,
    /// Where the window will stand.
    place: Reserved<'static, WindowState, MAX_WINDOWS>,
}

impl Offer {
    /// Names `size` bytes at `buff`, and allocates semaphores if these are to be `made`.
    fn new(state: &CommState, buff: *mut c_void, size: usize, made: bool) -> Result<Self, Failure> {
        let place = WINDOWS.reserve()?;
        let memory = made.then(|| Signals::allocate(&state.arena, state.n_ranks())).transpose()?;
        if size == 0 {
            return Ok(Self { part: Region::default(), memory, place });
        }
        let part = state.region_of(buff.addr(), size as u64);
        let text = format!("buff is {buff:p}, expected memory of shmcclMemAlloc, {size} bytes of it");
        Ok(Self { part: part.ok_or_else(|| Failure::argument(text))?, memory, place })
    }

    /// Returns what the others are told: whether it can be, and where.
    fn words(&self) -> [u64; 4] {
        let base = self.memory.as_ref().map_or(0, |memory| memory.region().offset.get());
        [1, self.part.offset.get(), self.part.len, base]
    }
}

/// Makes `size` bytes of heap memory at `buff` the part of this rank in a window. All ranks call
/// it, each with a size of its own, which may be zero. Memory that belongs to a window is freed
/// after the window.
///
/// `shmcclRemoteError`: another rank could not, and no rank has the window.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommWindowRegister(
    comm: shmcclComm_t,
    buff: *mut c_void,
    size: usize,
    win: Option<&mut shmcclWindow_t>,
) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclCommWindowRegister")?;
        let (state, handle, win) = (CommState::get(comm)?, comm.addr(), required(win, "win")?);
        let mut signals = lock(&state.signals);
        let offer = Offer::new(&state, buff, size, signals.is_none());
        let mut told = vec![0; 4 * state.n_ranks()];
        *win = state.with(|comm| {
            comm.all_gather(&offer.as_ref().map_or([0; 4], Offer::words), &mut told)?;
            let Offer { memory, place, .. } = offer?;
            let (words, _) = told.as_chunks::<4>();
            if let Some(failed) = words.iter().position(|words| words[0] == 0) {
                let text = format!("rank {failed} could not register its part of the window");
                return Err(Failure::new(shmcclResult_t::shmcclRemoteError, text));
            }
            if let Some(memory) = memory {
                let bases: Vec<_> = words.iter().map(|words| words[3]).collect();
                *signals = Some(Arc::new(Signals::open(comm, memory, &bases)?));
            }
            let parts = words.iter().map(|words| Region::new(HeapOffset::new(words[1]), words[2])).collect();
            let signals = signals.as_ref().map(Arc::clone).expect("made with the first window");
            Ok(place.fill(Arc::new(WindowState { comm: handle, signals, parts })))
        })?;
        Ok(())
    })
}

/// Takes a window back when all ranks have called it. Its memory stays allocated.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclCommWindowDeregister(comm: shmcclComm_t, win: shmcclWindow_t) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclCommWindowDeregister")?;
        let state = CommState::get(comm)?;
        window_of(comm, win)?;
        WINDOWS.take(win)?;
        state.with(|comm| Ok(comm.barrier()?))
    })
}

/// Returns a window, which is one of this communicator.
fn window_of(comm: shmcclComm_t, win: shmcclWindow_t) -> Result<Arc<WindowState>, Failure> {
    let window = WINDOWS.get(win)?;
    if window.comm == comm.addr() {
        return Ok(window);
    }
    Err(Failure::argument(format!("win is {win:p}, which belongs to another communicator")))
}

/// Stores the address, in this process, of the part of `peer` in the window, and its length. It can
/// be read and written there until the window is taken back. Only signals and calls order that.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclWindowAddress(
    comm: shmcclComm_t,
    win: shmcclWindow_t,
    peer: c_int,
    ptr: Option<&mut *mut c_void>,
    size: Option<&mut usize>,
) -> shmcclResult_t {
    answer(|| {
        let state = CommState::get(comm)?;
        let (window, rank) = (window_of(comm, win)?, state.member(peer, "peer")?);
        let (ptr, size) = (required(ptr, "ptr")?, required(size, "size")?);
        let part = window.parts[rank.index()];
        let start = state.span(rank, part)?.start().as_ptr();
        *ptr = if part.len == 0 { std::ptr::null_mut() } else { start.cast() };
        *size = usize::try_from(part.len).unwrap_or(usize::MAX);
        Ok(())
    })
}

/// Copies `count` elements at `localbuff` to `peerWinOffset` bytes into the part of `peer` in the
/// window, then signals `peer`. What this rank has put there before comes before the signal.
/// `localbuff` may be written again when the function, or the stream, has done it.
///
/// # Safety
/// `count` elements at `localbuff` can be read until it is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclPutSignal(
    localbuff: *const c_void,
    count: usize,
    datatype: DataTypeCode,
    peer: c_int,
    win: shmcclWindow_t,
    peerWinOffset: usize,
    sigIdx: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclPutSignal")?;
        let state = CommState::get(comm)?;
        let (window, rank) = (window_of(comm, win)?, state.member(peer, "peer")?);
        let len = count.saturating_mul(data_type(datatype)?.size());
        let part = window.parts[rank.index()];
        if (peerWinOffset as u64).checked_add(len as u64).is_none_or(|end| end > part.len) {
            let text = format!(
                "a put of {len} bytes at {peerWinOffset} exceeds the window size of rank {peer}: {} bytes",
                part.len
            );
            return Err(Failure::argument(text));
        }
        let local = Operand::new(&state, localbuff, len, "localbuff")?;
        let target = HeapOffset::new(part.offset.get() + peerWinOffset as u64);
        let place = Signals::place(rank, sigIdx)?;
        // SAFETY: the caller answers for the bytes until it is done.
        let source = unsafe { local.source() };
        let signals = Arc::clone(&window.signals);
        let put = move || {
            let mut channel = lock(&signals.outbound[place]);
            match source {
                Ok(region) => channel.put_with_signal(target, region.offset, region.len),
                Err(bytes) => {
                    channel.put_slice(target, bytes)?;
                    channel.signal()
                }
            }
        };
        do_or_enqueue(&state, stream, put)
    })
}

/// Signals `peer`, which then sees what this rank has put to it before.
#[unsafe(no_mangle)]
pub extern "C" fn shmcclSignal(
    peer: c_int,
    sigIdx: c_int,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclSignal")?;
        let state = CommState::get(comm)?;
        state.check_process()?;
        let place = Signals::place(state.member(peer, "peer")?, sigIdx)?;
        let signals = signals_of(&state)?;
        do_or_enqueue(&state, stream, move || lock(&signals.outbound[place]).signal())
    })
}

/// Waits until every rank of `signalDescs` has signalled as often as it says, and takes these
/// signals. What the ranks have put before them is there then. One thread at a time waits for a
/// rank and index.
///
/// # Safety
/// `signalDescs` leads to `nDesc` descriptions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmcclWaitSignal(
    nDesc: c_int,
    signalDescs: *const shmcclWaitSignalDesc_t,
    comm: shmcclComm_t,
    stream: shmcclStream_t,
) -> shmcclResult_t {
    answer(|| {
        group::refuse("shmcclWaitSignal")?;
        let state = CommState::get(comm)?;
        state.check_process()?;
        let count = unsigned(nDesc, "nDesc")? as usize;
        // SAFETY: the caller answers for as many descriptions.
        let descriptions = unsafe { elements(signalDescs, count, "signalDescs") }?;
        let read = |description: &shmcclWaitSignalDesc_t| {
            let rank = state.member(description.peer, "peer")?;
            Ok((Signals::place(rank, description.sigIdx)?, unsigned(description.opCnt, "opCnt")?))
        };
        let awaited = descriptions.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
        let signals = signals_of(&state)?;
        do_or_enqueue(&state, stream, move || {
            for (place, times) in awaited {
                let mut channel = lock(&signals.inbound[place]);
                (0..times).try_for_each(|_| channel.wait())?;
            }
            Ok(())
        })
    })
}

fn signals_of(state: &CommState) -> Result<Arc<Signals>, Failure> {
    let missing = "the communicator has no signals yet: they come with its first window";
    lock(&state.signals).as_ref().map(Arc::clone).ok_or_else(|| Failure::usage(missing.into()))
}

/// Does `work` now, or on a stream. The communicator is free meanwhile.
fn do_or_enqueue(
    state: &CommState,
    stream: shmcclStream_t,
    work: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<(), Failure> {
    state.check_process()?;
    match StreamState::get(stream)? {
        None => Ok(work()?),
        Some(stream) => state.with(|comm| Ok(stream.for_call(comm)?.try_call(work)?)),
    }
}
