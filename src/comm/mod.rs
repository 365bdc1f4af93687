//! The communicator: a rank's membership in one epoch, and everything that it can do with its
//! peers.
//!
//! Collective methods take `&mut self`, so a rank is in one such call at a time. Methods of a rank
//! alone, such as opening channels and reaching memory, take `&self`. Channels are values of their
//! own and may move to other threads.
//!
//! Of the folders below it, each uses those above it in this table and none of those below:
//!
//! | folder | what it does for a communicator |
//! |---|---|
//! | `membership` | makes a rank a member of an epoch, keeps it one, and ends that |
//! | `calls` | executes its calls: at once, together, on streams, or in the background |
//! | `recovery` | brings the job into a new epoch, after a loss or with more ranks |
//! | `checkpoint` | writes what its ranks hold into files, and reads it again |
//!
//! Tried by its unit tests and `scenarios communicators:: arenas:: departures:: growth::`.

mod alloc;
mod arena;
mod calls;
mod channels;
mod checkpoint;
mod join;
mod membership;
mod recovery;
mod split;
mod statics;

use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;

use crate::channel::RankContext;
use crate::collective::{CallSignature, Choice, Engine, Operation};
use crate::error::{Error, Result};
use crate::heap::{DeviceBuffer, HeapOffset, HeapUsage, Region, SymmetricHeap};
use crate::observe::Report;
use crate::rank::Rank;
use crate::shm::{CellRef, SharedLayout, Span};
use crate::symmetric::Symmetric;
use crate::sync::Revocation;

pub use calls::buffers::{Blocks, RecvBuffer, RecvBytes, SendBuffer, SendBytes};
pub use calls::call::{Buffers, CollectiveCall, OwnedCall};
use calls::call_queue::EngineLoan;
pub use calls::collectives::Collectives;
pub use calls::group::{Group, GroupMember, OnGroup};
pub use calls::placement::{MemoryRange, PartialOverlap, Placement};
pub use calls::settings::RegisteredPlan;
pub use calls::start::{Starting, Work};
pub use calls::submit::{Caller, Submit};
pub use calls::switch::SwitchChannel;
pub use calls::{start, stream};
pub use checkpoint::CheckpointFault;
pub use join::{JoinedAs, join_job};
use membership::JobMembership;
pub use membership::aborter::Aborter;
pub(crate) use membership::init::init_threads;
use membership::job_barrier::JobBarrier;
pub use membership::recovery_callbacks::Recovery;
pub use membership::unique_id::UniqueId;
pub use recovery::failure;
pub use recovery::shrink::Shrunk;
pub use statics::Statics;

/// A rank's place in a communicator, with the symmetric heap, channels to its peers, and collective
/// operations.
///
/// A job starts with one communicator of all its ranks. Others are derived from it
/// ([`Communicator::split`]) and number their ranks anew. Every method takes and returns these
/// numbers. Errors and [`crate::channel::Channel::peer`] name ranks as the job numbers them
/// ([`Communicator::members`]).
///
/// Dropping a communicator leaves it, and dropping the last one leaves the job. A peer that still
/// needs this rank gets [`crate::Error::PeerLost`]. [`Communicator::finalize`] leaves when all are
/// done. A child of a fork is not the rank. Dropping its copies does nothing there, and every
/// operation on them is [`crate::Error::Unavailable`]. Buffers and spans hold what they held at the
/// fork, and are the child's own from then on.
#[derive(Debug)]
pub struct Communicator {
    rank: Rank,
    /// The ranks of the communicator as the job numbers them, in order.
    members: Arc<[Rank]>,
    /// The barrier of all ranks of the job; in the job's first communicator only.
    job_barrier: Option<JobBarrier>,
    /// The engine that executes its collective calls, made by the first of them.
    engine: Option<Box<Engine>>,
    /// The queue that has the engine while calls of this communicator may be in it.
    loan: EngineLoan,
    /// How its collective calls are done.
    choice: Choice,
    membership: Arc<JobMembership>,
}

impl Drop for Communicator {
    /// Leaves nothing in a child of a fork, which is not the rank.
    fn drop(&mut self) {
        if self.context().is_forked() {
            let Self { job_barrier, engine, loan, membership, .. } = self;
            let kept = (job_barrier.take(), engine.take(), std::mem::take(loan), Arc::clone(membership));
            std::mem::forget(kept);
        }
    }
}

impl Communicator {
    /// Makes the first communicator of an epoch, of all its ranks.
    fn first(job_barrier: JobBarrier, membership: JobMembership) -> Self {
        Self {
            rank: membership.context.rank(),
            members: (0..membership.context.mapped().n_ranks()).map(Rank::known).collect(),
            job_barrier: Some(job_barrier),
            engine: None,
            loan: EngineLoan::default(),
            choice: Choice::default(),
            membership: Arc::new(membership),
        }
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    #[inline]
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        u32::try_from(self.members.len()).expect("at most 256 members")
    }

    /// Returns the ranks of the communicator as the job numbers them, in the order of their numbers
    /// in it.
    #[must_use]
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// Returns the next rank in a ring.
    #[must_use]
    pub fn right(&self) -> Rank {
        self.rank().right(self.n_ranks())
    }

    /// Returns the previous rank in a ring.
    #[must_use]
    pub fn left(&self) -> Rank {
        self.rank().left(self.n_ranks())
    }

