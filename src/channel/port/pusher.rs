//! The end of a fifo that a port channel pushes into.

use std::num::NonZeroU32;

use shmccl_proxy::{
    FifoHeader, Full, Position, Producer, ProducerOwner, Push, SharedProducer, Slot, Trigger,
};

use crate::channel::service::open_fifo;
use crate::error::Result;
use crate::heap::layout::FifoCells;
use crate::rank::Rank;
use crate::shm::{CellRef, CellSlice};

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

    /// Takes a place beside others on behalf of `rank`; `None` when `fifo` has as many producers as
    /// it can have.
    ///
    /// # Errors
    /// Those of [`Pusher::sole`].
    pub(crate) fn shared(fifo: &FifoCells, rank: Rank) -> Result<Option<Self>> {
        let owner = ProducerOwner::new(NonZeroU32::MIN.saturating_add(rank.get()));
        Ok(open_fifo(fifo)?.shared_producer(owner).ok().map(Self::Shared))
    }

    #[inline]
    pub(super) fn try_push(&mut self, trigger: Trigger) -> std::result::Result<Position, Full> {
        match self {
            Self::Sole(producer) => producer.try_push(trigger),
            Self::Shared(producer) => producer.try_push(trigger),
        }
    }

    #[inline]
    pub(super) fn header(&self) -> &FifoHeader {
        match self {
            Self::Sole(producer) => producer.header(),
            Self::Shared(producer) => producer.header(),
        }
    }
}
