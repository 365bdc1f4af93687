//! Takes collective calls, and checks those of their arguments that a rank can check alone.

use super::Communicator;
use super::buffers::{RecvBuffer, SendBuffer};
use crate::collective::{BlockLayout, Input, Operation, Output, Request, StatusHandle};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::reduce::{Element, ReduceOp};

/// The caller of a collective call: a rank among a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub(super) rank: Rank,
    pub(super) n_ranks: u32,
}

/// Takes collective calls, to execute them at once or later.
///
/// Only this crate implements it.
pub trait Submit<'a> {
    /// Returns the caller.
    fn caller(&self) -> Caller;

    /// Checks what `request` asks for, and takes the call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operator of another type, and for buffers that overlap in
    /// part; those of the call, where it is executed at once.
    fn submit(&mut self, request: Request<'a, '_>) -> Result<()>;
}

/// Executes calls at once.
impl<'a> Submit<'a> for Communicator {
    #[inline]
    fn caller(&self) -> Caller {
        Caller { rank: self.rank, n_ranks: self.n_ranks() }
    }

    #[inline]
    fn submit(&mut self, request: Request<'a, '_>) -> Result<()> {
        let choice = self.choice;
        if let Some(word) = self.engine.as_mut().and_then(|engine| engine.known(&request, choice)) {
            return word.run();
        }
        let mut call = request.check(self.rank, self.n_ranks())?;
        self.context().enter(call.operation.name())?;
        self.engine_for(|| call.signature().with_choice(choice))?.run(&mut call, choice)
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

/// Passes a call to `taker`.
///
/// # Errors
/// Those of [`Submit::submit`].
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
    let (data_type, tag, status, layout) = (T::DATA_TYPE, 0, None, None);
    taker.submit(Request { operation, data_type, count, root, tag, status, op, layout, input, output })
}

/// Passes an exchange of the blocks of `layout` to `taker`.
///
/// # Errors
/// Those of [`Submit::submit`].
pub(super) fn submit_blocks<'a, T: Element, S: Submit<'a> + ?Sized>(
    taker: &mut S,
    layout: BlockLayout,
    input: Input<'a>,
    output: Output<'a>,
) -> Result<()> {
    let (operation, data_type, layout) = (Operation::AllToAllV, T::DATA_TYPE, Some(Box::new(layout)));
    let (count, root, tag, status, op) = (0, 0, 0, None, None);
    taker.submit(Request { operation, data_type, count, root, tag, status, op, layout, input, output })
}

/// The other end of a message, and the tag that both ends call.
#[derive(Debug)]
pub(super) struct Envelope {
    /// None for a message from any rank.
    pub(super) peer: Option<Rank>,
    pub(super) tag: u32,
    pub(super) status: Option<StatusHandle>,
}

/// Passes the end of a message to `taker`: it is sent if there is an `input`.
///
/// # Errors
/// [`Error::InvalidRank`]; [`Error::InvalidArgument`] where there is nobody else; those of
/// [`Submit::submit`].
#[inline]
pub(super) fn submit_message<'a, T: Element, S: Submit<'a> + ?Sized>(
    taker: &mut S,
    operation: Operation,
    envelope: Envelope,
    count: u64,
    input: Input<'a>,
    output: Output<'a>,
) -> Result<()> {
    let Envelope { peer, tag, status } = envelope;
    let n_ranks = taker.caller().n_ranks;
    let root = match peer {
        Some(peer) => Rank::new(peer.get(), n_ranks)?.index(),
        None if n_ranks == 1 => {
            return Err(Error::invalid("the number of other ranks to receive from", 0, "one at least"));
        }
        None => 0,
    };
    let (data_type, op, layout) = (T::DATA_TYPE, None, None);
    taker.submit(Request { operation, data_type, count, root, tag, status, op, layout, input, output })
}

/// Returns `count`, if it is the `expected` one.
///
/// # Errors
/// [`Error::WrongCount`].
#[inline]
pub(super) fn same(name: &'static str, count: u64, expected: u64) -> Result<u64> {
    if count == expected { Ok(count) } else { Err(Error::WrongCount { name, count, expected }) }
}
