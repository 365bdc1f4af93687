//! Takes collective calls, and checks those of their arguments that a rank can check alone.

use super::call::CollectiveCall;
use crate::collective::{Request, Side};
use crate::comm::Communicator;
use crate::error::{Error, Result};
use crate::rank::Rank;

/// The caller of a collective call: a rank among a number of ranks, with a heap.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub(super) rank: Rank,
    pub(super) n_ranks: u32,
    /// The address of the rank's own heap.
    pub(super) heap: u64,
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
    /// Those of [`Submit::submit`].
    fn take(&mut self, request: Request<'a, '_>) -> Result<()>;

    /// Takes `call`. The methods of [`Collectives`](super::collectives::Collectives) say what each
    /// operation does.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for what is missing of the call, for a part of an element, for
    ///   an operator of another type, and for buffers that overlap in part.
    /// - [`Error::UnsupportedOperator`] for an operator that is not defined on the type.
    /// - [`Error::WrongCount`], [`Error::InvalidRank`], [`Error::OutOfRange`].
    /// - Those of the operation, where it is executed at once.
    #[inline(always)] // see `CollectiveCall::resolve`
    fn submit(&mut self, call: CollectiveCall<'a, '_>) -> Result<()> {
        let request = call.resolve(self.caller())?;
        self.take(request)
    }
}

/// Executes calls at once.
impl<'a> Submit<'a> for Communicator {
    #[inline]
    fn caller(&self) -> Caller {
        Caller { rank: self.rank, n_ranks: self.n_ranks(), heap: self.heap().view().start() }
    }

    #[inline]
    fn take(&mut self, request: Request<'a, '_>) -> Result<()> {
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
    /// Returns the number of elements on `side` of a call, in blocks of `count`.
    #[inline]
    pub(super) fn elements(self, count: u64, side: Side) -> u64 {
        count.saturating_mul(side.blocks(self.n_ranks.into()))
    }

    /// Returns `rank`, one of the communicator.
    #[inline]
    pub(super) fn known(self, rank: Rank) -> Result<Rank> {
        Ok(Rank::new(rank.get(), self.n_ranks)?)
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

/// Returns `count`, if it is the `expected` one.
///
/// # Errors
/// [`Error::WrongCount`].
#[inline]
pub(super) fn same(name: &'static str, count: u64, expected: u64) -> Result<u64> {
    if count == expected { Ok(count) } else { Err(Error::WrongCount { name, count, expected }) }
}
