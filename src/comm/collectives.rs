//! The collective operations, typed.
//!
//! Each is called by all ranks of the communicator, in the same order and with the same arguments, buffers apart: those may
//! be anywhere, in the symmetric heap or not, on each rank as it likes. Counts are elements.

use super::buffers::{Blocks, check_apart, check_distinct};
use super::buffers::{Recv, RecvBuffer, Send, SendBuffer};
use super::submit::{Submit, all_reduce, same, submit, submit_blocks};
use crate::collective::{Input, Layout, Operation, Output};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::rank::Rank;
use crate::reduce::{Element, ReduceOp};

/// The collective operations, for whatever takes them. A [`Communicator`](super::Communicator) executes a call at once:
/// it returns when its input may be written again and its output is there. Of the other ranks that tells at most that they have come to
/// the call: they may still be reading their inputs and writing their outputs, which therefore nobody else is to write before they say so.
///
/// The two buffers of a call lie apart, or it is *in place*: they are the very same, or, where one has a block for each rank and
/// the other has one block, that is this rank's block. Buffers of the heap that overlap otherwise are refused
/// ([`Error::InvalidArgument`]). For these it is enough to name them so; ordinary memory, which cannot be lent twice, goes to the calls
/// that end in `_in_place`, and these take buffers of the heap as well. Ranks need not do alike.
///
/// What is combined is combined in the order of the ranks, and floats of 16 and 8 bits in `f32` over all of them. So it is by the
/// built-in table, always: the result is the same bit for bit in every run. An algorithm that the program has chosen, or that a
/// [table from a file](crate::collective::tuning) says, may combine in another order
/// ([`Algorithm`](crate::collective::Algorithm)); such a table may say another one where ranks share cores. Then the same calls give the
/// same bits in every run with the same table on as many cores. In any case the result is the same bit for bit on all ranks.
///
/// Ranks that wait in a circle of messages of three and more are told by the deadline only, and those in calls of different communicators
/// by an [`Error::Timeout`].
///
/// Arguments that are wrong in themselves are an error of the call wherever it goes. A call that fails while data move ends the
/// epoch: what other ranks have of it cannot be told. Who comes to a call when others have given it up is told of the end, at its next wait
/// at the latest (a short call, or a message, may be answered still), and writes into none of their buffers. Who has come before may be
/// writing there as they fail, and learns of the end when it waits next: so an output in the heap may still change until all ranks have left
/// the call.
///
/// The first call on a job's first communicator, be it a message, prepares memory and is one of all ranks: none returns from it before
/// each has come to a first collective call or message of its own. A barrier, `alloc` or `free` is none: a rank that comes to one of these
/// instead is in another call ([`Error::CallMismatch`]). Where only some ranks have something to say at first, all call
/// [`Communicator::prepare`](super::Communicator::prepare) once, after joining.
///
/// # Ordering
/// Whoever gets elements of a rank by a call acquires everything that this rank did before its own call (C1, C2, S1), as by a barrier:
/// its puts over direct channels, wherever they went, since each was done when it returned, and those over proxied channels that it has
/// flushed. So a call of one element and more acquires:
///
/// | call | acquires what was done before it by |
/// |---|---|
/// | all_reduce, all_gather, reduce_scatter, all_to_all | all ranks |
/// | reduce, gather | all ranks, on the root; on the others nothing |
/// | broadcast, scatter | the root, on the others; on the root nothing: it may return before anybody has come |
/// | all_to_all_v | each rank whose block for this one is not empty |
/// | recv | the sender |
/// | send | nobody |
///
/// What a rank contributes has to be there when its call begins (on a stream: when its turn comes; in a group: when that ends), as it may
/// be read from then on: what others put into its input needs a wait for their signal before, or an earlier call.
///
/// A call without elements orders nothing, and none orders what others do after they have come to it: another call does that then, or a
/// [`barrier`](super::Communicator::barrier). What a rank did before it ended a group, or before it enqueued a call on a stream, it did
/// before the call.
pub trait Collectives<'a>: Submit<'a> {
    /// Combines the inputs of all ranks, element by element, into the output of each.
    ///
    /// # Errors
    /// [`Error::WrongCount`] when the buffers have different counts; [`Error::CallMismatch`] when the ranks are in different
    /// calls; [`Error::OutOfRange`]; [`Error::OutOfMemory`] when the heap is too small for the communicator's own use;
    /// [`Error::Timeout`], [`Error::PeerLost`], [`Error::ProxyLost`], [`Error::Revoked`].
    #[inline]
    fn all_reduce<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        recv: impl Into<RecvBuffer<'a, T>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let count = same("elements received", recv.count(), send.count())?;
        all_reduce::<T, _>(self, count, op, send.input(), recv.output())
    }

    /// Combines the contents of `buffer` on all ranks, element by element, and leaves the result in it on each.
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
        all_reduce::<T, _>(self, count, op, input, buffer.output())
    }

    /// Combines the inputs of all ranks, element by element, into the output of `root`; on other ranks `recv` is not touched
    /// and may be empty.
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

    /// Combines the contents of `buffer` on all ranks, element by element, and leaves the result in it on `root`; on other ranks it
    /// stays as it is.
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

    /// Copies the root's `send` to `recv` on every rank; on other ranks `send` is not touched and may be empty.
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

    /// Collects the inputs of all ranks, one after the other in the order of the ranks, in the output of each. The output has
    /// `n_ranks` times the count of the input.
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

    /// Does [`Collectives::all_gather`] in a `buffer` with a block for each rank, in which this rank's is its input.
    ///
    /// # Errors
    /// Those of [`Collectives::all_gather`]; [`Error::InvalidArgument`] for a count that is not a multiple of the number of ranks.
    fn all_gather_in_place<T: Element>(&mut self, buffer: impl Into<RecvBuffer<'a, T>>) -> Result<()> {
        let buffer = buffer.into();
        let (count, at) = self.caller().own_block::<T>(buffer.count())?;
        let input = buffer.as_input(at);
        submit::<T, _>(self, Operation::AllGather, count, 0, None, input, buffer.output())
    }

    /// Combines the inputs of all ranks, element by element, and leaves block r of the result to rank r. The input has
    /// `n_ranks` times the count of the output.
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

    /// Does [`Collectives::reduce_scatter`] in a `buffer` with a block for each rank: the result takes the place of this rank's
    /// block, and the others stay as they are.
    ///
    /// # Errors
    /// Those of [`Collectives::reduce_scatter`]; [`Error::InvalidArgument`] for a count that is not a multiple of the number of ranks.
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

    /// Sends block r of the input to rank r, and collects the blocks that all ranks send here in the order of the ranks.
    /// Input and output have `n_ranks` blocks of one length.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; [`Error::InvalidArgument`] for a count that is not a multiple of the number of ranks.
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

    /// Does [`Collectives::all_to_all`] in a `buffer` in which each block that is received takes the place of the one that was sent
    /// to that rank.
    ///
    /// # Errors
    /// Those of [`Collectives::all_to_all`].
    fn all_to_all_in_place<T: Element>(&mut self, buffer: impl Into<RecvBuffer<'a, T>>) -> Result<()> {
        let buffer = buffer.into();
        let count = self.caller().block_of(buffer.count())?;
        let input = buffer.as_input(0);
        submit::<T, _>(self, Operation::AllToAll, count, 0, None, input, buffer.output())
    }

    /// Collects the inputs of all ranks, one after the other in the order of the ranks, in the output of `root`; on other ranks
    /// `recv` is not touched and may be empty.
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

    /// Does [`Collectives::gather`] in a `buffer` that has a block for each rank on `root`, the root's own being its input, and is
    /// one block on other ranks, where it stays as it is.
    ///
    /// # Errors
    /// Those of [`Collectives::gather`]; [`Error::InvalidArgument`] for a count that is not a multiple of the number of ranks.
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

    /// Sends block r of the root's input to rank r; on other ranks `send` is not touched and may be empty.
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

    /// Does [`Collectives::scatter`] in a `buffer` that has a block for each rank on `root`, where it stays as it is, and is one
    /// block on other ranks.
    ///
    /// # Errors
    /// Those of [`Collectives::scatter`]; [`Error::InvalidArgument`] for a count that is not a multiple of the number of ranks.
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

    /// Sends a block of the input to each rank, and collects the blocks that all ranks send here. Block r of `sent` goes to rank r, and
    /// block r of `received` is what comes from it: how many elements, and from which on, in the input and in the output. Every rank
    /// receives as many from each as that one sends it; a block may be empty, and what lies between the blocks stays as it is.
    ///
    /// Blocks that are sent may overlap each other. Those that are received overlap neither each other nor any that is sent, where the two
    /// buffers are one or overlap in the heap; but the block that comes from a rank may be the very one that goes to it, which it then
    /// replaces, as in [`Collectives::all_to_all_v_in_place`]. That may be so of all blocks or of some.
    ///
    /// # Errors
    /// Those of [`Collectives::all_reduce`]; at once [`Error::InvalidArgument`] and [`Error::OutOfRange`] for blocks that are not
    /// as described; [`Error::CallMismatch`] on both ranks when one sends a block of another length than the other receives: on
    /// the former by a later call, if it was done by then.
    fn all_to_all_v<T: Element>(
        &mut self,
        send: impl Into<SendBuffer<'a, T>>,
        sent: Blocks<'_>,
        recv: impl Into<RecvBuffer<'a, T>>,
        received: Blocks<'_>,
    ) -> Result<()> {
        let (send, recv) = (send.into(), recv.into());
        let n_ranks = self.caller().n_ranks;
        let layout = Layout {
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

    /// Does [`Collectives::all_to_all_v`] in a `buffer` in which each block that is received takes the place of the one that was sent
    /// to that rank: so many elements as a rank sends another it receives from it. What lies between the blocks stays as it is, and so
    /// does this rank's own. `MPI_Alltoallv` does that with `MPI_IN_PLACE`.
    ///
    /// It takes no memory besides the buffer: what comes is written over what has left, piece by piece. Ranks need not do alike: what one
    /// exchanges in place another may send and receive in two buffers, block by block of the same lengths.
    ///
    /// # Errors
    /// Those of [`Collectives::all_to_all_v`], for `blocks` that overlap, too. The block that two ranks disagree on stays as it is.
    fn all_to_all_v_in_place<T: Element>(
        &mut self,
        buffer: impl Into<RecvBuffer<'a, T>>,
        blocks: Blocks<'_>,
    ) -> Result<()> {
        let buffer = buffer.into();
        let received = blocks.within(buffer.count(), self.caller().n_ranks)?;
        check_apart(&received)?;
        let layout = Layout { sent: received.clone(), received };
        let input = buffer.as_input(0);
        submit_blocks::<T, _>(self, layout, input, buffer.output())
    }

    /// Sends the elements of `send` to `peer`, which calls [`Collectives::recv`] for as many of the same type.
    ///
    /// Between two ranks, what is sent first is received first; there are no tags. It returns when `send` may be written again.
    /// Up to 1 KiB that is before the peer has called, unless four such messages are waiting for it already; more may have to wait for
    /// it. All other ranks are not concerned. But every rank makes its calls in one order, those to all and those to one: what was sent
    /// before a call of all ranks is received before it.
    ///
    /// Who is to send and to receive at a time puts both into one [group](super::Group): a rank that sends first may wait for a
    /// peer that does the same. Two ranks that do wait so for each other are told ([`Error::CallMismatch`]).
    ///
    /// **The first call of a job's first communicator is one of all ranks, even if it is a message:** it prepares memory together with
    /// them, and waits until each has come to a first collective call or message of its own; a barrier is none. Where the first messages are
    /// between some ranks only, all ranks call [`Communicator::prepare`](super::Communicator::prepare) once, after joining.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::InvalidArgument`] for a message to oneself, unless a group receives it;
    /// [`Error::CallMismatch`] on both ranks when the peer has called for something else: on this one by a later call if it was not
    /// waiting any more; on all ranks when the peer waits for this one in an operation of all; otherwise those of [`Collectives::all_reduce`].
    ///
    /// # Ordering
    /// Publishes everything before it to the peer that receives the message (C1, S1), of puts over proxied channels those that it has
    /// flushed; and acquires nothing.
    #[inline]
    fn send<T: Element>(&mut self, send: impl Into<SendBuffer<'a, T>>, peer: Rank) -> Result<()> {
        let send = send.into();
        self.caller().is_root(peer)?;
        let (count, input) = (send.count(), send.input());
        submit::<T, _>(self, Operation::Send, count, peer.index(), None, input, Output::None)
    }

    /// Receives what `peer` sends by [`Collectives::send`]: as many elements as `recv` has, of the same type. As the first call of a
    /// job's first communicator it is one of all ranks, as a send is.
    ///
    /// # Errors
    /// Those of [`Collectives::send`].
    ///
    /// # Ordering
    /// Acquires everything that `peer` did before that send, its puts too (C1, S1): those over proxied channels if it has flushed them.
    #[inline]
    fn recv<T: Element>(&mut self, recv: impl Into<RecvBuffer<'a, T>>, peer: Rank) -> Result<()> {
        let recv = recv.into();
        self.caller().is_root(peer)?;
        let (count, output) = (recv.count(), recv.output());
        submit::<T, _>(self, Operation::Recv, count, peer.index(), None, Input::None, output)
    }
}

impl<'a, S: Submit<'a> + ?Sized> Collectives<'a> for S {}
