//! The ranks of a communicator, as one of them sees them: who they are, and where each keeps its region.

use std::sync::Arc;

use super::board::Board;
use super::checks;
use super::lease::{Landlord, Lease};
use super::noting::Draft;
use super::operation::{Operation, Summary};
use super::region::{MAIL_LEN, PIPE_SLOTS, RegionLayout, SCRATCH_LEN};
use crate::channel::{MemoryChannel, RankContext};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, HeapView, Region};
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice, Span};
use crate::sync::atomic::AtomicU64;
use crate::sync::{ParkCell, PostCell, ProgressCell};

/// One member's side of a communicator's common state.
#[derive(Debug)]
pub(crate) struct Team {
    members: Arc<[Rank]>,
    me: usize,
    bases: Vec<HeapOffset>,
    layout: RegionLayout,
    view: HeapView,
    /// What each member sleeps on when it waits for messages.
    parks: Vec<CellRef<ParkCell>>,
    /// Whether what goes through pipes, stages and posts is checked.
    pub(crate) checksums: bool,
    /// What is noted of the call that it is in.
    pub(super) draft: Draft,
    pub(crate) board: Board,
}

impl Team {
    /// The team of `members`, ranks of the job in the order of their numbers in the team, whose zeroed regions start at `bases`.
    /// This rank has to be one of them. With it comes the hold on those regions, to be dropped after the team; it ends with
    /// `landlord`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Misaligned`] for a base where there can be no region; [`Error::InvalidArgument`]
    /// when this rank is not a member.
    pub(crate) fn new(
        context: &Arc<RankContext>,
        members: Arc<[Rank]>,
        bases: Vec<HeapOffset>,
        landlord: Arc<dyn Landlord>,
    ) -> Result<(Self, Lease)> {
        let me = members.iter().position(|&rank| rank == context.rank()).ok_or(Error::InvalidArgument {
            name: "rank",
            value: context.rank().get().into(),
            expected: "a member of the communicator",
        })?;
        let layout = RegionLayout::new(members.len() as u64);
        let lease = Lease::new(context, &members, &bases, me, landlord)?;
        let board = Board::new(context, &members, &bases, me, lease.departures().clone())?;
        let parks = members.iter().map(|&rank| context.mapped().cells(rank).message_park()).collect();
        let (view, checksums) = (context.heap().view().clone(), context.takes_checksums());
        Ok((
            Self { members, me, bases, layout, view, parks, checksums, draft: Draft::default(), board },
            lease,
        ))
    }

    /// How many members there are.
    #[inline]
    pub(crate) fn n_members(&self) -> usize {
        self.members.len()
    }

    /// Whether somebody looks at what this member does, or strikes it: checksums are taken, or faults planned.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.checksums || self.board.context().is_faulty()
    }

    /// Tells all members `words`, at most [`super::board::INLINE_WORDS`] of them, and returns what each has told: as many.
    /// `summary` says what they agree on by this; how many words there are is compared, too, as nobody has written more.
    ///
    /// # Errors
    /// Those of [`Board::await_post`].
    pub(crate) fn exchange(
        &mut self,
        operation: Operation,
        summary: Summary,
        words: &[u64],
    ) -> Result<Vec<Vec<u64>>> {
        let met = self.board.meet(summary.telling(words.len()), operation, [0; 2], words);
        self.board.or_revoke(met)?;
        let told = |member| (0..words.len()).map(|index| self.board.post_of(member).data(index)).collect();
        Ok((0..self.n_members()).map(told).collect())
    }

    /// The number of this member.
    #[inline]
    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// The members, by their ranks in the job.
    pub(crate) fn members(&self) -> &Arc<[Rank]> {
        &self.members
    }

    /// The heaps.
    #[inline]
    pub(crate) fn view(&self) -> &HeapView {
        &self.view
    }

    /// This member's own heap, of which only what was found to be memory is to be touched, and the board.
    #[inline]
    pub(crate) fn heap_and_board(&mut self) -> (&Span, &mut Board) {
        (self.view.mine(), &mut self.board)
    }

    /// The heap of `member`, in which `region` was found to be memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub(crate) fn heap_of(&self, member: usize, region: Region) -> Result<&Span> {
        self.view.reach(self.members[member], region)
    }

    /// The mail of `member` for the current operation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more than [`MAIL_LEN`].
    #[inline]
    pub(crate) fn mail(&self, member: usize, len: u64) -> Result<Region> {
        let at = self.layout.mail(self.board.turn());
        Region::new(HeapOffset::new(self.bases[member].get() + at), MAIL_LEN).part(0, len)
    }

    /// The scratch of `member`.
    #[inline]
    pub(crate) fn scratch(&self, member: usize) -> Region {
        Region::new(HeapOffset::new(self.bases[member].get() + self.layout.scratch()), SCRATCH_LEN)
    }

    /// Where things are in each member's region.
    #[inline]
    pub(crate) fn layout(&self) -> RegionLayout {
        self.layout
    }

    /// Where the region of `member` starts.
    pub(crate) fn base(&self, member: usize) -> HeapOffset {
        self.bases[member]
    }

    /// The place `at` bytes into the region of `member`.
    #[inline]
    pub(crate) fn place(&self, member: usize, at: u64) -> HeapOffset {
        HeapOffset::new(self.bases[member].get() + at)
    }

    /// Where `receiver` tells `sender` how many slots of its inbox it has emptied.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn credit(&self, receiver: usize, sender: usize) -> Result<CellRef<ProgressCell>> {
        let at = self.place(receiver, self.layout.credit(sender as u64));
        self.view.cell(self.members[receiver], at)
    }

    /// Where `sender` tells `receiver` the checksums of what it has put into its inbox.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn checks(&self, receiver: usize, sender: usize) -> Result<CellSlice<AtomicU64>> {
        let at = self.place(receiver, self.layout.checks(sender as u64));
        self.view.cells(self.members[receiver], at, PIPE_SLOTS * checks::WORDS as u64)
    }

    /// What `sender` leaves for `receiver` without a slot.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn cards(&self, receiver: usize, sender: usize) -> Result<CellSlice<PostCell>> {
        let at = self.place(receiver, self.layout.cards(sender as u64));
        self.view.cells(self.members[receiver], at, PIPE_SLOTS)
    }

    /// Where the checksums are of part `index` of what `member` stages, by slots (`pipeline/sums.rs`).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn staged_checks(&self, member: usize, index: usize) -> Result<CellSlice<AtomicU64>> {
        let at = self.place(member, self.layout.staged_checks(index as u64));
        self.view.cells(self.members[member], at, checks::PARTS as u64)
    }

    /// What `member` sleeps on when it waits for messages, or for room for them: the same in all its teams.
    #[inline]
    pub(crate) fn message_park(&self, member: usize) -> &ParkCell {
        &self.parks[member]
    }

    /// A direct channel to `member` over the semaphores in the two regions.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn memory_channel(&self, member: usize) -> Result<MemoryChannel> {
        let semaphore = |receiver: usize, sender: usize| {
            let at = self.place(receiver, self.layout.semaphore(sender as u64));
            self.view.cell(self.members[receiver], at)
        };
        let (outbound, inbound) = (semaphore(member, self.me)?, semaphore(self.me, member)?);
        Ok(MemoryChannel::over(self.board.context(), self.members[member], outbound, inbound))
    }
}
