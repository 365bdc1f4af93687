//! The communicator: a rank's membership in one epoch, and everything that it can do with its peers.
//!
//! What all ranks have to call together takes `&mut self`, so that one rank is in one such call at a time. What a rank
//! does alone (opening channels, reaching memory) takes `&self`; channels are values of their own and may move to other
//! threads.

mod alloc;
mod attach;
mod buffers;
mod checkpoint;
mod collectives;
mod engine;
mod epoch_commit;
pub mod failure;
mod group;
mod grow;
mod heartbeat;
mod init;
mod job_barrier;
mod launcher_link;
mod membership;
mod oversubscription;
mod ports;
mod recover;
mod recovery;
mod shrink;
mod split;
pub mod stream;
mod submit;
mod survivor;
mod switch;
mod unique_id;
mod workspace;

use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use shmccl_proxy::MemoryId;

use crate::channel::{Fabric, MemoryChannel, PortChannel};
use crate::collective::{Engine, Manner, Operation, Summary};
use crate::error::{Error, Result};
use crate::heap::{DeviceBuffer, HeapOffset, HeapUsage, Region, SymmetricHeap};
use crate::observe::Report;
use crate::rank::Rank;
use crate::shm::{CellRef, SharedLayout, Span};
use crate::sync::Revocation;

pub use attach::{JoinedAs, join_job};
pub use buffers::{Blocks, RecvBuffer, SendBuffer};
pub use checkpoint::CheckpointFault;
pub use collectives::Collectives;
pub use group::{Group, GroupMember, OnGroup};
pub(crate) use init::init_threads;
use job_barrier::JobBarrier;
pub use membership::Aborter;
use membership::JobMembership;
use ports::ChannelUser;
pub use recovery::Recovery;
pub use shrink::Shrunk;
pub use submit::{Caller, Submit};
pub use switch::SwitchChannel;
pub use unique_id::UniqueId;

/// A rank's place among the ranks of a communicator, the symmetric heap, the channels to its peers, and collectives.
///
/// A job starts with one communicator of all its ranks; others are derived from it ([`Communicator::split`]). Ranks are
/// numbered anew in each, and every method takes and gives these numbers; errors, and [`crate::channel::Channel::peer`], name ranks as
/// the job numbers them ([`Communicator::members`]).
///
/// Dropping a communicator leaves it, and dropping the last one leaves the job; a peer that still needs this rank there gets
/// [`crate::Error::PeerLost`]. [`Communicator::finalize`] leaves when all are done.
#[derive(Debug)]
pub struct Communicator {
    rank: Rank,
    /// The ranks of the job that belong to it, in the order of their ranks in it.
    members: Arc<[Rank]>,
    /// Where all ranks of the job meet; in the job's first communicator only.
    job_barrier: Option<JobBarrier>,
    /// What runs its collectives; made by the first of them.
    engine: Option<Box<Engine>>,
    /// To whom it is lent: streams, while calls of this communicator may be enqueued there.
    loan: stream::EngineLoan,
    /// How its collectives are done.
    manner: Manner,
    membership: Arc<JobMembership>,
}

