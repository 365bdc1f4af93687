//! A call as a value: what a program asks for, with all its arguments.
//!
//! [`Submit::submit`] takes it: at once, in a group, on a stream, or started. The [typed
//! methods](super::collectives) make one each, and so do the bindings of other languages. What an
//! operation reads and writes stands in one table, [`Operation::sides`]: from that, and from the
//! lengths of the buffers, [`CollectiveCall::resolve`] finds where input and output are.

use super::buffers::{Blocks, Recv, RecvBytes, Send, SendBytes, check_apart, check_distinct};
use super::settings::RegisteredPlan;
use super::submit::{Caller, Submit, same};
use crate::collective::{
    BlockLayout, Input, MessageSelector, Operation, Output, Receipt, Request, Side, StatusHandle,
};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::reduce::{DataType, ReduceOp};

/// A collective call, or one end of a message. What its operation has no use for is ignored.
///
/// The lengths of its buffers say how many elements it has. They count bytes, at any address.
#[derive(Debug)]
pub struct CollectiveCall<'a, 'o> {
    /// The operation: one of [`CollectiveCall::OPERATIONS`].
    pub operation: Operation,
    /// The type of elements.
    pub data_type: DataType,
    /// The input and the output.
    pub buffers: Buffers<'a>,
    /// The operator of an operation that [reduces](Operation::reduces).
    pub op: Option<&'o ReduceOp>,
    /// The root, or the other rank of a message.
    pub root: Rank,
    /// The tag of a message.
    pub tag: u32,
    /// The plan of [`Operation::RunPlan`].
    pub plan: Option<RegisteredPlan>,
    /// The blocks that [`Operation::AllToAllV`] sends and receives.
    pub blocks: Option<&'o [Blocks<'o>; 2]>,
    /// Which messages [`Operation::RecvAny`] takes, and where it tells of the one taken.
    pub selected: Option<(MessageSelector, &'o StatusHandle)>,
}

/// A call that owns its arguments, to be submitted later. Its buffers are in the heap, or live for
/// ever.
#[derive(Debug)]
pub struct OwnedCall {
    /// The call. Its operator, blocks and selection are those that follow.
    pub call: CollectiveCall<'static, 'static>,
    /// The operator of a reduction.
    pub op: Option<ReduceOp>,
    /// The counts and displacements of blocks that are sent, and of those that are received.
    pub blocks: Option<Box<[Vec<usize>; 4]>>,
    /// Which messages a receive takes, and where it tells of the one taken.
    pub selected: Option<(MessageSelector, StatusHandle)>,
}

impl OwnedCall {
    /// Submits it to `taker`.
    ///
    /// # Errors
    /// Those of [`Submit::submit`].
    #[inline]
    pub fn submit<'a, S: Submit<'a> + ?Sized>(self, taker: &mut S) -> Result<()> {
        let Self { call, op, blocks, selected } = self;
        let mut call: CollectiveCall<'a, '_> = call;
        call.op = op.as_ref();
        let blocks = blocks.as_deref().map(|[sent, sent_at, received, received_at]| {
            [Blocks::new(sent, sent_at), Blocks::new(received, received_at)]
        });
        call.blocks = blocks.as_ref();
        call.selected = selected.as_ref().map(|(selector, status)| (*selector, status));
        taker.submit(call)
    }
}

/// Where a call reads and writes.
#[derive(Debug)]
pub enum Buffers<'a> {
    /// It reads the first, and writes the second. A rank passes no bytes for what it has no part
    /// in: what it passes is not touched.
    Apart(SendBytes<'a>, RecvBytes<'a>),
    /// It replaces what it reads, as the forms in place of [`Collectives`](crate::Collectives)
    /// say. Where a rank has a block and a block for each rank, this is the longer one of them.
    InPlace(RecvBytes<'a>),
}

impl<'a> Buffers<'a> {
    /// Names an input and an output.
    #[inline]
    pub fn apart(send: impl Into<SendBytes<'a>>, recv: impl Into<RecvBytes<'a>>) -> Self {
        Self::Apart(send.into(), recv.into())
    }

    /// Names the buffer of a call in place.
    #[inline]
    pub fn in_place(buffer: impl Into<RecvBytes<'a>>) -> Self {
        Self::InPlace(buffer.into())
    }

