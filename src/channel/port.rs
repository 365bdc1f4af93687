//! The proxied channel: the caller pushes a trigger, a proxy moves the bytes.

use std::sync::Arc;

use shmccl_proxy::{Kind, Position, Push, SemaphoreId, Transfer, Trigger};

use super::fabric::{Fabric, Port};
use super::seat::{Counts, Seat};
use super::Channel;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::rank::Rank;
use crate::shm::CellRef;
use crate::sync::{SemaphoreCell, SemaphoreReceiver};

/// A channel to one peer through a fifo: `put` and `signal` return once their trigger is pushed, and `flush` waits until
/// the proxy has executed every trigger of this channel.
///
/// The proxy executes the triggers of a fifo in the order of their positions, so a signal never overtakes an earlier
/// put of the same channel.
#[derive(Debug)]
pub struct PortChannel {
    fabric: Arc<Fabric>,
    seat: Seat,
    port: Port,
    semaphore: SemaphoreId,
    sent: u64,
    inbound: SemaphoreReceiver<CellRef<SemaphoreCell>>,
}

impl PortChannel {
    /// Opens the next channel to `peer`, over `port`.
    pub(crate) fn open(fabric: &Arc<Fabric>, peer: Rank, port: Port) -> Result<Self> {
        let seat = fabric.seats().take(peer)?;
        let inbound = fabric.semaphore(fabric.rank(), seat.semaphore_index(peer));
        Ok(Self {
            semaphore: super::executor::semaphore_id(peer, seat.number),
            sent: seat.counts.sent,
            inbound: SemaphoreReceiver::new(inbound, seat.counts.received),
            fabric: Arc::clone(fabric),
            seat,
            port,
        })
    }

    /// Pushes the triggers of one verb: `kind` goes with the last piece, data with every piece.
    fn transfer(&mut self, target: HeapOffset, source: HeapOffset, len: u64, kind: Kind) -> Result<Option<Position>> {
        self.fabric.check(Region::new(target, len))?;
        self.fabric.check(Region::new(source, len))?;
        let mut pieces = self.fabric.pieces(self.seat.peer, target, source, len).peekable();
        let mut last = None;
        while let Some(transfer) = pieces.next() {
            let kind = if pieces.peek().is_none() { Kind::DATA | kind } else { Kind::DATA };
            last = Some(self.push(kind, transfer)?);
        }
        if last.is_none() && !kind.is_none() {
            last = Some(self.push(kind, Transfer::default())?);
        }
        Ok(last)
    }

    #[inline]
    fn push(&mut self, kind: Kind, transfer: Transfer) -> Result<Position> {
        let trigger = Trigger::new(kind, transfer, self.semaphore).expect("the kind is one of ours");
        let position = match self.port.producer.try_push(trigger) {
            Ok(position) => position,
            Err(_) => self.push_when_there_is_room(trigger)?,
        };
        self.port.ring(&self.fabric);
        self.sent += u64::from(kind.contains(Kind::SIGNAL));
        Ok(position)
    }

    #[cold]
    fn push_when_there_is_room(&mut self, trigger: Trigger) -> Result<Position> {
        let Self { fabric, port, .. } = self;
        let (producer, room) = (&mut port.producer, &port.room);
        fabric.wait("push", None, room, || producer.try_push(trigger).ok())
    }

    fn wait_completed(&self, position: Position) -> Result<()> {
        let header = self.port.producer.header();
        self.fabric.wait("flush", None, &self.port.room, || position.is_completed(header).then_some(()))
    }
}

impl Channel for PortChannel {
    #[inline]
    fn peer(&self) -> Rank {
        self.seat.peer
    }

    #[inline]
    fn put(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.transfer(target, source, len, Kind::NONE).map(drop)
    }

    #[inline]
    fn signal(&mut self) -> Result<()> {
        self.push(Kind::SIGNAL, Transfer::default()).map(drop)
    }

    #[inline]
    fn put_with_signal(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        self.transfer(target, source, len, Kind::SIGNAL).map(drop)
    }

    #[inline]
    fn put_with_signal_and_flush(&mut self, target: HeapOffset, source: HeapOffset, len: u64) -> Result<()> {
        match self.transfer(target, source, len, Kind::SIGNAL | Kind::FLUSH)? {
            Some(position) => self.wait_completed(position),
            None => Ok(()),
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        let position = self.push(Kind::FLUSH, Transfer::default())?;
        self.wait_completed(position)
    }

    #[inline]
    fn wait(&mut self) -> Result<()> {
        if self.inbound.poll() {
            return Ok(());
        }
        let watch = self.fabric.watch(Some(self.seat.peer));
        let waiting = self.fabric.waiting(&watch);
        self.inbound.wait(&waiting).map_err(|stop| waiting.error(stop, "wait", Some(self.seat.peer)))
    }

    #[inline]
    fn poll(&mut self) -> bool {
        self.inbound.poll()
    }
}

impl Drop for PortChannel {
    fn drop(&mut self) {
        let counts = Counts { sent: self.sent, received: self.inbound.expected() };
        self.fabric.seats().leave(self.seat, counts);
    }
}
