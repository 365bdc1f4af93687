//! Executes triggers: the handler of every proxy that moves data between heaps.

use std::num::NonZeroU32;
use std::sync::Arc;

use shmccl_proxy::{
    Handler, MemoryId, Position, SemaphoreId, Trigger, TriggerKind, TriggerRefusal, WordLen, WordOp,
    WordUpdate,
};

use super::epoch::EpochMapping;
use super::inject::{ProxyFaults, TriggerOutcome};
use super::slot::MAX_CHANNELS_PER_PEER;
use crate::error::Result;
use crate::heap::{HeapPlace, HeapView, MemoryTable, Region};
use crate::logs::PROXY;
use crate::rank::Rank;
use crate::shm::CacheHint;
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::word::change_words;
use crate::sync::{AtomicWord, Revocation, plain};

/// Why an [`Executor`] refuses a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u32)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The trigger asks for nothing.
    #[error("it asks for nothing")]
    NoKind = u32::MAX,
    /// The source id names no memory, or the range reaches past what it names.
    #[error("its source is not memory that it may read")]
    Source = 1,
    /// The target id names no memory, or the range reaches past what it names.
    #[error("its target is not memory that it may write")]
    Target = 2,
    /// The semaphore id names no rank of the communicator.
    #[error("its semaphore belongs to no rank")]
    Semaphore = 3,
    /// A fault was injected: see [`crate::faults`].
    #[error("a fault that was injected has it refused")]
    Injected = 4,
    /// What was copied is not what was to be copied, by this trigger or an earlier one of its fifo.
    #[error("what was copied is not what was to be copied")]
    Corrupted = 5,
}

impl RefusalReason {
    /// Names the reason with this code; `None` for a code that no executor gives.
    #[must_use]
    pub fn from_code(code: u64) -> Option<Self> {
        [Self::NoKind, Self::Source, Self::Target, Self::Semaphore, Self::Injected, Self::Corrupted]
            .into_iter()
            .find(|reason| *reason as u64 == code)
    }

    fn refusal(self) -> TriggerRefusal {
        TriggerRefusal::new(NonZeroU32::new(self as u32).expect("no reason has code 0"))
    }
}

/// Copies between heaps and raises semaphores as triggers say, and refuses what they must not say.
///
/// Ids, offsets and lengths are checked at execution, against the memory table of the rank that
/// pushed the trigger and against what all ranks have allocated: nothing outside is ever touched. A
/// refused trigger changes nothing.
#[derive(Debug)]
pub struct Executor {
    mapped: Arc<EpochMapping>,
    /// The producers of the fifos that the proxy serves.
    sources: Vec<FifoProducer>,
    /// The faults that are planned.
    faults: Option<ProxyFaults>,
    /// Whether what is copied is checked.
    checksums: bool,
}

/// The rank behind a fifo, and what its triggers may name.
#[derive(Debug)]
struct FifoProducer {
    rank: Rank,
    table: MemoryTable,
    heaps: HeapView,
    /// A value other than 0 says that something that was copied for this rank was corrupted.
    corrupted: AtomicU64,
}

impl Executor {
    /// Executes for a proxy whose fifo number i belongs to `owners[i]`.
    pub(crate) fn new(mapped: &Arc<EpochMapping>, owners: &[Rank]) -> Result<Self> {
        let source = |&rank: &Rank| {
            Ok(FifoProducer {
                rank,
                table: mapped.memory_table(rank)?,
                heaps: mapped.view(rank).clone(),
                corrupted: AtomicU64::new(0),
            })
        };
        let sources = owners.iter().map(source).collect::<Result<_>>()?;
        Ok(Self { mapped: Arc::clone(mapped), sources, faults: None, checksums: false })
    }

    /// Injects `faults` into what it executes.
    pub(crate) fn with_faults(self, faults: Option<ProxyFaults>) -> Self {
        Self { faults, ..self }
    }

    /// Checks copies by checksums, if so.
    pub(crate) fn with_checksums(self, checksums: bool) -> Self {
        Self { checksums, ..self }
    }

    /// Returns the rank that pushes into fifo number `fifo`.
    #[must_use]
    pub fn producer(&self, fifo: usize) -> Option<Rank> {
        self.sources.get(fifo).map(|source| source.rank)
    }

    fn execute(&self, fifo: usize, trigger: &Trigger) -> Result<(), RefusalReason> {
        // A handler around this one may have got the number wrong.
        let source = self.sources.get(fifo).ok_or(RefusalReason::Source)?;
        if self.checksums && plain::load(&source.corrupted) != 0 {
            return Err(RefusalReason::Corrupted);
        }
        let (kind, transfer) = (trigger.kind(), trigger.transfer());
        if kind.is_none() {
            return self.update(source, trigger.word_update().ok_or(RefusalReason::NoKind)?);
        }
        let len = transfer.len.get();
        let semaphore = match kind.contains(TriggerKind::SIGNAL) {
            true => Some(self.semaphore(source.rank, trigger.semaphore()).ok_or(RefusalReason::Semaphore)?),
            false => None,
        };
        if kind.contains(TriggerKind::DATA) && len > 0 {
            let from = source.resolve(transfer.source, transfer.source_offset, len);
            let to = source.resolve(transfer.target, transfer.target_offset, len);
            let (from, to) = (from.ok_or(RefusalReason::Source)?, to.ok_or(RefusalReason::Target)?);
            let cache_hint =
                if kind.contains(TriggerKind::SIGNAL) { CacheHint::Keep } else { CacheHint::Bypass };
            let checksum = if self.checksums { Some(source.checksum(from, len)?) } else { None };
            let copied = source.heaps.copy(from, to, len.into(), cache_hint);
            copied.map_err(|_| RefusalReason::Target)?;
            if let Some(faults) = &self.faults {
                faults.damage(&self.mapped, source.rank, fifo, to, len.into());
            }
            if let Some(checksum) = checksum
                && source.checksum(to, len)? != checksum
            {
                self.give_up(source);
                return Err(RefusalReason::Corrupted);
            }
        }
        if let Some((rank, index)) = semaphore {
            self.mapped.semaphores(rank)[index].signal_next(self.mapped.kernel());
        }
        Ok(())
    }

