//! The direct channel: the caller's own core moves the bytes.

use std::sync::Arc;

use bytemuck::Pod;

use super::Channel;
use super::context::{Inbound, RankContext};
use super::slot::{ChannelSlot, SignalCounts};
use super::wait_kind::WaitKind;
use crate::error::Result;
use crate::faults::{MESSAGE, PUT};
use crate::heap::{HeapOffset, HeapPlace, HeapView, Region};
use crate::rank::Rank;
use crate::shm::packet::{PacketFlag, PacketKind};
use crate::shm::{CacheHint, CellRef};
use crate::sync::{SemaphoreCell, SemaphoreReceiver, SemaphoreSender};
use crate::trace::{Recorder, TraceSpan, Verb};

/// A channel to one peer over mapped memory: every verb is done when it returns, so `flush` has
/// nothing to wait for.
#[derive(Debug)]
pub struct MemoryChannel {
    context: Arc<RankContext>,
    peer: Rank,
    /// `None` where the semaphores are of somebody's own, and no slot's.
    slot: Option<ChannelSlot>,
    heaps: HeapView,
    outbound: SemaphoreSender<CellRef<SemaphoreCell>>,
    inbound: Inbound,
}

impl MemoryChannel {
    /// Opens the next channel to `peer`.
    pub(crate) fn open(context: &Arc<RankContext>, peer: Rank) -> Result<Self> {
        Self::open_at(context, context.slots().take(peer)?)
    }

    /// Opens a channel in `slot`, which the peer takes too.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], not in a job that is intact.
    pub(crate) fn open_at(context: &Arc<RankContext>, slot: ChannelSlot) -> Result<Self> {
        let peer = slot.peer;
        let outbound = context.semaphore(peer, slot.semaphore_index(context.rank()))?;
        let inbound = context.semaphore(context.rank(), slot.semaphore_index(peer))?;
        Ok(Self {
            outbound: SemaphoreSender::new(outbound, slot.counts.sent),
            inbound: SemaphoreReceiver::new(inbound, slot.counts.received),
            heaps: context.heap().view().clone(),
            context: Arc::clone(context),
            peer,
            slot: Some(slot),
        })
    }

    /// Makes a channel to `peer` over semaphores that nobody has signalled yet: `outbound` is
    /// raised by this rank only, and `inbound` by the peer only. It takes no slot.
    pub(crate) fn over(
        context: &Arc<RankContext>,
        peer: Rank,
        outbound: CellRef<SemaphoreCell>,
        inbound: CellRef<SemaphoreCell>,
    ) -> Self {
        Self {
            outbound: SemaphoreSender::new(outbound, 0),
            inbound: SemaphoreReceiver::new(inbound, 0),
            heaps: context.heap().view().clone(),
            context: Arc::clone(context),
            peer,
            slot: None,
        }
    }

    /// Copies `len` bytes at `source` of the peer's heap to `target` of this rank's. The peer
    /// notices nothing.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`]; nothing was moved.
    #[inline]
    pub fn get(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.verb(Verb::GET, len, |channel| {
            channel.heaps.copy(channel.theirs(source), channel.mine(target), len, CacheHint::Keep)
        })
    }

    /// Reads one element at `source` of the peer's heap.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`].
    #[inline]
    pub fn read<T: Pod>(&mut self, source: HeapOffset) -> Result<T> {
        let len = size_of::<T>() as u64;
        self.verb(Verb::READ, len, |channel| {
            channel.heaps.reach(channel.peer, Region::new(source, len))?.read(source.get())
        })
    }

    /// Writes one element at `target` of the peer's heap. Tells the peer nothing.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`]; nothing was written.
    #[inline]
    pub fn write<T: Pod>(&mut self, target: HeapOffset, value: T) -> Result<()> {
        let len = size_of::<T>() as u64;
        self.verb(Verb::WRITE, len, |channel| {
            channel.heaps.reach(channel.peer, Region::new(target, len))?.write(target.get(), value)
        })
    }

    /// Copies ordinary process memory to `target` of the peer's heap. Tells the peer nothing.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`]; nothing was moved.
    #[inline]
    pub fn put_slice<T: Pod>(&mut self, target: HeapOffset, source: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(source);
        let len = bytes.len() as u64;
        self.verb(Verb::PUT_SLICE, len, |channel| {
            channel.heaps.reach(channel.peer, Region::new(target, len))?.copy_in(target.get(), bytes)?;
            channel.written(target, len);
            Ok(())
        })
    }

    /// Raises the peer's semaphore without publishing earlier puts: orders execution only.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] when this rank has left the job.
    #[inline]
    pub fn relaxed_signal(&mut self) -> Result<()> {
        self.verb(Verb::RELAXED_SIGNAL, 0, |channel| {
            channel.outbound.relaxed_signal(channel.context.kernel());
            Ok(())
        })
    }

    /// Returns after one signal of the peer, without acquiring what it put before: orders execution
    /// only.
    ///
    /// # Errors
    /// Fails as [`Channel::wait`] does.
    #[inline]
    pub fn relaxed_wait(&mut self) -> Result<()> {
        self.verb(Verb::RELAXED_WAIT, 0, |channel| {
            let inbound = &mut channel.inbound;
            channel
                .context
                .wait_for_peer(WaitKind::RelaxedWait, channel.peer, |waiting| inbound.relaxed_wait(waiting))
        })
    }

