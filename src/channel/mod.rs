//! Channels: how one rank moves data to another and tells it so.
//!
//! A channel joins this rank to one peer. Its send side moves bytes from this rank's heap into the
//! peer's and raises the peer's semaphore; its receive side waits on this rank's own semaphore. The
//! two kinds differ only in who does the work:
//!
//! - [`MemoryChannel`]: the caller's own core copies and stores;
//! - [`PortChannel`]: the caller pushes a 16-byte trigger into a fifo and a proxy ([`Executor`])
//!   copies and stores.
//!
//! Everything written against the [`Channel`] trait runs over both. The k-th channel that this rank
//! opens to a peer pairs with the k-th channel that the peer opens to this rank, whatever their
//! kinds.
//!
//! # Ordering
//! `signal` publishes every earlier put of its channel; the matching `wait` acquires them (edge
//! S1). Puts of different channels are not ordered among each other, and nothing is promised about
//! a put that neither a signal followed nor, once it was done, a barrier or another call of the
//! ranks concerned ([`Collectives`](crate::Collectives)).
//!
//! Tried by its unit tests and `scenarios verbs:: channel_slots:: fifos:: proxies:: packets::
//! refused_triggers:: hostile:: waits::`.

mod context;
mod control;
mod epoch;
mod executor;
mod inject;
mod memory;
mod port;
mod service;
mod slot;
#[cfg(test)]
mod testing;
mod wait_kind;

use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::Rank;
use crate::sync::SemaphoreCell;

pub(crate) use context::{Blamed, EpochWatch, LongWait, RankContext};
pub(crate) use control::{Control, LEN as CONTROL_LEN, MAX_ROUNDS};
pub(crate) use epoch::{EpochMapping, segment_name};
pub use executor::{Executor, RefusalReason};
pub(crate) use inject::ProxyFaults;
pub use memory::MemoryChannel;
pub use port::PortChannel;
pub(crate) use port::{Port, Pusher};
pub(crate) use service::{ProxyThread, ProxyWaitPoint, ServedFifos, Traced, serve_all};
pub use slot::MAX_CHANNELS_PER_PEER;
pub(crate) use slot::ReservedSlot;
pub(crate) use wait_kind::WaitKind;

/// Bytes of a semaphore, and the multiple that its offset is:
/// [`Communicator::memory_channel_over`](crate::Communicator::memory_channel_over).
pub const SEMAPHORE_LEN: u64 = size_of::<SemaphoreCell>() as u64;

/// The verbs of every channel. Offsets count bytes from the start of the symmetric heap, lengths
/// are bytes.
///
/// # Errors
/// Every method that moves or waits returns [`crate::Error::OutOfRange`] for bytes that are not
/// allocated, and [`crate::Error::Timeout`], [`crate::Error::PeerLost`],
/// [`crate::Error::ProxyLost`] or [`crate::Error::Revoked`] when waiting comes to nothing. An error
/// of the first kind has moved nothing. A channel that has outlived all communicators of its rank
/// only returns [`crate::Error::Unavailable`], and what has arrived by then.
pub trait Channel {
    /// Returns the rank at the other end.
    fn peer(&self) -> Rank;

    /// Copies `len` bytes at `source` of this rank's heap to `target` of the peer's. Tells the peer
    /// nothing.
    ///
    /// It is made for bandwidth: long data may go past the caches. Data that the peer waits for go
    /// by [`Channel::put_with_signal`], which leaves them where the peer reads them soonest.
    ///
    /// The source may be written again only after [`Channel::flush`].
    fn put(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()>;

    /// Tells the peer that every earlier put of this channel has arrived: one [`Channel::wait`]
    /// there returns.
    fn signal(&mut self) -> Result<()>;

    /// Does a put and the signal that announces it.
    fn put_with_signal(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()>;

    /// Does a put, the signal that announces it, and a flush.
    fn put_with_signal_and_flush(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()>;

    /// Returns when the sources of all earlier puts of this channel may be written again.
    fn flush(&mut self) -> Result<()>;

    /// Returns after one signal of the peer, and with everything that the peer put before it.
    fn wait(&mut self) -> Result<()>;

    /// Takes a signal of the peer if there is one, like a [`Channel::wait`] that does not block.
    fn poll(&mut self) -> bool;
}