impl Communicator {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    #[inline]
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        u32::try_from(self.members.len()).expect("at most 64 members")
    }

    /// Its ranks as the job numbers them, in the order of their numbers in it.
    #[must_use]
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// The rank after this one, in a ring.
    #[must_use]
    pub fn right(&self) -> Rank {
        self.rank().right(self.n_ranks())
    }

    /// The rank before this one, in a ring.
    #[must_use]
    pub fn left(&self) -> Rank {
        self.rank().left(self.n_ranks())
    }

    /// How long a wait may take before it is a [`crate::Error::Timeout`].
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.fabric().timeout()
    }

    /// Leaves what this rank does out of the trace from now on, or notes it again, as at the start; nothing where there is no
    /// trace. What a proxy does for it is noted all the same.
    ///
    /// For a program that warms up, or of which a part is of interest; see [`trace`](crate::trace). It applies to all channels and
    /// communicators of the rank, and a call that is being made meanwhile may be noted or not.
    pub fn set_tracing(&self, tracing: bool) {
        self.fabric().set_tracing(tracing);
    }

    /// Opens the next direct channel to `peer`. The k-th channel to a peer pairs with the peer's k-th to this rank, whichever
    /// communicators and threads the two were opened through: no message goes between the ranks, so threads that open channels to one
    /// peer have to do so in one order on both sides. What ranks open together (switch channels, and proxied channels of
    /// communicators) does not count here.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`] when [`crate::channel::MAX_CHANNELS_PER_PEER`] are open, those that ranks opened together included;
    /// [`crate::Error::InvalidRank`].
    pub fn memory_channel(&self, peer: Rank) -> Result<MemoryChannel> {
        MemoryChannel::open(self.fabric(), self.member(peer)?)
    }

    /// Opens the next proxied channel to `peer`; the first one starts the proxy thread, where proxies are threads.
    ///
    /// It gets a fifo of this rank to itself, as long as there is one: seven in a job of up to 16 ranks, four of 64. The others share
    /// what is left, where a push costs more. A channel that is dropped gives its fifo back. See also [`Communicator::start_proxy`].
    ///
    /// # Errors
    /// Those of [`Communicator::memory_channel`]; [`crate::Error::Exhausted`] when the fifos that are shared have 32 channels each;
    /// [`crate::Error::Os`] when the proxy cannot be started.
    pub fn port_channel(&self, peer: Rank) -> Result<PortChannel> {
        let peer = self.member(peer)?;
        PortChannel::open(
            self.fabric(),
            peer,
            self.membership.ports.open(self.fabric(), ChannelUser::Program)?,
        )
    }

    /// Gives `region` of the heap of `rank` an id that triggers of this rank can name: see
    /// [`PortChannel::put_registered`]. The heaps themselves have ids from the start.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], [`crate::Error::InvalidRank`]; [`crate::Error::Exhausted`] when all 512 ids are in use.
    pub fn register(&self, rank: Rank, region: Region) -> Result<MemoryId> {
        self.heap().view().check(region)?;
        self.membership.registrar().register(self.member(rank)?, region)
    }

    /// Takes an id back. No trigger that names it may be in flight: flush first.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when the id names nothing.
    pub fn unregister(&self, id: MemoryId) -> Result<()> {
        self.membership.registrar().unregister(id)
    }

    fn fabric(&self) -> &Arc<Fabric> {
        &self.membership.fabric
    }

    /// The rank in the job of `rank` of this communicator.
    fn member(&self, rank: Rank) -> Result<Rank> {
        let missing = crate::Error::InvalidRank { rank: rank.get(), n_ranks: self.n_ranks() };
        self.members.get(rank.index()).copied().ok_or(missing)
    }

    /// The symmetric heap.
    #[must_use]
    pub fn heap(&self) -> &SymmetricHeap {
        self.fabric().heap()
    }

    /// What the heap holds now.
    #[must_use]
    pub fn heap_usage(&self) -> HeapUsage {
        self.heap().usage()
    }

    /// The bytes of `region` in the heap of `rank`, to be read and written in place. Orders nothing.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for bytes that are not allocated; [`crate::Error::InvalidRank`].
    pub fn span(&self, rank: Rank, region: Region) -> Result<Span> {
        self.heap().view().span(self.member(rank)?, region)
    }

    /// A control word, or a group of them, at `offset` of the heap of `rank`: for protocols of the caller's own.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for bytes that are not allocated; [`crate::Error::Misaligned`]; [`crate::Error::InvalidRank`].
    pub fn cell<T: SharedLayout>(&self, rank: Rank, offset: HeapOffset) -> Result<CellRef<T>> {
        self.heap().view().cell(self.member(rank)?, offset)
    }

    /// Views `region` of this rank's heap as elements.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], [`crate::Error::Misaligned`].
    pub fn buffer<T: Pod>(&self, region: Region) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::new(self.heap(), region)
    }

    /// The reason why the epoch ended, if it has; every wait returns it.
    #[must_use]
    pub fn revoked(&self) -> Option<Revocation> {
        self.fabric().world().revocation().read()
    }

    /// Ends the epoch: every wait of every rank returns [`crate::Error::Revoked`] within milliseconds, and so does every collective call
    /// that this rank makes from now on.
    pub fn revoke(&self) {
        self.fabric().abort();
    }

    /// Leaves the communicator when all its ranks have come here, and have done what they enqueued, so that nobody is missed.
    /// Dropping a communicator waits for what it has enqueued, too. That this is the last use of it, the compiler checks:
    ///
    /// ```compile_fail,E0382
    /// fn go_on(mut comm: shmccl::Communicator) -> shmccl::Result<()> {
    ///     comm.finalize()?;
    ///     comm.barrier()
    /// }
    /// ```
    ///
    /// The last communicator of a rank leaves the job. Channels that were opened through any of them move nothing after that, and
    /// streams write nothing that was not enqueued before: they return [`crate::Error::Unavailable`]. Buffers and spans keep their
    /// memory mapped and can still be read; what is written through them is seen by whoever else has it mapped, and by nobody in order.
    ///
    /// # Errors
    /// Those of [`Communicator::barrier`]: the ranks did not all come, or have made different calls of which none was told, as none
    /// has waited for another since. [`crate::Error::InvalidArgument`] on all ranks when messages were sent that nobody has received.
    pub fn finalize(mut self) -> Result<()> {
        self.reclaim_engine();
        if let Err(error) = self.fabric().enter(Operation::Finalize.name()) {
            // Another rank may have found out already that this one was in another call.
            let engine = self.engine.as_deref().filter(|_| matches!(error, Error::Revoked { .. }));
            return Err(engine
                .and_then(|engine| engine.told(Summary::new(Operation::Finalize)))
                .unwrap_or(error));
        }
        match &mut self.job_barrier {
            Some(job_barrier) => job_barrier.finalize(self.engine.as_deref()),
            None => self.engine()?.finalize(),
        }
    }

    /// Whether every rank of the job belongs to it.
    fn has_all_ranks(&self) -> bool {
        self.n_ranks() == self.fabric().world().n_ranks()
    }

    /// What all ranks of the job are doing at this moment, and who holds the others up: for whoever wants to know why a wait was an
    /// [`crate::Error::Timeout`], or takes so long. Ranks are named as the job numbers them. It costs the others nothing.
    ///
    /// # Errors
    /// [`crate::Error::Os`] when the segments cannot be read.
    pub fn report(&self) -> Result<Report> {
        Report::of(self.fabric().world())
    }
}