    /// Writes `len` bytes at `source` of this rank's heap as packets at `target` of the peer's. The
    /// flag travels with the data, so that no signal has to follow.
    ///
    /// The packets take `kind.count(len) * kind.bytes()` bytes at the target.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`]; [`crate::Error::Misaligned`] when `target` is not a multiple
    /// of the packet; nothing was written.
    #[inline]
    pub fn put_packets(
        &mut self,
        kind: PacketKind,
        target: HeapOffset,
        source: HeapOffset,
        len: u64,
        flag: PacketFlag,
    ) -> Result<()> {
        self.verb(Verb::PUT_PACKETS, len, |channel| {
            let mine = channel.heaps.reach(channel.context.rank(), Region::new(source, len))?;
            let theirs = channel.heaps.reach(channel.peer, Region::new(target, packed_len(kind, len)))?;
            theirs.pack_from(kind, target.get(), mine, source.get(), len, flag)
        })
    }

    /// Waits for packets with `flag` at `source` of this rank's heap and unpacks `len` bytes to
    /// `target` of it.
    ///
    /// # Errors
    /// Fails as [`MemoryChannel::put_packets`] does, where `source` is the place of the packets, or
    /// as [`Channel::wait`] does. After the latter a part of the target may have been written.
    #[inline]
    pub fn unpack_packets(
        &mut self,
        kind: PacketKind,
        target: HeapOffset,
        source: HeapOffset,
        len: u64,
        flag: PacketFlag,
    ) -> Result<()> {
        self.verb(Verb::UNPACK_PACKETS, len, |channel| {
            let mine = channel.heaps.reach(channel.context.rank(), Region::new(target, len))?;
            channel.heaps.check(channel.context.rank(), Region::new(source, packed_len(kind, len)))?;
            let mut done = 0;
            let mut poll = || mine.unpack_to(kind, source.get(), mine, target.get(), len, flag, &mut done);
            if poll()? {
                return Ok(());
            }
            channel.context.wait_awake(WaitKind::UnpackPackets, channel.peer, || match poll() {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            })?
        })
    }

    /// Does `run`, which is `verb`. One that the program has called may be struck by a
    /// fault, and it may be noted.
    // Fast path: one load, and `run` is inlined.
    #[inline]
    fn verb<T>(&mut self, verb: Verb, len: u64, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.context.is_plain() { run(self) } else { self.verb_watched(verb, len, run) }
    }

    // Not `#[cold]`: tracing has to stay cheap.
    #[inline(never)]
    fn verb_watched<T>(
        &mut self,
        verb: Verb,
        len: u64,
        run: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if !self.context.is_open() {
            self.enter_watched(verb.name_of_verb())?;
        }
        let sequence = match verb {
            Verb::SIGNAL | Verb::PUT_WITH_SIGNAL | Verb::RELAXED_SIGNAL => {
                self.outbound.sent().wrapping_add(1)
            }
            Verb::RELAXED_WAIT => self.inbound.consumed().wrapping_add(1),
            _ => 0,
        };
        let span = TraceSpan::of(verb).with(self.peer).of_bytes(len).numbered(sequence);
        let begun = self.context.recorder().map(Recorder::now);
        let done = run(self);
        self.context.ended(begun, span, done)
    }

    #[cold]
    fn enter_watched(&self, operation: &'static str) -> Result<()> {
        match self.slot {
            Some(_) => self.context.enter_verb(operation),
            None => self.context.present(operation),
        }
    }

    /// Has faults strike what was just written.
    #[inline]
    fn written(&self, target: HeapOffset, len: u64) {
        if self.context.is_faulty() {
            let name = if self.slot.is_some() { PUT } else { MESSAGE };
            self.context.damage(name, self.theirs(target), len);
        }
    }

    /// Returns a place in this rank's heap.
    #[inline]
    fn mine(&self, offset: HeapOffset) -> HeapPlace {
        HeapPlace { rank: self.context.rank(), offset }
    }

    /// Returns a place in the peer's heap.
    #[inline]
    fn theirs(&self, offset: HeapOffset) -> HeapPlace {
        HeapPlace { rank: self.peer, offset }
    }
}

fn packed_len(kind: PacketKind, len: u64) -> u64 {
    kind.count(len).saturating_mul(kind.bytes())
}

impl Channel for MemoryChannel {
    #[inline]
    fn peer(&self) -> Rank {
        self.peer
    }

    #[inline]
    fn put(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.verb(Verb::PUT, len, |channel| {
            channel.heaps.copy(channel.mine(source), channel.theirs(target), len, CacheHint::Bypass)?;
            channel.written(target, len);
            Ok(())
        })
    }

    #[inline]
    fn signal(&mut self) -> Result<()> {
        self.verb(Verb::SIGNAL, 0, |channel| {
            channel.outbound.signal(channel.context.kernel());
            Ok(())
        })
    }

    #[inline]
    fn put_with_signal(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.verb(Verb::PUT_WITH_SIGNAL, len, |channel| {
            channel.heaps.copy(channel.mine(source), channel.theirs(target), len, CacheHint::Keep)?;
            channel.written(target, len);
            channel.outbound.signal(channel.context.kernel());
            Ok(())
        })
    }

    #[inline]
    fn put_with_signal_and_flush(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.put_with_signal(target, source, len)
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        self.context.enter_own(self.slot.is_some(), "flush")
    }

    #[inline]
    fn wait(&mut self) -> Result<()> {
        self.context.wait_for_signal(self.slot.is_some(), self.peer, &mut self.inbound)
    }

    #[inline]
    fn poll(&mut self) -> bool {
        self.inbound.poll()
    }
}

impl Drop for MemoryChannel {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let counts = SignalCounts { sent: self.outbound.sent(), received: self.inbound.consumed() };
            self.context.slots().leave(slot, counts);
        }
    }
}
