//! The typed collective operations.

use super::Communicator;
use super::buffers::{Blocks, check_apart, check_distinct};
use super::buffers::{Recv, RecvBuffer, Send, SendBuffer};
use super::submit::{Envelope, Submit, same, submit, submit_blocks, submit_message};
use crate::collective::{BlockLayout, Input, MessageStatus, Operation, Output, StatusHandle};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::rank::Rank;
use crate::reduce::{Element, ReduceOp};

/// The collective operations and messages. A [`Communicator`](super::Communicator) executes a call
/// at once; a [group](super::Group) and a [stream](crate::Stream) execute it later.
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
        let (send, recv) = (send.into(), recv.into());
        let count = same("elements received", recv.count(), send.count())?;
        submit::<T, _>(self, Operation::AllReduce, count, 0, Some(op), send.input(), recv.output())
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
        let buffer = buffer.into();
        let (count, input) = (buffer.count(), buffer.as_input(0));
        submit::<T, _>(self, Operation::AllReduce, count, 0, Some(op), input, buffer.output())
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
        let (send, recv) = (send.into(), recv.into());
        let count = send.count();
        let output = self.caller().output_at(root, recv, count)?;
        submit::<T, _>(self, Operation::Reduce, count, root.index(), Some(op), send.input(), output)
    }

    /// Combines the contents of `buffer` on all ranks, element by element, and leaves the result in
    /// it on `root`. It stays as it is on other ranks.
    ///
    /// # Errors
    /// Those of [`Collectives::reduce`].
    fn reduce_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let buffer = buffer.into();
        let count = buffer.count();
        let (input, output) = if self.caller().is_root(root)? {
            (buffer.as_input(0), buffer.output())
        } else {
            (buffer.into_input(), Output::None)
        };
        submit::<T, _>(self, Operation::Reduce, count, root.index(), Some(op), input, output)
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
        let (send, recv) = (send.into(), recv.into());
        let count = recv.count();
        let input = self.caller().input_at(root, send, count)?;
        submit::<T, _>(self, Operation::Broadcast, count, root.index(), None, input, recv.output())
    }

    /// Copies the root's `buffer` to that of every other rank.
    ///
    /// # Errors
    /// Those of [`Collectives::broadcast`].
    fn broadcast_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffer = buffer.into();
        let count = buffer.count();
        let input = if self.caller().is_root(root)? { buffer.as_input(0) } else { Input::None };
        submit::<T, _>(self, Operation::Broadcast, count, root.index(), None, input, buffer.output())
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
        let (send, recv) = (send.into(), recv.into());
        let count = send.count();
        same("elements received", recv.count(), self.caller().blocks(count))?;
        submit::<T, _>(self, Operation::AllGather, count, 0, None, send.input(), recv.output())
    }

    /// Does [`Collectives::all_gather`] in a `buffer` with a block for each rank. This rank's block
    /// is its input.
    ///
    /// # Errors
    /// Those of [`Collectives::all_gather`]; [`Error::InvalidArgument`] for a count that is not a
    /// multiple of the number of ranks.
    fn all_gather_in_place<T: Element>(&mut self, buffer: impl Into<RecvBuffer<'a, T>>) -> Result<()> {
        let buffer = buffer.into();
        let (count, at) = self.caller().own_block::<T>(buffer.count())?;
        let input = buffer.as_input(at);
        submit::<T, _>(self, Operation::AllGather, count, 0, None, input, buffer.output())
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
        let (send, recv) = (send.into(), recv.into());
        let count = recv.count();
        same("elements sent", send.count(), self.caller().blocks(count))?;
        submit::<T, _>(self, Operation::ReduceScatter, count, 0, Some(op), send.input(), recv.output())
    }

    /// Does [`Collectives::reduce_scatter`] in a `buffer` with a block for each rank. The result
    /// replaces this rank's block, and the others stay as they are.
    ///
    /// # Errors
    /// Those of [`Collectives::reduce_scatter`]; [`Error::InvalidArgument`] for a count that is not
    /// a multiple of the number of ranks.
    fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let buffer = buffer.into();
        let (count, at) = self.caller().own_block::<T>(buffer.count())?;
        let input = buffer.as_input(0);
        submit::<T, _>(self, Operation::ReduceScatter, count, 0, Some(op), input, buffer.output_within(at))
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
        let (send, recv) = (send.into(), recv.into());
        let total = same("elements received", recv.count(), send.count())?;
        let count = self.caller().block_of(total)?;
        submit::<T, _>(self, Operation::AllToAll, count, 0, None, send.input(), recv.output())
    }

    /// Does [`Collectives::all_to_all`] in a `buffer`. The block from a rank replaces the one that
    /// was sent to it.
    ///
    /// # Errors
    /// Those of [`Collectives::all_to_all`].
    fn all_to_all_in_place<T: Element>(&mut self, buffer: impl Into<RecvBuffer<'a, T>>) -> Result<()> {
        let buffer = buffer.into();
        let count = self.caller().block_of(buffer.count())?;
        let input = buffer.as_input(0);
        submit::<T, _>(self, Operation::AllToAll, count, 0, None, input, buffer.output())
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
        let (send, recv) = (send.into(), recv.into());
        let count = send.count();
        let all = self.caller().blocks(count);
        let output = self.caller().output_at(root, recv, all)?;
        submit::<T, _>(self, Operation::Gather, count, root.index(), None, send.input(), output)
    }

    /// Does [`Collectives::gather`] in a `buffer`. On `root` it has a block for each rank, and the
    /// root's own block is its input. On other ranks it is one block and stays as it is.
    ///
    /// # Errors
    /// Those of [`Collectives::gather`]; [`Error::InvalidArgument`] for a count that is not a
    /// multiple of the number of ranks.
    fn gather_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffer = buffer.into();
        let (count, input, output) = if self.caller().is_root(root)? {
            let (count, at) = self.caller().own_block::<T>(buffer.count())?;
            (count, buffer.as_input(at), buffer.output())
        } else {
            (buffer.count(), buffer.into_input(), Output::None)
        };
        submit::<T, _>(self, Operation::Gather, count, root.index(), None, input, output)
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
        let (send, recv) = (send.into(), recv.into());
        let count = recv.count();
        let all = self.caller().blocks(count);
        let input = self.caller().input_at(root, send, all)?;
        submit::<T, _>(self, Operation::Scatter, count, root.index(), None, input, recv.output())
    }

    /// Does [`Collectives::scatter`] in a `buffer`. On `root` it has a block for each rank and
    /// stays as it is. On other ranks it is one block.
    ///
    /// # Errors
    /// Those of [`Collectives::scatter`]; [`Error::InvalidArgument`] for a count that is not a
    /// multiple of the number of ranks.
    fn scatter_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        root: Rank,
    ) -> Result<()> {
        let buffer = buffer.into();
        let (count, input, output) = if self.caller().is_root(root)? {
            let (count, at) = self.caller().own_block::<T>(buffer.count())?;
            (count, buffer.as_input(0), buffer.output_within(at))
        } else {
            (buffer.count(), Input::None, buffer.output())
        };
        submit::<T, _>(self, Operation::Scatter, count, root.index(), None, input, output)
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
    fn all_to_all_v<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        sent: Blocks<'_>,
        recv: impl Into<RecvBuffer<'a, T>>,
        received: Blocks<'_>,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let n_ranks = self.caller().n_ranks;
        let layout = BlockLayout {
            sent: sent.within(send.count(), n_ranks)?,
            received: received.within(recv.count(), n_ranks)?,
        };
        check_apart(&layout.received)?;
        if let (Send::Heap(source), Recv::Heap(target)) = (&send.0, &recv.0) {
            let (sent, received) = ((*source, &layout.sent[..]), (*target, &layout.received[..]));
            check_distinct(sent, received, size_of::<T>() as u64)?;
        }
        submit_blocks::<T, _>(self, layout, send.input(), recv.output())
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
    fn all_to_all_v_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        blocks: Blocks<'_>,
    ) -> Result<()> {
        let buffer = buffer.into();
        let received = blocks.within(buffer.count(), self.caller().n_ranks)?;
        check_apart(&received)?;
        let layout = BlockLayout { sent: received.clone(), received };
        let input = buffer.as_input(0);
        submit_blocks::<T, _>(self, layout, input, buffer.output())
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
        let send = send.into();
        let envelope = Envelope { peer: Some(peer), tag, status: None };
        let (count, input) = (send.count(), send.input());
        submit_message::<T, _>(self, Operation::Send, envelope, count, input, Output::None)
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
        let recv = recv.into();
        let envelope = Envelope { peer: Some(peer), tag, status: None };
        let (count, output) = (recv.count(), recv.output());
        submit_message::<T, _>(self, Operation::Recv, envelope, count, Input::None, output)
    }

    /// Receives a message with this `tag` of any other rank, with as many elements as `recv` has,
    /// of the same type, and leaves in `status` which one it was, once it is done. Ranks whose
    /// messages are there are served in turn.
    ///
    /// [`Communicator::recv_any`](super::Communicator::recv_any) returns the status at once.
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
        let recv = recv.into();
        let envelope = Envelope { peer: None, tag, status: Some(status.clone()) };
        let (count, output) = (recv.count(), recv.output());
        submit_message::<T, _>(self, Operation::RecvAny, envelope, count, Input::None, output)
    }
}

impl<'a, S: Submit<'a> + ?Sized> Collectives<'a> for S {}

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