    /// Names an input, of a rank that has no output.
    #[inline]
    pub fn input(send: impl Into<SendBytes<'a>>) -> Self {
        Self::Apart(send.into(), RecvBytes::none())
    }

    /// Names an output, of a rank that has no input.
    #[inline]
    pub fn output(recv: impl Into<RecvBytes<'a>>) -> Self {
        Self::Apart(SendBytes::none(), recv.into())
    }
}

impl<'a, 'o> CollectiveCall<'a, 'o> {
    /// The operations that there are calls of.
    pub const OPERATIONS: [Operation; Operation::with_buffers::<0>(false).1] =
        Operation::with_buffers(false).0;

    /// Calls `operation` on elements of `data_type`. The other arguments are the caller's to set.
    #[inline]
    #[must_use]
    pub const fn new(operation: Operation, data_type: DataType, buffers: Buffers<'a>) -> Self {
        Self {
            operation,
            data_type,
            buffers,
            op: None,
            root: Rank::ZERO,
            tag: 0,
            plan: None,
            blocks: None,
            selected: None,
        }
    }

    /// Finds what the engine is asked for, when `caller` makes this call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::InvalidRank`], [`Error::OutOfRange`],
    /// [`Error::WrongCount`].
    // Always in line: where the operation is known, little is left of it, and nothing is moved.
    #[inline(always)]
    pub(super) fn resolve(self, caller: Caller) -> Result<Request<'a, 'o>> {
        let Self { operation, data_type, op, root, .. } = self;
        match operation {
            Operation::Send | Operation::Recv => return self.resolve_message(caller),
            Operation::AllToAllV | Operation::RecvAny | Operation::RunPlan => {
                return self.resolve_other(caller);
            }
            _ => {}
        }
        let root = if operation.has_root() { caller.known(root)? } else { Rank::ZERO };
        let (count, input, output) = places(operation, data_type, self.buffers, caller, root)?;
        let op = match op {
            _ if !operation.reduces() => None,
            None => return Err(Error::invalid("the number of operators", 0, "that of the reduction")),
            op => op,
        };
        let (root, tag, receipt, layout) = (root.index(), 0, None, None);
        Ok(Request { operation, data_type, count, root, tag, receipt, op, layout, input, output })
    }

    /// Finds it for one end of a message.
    #[inline(always)] // see `resolve`
    fn resolve_message(self, caller: Caller) -> Result<Request<'a, 'o>> {
        let Self { operation, data_type, buffers, root, tag, .. } = self;
        let root = caller.known(root)?;
        let (count, input, output) = places(operation, data_type, buffers, caller, root)?;
        let (root, receipt, op, layout) = (root.index(), None, None, None);
        Ok(Request { operation, data_type, count, root, tag, receipt, op, layout, input, output })
    }

    /// Finds it for blocks of different lengths, for receives of several ranks or tags, and for
    /// plans.
    fn resolve_other(self, caller: Caller) -> Result<Request<'a, 'o>> {
        let Self { operation, data_type, buffers, plan, blocks, selected, .. } = self;
        if operation == Operation::AllToAllV {
            return exchange(data_type, buffers, blocks, caller);
        }
        let (tag, receipt) = if operation == Operation::RecvAny {
            let (receipt, selector) = open_receipt(selected, caller)?;
            (selector.tag.unwrap_or(0), Some(Box::new(receipt)))
        } else {
            let plan = plan.ok_or_else(|| Error::invalid("the number of plans", 0, "the one to run"))?;
            (plan.0, None)
        };
        let (count, input, output) = places(operation, data_type, buffers, caller, Rank::ZERO)?;
        let (root, op, layout) = (0, None, None);
        Ok(Request { operation, data_type, count, root, tag, receipt, op, layout, input, output })
    }
}

