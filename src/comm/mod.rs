//! The communicator: a rank's membership in one epoch, and everything that it can do with its peers.
//!
//! What all ranks have to call together takes `&mut self`, so that one rank is in one such call at a time. What a rank
//! does alone (opening channels, reaching memory) takes `&self`; channels are values of their own and may move to other
//! threads.

mod attach;
mod collective;
mod crowd;
mod init;
mod ports;
mod unique_id;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytemuck::Pod;
use shmccl_proxy::MemoryId;

use crate::channel::{Fabric, MemoryChannel, PortChannel};
use crate::error::Result;
use crate::heap::{DeviceBuffer, HeapOffset, HeapUsage, MemoryRegistrar, Region, SymmetricHeap};
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice, LifeLock, Segment, SharedLayout, Span};
use crate::sync::{Agreement, AgreementCell, Barrier, BarrierCell, ParkCell, Revocation};

use attach::Supervision;
pub use attach::{Member, join_job};
pub(crate) use init::init_threads;
use ports::Ports;
pub use unique_id::UniqueId;

/// A rank's membership in a job: its place among the ranks, the symmetric heap, and the channels to its peers.
///
/// Dropping it leaves the job; a peer that still needs this rank then gets [`crate::Error::PeerLost`].
/// [`Communicator::finalize`] leaves when all are done.
#[derive(Debug)]
pub struct Communicator {
    ports: Ports,
    registrar: Mutex<MemoryRegistrar>,
    barrier: Barrier<CellSlice<BarrierCell>, CellRef<ParkCell>>,
    agreement: Agreement<CellSlice<AgreementCell>>,
    fabric: Arc<Fabric>,
    life: Option<LifeLock>,
    supervision: Option<Supervision>,
    /// Kept because its name goes with it, where it has one.
    _own: Option<Segment>,
}

impl Communicator {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.fabric.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        self.fabric.world().n_ranks()
    }

    /// The rank after this one, in a ring.
    #[must_use]
    pub fn right(&self) -> Rank {
        Rank::known((self.rank().get() + 1) % self.n_ranks())
    }

    /// The rank before this one, in a ring.
    #[must_use]
    pub fn left(&self) -> Rank {
        Rank::known((self.rank().get() + self.n_ranks() - 1) % self.n_ranks())
    }

    /// How long a wait may take before it is a [`crate::Error::Timeout`].
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.fabric.timeout()
    }

    /// Opens the next direct channel to `peer`. The k-th channel to a peer pairs with the peer's k-th to this rank.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`] when [`crate::channel::MAX_CHANNELS_PER_PEER`] are open; [`crate::Error::InvalidRank`].
    pub fn memory_channel(&self, peer: Rank) -> Result<MemoryChannel> {
        Rank::new(peer.get(), self.n_ranks())?;
        MemoryChannel::open(&self.fabric, peer)
    }

    /// Opens the next proxied channel to `peer`; the first one starts the proxy thread, where proxies are threads.
    ///
    /// # Errors
    /// Those of [`Communicator::memory_channel`]; [`crate::Error::Exhausted`] when a fifo of this rank has 32 channels already;
    /// [`crate::Error::Os`] when the proxy cannot be started.
    pub fn port_channel(&self, peer: Rank) -> Result<PortChannel> {
        Rank::new(peer.get(), self.n_ranks())?;
        PortChannel::open(&self.fabric, peer, self.ports.open(&self.fabric)?)
    }

    /// Gives `region` of the heap of `rank` an id that triggers of this rank can name: see
    /// [`PortChannel::put_registered`]. The heaps themselves have ids from the start.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], [`crate::Error::InvalidRank`]; [`crate::Error::Exhausted`] when all 512 ids are in use.
    pub fn register(&self, rank: Rank, region: Region) -> Result<MemoryId> {
        self.heap().view().check(region)?;
        self.registrar().register(rank, region)
    }

    /// Takes an id back. No trigger that names it may be in flight: flush first.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when the id names nothing.
    pub fn unregister(&self, id: MemoryId) -> Result<()> {
        self.registrar().unregister(id)
    }

    fn registrar(&self) -> MutexGuard<'_, MemoryRegistrar> {
        // A panic cannot leave the table half changed: each step checks first and changes last.
        self.registrar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The symmetric heap.
    #[must_use]
    pub fn heap(&self) -> &SymmetricHeap {
        self.fabric.heap()
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
        self.heap().view().span(rank, region)
    }

    /// A control word, or a group of them, at `offset` of the heap of `rank`: for protocols of the caller's own.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for bytes that are not allocated; [`crate::Error::Misaligned`]; [`crate::Error::InvalidRank`].
    pub fn cell<T: SharedLayout>(&self, rank: Rank, offset: HeapOffset) -> Result<CellRef<T>> {
        self.heap().view().cell(rank, offset)
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
        self.fabric.world().revocation().read()
    }

    /// Ends the epoch: every wait of every rank returns [`crate::Error::Revoked`] within milliseconds.
    pub fn revoke(&self) {
        let reason = Revocation::Aborted(Some(self.rank()));
        self.fabric.world().control().revoke(self.fabric.kernel(), reason);
    }

    /// Leaves when all ranks have come here, so that nobody is missed.
    ///
    /// # Errors
    /// Those of [`Communicator::barrier`]: the ranks did not all come.
    pub fn finalize(mut self) -> Result<()> {
        self.barrier()
    }
}

impl Drop for Communicator {
    /// A rank that leaves because it panics counts as lost; one that leaves because another was lost says so.
    fn drop(&mut self) {
        let world = self.fabric.world();
        if std::thread::panicking() {
            world.life(self.rank()).mark_lost(self.fabric.kernel());
        }
        self.ports.stop();
        drop(self.life.take());
        // The service process ends when nobody is left.
        world.control().proxy_doorbell().wake(self.fabric.kernel());
        if let (Some(Supervision { link, .. }), Some(reason)) = (&self.supervision, world.revocation().read())
        {
            match reason {
                Revocation::PeerLost(rank) if rank != self.rank() => {
                    link.report_loss(crate::error::DeviceName::Rank(rank));
                }
                Revocation::ProxyLost => link.report_loss(crate::error::DeviceName::Proxy),
                _ => {}
            }
        }
    }
}
