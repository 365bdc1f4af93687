//! A call of a communicator on bytes of Python objects: at once, in a group, or on a stream.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmccl::Rank;
use shmccl::collective::Operation;
use shmccl::comm::{Buffers, CollectiveCall, MemoryRange, OwnedCall, PartialOverlap, Placement};
use shmccl::reduce::DataType;

use crate::heap_places::HeapPlaces;

/// No bytes: what a rank neither gives nor gets.
pub const NOTHING: MemoryRange = MemoryRange { start: 0, len: 0 };

/// Makes a call of `rank`, one of as many as the heap has, and sees whether it is in place. The
/// blocks of an all-to-all that differ for input and output are `apart`.
///
/// # Errors
/// `ValueError` for an input and an output that overlap otherwise, by their lengths or places.
///
/// # Safety
/// Until the call is done, the bytes are there, nothing else of this process writes the input, and
/// nothing else touches the output.
#[inline]
pub unsafe fn call(
    operation: Operation,
    data_type: DataType,
    placement: Placement,
    heap: &HeapPlaces,
    rank: Rank,
    are_apart: bool,
) -> PyResult<OwnedCall> {
    let in_place = match placement.is_in_place(operation, data_type, rank, heap.n_ranks()) {
        Ok(in_place) if !(in_place && are_apart) => in_place,
        Ok(_) => {
            return Err(overlap(
                placement,
                PartialOverlap { expected: Some(placement.recv.len) },
                data_type,
                heap,
            ));
        }
        Err(partial) => return Err(overlap(placement, partial, data_type, heap)),
    };
    let buffers = if in_place {
        // SAFETY: the caller's promise. The longer one of the two holds the other.
        Buffers::in_place(unsafe { heap.recv(placement.longer()) })
    } else {
        // SAFETY: the caller's promise.
        let send = unsafe { heap.send(placement.send) };
        // SAFETY: the same; both lie apart.
        Buffers::Apart(send, unsafe { heap.recv(placement.recv) })
    };
    let call = CollectiveCall::new(operation, data_type, buffers);
    Ok(OwnedCall { call, op: None, blocks: None, selected: None })
}

/// Says what is wrong with buffers that overlap.
#[cold]
fn overlap(placement: Placement, partial: PartialOverlap, data_type: DataType, heap: &HeapPlaces) -> PyErr {
    let elements = |len: usize| len / data_type.size();
    let Placement { send, recv } = placement;
    PyValueError::new_err(match partial.expected {
        Some(expected) if expected != recv.len => format!(
            "input and output overlap, and the output has {} elements, expected {}; pass one of that length that lies \
             apart, or leave it out",
            elements(recv.len),
            elements(expected)
        ),
        Some(_) => "input and output overlap; pass buffers that lie apart, the same one, or this rank's block of the \
                    longer one"
            .to_owned(),
        None => format!(
            "input and output overlap, and the input has {} elements, expected a multiple of the {} ranks",
            elements(send.len),
            heap.n_ranks()
        ),
    })
}
