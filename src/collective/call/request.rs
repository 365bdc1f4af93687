//! A request of the program, before anything of it is checked.

use super::{BlockLayout, Call, Input, Operation, Output, Receipt};
use crate::error::{Error, Result};
use crate::heap::Region;
use crate::rank::Rank;
use crate::reduce::{DataType, ReduceOp, Reducer};

/// A collective call as the program makes it.
#[derive(Debug)]
pub struct Request<'a, 'o> {
    pub(crate) operation: Operation,
    pub(crate) data_type: DataType,
    /// Elements of a block.
    pub(crate) count: u64,
    /// The member at the root, or at the other end; 0 where there is none.
    pub(crate) root: usize,
    /// The tag of a message; 0 where there is none.
    pub(crate) tag: u32,
    /// Which messages a receive from any member takes, and where it leaves the status.
    pub(crate) receipt: Option<Box<Receipt>>,
    /// The operator of a call that reduces.
    pub(crate) op: Option<&'o ReduceOp>,
    /// Where blocks lie whose lengths differ.
    pub(crate) layout: Option<Box<BlockLayout>>,
    pub(crate) input: Input<'a>,
    pub(crate) output: Output<'a>,
}

impl<'a> Request<'a, '_> {
    /// Checks what `rank`, one of `n_ranks`, can check alone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operator of another type, and for buffers that overlap in
    /// part; [`Error::UnsupportedOperator`].
    #[inline]
    pub(crate) fn check(self, rank: Rank, n_ranks: u32) -> Result<Call<'a>> {
        let Self { operation, data_type, count, root, tag, receipt, op, layout, input, output } = self;
        // Written out: a reducer that goes through `Option::transpose` is copied twice, which costs
        // as much as the rest.
        let reducer = match op {
            Some(op) => Some(Reducer::new(data_type, op, operation.n_combined(rank, n_ranks))?),
            None => None,
        };
        let block = count.saturating_mul(data_type.size() as u64);
        if let (&Input::Heap(input), &Output::Heap(output)) = (&input, &output) {
            let (sent, received) = operation.blocks(n_ranks.into());
            let sent = Region::new(input, sent.saturating_mul(block));
            check_overlap(rank, block, sent, Region::new(output, received.saturating_mul(block)))?;
        }
        Ok(Call { operation, data_type, count, root, tag, receipt, reducer, layout, input, output })
    }
}

/// Refuses buffers of the heap that overlap, unless the call is in place: what is read of one would
/// be written meanwhile.
#[inline]
fn check_overlap(rank: Rank, block: u64, sent: Region, received: Region) -> Result<()> {
    if sent == received || !sent.overlaps(received) || is_own_block(rank, block, sent, received) {
        return Ok(());
    }
    let expected =
        "one apart from what is sent, or the call's form in place: the same, or the block of this rank";
    let value = received.offset.get();
    Err(Error::InvalidArgument { name: "the offset of what is received", value, expected })
}

/// Says whether the shorter one of two buffers is the block of this rank in the longer one.
fn is_own_block(rank: Rank, block: u64, sent: Region, received: Region) -> bool {
    let (whole, part) = if sent.len > received.len { (sent, received) } else { (received, sent) };
    let before = block.saturating_mul(rank.get().into());
    whole.len > part.len && whole.offset.get().checked_add(before) == Some(part.offset.get())
}
