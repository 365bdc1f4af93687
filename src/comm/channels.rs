//! The channels of a communicator, its proxy, and the memory that triggers name.

use shmccl_proxy::{Handler, MemoryId, Snapshot};

use super::Communicator;
use super::membership::ports::ChannelUser;
use crate::channel::{Executor, MemoryChannel, PortChannel};
use crate::error::{Error, Result};
use crate::heap::layout::N_FIFOS;
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;

impl Communicator {
    /// Opens the next direct channel to `peer`. The k-th channel to a peer pairs with the peer's
    /// k-th to this rank, through any communicators and threads.
    ///
    /// No message goes between the ranks. So threads that open channels to one peer do so in one
    /// order on both sides. Channels that ranks open together do not count here: switch channels,
    /// and proxied channels of communicators.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`] when [`crate::channel::MAX_CHANNELS_PER_PEER`] are open, those
    /// opened together included; [`crate::Error::InvalidRank`].
    pub fn memory_channel(&self, peer: Rank) -> Result<MemoryChannel> {
        MemoryChannel::open(self.context(), self.member(peer)?)
    }

    /// Opens a direct channel to `peer` over semaphores in heap memory: `outbound` of the peer's
    /// heap, and `inbound` of this rank's. It pairs with the channel of the peer over the same two.
    ///
    /// It takes none of the places that [`Communicator::memory_channel`] counts. A semaphore has
    /// [`SEMAPHORE_LEN`](crate::channel::SEMAPHORE_LEN) bytes, at a multiple of as many, and was
    /// zeroed before either rank opened its channel. One rank raises it, over one channel at a
    /// time.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for memory that is not allocated;
    /// [`crate::Error::Misaligned`]; [`crate::Error::InvalidRank`].
    pub fn memory_channel_over(
        &self,
        peer: Rank,
        outbound: HeapOffset,
        inbound: HeapOffset,
    ) -> Result<MemoryChannel> {
        let (member, own) = (self.member(peer)?, self.context().rank());
        let (outbound, inbound) =
            (self.heap().view().cell(member, outbound)?, self.heap().view().cell(own, inbound)?);
        Ok(MemoryChannel::over(self.context(), member, outbound, inbound))
    }

    /// Opens the next proxied channel to `peer`. The first one starts the proxy thread, where
    /// proxies are threads.
    ///
    /// It gets a fifo of this rank for itself while there is one: seven in a job of up to 16 ranks,
    /// four of 64. Others share the rest, where a push costs more. A dropped channel gives its fifo
    /// back. See also [`Communicator::start_proxy`].
    ///
    /// # Errors
    /// - Those of [`Communicator::memory_channel`].
    /// - [`crate::Error::Exhausted`] when the shared fifos have 32 channels each.
    /// - [`crate::Error::Os`] when the proxy cannot be started.
    pub fn port_channel(&self, peer: Rank) -> Result<PortChannel> {
        let peer = self.member(peer)?;
        self.context().here("port_channel")?;
        PortChannel::open(
            self.context(),
            peer,
            self.membership.ports.open(self.context(), ChannelUser::Program)?,
        )
    }

    /// Gives `region` of the heap of `rank` an id for triggers of this rank: see
    /// [`PortChannel::put_registered`]. The heaps themselves have ids from the start.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], [`crate::Error::InvalidRank`]; [`crate::Error::Exhausted`]
    /// when all 512 ids are in use.
    pub fn register(&self, rank: Rank, region: Region) -> Result<MemoryId> {
        let rank = self.member(rank)?;
        self.heap().view().check(rank, region)?;
        self.membership.registrar().register(rank, region)
    }

    /// Takes an id back. No trigger that names it may be in flight: flush first.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when the id names nothing.
    pub fn unregister(&self, id: MemoryId) -> Result<()> {
        self.membership.registrar().unregister(id)
    }

    /// Starts this rank's proxy thread with a handler of the caller's own, over `n_fifos` fifos.
    /// Port channels are spread over them in turn, and share them. `make` gets the handler that
    /// would be used otherwise.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] when `n_fifos` is not from 1 to 8.
    /// - [`Error::Unavailable`] when the proxy runs already (the first
    ///   [`Communicator::port_channel`] starts it), or the job's proxy is a service process.
    pub fn start_proxy<T: Handler + Send + 'static>(
        &self,
        n_fifos: u32,
        make: impl FnOnce(Executor) -> T,
    ) -> Result<()> {
        if !(1..=N_FIFOS).contains(&n_fifos) {
            let expected = "from 1 to 8 fifos";
            return Err(Error::InvalidArgument { name: "n_fifos", value: n_fifos.into(), expected });
        }
        self.context().here("start_proxy")?;
        self.membership.ports.start_proxy(self.context(), n_fifos, make)
    }

    /// Returns the counters of this rank's fifos, in use or not. Costs the fifos nothing.
    ///
    /// # Errors
    /// None in a job that is intact.
    pub fn fifo_snapshots(&self) -> Result<Vec<Snapshot>> {
        let context = self.context();
        let cells = context.mapped().cells(context.rank());
        (0..N_FIFOS).map(|index| Ok(cells.fifo(index)?.snapshot())).collect()
    }
}
