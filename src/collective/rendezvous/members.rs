//! The ranks of a communicator, as one of them sees them: who they are, and where each keeps its
//! region.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::board::CallBoard;
use super::post::Post;
use crate::channel::{MemoryChannel, RankContext};
use crate::collective::call::footprint::MemberMemory;
use crate::collective::call::{Call, CallSignature, Operation};
use crate::collective::region::lease::{Lease, RegionOwner};
use crate::collective::region::{CommLayout, EAGER_LEN, STAGING_LEN};
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, HeapView, Region};
use crate::rank::{MAX_RANKS, Rank};
use crate::shm::{CellRef, CellSlice, SharedLayout, Span};
use crate::sync::ParkCell;

/// One member's side of a communicator's common state.
#[derive(Debug)]
pub(crate) struct Members {
    ranks: Arc<[Rank]>,
    me: usize,
    bases: Vec<HeapOffset>,
    layout: CommLayout,
    view: HeapView,
    /// What each member sleeps on when it waits for messages.
    parks: Vec<CellRef<ParkCell>>,
    /// Whether what goes through pipes, stages and posts is checked.
    pub(crate) checksums: bool,
    pub(crate) board: CallBoard,
}

impl Members {
    /// Makes the communicator of `ranks` of the job in the order of their numbers in the
    /// communicator, whose zeroed regions start at `bases`. This rank has to be one of them. With
    /// it comes the hold on those regions, to be dropped after the communicator; it ends with
    /// `owner`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] and [`Error::Misaligned`] for a base where there can be no region;
    /// [`Error::InvalidArgument`] when this rank is not a member.
    pub(crate) fn new(
        context: &Arc<RankContext>,
        ranks: Arc<[Rank]>,
        bases: Vec<HeapOffset>,
        owner: Arc<dyn RegionOwner>,
    ) -> Result<(Self, Lease)> {
        let me = ranks.iter().position(|&rank| rank == context.rank()).ok_or(Error::InvalidArgument {
            name: "rank",
            value: context.rank().get().into(),
            expected: "a member of the communicator",
        })?;
        let layout = CommLayout::new(ranks.len() as u64);
        let lease = Lease::new(context, &ranks, &bases, me, owner)?;
        let board = CallBoard::new(context, &ranks, &bases, me, lease.departures().clone())?;
        let parks = ranks.iter().map(|&rank| context.mapped().cells(rank).message_park()).collect();
        let (view, checksums) = (context.heap().view().clone(), context.takes_checksums());
        Ok((Self { ranks, me, bases, layout, view, parks, checksums, board }, lease))
    }

    /// Returns how many members there are.
    #[inline]
    pub(crate) fn n_members(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the other member, where there is one other.
    #[inline]
    pub(crate) fn only_other(&self) -> Option<usize> {
        (self.ranks.len() == 2).then(|| 1 - self.me)
    }

    /// Returns the other members, by their ranks in the job.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, Rank)> {
        self.ranks.iter().copied().enumerate().filter(|&(member, _)| member != self.me)
    }

