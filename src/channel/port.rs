//! The proxied channel: the caller pushes a trigger, a proxy moves the bytes.

use std::sync::Arc;

use shmccl_proxy::{
    FifoHeader, Full, Position, Producer, Push, Roster, SemaphoreId, SharedProducer, Slot, Transfer, Trigger,
    TriggerKind, WordLen, WordOp, WordUpdate,
};

use super::Channel;
use super::context::RankContext;
use super::executor::semaphore_id;
use super::service::{ProxyWaitPoint, open_fifo};
use super::slot::{ChannelSlot, SignalCounts};
use super::wait_kind::WaitKind;
use crate::error::{Error, Result};
use crate::heap::layout::{FIFO_SLOTS, FifoCells};
use crate::heap::{HeapOffset, HeapPlace, MemoryTable, Region};
use crate::process::OwnerProcess;
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice};
use crate::sync::{ParkCell, SemaphoreCell, SemaphoreReceiver};
use crate::trace::{Recorder, TraceSpan, Verb};

/// The only producer of a fifo, or one of several. A push of the first kind is a few plain stores;
/// the second has to take its position by a compare-exchange, which costs about five times as much.
#[derive(Debug)]
pub(crate) enum Pusher {
    Sole(Producer<CellRef<FifoHeader>, CellSlice<Slot>>),
    Shared(SharedProducer<CellRef<FifoHeader>, CellSlice<Slot>>),
}

impl Pusher {
    /// Takes `fifo` for itself; `None` while it has a producer.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] when its shared state makes no sense.
    pub(crate) fn sole(fifo: &FifoCells) -> Result<Option<Self>> {
        Ok(open_fifo(fifo)?.producer().ok().map(Self::Sole))
    }

    /// Takes a place beside others of this process; `None` when `fifo` has as many producers as
    /// it can have.
    ///
    /// # Errors
    /// Fails as [`Pusher::sole`] does.
    pub(crate) fn shared(fifo: &FifoCells) -> Result<Option<Self>> {
        Ok(open_fifo(fifo)?.shared_producer().ok().map(Self::Shared))
    }

    #[inline]
    fn try_push(&mut self, trigger: Trigger) -> std::result::Result<Position, Full> {
        match self {
            Self::Sole(producer) => producer.try_push(trigger),
            Self::Shared(producer) => producer.try_push(trigger),
        }
    }

    #[inline]
    fn header(&self) -> &FifoHeader {
        match self {
            Self::Sole(producer) => producer.header(),
            Self::Shared(producer) => producer.header(),
        }
    }
}

/// A place to push triggers, and where to sleep until they are served.
#[derive(Debug)]
pub(crate) struct Port {
    pusher: Pusher,
    /// Dropped after the producer.
    _producer: ProducerGuard,
    doorbell: CellRef<ParkCell>,
    completion: CellRef<ParkCell>,
    /// The rank whose proxy thread serves the fifo, until that rank leaves. `None` where a service
    /// process serves it.
    served_by: Option<Rank>,
}

impl Port {
    /// Pushes by `pusher` into `fifo`, which a proxy serves that goes by `wait_point`: a thread of
    /// the rank `served_by`, or a service process.
    pub(crate) fn new(
        pusher: Pusher,
        fifo: FifoCells,
        wait_point: ProxyWaitPoint,
        served_by: Option<Rank>,
    ) -> Self {
        let producer = ProducerGuard::begin(wait_point.roster);
        Self {
            pusher,
            _producer: producer,
            doorbell: wait_point.doorbell,
            completion: fifo.completion,
            served_by,
        }
    }
}

/// Tells the proxy of a producer when it has come, and when it has gone.
#[derive(Debug)]
struct ProducerGuard(CellRef<Roster>, OwnerProcess);

impl ProducerGuard {
    fn begin(roster: CellRef<Roster>) -> Self {
        roster.count_change();
        Self(roster, OwnerProcess::this())
    }
}

impl Drop for ProducerGuard {
    fn drop(&mut self) {
        if self.1.is_this() {
            self.0.count_change();
        }
    }
}

/// A channel to one peer through a fifo: `put` and `signal` return once their trigger is pushed,
/// and `flush` waits until the proxy has executed every trigger of this channel.
///
/// The proxy executes the triggers of a fifo in the order of their positions, so a signal never
/// overtakes an earlier put of the same channel.
#[derive(Debug)]
pub struct PortChannel {
    context: Arc<RankContext>,
    slot: ChannelSlot,
    port: Port,
    table: MemoryTable,
    semaphore: SemaphoreId,
    /// Whether something was pushed that is not known to be executed.
    pending: bool,
    /// Whether it is the program's, and not a pipe's.
    is_own: bool,
    inbound: SemaphoreReceiver<CellRef<SemaphoreCell>>,
}