    /// Changes a word, and wakes the threads of its rank that wait for one.
    #[inline(never)]
    fn update(&self, source: &FifoProducer, update: WordUpdate) -> Result<(), RefusalReason> {
        let len = update.len.bytes();
        let place = source.resolve(update.target, update.target_offset, len);
        let HeapPlace { rank, offset } = place.ok_or(RefusalReason::Target)?;
        let heap = source.heaps.reach(rank, Region::new(offset, len.into()));
        let heap = heap.map_err(|_| RefusalReason::Target)?;
        let park = self.mapped.cells(rank).word_park();
        let is_aligned = change_words(&park, self.mapped.kernel(), || match update.len {
            WordLen::Four => heap
                .word::<AtomicU32>(offset.get())
                .map(|word| change(word, update.op, low_half(update.operand))),
            WordLen::Eight => {
                heap.word::<AtomicU64>(offset.get()).map(|word| change(word, update.op, update.operand))
            }
        });
        is_aligned.ok_or(RefusalReason::Target)
    }

    #[cold]
    fn execute_with_faults(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), RefusalReason> {
        let producer = self.producer(fifo);
        let outcome = match (&mut self.faults, producer) {
            (Some(faults), Some(rank)) => faults.inject(&self.mapped, rank, fifo),
            _ => TriggerOutcome::Executed,
        };
        match outcome {
            TriggerOutcome::Executed => self.execute(fifo, trigger),
            TriggerOutcome::Dropped => Ok(()),
            TriggerOutcome::Refused => Err(RefusalReason::Injected),
        }
    }

    /// Ends the epoch because of what was copied for `source`. Nothing more is executed for it: no
    /// later signal is to say that the data have arrived.
    #[cold]
    fn give_up(&self, source: &FifoProducer) {
        plain::store(&source.corrupted, 1);
        self.mapped.control().revoke(self.mapped.kernel(), Revocation::Corrupted(source.rank));
    }

    /// Returns the semaphore that `id` names when `from` pushes it.
    fn semaphore(&self, from: Rank, id: SemaphoreId) -> Option<(Rank, usize)> {
        let (rank, number) =
            (u32::from(id.get()) / MAX_CHANNELS_PER_PEER, u32::from(id.get()) % MAX_CHANNELS_PER_PEER);
        let rank = Rank::new(rank, self.mapped.n_ranks()).ok()?;
        Some((rank, (from.get() * MAX_CHANNELS_PER_PEER + number) as usize))
    }
}

/// Changes `word` as `op` says.
fn change<W: AtomicWord>(word: &W, op: WordOp, operand: W::Bits) {
    match op {
        WordOp::Add => _ = word.fetch_add(operand),
        WordOp::And => _ = word.fetch_and(operand),
        WordOp::Or => _ = word.fetch_or(operand),
        WordOp::Xor => _ = word.fetch_xor(operand),
        WordOp::Set => word.set(operand),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is meant")]
const fn low_half(operand: u64) -> u32 {
    operand as u32
}

impl FifoProducer {
    /// Returns the checksum of `len` bytes at `place`, which are in bounds.
    fn checksum(&self, place: HeapPlace, len: u32) -> Result<u32, RefusalReason> {
        let span = self.heaps.reach(place.rank, Region::new(place.offset, len.into()));
        span.and_then(|span| span.crc32c(0, place.offset.get(), len.into()))
            .map_err(|_| RefusalReason::Source)
    }

    /// Returns the place that `len` bytes at `offset` of memory `id` start at, if they are all in
    /// bounds.
    #[inline]
    fn resolve(&self, id: MemoryId, offset: u32, len: u32) -> Option<HeapPlace> {
        let (rank, region) = self.table.resolve(id, offset, len).ok()?;
        self.heaps.check(rank, region).ok()?;
        Some(HeapPlace { rank, offset: region.offset })
    }
}

impl Handler for Executor {
    #[inline]
    fn handle(&mut self, fifo: usize, trigger: &Trigger) -> Result<(), TriggerRefusal> {
        let done = if self.faults.is_none() {
            self.execute(fifo, trigger)
        } else {
            self.execute_with_faults(fifo, trigger)
        };
        done.map_err(RefusalReason::refusal)
    }

    fn refused(&mut self, fifo: usize, position: Position, trigger: &Trigger, refusal: TriggerRefusal) {
        let reason = RefusalReason::from_code(refusal.code().into());
        let by = self.producer(fifo);
        tracing::warn!(target: PROXY, ?by, ?position, ?reason, ?trigger, "a trigger was refused");
    }
}

/// Names slot `number` towards `peer` in a trigger.
pub(crate) fn semaphore_id(peer: Rank, number: u32) -> SemaphoreId {
    SemaphoreId::new(peer.get() * MAX_CHANNELS_PER_PEER + number)
        .expect("256 ranks of 16 slots fit fourteen bits")
}

#[cfg(test)]
mod tests;
