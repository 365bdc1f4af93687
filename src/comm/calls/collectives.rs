//! The typed collective operations.

use super::buffers::{Blocks, RecvBuffer, SendBuffer};
use super::call::{Buffers, CollectiveCall};
use super::settings::RegisteredPlan;
use super::submit::Submit;
use crate::collective::{MessageSelector, MessageStatus, Operation, StatusHandle};
use crate::comm::Communicator;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::rank::Rank;
use crate::reduce::{Element, ReduceOp};

/// The collective operations and messages. A [`Communicator`] executes a call at once; a
/// [group](crate::Group) and a [stream](crate::Stream) execute it later.
///
/// [`collective::semantics`](crate::collective::semantics) says what all calls have in common:
/// their order, what they acquire, calls in place, equal bits, the first call, mismatches and
/// failures.
pub trait Collectives<'a>: Submit<'a> {
    /// Combines the inputs of all ranks, element by element, into the output of each.
    ///
    /// # Errors
    /// - [`Error::WrongCount`] when the buffers have different counts.
    /// - [`Error::CallMismatch`] when the ranks are in different calls.
    /// - [`Error::OutOfRange`].
    /// - [`Error::OutOfMemory`] when the heap is too small for the communicator's own use.
    /// - [`Error::Timeout`], [`Error::PeerLost`], [`Error::ProxyLost`], [`Error::Revoked`].
    #[inline]
    fn all_reduce<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::AllReduce, buffers) })
    }

    /// Combines the contents of `buffer` on all ranks, element by element, and leaves the result in
    /// it on each.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    #[inline]
    fn all_reduce_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::AllReduce, buffers) })
    }

    /// Combines the inputs of all ranks, element by element, into the output of `root`. On other
    /// ranks `recv` is not touched and may be empty.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; [`Error::InvalidRank`].
    #[inline]
    fn reduce<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { op: Some(op), root, ..call::<T>(Operation::Reduce, buffers) })
    }

    /// Combines the contents of `buffer` on all ranks, element by element, and leaves the result in
    /// it on `root`. It stays as it is on other ranks.
    ///
    /// # Errors
    /// Those of [`Collectives::reduce`].
    #[inline]
    fn reduce_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { op: Some(op), root, ..call::<T>(Operation::Reduce, buffers) })
    }

    /// Combines the inputs of all ranks up to this one, element by element, into the output. Each
    /// rank's result is what [`Collectives::all_reduce`] would give among the ranks up to itself:
    /// an average divides by their number. It is the inclusive prefix reduction, `MPI_Scan`.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    #[inline]
    fn scan<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::Scan, buffers) })
    }

    /// Does [`Collectives::scan`] in a `buffer`: the result replaces the input.
    ///
    /// # Errors
    /// Those of [`Collectives::scan`].
    #[inline]
    fn scan_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::Scan, buffers) })
    }

    /// Combines the inputs of all ranks before this one, element by element, into the output. On
    /// the first rank, which has none before it, `recv` is not touched and may be empty. It is the
    /// exclusive prefix reduction, `MPI_Exscan`.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    #[inline]
    fn exscan<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::ExScan, buffers) })
    }

    /// Does [`Collectives::exscan`] in a `buffer`: the result replaces the input. It stays as it is
    /// on the first rank.
    ///
    /// # Errors
    /// Those of [`Collectives::exscan`].
    #[inline]
    fn exscan_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::ExScan, buffers) })
    }

    /// Copies the root's `send` to `recv` on every rank. On other ranks `send` is not touched and
    /// may be empty.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; [`Error::InvalidRank`].
    #[inline]
    fn broadcast<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { root, ..call::<T>(Operation::Broadcast, buffers) })
    }

    /// Copies the root's `buffer` to that of every other rank.
    ///
    /// # Errors
    /// Those of [`Collectives::broadcast`].
    #[inline]
    fn broadcast_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { root, ..call::<T>(Operation::Broadcast, buffers) })
    }

    /// Collects the inputs of all ranks, in the order of the ranks, in the output of each. The
    /// output has `n_ranks` times the count of the input.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    #[inline]
    fn all_gather<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
    ) -> Result<()> {
        self.submit(call::<T>(Operation::AllGather, Buffers::apart(send.into(), recv.into())))
    }

    /// Does [`Collectives::all_gather`] in a `buffer` with a block for each rank. This rank's block
    /// is its input.
    ///
    /// # Errors
    /// Those of [`Collectives::all_gather`]; [`Error::InvalidArgument`] for a count that is not a
    /// multiple of the number of ranks.
    #[inline]
    fn all_gather_in_place<T: Element>(&mut self, buffer: impl Into<RecvBuffer<'a, T>>) -> Result<()> {
        self.submit(call::<T>(Operation::AllGather, Buffers::in_place(buffer.into())))
    }

    /// Combines the inputs of all ranks, element by element, and leaves block r of the result to
    /// rank r. The input has `n_ranks` times the count of the output.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`].
    #[inline]
    fn reduce_scatter<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::ReduceScatter, buffers) })
    }

    /// Does [`Collectives::reduce_scatter`] in a `buffer` with a block for each rank. The result
    /// replaces this rank's block, and the others stay as they are.
    ///
    /// # Errors
    /// Those of [`Collectives::reduce_scatter`]; [`Error::InvalidArgument`] for a count that is not
    /// a multiple of the number of ranks.
    #[inline]
    fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { op: Some(op), ..call::<T>(Operation::ReduceScatter, buffers) })
    }

    /// Sends block r of the input to rank r, and collects the blocks from all ranks in the order of
    /// the ranks. Input and output have `n_ranks` blocks of one length.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; [`Error::InvalidArgument`] for a count that is not a
    /// multiple of the number of ranks.
    #[inline]
    fn all_to_all<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
    ) -> Result<()> {
        self.submit(call::<T>(Operation::AllToAll, Buffers::apart(send.into(), recv.into())))
    }

    /// Does [`Collectives::all_to_all`] in a `buffer`. The block from a rank replaces the one that
    /// was sent to it.
    ///
    /// # Errors
    /// Those of [`Collectives::all_to_all`].
    #[inline]
    fn all_to_all_in_place<T: Element>(&mut self, buffer: impl Into<RecvBuffer<'a, T>>) -> Result<()> {
        self.submit(call::<T>(Operation::AllToAll, Buffers::in_place(buffer.into())))
    }

    /// Does what a [plan](Communicator::plan) of sendrecv does: each rank gets the input of the
    /// rank that the plan has for it. Plans of other collectives do the calls of these.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a length that the plan does not do, for a plan of another
    ///   collective, and for one that was removed.
    /// - Otherwise those of [`Collectives::all_reduce`].
    fn run_plan<T: Element>(
        &mut self,
        plan: RegisteredPlan,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { plan: Some(plan), ..call::<T>(Operation::RunPlan, buffers) })
    }

    /// Does [`Collectives::run_plan`] in a `buffer`: what comes replaces what was sent.
    ///
    /// # Errors
    /// Those of [`Collectives::run_plan`].
    fn run_plan_in_place<T: Element>(
        &mut self,
        plan: RegisteredPlan,
        buffer: impl Into<RecvBuffer<'a, T>>,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { plan: Some(plan), ..call::<T>(Operation::RunPlan, buffers) })
    }

    /// Collects the inputs of all ranks, in the order of the ranks, in the output of `root`. On
    /// other ranks `recv` is not touched and may be empty.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; [`Error::InvalidRank`].
    #[inline]
    fn gather<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { root, ..call::<T>(Operation::Gather, buffers) })
    }

    /// Does [`Collectives::gather`] in a `buffer`. On `root` it has a block for each rank, and the
    /// root's own block is its input. On other ranks it is one block and stays as it is.
    ///
    /// # Errors
    /// Those of [`Collectives::gather`]; [`Error::InvalidArgument`] for a count that is not a
    /// multiple of the number of ranks.
    #[inline]
    fn gather_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { root, ..call::<T>(Operation::Gather, buffers) })
    }

    /// Sends block r of the root's input to rank r. On other ranks `send` is not touched and may be
    /// empty.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; [`Error::InvalidRank`].
    #[inline]
    fn scatter<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall { root, ..call::<T>(Operation::Scatter, buffers) })
    }

    /// Does [`Collectives::scatter`] in a `buffer`. On `root` it has a block for each rank and
    /// stays as it is. On other ranks it is one block.
    ///
    /// # Errors
    /// Those of [`Collectives::scatter`]; [`Error::InvalidArgument`] for a count that is not a
    /// multiple of the number of ranks.
    #[inline]
    fn scatter_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { root, ..call::<T>(Operation::Scatter, buffers) })
    }

    /// Sends a block of the input to each rank, and collects a block from each. Block r of `sent`
    /// goes to rank r, and block r of `received` comes from it. Every rank receives as many
    /// elements from another as that one sends it. A block may be empty, and the elements between
    /// blocks stay as they are.
    ///
    /// Blocks that are sent may overlap each other. Blocks that are received overlap neither each
    /// other nor any that is sent. One exception: the block from a rank may replace the very block
    /// that goes to it, as in [`Collectives::all_to_all_v_in_place`].
    ///
    /// # Errors
    /// - Those of [`Collectives::all_reduce`].
    /// - At once [`Error::InvalidArgument`] and [`Error::OutOfRange`] for blocks that are not as
    ///   described.
    /// - [`Error::CallMismatch`] on both ranks when one sends a block of another length than the
    ///   other receives. The sender may get it by a later call.
    #[inline]
    fn all_to_all_v<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        sent: Blocks<'_>,
        recv: impl Into<RecvBuffer<'a, T>>,
        received: Blocks<'_>,
    ) -> Result<()> {
        let buffers = Buffers::apart(send.into(), recv.into());
        self.submit(CollectiveCall {
            blocks: Some(&[sent, received]),
            ..call::<T>(Operation::AllToAllV, buffers)
        })
    }

    /// Does [`Collectives::all_to_all_v`] in a `buffer`, like `MPI_Alltoallv` with `MPI_IN_PLACE`.
    /// The block from a rank replaces the one that was sent to it, which has the same length.
    /// Elements between blocks stay as they are, and so does this rank's own block.
    ///
    /// It needs no other memory: received pieces overwrite sent ones. A peer may use two buffers
    /// for the same blocks.
    ///
    /// # Errors
    /// Those of [`Collectives::all_to_all_v`], for `blocks` that overlap, too. A block on which two
    /// ranks disagree stays as it is.
    #[inline]
    fn all_to_all_v_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        blocks: Blocks<'_>,
    ) -> Result<()> {
        let buffers = Buffers::in_place(buffer.into());
        self.submit(CollectiveCall { blocks: Some(&[blocks; 2]), ..call::<T>(Operation::AllToAllV, buffers) })
    }

    /// Sends the elements of `send` to `peer`, which calls [`Collectives::recv`] for as many of the
    /// same type. It returns when `send` may be written again.
    ///
    /// [`semantics`](crate::collective::semantics#messages) has the rules: the order of messages,
    /// when a send waits, and which ranks the first call of a job concerns.
    ///
    /// # Errors
    /// - [`Error::InvalidRank`].
    /// - [`Error::InvalidArgument`] for a message to oneself, unless a group receives it.
    /// - [`Error::CallMismatch`] on both ranks when the peer is in another call. This rank may get
    ///   it by a later call. All ranks get it when the peer waits for this one in a collective
    ///   call.
    /// - Otherwise those of [`Collectives::all_reduce`].
    ///
    /// # Ordering
    /// Publishes everything before it to the peer that receives the message (C1, S1), puts over
    /// proxied channels if they are flushed. It acquires nothing.
    #[inline]
    fn send<T: Element>(&mut self, send: impl Into<SendBuffer<'a, T>>, peer: Rank) -> Result<()> {
        self.send_tagged(send, peer, 0)
    }

    /// Sends a message with a `tag`, which [`Collectives::recv_tagged`] of the same tag receives,
    /// or [`Collectives::recv_any_into`]. [`Collectives::send`] is the same with tag 0.
    ///
    /// # Errors
    /// Those of [`Collectives::send`].
    #[inline]
    fn send_tagged<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        peer: Rank,
        tag: u32,
    ) -> Result<()> {
        let buffers = Buffers::input(send.into());
        self.submit(CollectiveCall { root: peer, tag, ..call::<T>(Operation::Send, buffers) })
    }

    /// Receives a message of `peer` by [`Collectives::send`], with as many elements as `recv` has,
    /// of the same type.
    ///
    /// # Errors
    /// Those of [`Collectives::send`].
    ///
    /// # Ordering
    /// Acquires everything that `peer` did before that send (C1, S1), puts over proxied channels if
    /// they are flushed.
    #[inline]
    fn recv<T: Element>(&mut self, recv: impl Into<RecvBuffer<'a, T>>, peer: Rank) -> Result<()> {
        self.recv_tagged(recv, peer, 0)
    }

    /// Receives the next message of `peer` with this `tag`, by [`Collectives::send_tagged`], with
    /// as many elements as `recv` has, of the same type. It passes over messages of other tags,
    /// which later calls receive: see [`semantics`](crate::collective::semantics#messages).
    ///
    /// # Errors
    /// Those of [`Collectives::send`].
    ///
    /// # Ordering
    /// That of [`Collectives::recv`].
    #[inline]
    fn recv_tagged<T: Element>(
        &mut self,
        recv: impl Into<RecvBuffer<'a, T>>,
        peer: Rank,
        tag: u32,
    ) -> Result<()> {
        let buffers = Buffers::output(recv.into());
        self.submit(CollectiveCall { root: peer, tag, ..call::<T>(Operation::Recv, buffers) })
    }

    /// Receives a message with this `tag` of any other rank, with as many elements as `recv` has,
    /// of the same type, and leaves in `status` which one it was, once it is done. Ranks whose
    /// messages are there are served in turn.
    ///
    /// [`Communicator::recv_any`] returns the status at once.
    ///
    /// # Errors
    /// Those of [`Collectives::send`]; [`Error::PeerLost`] when a rank dies, or all others have
    /// left; [`Error::InvalidArgument`] where there are no others.
    ///
    /// # Ordering
    /// That of [`Collectives::recv`], for the rank that has sent the message.
    fn recv_any_into<T: Element>(
        &mut self,
        recv: impl Into<RecvBuffer<'a, T>>,
        tag: u32,
        status: &StatusHandle,
    ) -> Result<()> {
        let any = MessageSelector { source: None, tag: Some(tag) };
        self.recv_selected_into(recv, any, status)
    }

    /// Receives a message like [`Collectives::recv_any_into`]: one that `selector` names, of one
    /// other rank or any, with one tag or any. Messages of one rank are taken in the order in which
    /// they were sent, whatever their tags.
    ///
    /// # Errors
    /// Those of [`Collectives::recv_any_into`].
    ///
    /// # Ordering
    /// That of [`Collectives::recv_any_into`].
    fn recv_selected_into<T: Element>(
        &mut self,
        recv: impl Into<RecvBuffer<'a, T>>,
        selector: MessageSelector,
        status: &StatusHandle,
    ) -> Result<()> {
        let buffers = Buffers::output(recv.into());
        let selected = Some((selector, status));
        self.submit(CollectiveCall { selected, ..call::<T>(Operation::RecvAny, buffers) })
    }
}

impl<'a, S: Submit<'a> + ?Sized> Collectives<'a> for S {}

/// Makes a call on elements of type `T`.
#[inline]
const fn call<'a, 'o, T: Element>(operation: Operation, buffers: Buffers<'a>) -> CollectiveCall<'a, 'o> {
    CollectiveCall::new(operation, T::DATA_TYPE, buffers)
}

impl Communicator {
    /// Receives a message with this `tag` of any other rank, like
    /// [`Collectives::recv_any_into`], and returns which one it was.
    ///
    /// # Errors
    /// Those of [`Collectives::recv_any_into`].
    pub fn recv_any<'a, T: Element>(
        &mut self,
        recv: impl Into<RecvBuffer<'a, T>>,
        tag: u32,
    ) -> Result<MessageStatus> {
        let status = StatusHandle::new();
        self.recv_any_into(recv, tag, &status)?;
        Ok(status.get().expect("the receive is done"))
    }
}
