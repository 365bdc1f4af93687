//! A member's hold on the regions of its communicator, and how it lets go of them.
//!
//! A region can serve another communicator once no member touches it any more, which no member can
//! tell alone. So a member has a *departure* word in the region of each member, its own included,
//! and raises them all twice as it leaves:
//!
//! | value | says | read by |
//! |---|---|---|
//! | [`LEFT`] | the member takes part in no further operation | those that wait for it, in vain |
//! | [`GONE`] | this was its last access to this region | those that want to use the region again |
//!
//! In between it wakes the others, whose park word lies in the first member's region. [`GONE`]
//! carries with it, by edge C2 of `src/sync/post.rs`, all that the member has ever written to the
//! region.
//!
//! A member that leaves because it panics counts as lost, and its epoch is over. So it raises
//! nothing.

use std::sync::Arc;

use super::CommLayout;
use crate::channel::RankContext;
use crate::error::Result;
use crate::heap::{ArenaBuffer, HeapOffset, Region};
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice};
use crate::sync::{ParkCell, ProgressCell};

/// What a departure word says when its member takes no further part.
pub(crate) const LEFT: u64 = 1;

/// What it says when its member will not touch the region again.
pub(crate) const GONE: u64 = 2;

/// Who a region is taken from, and given back to.
pub(crate) trait RegionOwner: std::fmt::Debug + Send + Sync {
    /// Takes back `region` and `memory` of this rank, for use when all `departures` in the region
    /// say [`GONE`].
    fn take_back(&self, region: Region, memory: Vec<ArenaBuffer<u8>>, departures: CellSlice<ProgressCell>);
}

/// One member's hold on the regions of all. To be dropped after everything that may touch them.
#[derive(Debug)]
pub(crate) struct Lease {
    context: Arc<RankContext>,
    owner: Arc<dyn RegionOwner>,
    region: Region,
    /// What else of this rank others may touch as long as they may touch the region.
    memory: Vec<ArenaBuffer<u8>>,
    park: CellRef<ParkCell>,
    /// What the members sleep on when they wait for messages.
    message_parks: Vec<CellRef<ParkCell>>,
    /// This member's words, in the regions of all.
    mine: Vec<CellRef<ProgressCell>>,
    /// All members' words, in this member's region.
    theirs: CellSlice<ProgressCell>,
}

impl Lease {
    /// Makes the hold of member `me` of `members` on their zeroed regions, which start at `bases`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] and [`crate::Error::Misaligned`] for a base that is not where a
    /// region can be.
    pub(crate) fn new(
        context: &Arc<RankContext>,
        ranks: &[Rank],
        bases: &[HeapOffset],
        me: usize,
        owner: Arc<dyn RegionOwner>,
    ) -> Result<Self> {
        let n_members = ranks.len() as u64;
        let layout = CommLayout::new(n_members);
        let view = context.heap().view();
        let word =
            |leaver, base| layout.part(base, layout.departure(leaver), 128).map(|region| region.offset);
        let mine = ranks.iter().zip(bases).map(|(&rank, &base)| view.cell(rank, word(me as u64, base)?));
        let park = layout.part(bases[0], CommLayout::PARK, 128)?.offset;
        Ok(Self {
            mine: mine.collect::<Result<_>>()?,
            theirs: view.cells(ranks[me], word(0, bases[me])?, n_members)?,
            park: view.cell(ranks[0], park)?,
            message_parks: ranks.iter().map(|&rank| context.mapped().cells(rank).message_park()).collect(),
            region: Region::new(bases[me], layout.len()),
            memory: Vec::new(),
            context: Arc::clone(context),
            owner,
        })
    }

    /// Lets go of `memory` of this rank together with its region.
    pub(crate) fn add(&mut self, memory: impl Iterator<Item = ArenaBuffer<u8>>) {
        self.memory.extend(memory);
    }

    /// Returns the departure words of all members that this one looks at.
    pub(crate) fn departures(&self) -> &CellSlice<ProgressCell> {
        &self.theirs
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.context.is_forked() {
            return;
        }
        let memory = std::mem::take(&mut self.memory);
        if std::thread::panicking() {
            memory.into_iter().for_each(ArenaBuffer::leave_taken);
            self.context.mapped().life(self.context.rank()).mark_lost(self.context.kernel());
            return;
        }
        self.mine.iter().for_each(|word| word.publish(LEFT));
        self.park.wake(self.context.kernel());
        self.message_parks.iter().for_each(|park| park.wake(self.context.kernel()));
        self.mine.iter().for_each(|word| word.publish(GONE));
        self.owner.take_back(self.region, memory, self.theirs.clone());
    }
}
