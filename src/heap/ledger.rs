//! What stands behind the bytes of a symmetric heap: which are planned, backed by memory, agreed on, or live.
//!
//! Ranks allocate together or not at all, and only the layer above can make them agree. So an allocation goes
//! through steps, and a region is one of
//!
//! | state | left by | meaning |
//! |---|---|---|
//! | planned | `backed`, `abandon` | the allocator has set it aside on this rank |
//! | backed | `confirm`, `abandon` | this rank has memory behind it |
//! | live | `free` | every rank has memory behind it |
//!
//! Memory is backed from the start of the heap up to a *watermark* that only rises, in chunks of [`CHUNK`]: an
//! allocator that prefers low offsets leaves no holes worth tracking. There are two watermarks. `backed` is
//! this rank's own; `agreed` follows when an allocation is confirmed, so that everything below it is backed on *every*
//! rank and may be touched there without a check of the peer. An abandoned allocation raises the first only.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::heap::allocator::{Allocator, GRANULE};
use crate::heap::offset::Region;

/// Memory is committed in multiples of this many bytes: a huge page.
pub(super) const CHUNK: u64 = 2 << 20;

/// The strictest alignment that an allocation can ask for, in bytes: that of the heap itself.
pub(super) const MAX_ALIGN: u64 = CHUNK;

/// The steps of all allocations of one rank.
#[derive(Debug)]
pub(crate) struct HeapLedger {
    allocator: Allocator,
    pending: Vec<Pending>,
    backed: u64,
    agreed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    region: Region,
    backed: bool,
}

impl HeapLedger {
    pub(crate) fn new(heap_len: u64) -> Result<Self> {
        Ok(Self { allocator: Allocator::new(heap_len)?, pending: Vec::new(), backed: 0, agreed: 0 })
    }

    /// Sets a region aside.
    pub(crate) fn plan(&mut self, len: u64, align: u64) -> Result<Region> {
        if align > MAX_ALIGN {
            let expected = "a power of two up to 2 MiB";
            return Err(Error::InvalidArgument { name: "align", value: align, expected });
        }
        let region = self.allocator.allocate(len, align)?;
        self.pending.push(Pending { region, backed: false });
        Ok(region)
    }

    /// The bytes that need memory before `region` is backed; empty when it has all of it already.
    pub(crate) fn missing(&self, region: Region) -> Result<Range<u64>> {
        self.find(region)?;
        Ok(self.backed..self.backed.max(self.chunk_end(region)))
    }

    /// Takes note that [`HeapLedger::missing`] has got its memory.
    pub(crate) fn backed(&mut self, region: Region) -> Result<()> {
        let index = self.find(region)?;
        self.pending[index].backed = true;
        self.backed = self.backed.max(self.chunk_end(region));
        Ok(())
    }

    /// Makes a backed region live and returns the agreed watermark.
    pub(crate) fn confirm(&mut self, region: Region) -> Result<u64> {
        let index = self.find(region)?;
        if !self.pending[index].backed {
            return Err(refused(region, "a region that has been committed"));
        }
        self.pending.swap_remove(index);
        self.agreed = self.agreed.max(self.chunk_end(region));
        Ok(self.agreed)
    }

    /// Gives back a region that is not live yet. The memory behind it stays.
    pub(crate) fn abandon(&mut self, region: Region) -> Result<()> {
        let index = self.find(region)?;
        self.pending.swap_remove(index);
        self.allocator.free(region)
    }

    /// Gives back a live region. The memory behind it stays.
    pub(crate) fn free(&mut self, region: Region) -> Result<()> {
        if self.find(region).is_ok() {
            return Err(refused(region, "a confirmed region; this one can only be abandoned"));
        }
        self.allocator.free(region)
    }

    pub(crate) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Bytes that this rank has memory behind.
    pub(crate) fn backed_bytes(&self) -> u64 {
        self.backed
    }

    fn find(&self, region: Region) -> Result<usize> {
        let position = self.pending.iter().position(|pending| pending.region == region);
        position.ok_or_else(|| refused(region, "a planned region that was neither confirmed nor abandoned"))
    }

    /// Where the last chunk ends that `region` touches. An empty region still owns a granule.
    fn chunk_end(&self, region: Region) -> u64 {
        let end = region.offset.get() + region.len.max(GRANULE);
        end.checked_next_multiple_of(CHUNK).map_or(self.allocator.len(), |end| end.min(self.allocator.len()))
    }
}