/// Returns the elements of a block, and where the input and the output of `caller` are.
#[inline(always)] // see `resolve`
fn places<'a>(
    operation: Operation,
    data_type: DataType,
    buffers: Buffers<'a>,
    caller: Caller,
    root: Rank,
) -> Result<(u64, Input<'a>, Output<'a>)> {
    let (sent, received) = operation.sides();
    if matches!((sent, received), (Side::Nothing, Side::Nothing)) {
        let expected = "one of `CollectiveCall::OPERATIONS`";
        return Err(Error::invalid("the code of an operation", operation as u64, expected));
    }
    let is_there = |side: Side| side.is_there(caller.rank.index(), root.index());
    let (reads, writes) = (is_there(sent), is_there(received));
    match buffers {
        Buffers::Apart(send, recv) => {
            let (send, recv) = (send.of_heap(|| caller.heap)?, recv.of_heap(|| caller.heap)?);
            let count = match (sent, received) {
                (Side::Block, _) => send.count(data_type)?,
                (_, Side::Block) => recv.count(data_type)?,
                _ => caller.block_of(send.count(data_type)?)?,
            };
            if reads && !matches!(sent, Side::Block) {
                let expected = caller.elements(count, sent);
                same("elements sent", send.count(data_type)?, expected)?;
            }
            if writes {
                let expected = caller.elements(count, received);
                same("elements received", recv.count(data_type)?, expected)?;
            }
            let input = if reads { send.input() } else { Input::None };
            Ok((count, input, if writes { recv.output() } else { Output::None }))
        }
        Buffers::InPlace(buffer) => {
            let buffer = buffer.of_heap(|| caller.heap)?;
            let total = buffer.count(data_type)?;
            let (inputs, outputs) = operation.blocks(caller.n_ranks.into());
            match (reads, writes) {
                (true, true) if inputs.max(outputs) == 1 => Ok((total, buffer.as_input(0), buffer.output())),
                (true, true) => {
                    let count = caller.block_of(total)?;
                    let own = count * u64::from(caller.rank.get()) * data_type.size() as u64;
                    let at = |blocks: u64| if blocks == 1 { own } else { 0 };
                    let input = buffer.as_input(at(inputs));
                    let output = if outputs == 1 { buffer.output_within(own) } else { buffer.output() };
                    Ok((count, input, output))
                }
                (true, false) => Ok((total, buffer.into_input(), Output::None)),
                (false, _) => Ok((total, Input::None, buffer.output())),
            }
        }
    }
}

/// Finds what an exchange of blocks of different lengths asks for.
fn exchange<'a, 'o>(
    data_type: DataType,
    buffers: Buffers<'a>,
    blocks: Option<&[Blocks<'_>; 2]>,
    caller: Caller,
) -> Result<Request<'a, 'o>> {
    let missing = || Error::invalid("the number of lists of blocks", 0, "two");
    let &[sent, received] = blocks.ok_or_else(missing)?;
    let (layout, input, output) = match buffers {
        Buffers::Apart(send, recv) => {
            let (send, recv) = (send.of_heap(|| caller.heap)?, recv.of_heap(|| caller.heap)?);
            let layout = BlockLayout {
                sent: sent.within(send.count(data_type)?, caller.n_ranks)?,
                received: received.within(recv.count(data_type)?, caller.n_ranks)?,
            };
            check_apart(&layout.received)?;
            if let (Send::Heap(source, _), Recv::Heap(target, _)) = (&send.0, &recv.0) {
                check_distinct(*source, *target, &layout, data_type.size() as u64)?;
            }
            (layout, send.input(), recv.output())
        }
        Buffers::InPlace(buffer) => {
            let buffer = buffer.of_heap(|| caller.heap)?;
            let received = received.within(buffer.count(data_type)?, caller.n_ranks)?;
            check_apart(&received)?;
            (BlockLayout { sent: received.clone(), received }, buffer.as_input(0), buffer.output())
        }
    };
    let (operation, layout) = (Operation::AllToAllV, Some(Box::new(layout)));
    let (count, root, tag, receipt, op) = (0, 0, 0, None, None);
    Ok(Request { operation, data_type, count, root, tag, receipt, op, layout, input, output })
}

/// Returns what a receive takes of several ranks or tags.
fn open_receipt(
    selected: Option<(MessageSelector, &StatusHandle)>,
    caller: Caller,
) -> Result<(Receipt, MessageSelector)> {
    if caller.n_ranks == 1 {
        return Err(Error::invalid("the number of other ranks to receive from", 0, "one at least"));
    }
    let missing = || Error::invalid("the number of selections of messages", 0, "one");
    let (selector, status) = selected.ok_or_else(missing)?;
    let source = match selector.source {
        Some(source) if caller.known(source)? == caller.rank => {
            return Err(Error::invalid("the peer of a message", source.get().into(), "another rank"));
        }
        source => source.map(Rank::index),
    };
    let status = status.clone();
    Ok((Receipt { status, source, has_any_tag: selector.tag.is_none() }, selector))
}
