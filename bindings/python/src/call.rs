//! A call of a communicator on bytes of Python objects: at once, in a group, or on a stream.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmccl::comm::RegisteredPlan;
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Blocks, Collectives, MessageSelector, Rank, Result, StatusHandle};

use crate::heap_places::{Bytes, HeapPlaces};

/// What is called.
#[derive(Debug)]
pub enum Verb {
    /// Input and output of one length.
    AllReduce,
    /// The output is the root's.
    Reduce,
    /// In place.
    Broadcast,
    /// The output has a block for each rank.
    AllGather,
    /// The input has a block for each rank.
    ReduceScatter,
    /// Both have a block for each rank.
    AllToAll,
    /// Blocks of lengths of their own.
    AllToAllV(Box<Layout>),
    /// The output, with a block for each rank, is the root's.
    Gather,
    /// The input, with a block for each rank, is the root's.
    Scatter,
    /// Input and output of one length.
    RunPlan(RegisteredPlan),
    /// An input for a peer.
    Send,
    /// An output from a peer.
    Recv,
    /// An output from whoever first sends what is selected. The status is told which message.
    RecvAny(MessageSelector, StatusHandle),
}

/// The blocks of an [`Verb::AllToAllV`].
#[derive(Debug)]
pub struct Layout {
    /// Elements sent to each rank.
    pub sent: Vec<usize>,
    /// Where they begin.
    pub sent_at: Vec<usize>,
    /// Elements received from each rank.
    pub received: Vec<usize>,
    /// Where they go.
    pub received_at: Vec<usize>,
}

impl Layout {
    /// Returns whether what comes from each rank may replace what goes to it.
    fn is_symmetric(&self) -> bool {
        self.sent == self.received && self.sent_at == self.received_at
    }
}

/// A call. Empty bytes stand for what a rank neither gives nor gets.
#[derive(Debug)]
pub struct Call {
    /// What is called.
    pub verb: Verb,
    /// The type of elements.
    pub data_type: DataType,
    /// The input.
    pub send: Bytes,
    /// The output.
    pub recv: Bytes,
    /// How a reduction combines.
    pub op: ReduceOp,
    /// The root, or the peer.
    pub root: Rank,
    /// The tag of a message.
    pub tag: u32,
    /// Whether input and output are one buffer.
    pub in_place: bool,
}

/// No bytes.
pub const NOTHING: Bytes = Bytes { address: 0, len: 0 };

impl Call {
    /// Makes a call of `caller`, a rank and how many there are, and sees whether it is in place.
    ///
    /// # Errors
    /// `ValueError` for an input and an output that overlap otherwise, by their lengths or places.
    #[inline]
    pub fn new(
        verb: Verb,
        data_type: DataType,
        (send, recv): (Bytes, Bytes),
        op: ReduceOp,
        root: Rank,
        caller: (Rank, u32),
    ) -> PyResult<Self> {
        let in_place = send.overlaps(recv) && is_in_place(&verb, (send, recv), data_type, caller)?;
        Ok(Self { verb, data_type, send, recv, op, root, tag: 0, in_place })
    }

    /// Makes the call, or lets `taker` make it later.
    ///
    /// # Errors
    /// Those of the operation.
    ///
    /// # Safety
    /// For `'a`, the bytes are there, nothing else of this process writes the input, and nothing
    /// else touches the output.
    #[inline]
    pub unsafe fn submit<'a>(&self, taker: &mut impl Collectives<'a>, heap: &HeapPlaces) -> Result<()> {
        // SAFETY: the caller's promise. Only one of the two is made of bytes that are both.
        let send = || unsafe { self.send.send(heap) };
        // SAFETY: the same.
        let recv = || unsafe { self.recv.recv(heap) };
        // SAFETY: the same. The longer one of the two holds the other.
        let both = || unsafe { self.longer().recv(heap) };
        let (op, root) = (&self.op, self.root);
        let mut taker = taker.untyped(self.data_type);
        match (&self.verb, self.in_place) {
            (Verb::AllReduce, false) => taker.all_reduce(send(), recv(), op),
            (Verb::AllReduce, true) => taker.all_reduce_in_place(both(), op),
            (Verb::Reduce, false) => taker.reduce(send(), recv(), op, root),
            (Verb::Reduce, true) => taker.reduce_in_place(both(), op, root),
            (Verb::Broadcast, _) => taker.broadcast_in_place(recv(), root),
            (Verb::AllGather, false) => taker.all_gather(send(), recv()),
            (Verb::AllGather, true) => taker.all_gather_in_place(both()),
            (Verb::ReduceScatter, false) => taker.reduce_scatter(send(), recv(), op),
            (Verb::ReduceScatter, true) => taker.reduce_scatter_in_place(both(), op),
            (Verb::AllToAll, false) => taker.all_to_all(send(), recv()),
            (Verb::AllToAll, true) => taker.all_to_all_in_place(both()),
            (Verb::Gather, false) => taker.gather(send(), recv(), root),
            (Verb::Gather, true) => taker.gather_in_place(both(), root),
            (Verb::Scatter, false) => taker.scatter(send(), recv(), root),
            (Verb::Scatter, true) => taker.scatter_in_place(both(), root),
            (Verb::RunPlan(plan), false) => taker.run_plan(*plan, send(), recv()),
            (Verb::RunPlan(plan), true) => taker.run_plan_in_place(*plan, both()),
            (Verb::Send, _) => taker.send_tagged(send(), root, self.tag),
            (Verb::Recv, _) => taker.recv_tagged(recv(), root, self.tag),
            (Verb::RecvAny(selector, status), _) => taker.recv_selected_into(recv(), *selector, status),
            (Verb::AllToAllV(layout), in_place) => {
                let sent = Blocks::new(&layout.sent, &layout.sent_at);
                let received = Blocks::new(&layout.received, &layout.received_at);
                match in_place {
                    false => taker.all_to_all_v(send(), sent, recv(), received),
                    true => taker.all_to_all_v_in_place(both(), received),
                }
            }
        }
    }

    fn longer(&self) -> Bytes {
        if self.send.len > self.recv.len { self.send } else { self.recv }
    }
}

/// Says whether a call whose buffers overlap is one in place.
#[cold]
fn is_in_place(
    verb: &Verb,
    (send, recv): (Bytes, Bytes),
    data_type: DataType,
    (rank, size): (Rank, u32),
) -> PyResult<bool> {
    let is_block = |block: Bytes, whole: Bytes| block.address == whole.address + rank.index() * block.len;
    let (blocks, element) = (size as usize, data_type.size());
    let (expected, fits) = match verb {
        Verb::AllGather | Verb::Gather => (send.len.checked_mul(blocks), is_block(send, recv)),
        Verb::ReduceScatter | Verb::Scatter => {
            (send.len.is_multiple_of(blocks * element).then(|| send.len / blocks), is_block(recv, send))
        }
        Verb::AllToAllV(layout) => (Some(recv.len), send == recv && layout.is_symmetric()),
        _ => (Some(send.len), send.address == recv.address),
    };
    if fits && expected == Some(recv.len) {
        return Ok(true);
    }
    let elements = |len: usize| len / element;
    Err(PyValueError::new_err(match expected {
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
            "input and output overlap, and the input has {} elements, expected a multiple of the {size} ranks",
            elements(send.len)
        ),
    }))
}