    /// Returns how long a wait may take before it is a [`crate::Error::Timeout`].
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.context().timeout()
    }

    /// Gives every wait that begins from now on so much time. It concerns all communicators,
    /// channels and streams of this rank in the epoch, and no other rank.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for no time at all.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        self.membership.set_timeout(timeout)
    }

    /// Returns how many bytes of this rank's inputs its calls have copied to where other ranks read
    /// them, through all communicators of the epoch.
    ///
    /// Calls whose buffers lie in the heap on all ranks copy none, but for an all-reduce out of
    /// place that was measured to be quicker so. What a small call carries with its post is not
    /// counted.
    #[must_use]
    pub fn staged_bytes(&self) -> u64 {
        self.context().staged()
    }

    /// Leaves this rank's actions out of the trace from now on, or records them again, as at the
    /// start. It does nothing without a trace. Its proxy is traced in any case.
    ///
    /// It serves programs that warm up, or of which only a part matters; see
    /// [`trace`](crate::trace). It concerns all channels and communicators of the rank. A call that
    /// runs meanwhile may be recorded or not.
    pub fn set_tracing(&self, tracing: bool) {
        self.context().set_tracing(tracing);
    }

    fn context(&self) -> &Arc<RankContext> {
        &self.membership.context
    }

    /// Returns `rank` of this communicator as the job numbers it.
    fn member(&self, rank: Rank) -> Result<Rank> {
        let missing = crate::Error::InvalidRank { rank: rank.get(), n_ranks: self.n_ranks() };
        self.members.get(rank.index()).copied().ok_or(missing)
    }

    /// Returns the symmetric heap.
    #[must_use]
    pub fn heap(&self) -> &SymmetricHeap {
        self.context().heap()
    }

    /// Returns what the heap holds now, and the static objects beside it.
    #[must_use]
    pub fn heap_usage(&self) -> HeapUsage {
        HeapUsage { statics: crate::shm::statics::committed(), ..self.heap().usage() }
    }

    /// Returns the memory of all ranks, to be reached by rank and offset from any thread.
    #[must_use]
    pub fn symmetric(&self) -> Symmetric {
        Symmetric::new(self.context(), self.rank, &self.members).expect("members are ranks of the job")
    }

    /// Returns the bytes of `region` in the heap of `rank`, to be read and written in place. Orders
    /// nothing.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for bytes that are not allocated;
    /// [`crate::Error::InvalidRank`].
    pub fn span(&self, rank: Rank, region: Region) -> Result<Span> {
        self.heap().view().span(self.member(rank)?, region)
    }

    /// Returns a control word, or a group of them, at `offset` of the heap of `rank`, for protocols
    /// of the caller's own.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for bytes that are not allocated; [`crate::Error::Misaligned`];
    /// [`crate::Error::InvalidRank`].
    pub fn cell<T: SharedLayout>(&self, rank: Rank, offset: HeapOffset) -> Result<CellRef<T>> {
        let cell: CellRef<T> = self.heap().view().cell(self.member(rank)?, offset)?;
        cell.lend();
        Ok(cell)
    }

    /// Views `region` of this rank's heap as elements.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], [`crate::Error::Misaligned`].
    pub fn buffer<T: Pod>(&self, region: Region) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::new(self.heap(), region)
    }

    /// Returns the reason why the epoch ended, if it has. Every wait returns it.
    #[must_use]
    pub fn revoked(&self) -> Option<Revocation> {
        self.context().mapped().revocation().read()
    }

    /// Ends the epoch. Every wait of every rank returns [`crate::Error::Revoked`] within
    /// milliseconds, and so does every collective call of this rank from now on. A rank that moves
    /// data looks up at the end of its piece, 32 MiB at most.
    pub fn revoke(&self) {
        self.context().abort();
    }

    /// Leaves the communicator when all its ranks have called it and have done their enqueued
    /// calls, so that nobody is missed. Dropping a communicator waits for its enqueued calls, too.
    /// The compiler checks that this is its last use:
    ///
    /// ```compile_fail,E0382
    /// fn go_on(mut comm: shmccl::Communicator) -> shmccl::Result<()> {
    ///     comm.finalize()?;
    ///     comm.barrier()
    /// }
    /// ```
    ///
    /// The last communicator of a rank leaves the job. Its channels move nothing afterwards, and
    /// its streams write nothing that was not enqueued before: they return
    /// [`crate::Error::Unavailable`]. Buffers and spans keep their memory mapped and can still be
    /// read. What is written through them is not ordered for anybody.
    ///
    /// # Errors
    /// - Those of [`Communicator::barrier`]: the ranks did not all come, or have made different
    ///   calls that no wait has found.
    /// - [`crate::Error::InvalidArgument`] on all ranks when messages were sent that nobody has
    ///   received.
    pub fn finalize(mut self) -> Result<()> {
        self.reclaim_engine();
        if let Err(error) = self.context().enter(Operation::Finalize.name()) {
            // Another rank may have found out already that this one was in another call.
            let engine = self.engine.as_deref().filter(|_| matches!(error, Error::Revoked { .. }));
            return Err(engine
                .and_then(|engine| {
                    engine.members.board.known_mismatch(CallSignature::new(Operation::Finalize))
                })
                .unwrap_or(error));
        }
        match &mut self.job_barrier {
            Some(job_barrier) => job_barrier.finalize(self.engine.as_deref()),
            None => self.engine()?.finalize(),
        }
    }

    /// Returns whether every rank of the job belongs to it.
    fn has_all_ranks(&self) -> bool {
        self.n_ranks() == self.context().mapped().n_ranks()
    }

    /// Reports what all ranks of the job are doing now, and which one holds the others up. It
    /// explains why a wait was an [`crate::Error::Timeout`], or takes so long. Ranks are named as
    /// the job numbers them. It costs the others nothing.
    ///
    /// # Errors
    /// [`crate::Error::Os`] when the segments cannot be read.
    pub fn report(&self) -> Result<Report> {
        Report::of(self.context().mapped())
    }
}