fn refused(region: Region, expected: &'static str) -> Error {
    Error::InvalidArgument { name: "region at offset", value: region.offset.get(), expected }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::heap::offset::HeapOffset;

    #[test]
    fn memory_is_backed_by_whole_chunks_and_only_once() {
        let mut ledger = HeapLedger::new(10 * CHUNK).unwrap();
        let first = ledger.plan(1, 1).unwrap();
        assert_eq!(ledger.missing(first).unwrap(), 0..CHUNK);
        ledger.backed(first).unwrap();
        assert_eq!(ledger.confirm(first).unwrap(), CHUNK);
        let second = ledger.plan(CHUNK, 1).unwrap();
        assert_eq!(ledger.missing(second).unwrap(), CHUNK..2 * CHUNK);
        ledger.backed(second).unwrap();
        assert!(ledger.missing(second).unwrap().is_empty());
        ledger.confirm(second).unwrap();
        ledger.free(first).unwrap();
        let again = ledger.plan(64, 64).unwrap();
        assert_eq!(again.offset, HeapOffset::ZERO);
        assert!(ledger.missing(again).unwrap().is_empty(), "freed memory is still backed");
    }

    #[test]
    fn the_last_chunk_of_a_heap_may_be_short() {
        let mut ledger = HeapLedger::new(CHUNK + 128).unwrap();
        let all = ledger.plan(CHUNK + 128, 64).unwrap();
        assert_eq!(ledger.missing(all).unwrap(), 0..CHUNK + 128);
    }

    #[test]
    fn an_abandoned_region_does_not_raise_what_the_ranks_agreed_on() {
        let mut ledger = HeapLedger::new(16 * CHUNK).unwrap();
        let far = ledger.plan(8 * CHUNK, 64).unwrap();
        ledger.backed(far).unwrap();
        ledger.abandon(far).unwrap();
        assert_eq!(ledger.backed_bytes(), 8 * CHUNK);
        let near = ledger.plan(64, 64).unwrap();
        ledger.backed(near).unwrap();
        assert_eq!(ledger.confirm(near).unwrap(), CHUNK);
    }

    #[test]
    fn steps_out_of_turn_are_refused() {
        let mut ledger = HeapLedger::new(4 * CHUNK).unwrap();
        let region = ledger.plan(100, 64).unwrap();
        assert!(ledger.confirm(region).is_err(), "not committed");
        assert!(ledger.free(region).is_err(), "not confirmed");
        ledger.backed(region).unwrap();
        ledger.confirm(region).unwrap();
        assert!(ledger.confirm(region).is_err(), "twice");
        assert!(ledger.abandon(region).is_err(), "live");
        assert!(ledger.missing(region).is_err(), "live");
        ledger.free(region).unwrap();
        assert!(ledger.free(region).is_err(), "twice");
        let stranger = Region::new(HeapOffset::new(64), 1);
        assert!(ledger.missing(stranger).is_err() && ledger.backed(stranger).is_err());
    }

    #[test]
    fn an_alignment_stricter_than_the_heaps_own_is_refused() {
        let mut ledger = HeapLedger::new(4 * CHUNK).unwrap();
        assert!(ledger.plan(1, 2 * MAX_ALIGN).is_err());
        assert!(ledger.plan(1, u64::MAX).is_err());
        assert!(ledger.plan(1, MAX_ALIGN).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_live_lies_below_the_agreed_watermark_and_that_below_the_backed_one(
            steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>(), 0..3 * CHUNK, 0..22_u32), 1..80),
        ) {
            let mut ledger = HeapLedger::new(12 * CHUNK).unwrap();
            let (mut planned, mut live) = (Vec::<Region>::new(), Vec::<Region>::new());
            let mut agreed = 0;
            let mut memory = [false; 12];
            for (step, pick, len, align_bits) in steps {
                match step {
                    0 => planned.extend(ledger.plan(len, 1 << align_bits).ok()),
                    1 if !planned.is_empty() => {
                        let region = planned.swap_remove(pick.index(planned.len()));
                        let missing = ledger.missing(region).unwrap();
                        for chunk in missing.step_by(usize::try_from(CHUNK).unwrap()) {
                            let had = std::mem::replace(&mut memory[usize::try_from(chunk / CHUNK).unwrap()], true);
                            prop_assert!(!had, "committed twice");
                        }
                        ledger.backed(region).unwrap();
                        agreed = ledger.confirm(region).unwrap();
                        live.push(region);
                    }
                    2 if !planned.is_empty() => {
                        ledger.abandon(planned.swap_remove(pick.index(planned.len()))).unwrap();
                    }
                    3 if !live.is_empty() => {
                        ledger.free(live.swap_remove(pick.index(live.len()))).unwrap();
                    }
                    _ => {}
                }
                let chunks = usize::try_from(ledger.backed_bytes() / CHUNK).unwrap();
                prop_assert!(memory[..chunks].iter().all(|has| *has));
                prop_assert!(agreed <= ledger.backed_bytes());
                prop_assert!(live.iter().all(|region| region.end().unwrap() <= agreed));
                prop_assert_eq!(ledger.allocator().live(), live.len() + planned.len());
            }
        }
    }
}
