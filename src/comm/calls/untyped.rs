//! The collective operations on bytes, where the type of elements is known at run time only.

use super::buffers::{Blocks, Recv, RecvBytes, Send, SendBytes, check_apart, check_distinct};
#[cfg(doc)]
use super::collectives::Collectives;
use super::settings::RegisteredPlan;
use super::submit::{Submit, same};
use crate::collective::{
    BlockLayout, Input, MessageSelector, Operation, Output, Receipt, Request, StatusHandle,
};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::reduce::{DataType, ReduceOp};

/// Takes the calls of [`Collectives`] on bytes, as elements of a type that is a value: see
/// [`Collectives::untyped`]. The typed calls go through here.
///
/// A buffer has as many elements as its bytes make, at any address. Blocks are counted in elements.
#[derive(Debug)]
pub struct Untyped<'s, S: ?Sized> {
    taker: &'s mut S,
    data_type: DataType,
}

/// The other end of a message, and the tag that both call.
struct Envelope {
    /// 0 for any rank.
    peer: usize,
    /// 0 for any.
    tag: u32,
    /// What a receive from any rank takes, and where it tells which message that was.
    receipt: Option<Box<Receipt>>,
}

impl From<RegisteredPlan> for Envelope {
    fn from(plan: RegisteredPlan) -> Self {
        Self { peer: 0, tag: plan.0, receipt: None }
    }
}

impl<'s, S: ?Sized> Untyped<'s, S> {
    #[inline]
    pub(super) const fn new(taker: &'s mut S, data_type: DataType) -> Self {
        Self { taker, data_type }
    }
}