    /// Returns whether somebody looks at what this member does, or strikes it: checksums are taken,
    /// or faults planned.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.checksums || self.board.context().is_faulty()
    }

    /// Tells all members `words`, at most [`super::post::INLINE_WORDS`] of them, and returns what
    /// each has told: as many. `signature` says what they agree on by this; how many words there
    /// are is compared, too, as nobody has written more.
    ///
    /// # Errors
    /// Fails as [`CallBoard::await_post`] does.
    pub(crate) fn exchange(
        &mut self,
        operation: Operation,
        signature: CallSignature,
        words: &[u64],
    ) -> Result<Vec<Vec<u64>>> {
        let met = self.board.meet(signature.of_words(words.len()), operation, words);
        self.board.or_revoke(met)?;
        let told = |member| (0..words.len()).map(|index| self.board.post_of(member).word(index)).collect();
        Ok((0..self.n_members()).map(told).collect())
    }

    /// Puts what multiplies the inputs of all members, which have posted `call`, into `scalars`, in
    /// the order of the members; nothing where inputs are not multiplied. `told` finds it in a
    /// post.
    #[inline]
    pub(crate) fn gather_scalars(
        &self,
        call: &Call<'_>,
        scalars: &mut PerMember<u64>,
        told: impl Fn(Post<'_>) -> u64,
    ) {
        if call.is_scaled() {
            let of_member =
                |member| if member == self.me { call.scalar() } else { told(self.board.post_of(member)) };
            scalars.extend((0..self.n_members()).map(of_member));
        }
    }

    /// Returns the number of this member.
    #[inline]
    pub(crate) fn me(&self) -> usize {
        self.me
    }

    /// Returns the members, by their ranks in the job.
    pub(crate) fn ranks(&self) -> &Arc<[Rank]> {
        &self.ranks
    }

    /// Returns the heaps.
    #[inline]
    pub(crate) fn view(&self) -> &HeapView {
        &self.view
    }

    /// Returns by what the buffers of this member's calls have addresses.
    #[inline]
    pub(crate) fn memory(&self) -> MemberMemory {
        MemberMemory { heap: self.view.start(), n_members: self.n_members() }
    }

    /// Returns this member's own heap, of which only what was found to be memory is to be touched,
    /// and the board.
    #[inline]
    pub(crate) fn heap_and_board(&mut self) -> (&Span, &mut CallBoard) {
        (self.view.mine(), &mut self.board)
    }

    /// Returns the heap of `member`, in which `region` was found to be memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline]
    pub(crate) fn heap_of(&self, member: usize, region: Region) -> Result<&Span> {
        self.view.reach(self.ranks[member], region)
    }

    /// Returns the eager slot of `member` for the current operation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for more than [`EAGER_LEN`].
    #[inline]
    pub(crate) fn eager_slot(&self, member: usize, len: u64) -> Result<Region> {
        let at = self.layout.eager_slot(self.board.turn());
        Region::new(HeapOffset::new(self.bases[member].get() + at), EAGER_LEN).part(0, len)
    }

    /// Returns the staging area of `member`.
    #[inline]
    pub(crate) fn staging(&self, member: usize) -> Region {
        Region::new(HeapOffset::new(self.bases[member].get() + self.layout.staging()), STAGING_LEN)
    }

    /// Returns where things are in each member's region.
    #[inline]
    pub(crate) fn layout(&self) -> CommLayout {
        self.layout
    }

    /// Returns where the region of `member` starts.
    pub(crate) fn base(&self, member: usize) -> HeapOffset {
        self.bases[member]
    }

    /// Returns the place `at` bytes into the region of `member`.
    #[inline]
    pub(crate) fn place(&self, member: usize, at: u64) -> HeapOffset {
        HeapOffset::new(self.bases[member].get() + at)
    }

    /// Returns the cell `at` bytes into the region of `member`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn cell<T: SharedLayout>(&self, member: usize, at: u64) -> Result<CellRef<T>> {
        self.view.cell(self.ranks[member], self.place(member, at))
    }

    /// Returns the `n` cells from `at` bytes into the region of `member` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn cells<T: SharedLayout>(&self, member: usize, at: u64, n: u64) -> Result<CellSlice<T>> {
        self.view.cells(self.ranks[member], self.place(member, at), n)
    }

    /// Returns what `member` sleeps on when it waits for messages, or for room for them: the same
    /// in all its communicators.
    #[inline]
    pub(crate) fn message_park(&self, member: usize) -> &ParkCell {
        &self.parks[member]
    }

    /// Returns a direct channel to `member` over the semaphores in the two regions.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a region that is not allocated.
    pub(crate) fn memory_channel(&self, member: usize) -> Result<MemoryChannel> {
        let semaphore = |receiver, sender: usize| self.cell(receiver, self.layout.semaphore(sender as u64));
        let (outbound, inbound) = (semaphore(member, self.me)?, semaphore(self.me, member)?);
        Ok(MemoryChannel::over(self.board.context(), self.ranks[member], outbound, inbound))
    }
}

/// One of something for each member at most.
pub(crate) type PerMember<T> = ArrayVec<T, { MAX_RANKS as usize }>;

/// Puts `items`, of which there are few enough, behind what is in `all`, up to the first that is an
/// error.
///
/// It fills a table where that stays. One that is collected into a `Result` is moved several times,
/// all of its 256 places, which takes as long as the rest of a short call.
///
/// # Errors
/// That of the first item that is one.
#[inline]
pub(crate) fn fill<T>(all: &mut PerMember<T>, items: impl IntoIterator<Item = Result<T>>) -> Result<()> {
    for item in items {
        all.push(item?);
    }
    Ok(())
}
