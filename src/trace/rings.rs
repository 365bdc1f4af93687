//! The segment with the rings of all ranks.
//!
//! | byte | what | written by |
//! |---|---|---|
//! | 0 | segment header | whoever writes the file |
//! | 4096 | clock, length of a ring, first rank, ranks, ticks and time at first | the same |
//! | 8192 | two lanes for each rank: its threads', its proxy's | they |
//!
//! A lane begins with three pages: how many records were taken; from byte 1024 on the names of up
//! to 63 threads, 16 bytes each; from byte 4096 on how far each of those threads has come, 128
//! bytes each. Behind them lie the records.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::epoch_id::EpochId;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::Backing;
use crate::shm::segment::AttachAs;
use crate::shm::ticks::TickSource;
use crate::shm::{CellRef, CellSlice, Expected, Mapping, Segment};
use crate::sync::atomic::AtomicU64;
use crate::sync::{CursorCell, RecordCell, RecordRing, plain};

const META: u64 = 4096;
const LANES: u64 = 2 * 4096;
const LANE_HEAD: u64 = 3 * 4096;
const NAMES: u64 = 1024;
const CURSORS: u64 = 4096;
const RECORD: u64 = size_of::<RecordCell>() as u64;

/// How many threads have names of their own; the last of them stands for all others.
pub(super) const MAX_THREADS: u8 = 63;

/// A name takes so many words.
pub(super) const NAME_WORDS: usize = 2;

const _: () = assert!(CURSORS + (MAX_THREADS as u64 + 1) * size_of::<CursorCell>() as u64 == LANE_HEAD);

/// How long a ring can be.
const LENGTHS: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 24;

/// The words of the second page.
const SOURCE: usize = 0;
const RECORDS: usize = 1;
const FIRST_RANK: usize = 2;
const N_RANKS: usize = 3;
const TICKS: usize = 4;
const TIME: usize = 5;

/// The rings of all ranks, mapped.
#[derive(Clone, Debug)]
pub(crate) struct Rings {
    mapping: Mapping,
    records: u64,
    ranks: Range<u32>,
}

/// The writer of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    Threads,
    Proxy,
}

impl Author {
    pub(super) fn name(self) -> &'static str {
        if self == Self::Proxy { "proxy" } else { "threads" }
    }
}

/// One ring, and what tells whose it is.
#[derive(Clone, Debug)]
pub(super) struct RingCells {
    pub(super) taken: CellRef<AtomicU64>,
    pub(super) names: CellSlice<AtomicU64>,
    pub(super) cursors: CellSlice<CursorCell>,
    pub(super) slots: CellSlice<RecordCell>,
}

impl RingCells {
    #[inline]
    pub(super) fn ring(&self) -> RecordRing<'_> {
        RecordRing { taken: &self.taken, cursors: &self.cursors, slots: &self.slots }
    }
}

impl Rings {
    /// Makes rings of `records` records for each of `ranks`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a length that is no power of two from 1024 to 2^24; those of
    /// [`Segment::create`].
    pub(crate) fn create(epoch_id: EpochId, ranks: Range<u32>, records: u64) -> Result<(Self, Arc<Segment>)> {
        if !records.is_power_of_two() || !LENGTHS.contains(&records) {
            let expected = "a power of two from 1024 to 16777216";
            return Err(Error::invalid("records of a trace", records, expected));
        }
        let n_ranks = ranks.len() as u64;
        let len = LANES + 2 * n_ranks * lane_len(records);
        let segment = Segment::create(&Backing::Anonymous, len, epoch_id.identity(None))?;
        segment.commit(0, len)?;
        let rings = Self { mapping: segment.map()?, records, ranks };
        let source = TickSource::best();
        let (ticks, time) = source.pair();
        let tell = |word: usize, value| plain::store(&rings.meta()[word], value);
        tell(SOURCE, source.code());
        tell(RECORDS, records);
        tell(FIRST_RANK, rings.ranks.start.into());
        tell(N_RANKS, n_ranks);
        tell(TICKS, ticks);
        tell(TIME, time);
        segment.header().publish();
        Ok((rings, Arc::new(segment)))
    }

    /// Maps the rings behind `fd`.
    ///
    /// # Errors
    /// Fails as [`Segment::attach`] does, or with [`Error::Layout`] when it says of itself what
    /// cannot be.
    pub(crate) fn attach(fd: OwnedFd, epoch_id: EpochId) -> Result<Self> {
        let expected = Expected { len: None, identity: Some(epoch_id.identity(None)) };
        let segment = Segment::attach(fd, AttachAs::Sealed, &expected)?;
        let mut rings = Self { mapping: segment.map()?, records: 0, ranks: 0..0 };
        let word = |index: usize| plain::load(&rings.meta()[index]);
        let narrow = |index| u32::try_from(word(index)).unwrap_or(u32::MAX);
        let (records, first, n_ranks) = (word(RECORDS), narrow(FIRST_RANK), narrow(N_RANKS));
        let valid = records.is_power_of_two() && LENGTHS.contains(&records);
        let len = LANES + 2 * u64::from(n_ranks) * lane_len(if valid { records } else { 0 });
        let found = rings.mapping.len();
        if !valid || len != found {
            return Err(Error::Layout { what: "length of a trace", expected: len, found });
        }
        (rings.records, rings.ranks) = (records, first..first.saturating_add(n_ranks));
        Ok(rings)
    }

    /// Returns which clock is noted.
    pub(super) fn source(&self) -> TickSource {
        TickSource::from_code(plain::load(&self.meta()[SOURCE]))
    }

    /// Ticks and time as the rings were made.
    pub(super) fn start(&self) -> (u64, u64) {
        (plain::load(&self.meta()[TICKS]), plain::load(&self.meta()[TIME]))
    }

    /// Returns the ranks that have rings.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        self.ranks.clone().map(Rank::known)
    }

    /// Returns the ring of `author` at `rank`, if it has one.
    pub(super) fn ring(&self, rank: Rank, author: Author) -> Option<RingCells> {
        let place = self.ranks.clone().position(|own| own == rank.get())? as u64;
        let lane = 2 * place + u64::from(author == Author::Proxy);
        let start = LANES + lane * lane_len(self.records);
        let threads = u64::from(MAX_THREADS) + 1;
        Some(RingCells {
            taken: self.mapping.cell(start).ok()?,
            names: self.mapping.cells(start + NAMES, threads * NAME_WORDS as u64).ok()?,
            cursors: self.mapping.cells(start + CURSORS, threads).ok()?,
            slots: self.mapping.cells(start + LANE_HEAD, self.records).ok()?,
        })
    }

    fn meta(&self) -> CellSlice<AtomicU64> {
        self.mapping.cells(META, 8).expect("in the layout")
    }
}

fn lane_len(records: u64) -> u64 {
    LANE_HEAD + records * RECORD
}
