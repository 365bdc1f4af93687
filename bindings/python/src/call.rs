//! A call of a communicator on bytes of Python objects: at once, in a group, or on a stream.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmccl::collective::Operation;
use shmccl::comm::{
    Buffers, CollectiveCall, MemoryRange, OwnedCall, PartialOverlap, Placement, RegisteredPlan, Submit,
};
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{MessageSelector, Rank, StatusHandle};

use crate::heap_places::HeapPlaces;

/// No bytes: what a rank neither gives nor gets.
pub const NOTHING: MemoryRange = MemoryRange { start: 0, len: 0 };

/// A call on bytes that a program may still write, until it is submitted.
#[derive(Debug)]
pub struct UnsubmittedCall {
    operation: Operation,
    data_type: DataType,
    placement: Placement,
    in_place: bool,
    /// The operator of a reduction.
    pub op: Option<ReduceOp>,
    /// The root, or the peer.
    pub root: Rank,
    /// The tag of a message.
    pub tag: u32,
    /// The plan to run.
    pub plan: Option<RegisteredPlan>,
    /// The counts and displacements of what is sent, and of what is received.
    pub blocks: Option<Box<[Vec<usize>; 4]>>,
    /// What a receive takes, and where it tells which message that was.
    pub selected: Option<(MessageSelector, StatusHandle)>,
}

impl UnsubmittedCall {
    /// Makes a call of `rank`, one of as many as `heap` has, and sees whether it is in place. The
    /// blocks of an all-to-all that differ for input and output are `apart`.
    ///
    /// # Errors
    /// `ValueError` for an input and an output that overlap otherwise, by their lengths or places.
    ///
    /// # Safety
    /// From when it is submitted until it is done, the bytes are there, nothing else of this
    /// process writes the input, and nothing else touches the output.
    #[inline]
    pub unsafe fn new(
        operation: Operation,
        data_type: DataType,
        placement: Placement,
        heap: &HeapPlaces,
        rank: Rank,
        are_apart: bool,
    ) -> PyResult<Self> {
        let in_place = match placement.is_in_place(operation, data_type, rank, heap.n_ranks()) {
            Ok(in_place) if !(in_place && are_apart) => in_place,
            found => {
                let same = PartialOverlap { expected: Some(placement.recv.len) };
                return Err(overlap(placement, found.err().unwrap_or(same), data_type, heap));
            }
        };
        let (op, plan, blocks, selected) = (None, None, None, None);
        let (root, tag) = (Rank::ZERO, 0);
        Ok(Self { operation, data_type, placement, in_place, op, root, tag, plan, blocks, selected })
    }

    /// Submits it to `taker`.
    ///
    /// # Errors
    /// Those of the operation.
    #[inline]
    pub fn submit<'a>(self, taker: &mut impl Submit<'a>, heap: &HeapPlaces) -> shmccl::Result<()> {
        let Self { operation, data_type, placement, in_place, op, root, tag, plan, blocks, selected } = self;
        let buffers = if in_place {
            // SAFETY: its maker's promise. The longer one of the two holds the other.
            Buffers::in_place(unsafe { heap.recv(placement.longer()) })
        } else {
            // SAFETY: its maker's promise.
            let send = unsafe { heap.send(placement.send) };
            // SAFETY: the same; both lie apart.
            Buffers::Apart(send, unsafe { heap.recv(placement.recv) })
        };
        let call = CollectiveCall { root, tag, plan, ..CollectiveCall::new(operation, data_type, buffers) };
        OwnedCall { call, op, blocks, selected }.submit(taker)
    }
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