impl PortChannel {
    /// Opens the next channel to `peer`, over `port`.
    pub(crate) fn open(context: &Arc<RankContext>, peer: Rank, port: Port) -> Result<Self> {
        Self::open_at(context, context.slots().take(peer)?, port, true)
    }

    /// Opens a pipe's channel over `port` in `slot`, which the peer takes too.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], not in a job that is intact.
    pub(crate) fn open_in(context: &Arc<RankContext>, slot: ChannelSlot, port: Port) -> Result<Self> {
        Self::open_at(context, slot, port, false)
    }

    fn open_at(context: &Arc<RankContext>, slot: ChannelSlot, port: Port, is_own: bool) -> Result<Self> {
        let peer = slot.peer;
        let inbound = context.semaphore(context.rank(), slot.semaphore_index(peer))?;
        Ok(Self {
            semaphore: semaphore_id(peer, slot.number),
            pending: false,
            is_own,
            table: context.mapped().memory_table(context.rank())?,
            inbound: SemaphoreReceiver::new(inbound, slot.counts.received),
            context: Arc::clone(context),
            slot,
            port,
        })
    }

    /// Returns how many triggers of this channel's fifo were pushed and are not yet served, now or
    /// a moment ago.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.port.pusher.header().snapshot(FIFO_SLOTS).depth
    }

    /// Copies between registered memory, by ids of [`crate::Communicator::register`]. Tells the
    /// peer nothing.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for an id that names nothing, [`crate::Error::OutOfRange`]
    /// for bytes outside what it names; otherwise those of [`Channel::put`].
    pub fn put_registered(&mut self, transfer: Transfer) -> Result<()> {
        self.context.enter_own(self.is_own, "put_registered")?;
        for (id, offset) in
            [(transfer.source, transfer.source_offset), (transfer.target, transfer.target_offset)]
        {
            let (rank, region) = self.table.resolve(id, offset, transfer.len.get())?;
            self.context.heap().view().check(rank, region)?;
        }
        self.traced(Verb::PUT_REGISTERED, transfer.len.get().into(), |port| {
            port.push(TriggerKind::DATA, transfer)
        })
        .map(drop)
    }

    /// Does `run`, and notes it where this rank notes what it does.
    #[inline]
    fn traced<T>(&mut self, verb: Verb, bytes: u64, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let begun = self.context.recorder().map(Recorder::now);
        let done = run(self);
        let span = TraceSpan::of(verb).with(self.slot.peer).of_bytes(bytes);
        self.context.ended(begun, span, done)
    }

    /// Pushes the triggers of one put: data in every piece, `kind` with the last. Nothing for an
    /// empty put of no kind.
    fn transfer(
        &mut self,
        target: HeapOffset,
        source: HeapOffset,
        len: u64,
        kind: TriggerKind,
    ) -> Result<Option<Position>> {
        let heaps = self.context.heap().view();
        heaps.check(self.slot.peer, Region::new(target, len))?;
        heaps.check(self.context.rank(), Region::new(source, len))?;
        let from = HeapPlace { rank: self.context.rank(), offset: source };
        let to = HeapPlace { rank: self.slot.peer, offset: target };
        let mut pieces = self.context.mapped().windows().split(from, to, len)?;
        let Some(mut piece) = pieces.next() else {
            return if kind.is_none() { Ok(None) } else { self.push(kind, Transfer::default()).map(Some) };
        };
        for next in pieces {
            self.push(TriggerKind::DATA, std::mem::replace(&mut piece, next))?;
        }
        self.push(TriggerKind::DATA | kind, piece).map(Some)
    }

    /// Pushes an atomic change of the word at `target` of the peer's heap.
    ///
    /// # Errors
    /// [`Error::Misaligned`]; otherwise those of [`Channel::put`].
    pub(crate) fn update(
        &mut self,
        target: HeapOffset,
        len: WordLen,
        op: WordOp,
        operand: u64,
    ) -> Result<()> {
        self.context.enter_own(self.is_own, Verb::ATOMIC.name_of_verb())?;
        let bytes = u64::from(len.bytes());
        self.traced(Verb::ATOMIC, bytes, |port| {
            let word = HeapPlace { rank: port.slot.peer, offset: target };
            port.context.heap().view().check(word.rank, Region::new(target, bytes))?;
            if !target.get().is_multiple_of(bytes) {
                return Err(Error::Misaligned { what: "word", offset: target.get(), align: bytes });
            }
            let place = port.context.mapped().windows().split(word, word, bytes)?.next();
            let Transfer { target, target_offset, .. } = place.expect("a word is not empty");
            port.push_trigger(Trigger::update(WordUpdate { op, len, operand, target, target_offset }))
        })
        .map(drop)
    }

    #[inline]
    fn push(&mut self, kind: TriggerKind, transfer: Transfer) -> Result<Position> {
        self.push_trigger(Trigger::new(kind, transfer, self.semaphore).expect("the kind is not empty"))
    }

    #[inline]
    fn push_trigger(&mut self, trigger: Trigger) -> Result<Position> {
        self.context.present("push")?;
        let position = match self.port.pusher.try_push(trigger) {
            Ok(position) => position,
            Err(_) => self.push_when_there_is_room(trigger)?,
        };
        self.port.doorbell.wake(self.context.kernel());
        self.pending = true;
        Ok(position)
    }

    #[cold]
    fn push_when_there_is_room(&mut self, trigger: Trigger) -> Result<Position> {
        let Self { context, port, .. } = self;
        let Port { pusher, completion, served_by, .. } = port;
        context.wait_for_proxy(WaitKind::Push, *served_by, completion, || pusher.try_push(trigger).ok())
    }

    fn flush_all(&mut self) -> Result<()> {
        let position = self.push(TriggerKind::FLUSH, Transfer::default())?;
        self.wait_completed(position)
    }

    fn wait_completed(&mut self, position: Position) -> Result<()> {
        let Port { pusher, completion, served_by, .. } = &self.port;
        let header = pusher.header();
        let poll = || position.is_completed(header).then_some(());
        self.context.wait_for_proxy(WaitKind::Flush, *served_by, completion, poll)?;
        self.pending = false;
        if self.context.takes_checksums() {
            // A put that did not arrive as it was sent has ended the epoch before it was completed.
            self.context.check("flush")?;
        }
        Ok(())
    }
}