impl<'a, S: Submit<'a> + ?Sized> Untyped<'_, S> {
    /// Does [`Collectives::all_reduce`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn all_reduce(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = same("elements received", recv.count(self.data_type)?, send.count(self.data_type)?)?;
        self.submit(Operation::AllReduce, count, 0, Some(op), send.input(), recv.output())
    }

    /// Does [`Collectives::all_reduce_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn all_reduce_in_place(&mut self, buffer: impl Into<RecvBytes<'a>>, op: &ReduceOp) -> Result<()> {
        let buffer = self.received(buffer)?;
        let (count, input) = (buffer.count(self.data_type)?, buffer.as_input(0));
        self.submit(Operation::AllReduce, count, 0, Some(op), input, buffer.output())
    }

    /// Does [`Collectives::reduce`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn reduce(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
        op: &ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = send.count(self.data_type)?;
        let output = self.output_at(root, recv, count)?;
        self.submit(Operation::Reduce, count, root.index(), Some(op), send.input(), output)
    }

    /// Does [`Collectives::reduce_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn reduce_in_place(
        &mut self,
        buffer: impl Into<RecvBytes<'a>>,
        op: &ReduceOp,
        root: Rank,
    ) -> Result<()> {
        let buffer = self.received(buffer)?;
        let count = buffer.count(self.data_type)?;
        let (input, output) = if self.taker.caller().is_root(root)? {
            (buffer.as_input(0), buffer.output())
        } else {
            (buffer.into_input(), Output::None)
        };
        self.submit(Operation::Reduce, count, root.index(), Some(op), input, output)
    }

    /// Does [`Collectives::broadcast`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn broadcast(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = recv.count(self.data_type)?;
        let input = self.input_at(root, send, count)?;
        self.submit(Operation::Broadcast, count, root.index(), None, input, recv.output())
    }

    /// Does [`Collectives::broadcast_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn broadcast_in_place(&mut self, buffer: impl Into<RecvBytes<'a>>, root: Rank) -> Result<()> {
        let buffer = self.received(buffer)?;
        let count = buffer.count(self.data_type)?;
        let input = if self.taker.caller().is_root(root)? { buffer.as_input(0) } else { Input::None };
        self.submit(Operation::Broadcast, count, root.index(), None, input, buffer.output())
    }

    /// Does [`Collectives::all_gather`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn all_gather(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = send.count(self.data_type)?;
        same("elements received", recv.count(self.data_type)?, self.taker.caller().blocks(count))?;
        self.submit(Operation::AllGather, count, 0, None, send.input(), recv.output())
    }

    /// Does [`Collectives::all_gather_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn all_gather_in_place(&mut self, buffer: impl Into<RecvBytes<'a>>) -> Result<()> {
        let buffer = self.received(buffer)?;
        let (count, at) = self.own_block(buffer.count(self.data_type)?)?;
        let input = buffer.as_input(at);
        self.submit(Operation::AllGather, count, 0, None, input, buffer.output())
    }

    /// Does [`Collectives::reduce_scatter`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn reduce_scatter(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
        op: &ReduceOp,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = recv.count(self.data_type)?;
        same("elements sent", send.count(self.data_type)?, self.taker.caller().blocks(count))?;
        self.submit(Operation::ReduceScatter, count, 0, Some(op), send.input(), recv.output())
    }

    /// Does [`Collectives::reduce_scatter_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn reduce_scatter_in_place(&mut self, buffer: impl Into<RecvBytes<'a>>, op: &ReduceOp) -> Result<()> {
        let buffer = self.received(buffer)?;
        let (count, at) = self.own_block(buffer.count(self.data_type)?)?;
        let input = buffer.as_input(0);
        self.submit(Operation::ReduceScatter, count, 0, Some(op), input, buffer.output_within(at))
    }

    /// Does [`Collectives::run_plan`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn run_plan(
        &mut self,
        plan: RegisteredPlan,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = same("elements received", recv.count(self.data_type)?, send.count(self.data_type)?)?;
        self.submit_message(Operation::RunPlan, count, plan.into(), send.input(), recv.output())
    }

    /// Does [`Collectives::run_plan_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn run_plan_in_place(
        &mut self,
        plan: RegisteredPlan,
        buffer: impl Into<RecvBytes<'a>>,
    ) -> Result<()> {
        let buffer = self.received(buffer)?;
        let (count, input) = (buffer.count(self.data_type)?, buffer.as_input(0));
        self.submit_message(Operation::RunPlan, count, plan.into(), input, buffer.output())
    }

    /// Does [`Collectives::all_to_all`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn all_to_all(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let total = same("elements received", recv.count(self.data_type)?, send.count(self.data_type)?)?;
        let count = self.taker.caller().block_of(total)?;
        self.submit(Operation::AllToAll, count, 0, None, send.input(), recv.output())
    }

    /// Does [`Collectives::all_to_all_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn all_to_all_in_place(&mut self, buffer: impl Into<RecvBytes<'a>>) -> Result<()> {
        let buffer = self.received(buffer)?;
        let count = self.taker.caller().block_of(buffer.count(self.data_type)?)?;
        let input = buffer.as_input(0);
        self.submit(Operation::AllToAll, count, 0, None, input, buffer.output())
    }

    /// Does [`Collectives::gather`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn gather(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = send.count(self.data_type)?;
        let all = self.taker.caller().blocks(count);
        let output = self.output_at(root, recv, all)?;
        self.submit(Operation::Gather, count, root.index(), None, send.input(), output)
    }

    /// Does [`Collectives::gather_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn gather_in_place(&mut self, buffer: impl Into<RecvBytes<'a>>, root: Rank) -> Result<()> {
        let buffer = self.received(buffer)?;
        let (count, input, output) = if self.taker.caller().is_root(root)? {
            let (count, at) = self.own_block(buffer.count(self.data_type)?)?;
            (count, buffer.as_input(at), buffer.output())
        } else {
            (buffer.count(self.data_type)?, buffer.into_input(), Output::None)
        };
        self.submit(Operation::Gather, count, root.index(), None, input, output)
    }

    /// Does [`Collectives::scatter`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn scatter(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        recv: impl Into<RecvBytes<'a>>,
        root: Rank,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let count = recv.count(self.data_type)?;
        let all = self.taker.caller().blocks(count);
        let input = self.input_at(root, send, all)?;
        self.submit(Operation::Scatter, count, root.index(), None, input, recv.output())
    }

    /// Does [`Collectives::scatter_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn scatter_in_place(&mut self, buffer: impl Into<RecvBytes<'a>>, root: Rank) -> Result<()> {
        let buffer = self.received(buffer)?;
        let (count, input, output) = if self.taker.caller().is_root(root)? {
            let (count, at) = self.own_block(buffer.count(self.data_type)?)?;
            (count, buffer.as_input(0), buffer.output_within(at))
        } else {
            (buffer.count(self.data_type)?, Input::None, buffer.output())
        };
        self.submit(Operation::Scatter, count, root.index(), None, input, output)
    }

    /// Does [`Collectives::all_to_all_v`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn all_to_all_v(
        &mut self,
        send: impl Into<SendBytes<'a>>,
        sent: Blocks<'_>,
        recv: impl Into<RecvBytes<'a>>,
        received: Blocks<'_>,
    ) -> Result<()> {
        let (send, recv) = (self.sent(send)?, self.received(recv)?);
        let n_ranks = self.taker.caller().n_ranks;
        let layout = BlockLayout {
            sent: sent.within(send.count(self.data_type)?, n_ranks)?,
            received: received.within(recv.count(self.data_type)?, n_ranks)?,
        };
        check_apart(&layout.received)?;
        if let (Send::Heap(source, _), Recv::Heap(target, _)) = (&send.0, &recv.0) {
            let (sent, received) = ((*source, &layout.sent[..]), (*target, &layout.received[..]));
            check_distinct(sent, received, self.data_type.size() as u64)?;
        }
        self.submit_blocks(layout, send.input(), recv.output())
    }

    /// Does [`Collectives::all_to_all_v_in_place`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn all_to_all_v_in_place(
        &mut self,
        buffer: impl Into<RecvBytes<'a>>,
        blocks: Blocks<'_>,
    ) -> Result<()> {
        let buffer = self.received(buffer)?;
        let received = blocks.within(buffer.count(self.data_type)?, self.taker.caller().n_ranks)?;
        check_apart(&received)?;
        let layout = BlockLayout { sent: received.clone(), received };
        let input = buffer.as_input(0);
        self.submit_blocks(layout, input, buffer.output())
    }

    /// Does [`Collectives::send`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn send(&mut self, send: impl Into<SendBytes<'a>>, peer: Rank) -> Result<()> {
        self.send_tagged(send, peer, 0)
    }

    /// Does [`Collectives::send_tagged`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn send_tagged(&mut self, send: impl Into<SendBytes<'a>>, peer: Rank, tag: u32) -> Result<()> {
        let send = self.sent(send)?;
        self.taker.caller().is_root(peer)?;
        let (count, input) = (send.count(self.data_type)?, send.input());
        let envelope = Envelope { peer: peer.index(), tag, receipt: None };
        self.submit_message(Operation::Send, count, envelope, input, Output::None)
    }

    /// Does [`Collectives::recv`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn recv(&mut self, recv: impl Into<RecvBytes<'a>>, peer: Rank) -> Result<()> {
        self.recv_tagged(recv, peer, 0)
    }

    /// Does [`Collectives::recv_tagged`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    #[inline]
    pub fn recv_tagged(&mut self, recv: impl Into<RecvBytes<'a>>, peer: Rank, tag: u32) -> Result<()> {
        let recv = self.received(recv)?;
        self.taker.caller().is_root(peer)?;
        let (count, output) = (recv.count(self.data_type)?, recv.output());
        let envelope = Envelope { peer: peer.index(), tag, receipt: None };
        self.submit_message(Operation::Recv, count, envelope, Input::None, output)
    }

    /// Does [`Collectives::recv_any_into`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn recv_any_into(
        &mut self,
        recv: impl Into<RecvBytes<'a>>,
        tag: u32,
        status: &StatusHandle,
    ) -> Result<()> {
        self.recv_selected_into(recv, MessageSelector { source: None, tag: Some(tag) }, status)
    }

    /// Does [`Collectives::recv_selected_into`] on bytes.
    ///
    /// # Errors
    /// Those of it; [`Error::InvalidArgument`] for a part of an element.
    pub fn recv_selected_into(
        &mut self,
        recv: impl Into<RecvBytes<'a>>,
        selector: MessageSelector,
        status: &StatusHandle,
    ) -> Result<()> {
        let (recv, caller) = (self.received(recv)?, self.taker.caller());
        if caller.n_ranks == 1 {
            return Err(Error::invalid("the number of other ranks to receive from", 0, "one at least"));
        }
        let source = match selector.source {
            Some(source) if caller.is_root(source)? => {
                return Err(Error::invalid("the peer of a message", source.get().into(), "another rank"));
            }
            source => source.map(Rank::index),
        };
        let (count, output) = (recv.count(self.data_type)?, recv.output());
        let receipt = Receipt { status: status.clone(), source, has_any_tag: selector.tag.is_none() };
        let envelope = Envelope { peer: 0, tag: selector.tag.unwrap_or(0), receipt: Some(Box::new(receipt)) };
        self.submit_message(Operation::RecvAny, count, envelope, Input::None, output)
    }

    /// Passes one end of a message to the taker.
    #[inline]
    fn submit_message(
        &mut self,
        operation: Operation,
        count: u64,
        envelope: Envelope,
        input: Input<'a>,
        output: Output<'a>,
    ) -> Result<()> {
        let Envelope { peer: root, tag, receipt } = envelope;
        let (data_type, op, layout) = (self.data_type, None, None);
        self.taker.submit(Request {
            operation,
            data_type,
            count,
            root,
            tag,
            receipt,
            op,
            layout,
            input,
            output,
        })
    }

    /// Passes a call to the taker.
    #[inline]
    fn submit(
        &mut self,
        operation: Operation,
        count: u64,
        root: usize,
        op: Option<&ReduceOp>,
        input: Input<'a>,
        output: Output<'a>,
    ) -> Result<()> {
        let (data_type, tag, receipt, layout) = (self.data_type, 0, None, None);
        self.taker.submit(Request {
            operation,
            data_type,
            count,
            root,
            tag,
            receipt,
            op,
            layout,
            input,
            output,
        })
    }

    /// Passes an exchange of the blocks of `layout` to the taker.
    fn submit_blocks(&mut self, layout: BlockLayout, input: Input<'a>, output: Output<'a>) -> Result<()> {
        let (operation, data_type, layout) = (Operation::AllToAllV, self.data_type, Some(Box::new(layout)));
        self.taker.submit(Request {
            operation,
            data_type,
            count: 0,
            root: 0,
            tag: 0,
            receipt: None,
            op: None,
            layout,
            input,
            output,
        })
    }

    /// Takes an input, of this rank's heap or of ordinary memory.
    #[inline]
    fn sent(&self, send: impl Into<SendBytes<'a>>) -> Result<SendBytes<'a>> {
        send.into().of_heap(|| self.taker.caller().heap)
    }

    /// Takes an output, of this rank's heap or of ordinary memory.
    #[inline]
    fn received(&self, recv: impl Into<RecvBytes<'a>>) -> Result<RecvBytes<'a>> {
        recv.into().of_heap(|| self.taker.caller().heap)
    }

    /// Returns the input of `count` elements that only `root` has.
    #[inline]
    fn input_at(&self, root: Rank, send: SendBytes<'a>, count: u64) -> Result<Input<'a>> {
        if !self.taker.caller().is_root(root)? {
            return Ok(Input::None);
        }
        same("elements sent", send.count(self.data_type)?, count)?;
        Ok(send.input())
    }

    /// Returns the output of `count` elements that only `root` has.
    #[inline]
    fn output_at(&self, root: Rank, recv: RecvBytes<'a>, count: u64) -> Result<Output<'a>> {
        if !self.taker.caller().is_root(root)? {
            return Ok(Output::None);
        }
        same("elements received", recv.count(self.data_type)?, count)?;
        Ok(recv.output())
    }

    /// Divides `total` elements into a block for each rank. Returns the elements of a block, and
    /// the bytes before this rank's.
    fn own_block(&self, total: u64) -> Result<(u64, u64)> {
        let caller = self.taker.caller();
        let count = caller.block_of(total)?;
        Ok((count, count * u64::from(caller.rank.get()) * self.data_type.size() as u64))
    }
}
