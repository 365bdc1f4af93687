//! Takes collective calls, and checks those of their arguments that a rank can check alone.

use super::buffers::overlap;
use super::buffers::{RecvBuffer, SendBuffer};
use crate::collective::{Arguments, Call, Input, Layout, Operation, Output, Repeat};
use crate::error::{Error, Result};
use crate::heap::Region;
use crate::rank::Rank;
use crate::reduce::{Element, ReduceOp, Reducer};

/// The caller of a collective call: a rank among a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub(super) rank: Rank,
    pub(super) n_ranks: u32,
}

/// Takes collective calls with checked arguments, to execute them at once or later.
///
/// Only this crate implements it.
pub trait Submit<'a> {
    /// Returns the caller.
    fn caller(&self) -> Caller;

    /// Takes `call`.
    ///
    /// # Errors
    /// Those of the call, where it is executed at once.
    fn submit(&mut self, call: Call<'a>) -> Result<()>;

    /// Returns one of the last calls that can be repeated, if it had these `arguments` and is
    /// executed at once.
    #[inline]
    fn repeat(&mut self, _arguments: Arguments) -> Option<Repeat<'_>> {
        None
    }
}

impl Caller {
    /// Returns the number of elements in a block of `count` for each rank.
    pub(super) fn blocks(self, count: u64) -> u64 {
        count.saturating_mul(self.n_ranks.into())
    }

    /// Returns the input of `count` elements that only `root` has.
    #[inline]
    pub(super) fn input_at<'a, T: Element>(
        &self,
        root: Rank,
        send: SendBuffer<'a, T>,
        count: u64,
    ) -> Result<Input<'a>> {
        if !self.is_root(root)? {
            return Ok(Input::None);
        }
        same("elements sent", send.count(), count)?;
        Ok(send.input())
    }

    /// Returns the output of `count` elements that only `root` has.
    #[inline]
    pub(super) fn output_at<'a, T: Element>(
        &self,
        root: Rank,
        recv: RecvBuffer<'a, T>,
        count: u64,
    ) -> Result<Output<'a>> {
        if !self.is_root(root)? {
            return Ok(Output::None);
        }
        same("elements received", recv.count(), count)?;
        Ok(recv.output())
    }

    /// Returns whether this is `root`, a rank of the communicator.
    #[inline]
    pub(super) fn is_root(&self, root: Rank) -> Result<bool> {
        Rank::new(root.get(), self.n_ranks)?;
        Ok(self.rank == root)
    }

    /// Divides `total` elements `T` into a block for each rank. Returns the elements of a block,
    /// and the bytes before this rank's.
    pub(super) fn own_block<T: Element>(&self, total: u64) -> Result<(u64, u64)> {
        let count = self.block_of(total)?;
        Ok((count, count * u64::from(self.rank.get()) * size_of::<T>() as u64))
    }

    /// Returns the elements of one block, when `total` elements are a block for each rank.
    #[inline]
    pub(super) fn block_of(&self, total: u64) -> Result<u64> {
        let n_ranks = u64::from(self.n_ranks);
        if !total.is_multiple_of(n_ranks) {
            let expected = "a multiple of the number of ranks";
            return Err(Error::InvalidArgument { name: "elements sent", value: total, expected });
        }
        Ok(total / n_ranks)
    }
}

/// Has `taker` do an all-reduce, which may be one that it has done before.
///
/// # Errors
/// Those of [`Submit::submit`].
#[inline]
pub(super) fn all_reduce<'a, T: Element, S: Submit<'a> + ?Sized>(
    taker: &mut S,
    count: u64,
    op: &ReduceOp,
    input: Input<'a>,
    output: Output<'a>,
) -> Result<()> {
    let arguments = Arguments::new((count, T::DATA_TYPE), op, &input, &output);
    match arguments.and_then(|arguments| taker.repeat(arguments)) {
        Some(repeat) => repeat.run(),
        None => submit::<T, _>(taker, Operation::AllReduce, count, 0, Some(op), input, output),
    }
}

/// Passes a call to `taker`.
///
/// # Errors
/// Those of [`Submit::submit`]; [`Error::InvalidArgument`] for an operator of another type, and for
/// buffers that overlap in part.
#[inline]
pub(super) fn submit<'a, T: Element, S: Submit<'a> + ?Sized>(
    taker: &mut S,
    operation: Operation,
    count: u64,
    root: usize,
    op: Option<&ReduceOp>,
    input: Input<'a>,
    output: Output<'a>,
) -> Result<()> {
    let n_ranks = taker.caller().n_ranks;
    // Written out, because `Option::transpose` copies the reducer twice, which costs as much as the
    // rest.
    let reducer = match op {
        Some(op) => Some(Reducer::new(T::DATA_TYPE, op, n_ranks)?),
        None => None,
    };
    let layout = None;
    check_places(taker.caller(), operation, count.saturating_mul(size_of::<T>() as u64), &input, &output)?;
    taker.submit(Call { operation, data_type: T::DATA_TYPE, count, root, reducer, layout, input, output })
}

/// Refuses heap buffers that overlap, unless the call is in place: one would be written while it is
/// read.
#[inline]
fn check_places(
    caller: Caller,
    operation: Operation,
    block: u64,
    input: &Input<'_>,
    output: &Output<'_>,
) -> Result<()> {
    let (&Input::Heap(input), &Output::Heap(output)) = (input, output) else { return Ok(()) };
    let (sent, received) = operation.blocks(caller.n_ranks.into());
    let (sent, received) =
        (Region::new(input, sent.saturating_mul(block)), Region::new(output, received.saturating_mul(block)));
    if sent == received || !overlap(sent, received) || is_own_block(caller, block, sent, received) {
        return Ok(());
    }
    let expected =
        "one apart from what is sent, or the call's form in place: the same, or the block of this rank";
    Err(Error::InvalidArgument { name: "the offset of what is received", value: output.get(), expected })
}

/// Returns whether the shorter one of two buffers is the block of this rank in the longer one.
fn is_own_block(caller: Caller, block: u64, sent: Region, received: Region) -> bool {
    let (whole, part) = if sent.len > received.len { (sent, received) } else { (received, sent) };
    let before = block.saturating_mul(caller.rank.get().into());
    whole.len > part.len && whole.offset.get().checked_add(before) == Some(part.offset.get())
}

/// Has `taker` exchange the blocks of `layout`.
///
/// # Errors
/// Those of [`Submit::submit`].
pub(super) fn submit_blocks<'a, T: Element, S: Submit<'a> + ?Sized>(
    taker: &mut S,
    layout: Layout,
    input: Input<'a>,
    output: Output<'a>,
) -> Result<()> {
    let operation = Operation::AllToAllV;
    let layout = Some(Box::new(layout));
    taker.submit(Call {
        operation,
        data_type: T::DATA_TYPE,
        count: 0,
        root: 0,
        reducer: None,
        layout,
        input,
        output,
    })
}

/// `count`, if it is what is `expected`.
///
/// # Errors
/// [`Error::WrongCount`].
#[inline]
pub(super) fn same(name: &'static str, count: u64, expected: u64) -> Result<u64> {
    if count == expected { Ok(count) } else { Err(Error::WrongCount { name, count, expected }) }
}
