//! Where a member tells whom it waits for on the board, once it has waited for a while.
//!
//! Who waits for a message looks there: a peer that waits for it in an operation to which it has not come will send nothing. The
//! peer stays there until it comes, so what it has told holds. Who sleeps for want of a message is woken to look.

use std::sync::Arc;

use super::region::{RegionLayout, cells_between};
use crate::channel::RankContext;
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::Rank;
use crate::shm::CellRef;
use crate::sync::{ParkCell, ProgressCell};

/// What concerns one member, by the numbers of the others.
#[derive(Debug)]
pub(crate) struct Awaits {
    context: Arc<RankContext>,
    of_mine: Vec<CellRef<ProgressCell>>,
    for_me: Vec<CellRef<ProgressCell>>,
    /// What each member sleeps on for want of messages.
    parks: Vec<CellRef<ParkCell>>,
}

impl Awaits {
    /// Those of the member `me` of `members`, whose regions start at `bases`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] and [`crate::Error::Misaligned`] for a base that is not where a region can be.
    pub(crate) fn new(
        context: &Arc<RankContext>,
        members: &[Rank],
        bases: &[HeapOffset],
        me: usize,
    ) -> Result<Self> {
        let view = context.heap().view();
        let [of_mine, for_me] = cells_between(view, members, bases, me, RegionLayout::awaits)?;
        let parks = members.iter().map(|&rank| context.mapped().cells(rank).message_park()).collect();
        Ok(Self { context: Arc::clone(context), of_mine, for_me, parks })
    }

    /// Tells that this member waits for what `member` does in the operation numbered `sequence`.
    pub(crate) fn tell(&self, member: usize, sequence: u64) {
        self.of_mine[member].publish(sequence);
        self.parks[member].wake(self.context.kernel());
    }

    /// Whether `member` waits, or has waited, for what this one does in the operation numbered `sequence` or a later one.
    ///
    /// # Ordering
    /// When true, acquires everything that member did before (C2).
    pub(crate) fn tells(&self, member: usize, sequence: u64) -> bool {
        self.for_me[member].has_reached(sequence)
    }
}