impl Channel for PortChannel {
    #[inline]
    fn peer(&self) -> Rank {
        self.slot.peer
    }

    #[inline]
    fn put(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.context.enter_own(self.is_own, "put")?;
        self.traced(Verb::PUT, len, |port| port.transfer(target, source, len, TriggerKind::NONE)).map(drop)
    }

    #[inline]
    fn signal(&mut self) -> Result<()> {
        self.context.enter_own(self.is_own, "signal")?;
        self.traced(Verb::SIGNAL, 0, |port| port.push(TriggerKind::SIGNAL, Transfer::default())).map(drop)
    }

    #[inline]
    fn put_with_signal(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.context.enter_own(self.is_own, "put_with_signal")?;
        self.traced(Verb::PUT_WITH_SIGNAL, len, |port| {
            port.transfer(target, source, len, TriggerKind::SIGNAL)
        })
        .map(drop)
    }

    #[inline]
    fn put_with_signal_and_flush(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.context.enter_own(self.is_own, "put_with_signal")?;
        self.traced(Verb::PUT_WITH_SIGNAL_AND_FLUSH, len, |port| {
            match port.transfer(target, source, len, TriggerKind::SIGNAL | TriggerKind::FLUSH)? {
                Some(position) => port.wait_completed(position),
                None => Ok(()),
            }
        })
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        self.context.enter_own(self.is_own, "flush")?;
        self.traced(Verb::FLUSH, 0, Self::flush_all)
    }

    #[inline]
    fn wait(&mut self) -> Result<()> {
        self.context.wait_for_signal(self.is_own, self.slot.peer, &mut self.inbound)
    }

    #[inline]
    fn poll(&mut self) -> bool {
        self.inbound.poll()
    }
}

impl Drop for PortChannel {
    /// Waits until the proxy has executed everything: the next channel in this slot may signal
    /// directly. If that comes to nothing, the slot stays taken, as it does when the thread panics:
    /// then nobody is to wait for this one.
    fn drop(&mut self) {
        if self.context.is_forked() {
            return;
        }
        if !self.pending || !std::thread::panicking() && self.flush_all().is_ok() {
            // The semaphore itself is read, since a handler of the user's own may have raised it
            // less often than pushes asked for.
            let outbound = self.slot.semaphore_index(self.context.rank());
            let Ok(outbound) = self.context.semaphore(self.slot.peer, outbound) else { return };
            let counts = SignalCounts { sent: outbound.value(), received: self.inbound.consumed() };
            self.context.slots().leave(self.slot, counts);
        }
    }
}

#[cfg(test)]
mod tests;
