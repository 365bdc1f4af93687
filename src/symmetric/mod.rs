//! Verbs by rank and offset: memory of any rank is reached without a channel, as in OpenSHMEM.
//!
//! A [`Symmetric`] is what a rank needs for them. Any thread of the rank may use it at any time,
//! and no verb takes a lock. The rank that owns the memory notices nothing, and need not be alive.
//!
//! | file | what |
//! |---|---|
//! | `range.rs` | elements and ranges: `read`, `write`, `get`, `put`, `copy` |
//! | `strided.rs` | blocks of elements at equal distances |
//! | `signal.rs` | words that are raised behind a put |
//! | `waits.rs` | waiting for own words, and testing them |
//! | `word_set.rs` | several words that are waited for together |
//! | `lock.rs` | locks |
//! | `atom.rs` | which elements can be changed atomically |
//! | `atomics.rs` | atomic operations on one element |
//! | `proxied.rs` | those that a proxy carries out |
//! | `order.rs` | `fence`, `quiet` |
//!
//! | here | OpenSHMEM |
//! |---|---|
//! | `write`, `read` | `p`, `g` |
//! | `put`, `get`, `copy` | `put`, `get`, also `_nbi` |
//! | `put_strided`, `get_strided` | `iput`, `iget`, `ibput`, `ibget` |
//! | `fetch`, `set`, `swap`, `compare_swap` | `atomic_` and the same name |
//! | `add`, `and`, `or`, `xor`, and `fetch_` before them | `atomic_` and the same name |
//! | `put_signal`, `copy_signal`, `signal` | `put_signal`, `signal_set`, `signal_add` |
//! | `wait_until`, `test`, and `_any`, `_all`, `_some` | the same, also `_vector` |
//! | `lock`, `try_lock`, `unlock` | `set_lock`, `test_lock`, `clear_lock` |
//! | `fence`, `quiet`, `pe_quiet` | the same |
//!
//! # Ordering
//! Every verb is done when it returns, so none of them has a form that begins only. An atomic
//! publishes all that its rank did before, and acquires what the writer of its word has published
//! (edge W1 of [`word`](crate::sync::word)). Other verbs order nothing: see [`Symmetric::fence`].
//!
//! Tried by its unit tests and `scenarios symmetric::`.

mod atom;
mod atomics;
mod lock;
mod order;
mod proxied;
mod range;
mod signal;
mod strided;
mod waits;
mod word_set;

use std::sync::Arc;

pub use atom::{Atom, IntegerAtom};
pub use lock::{Acquired, LockWord};
pub use signal::{SignalOp, WordSignal};
pub use strided::StridedBlocks;
pub use waits::Comparison;
pub use word_set::{WantedValues, WordSet};

use crate::channel::RankContext;
use crate::error::{Error, Result};
use crate::faults::PUT;
use crate::heap::{HeapOffset, HeapPlace, HeapView, Region};
use crate::rank::Rank;
use crate::shm::{CellRef, HostKernel, Span};
use crate::sync::ParkCell;
use crate::sync::word::change_words;
use crate::trace::{Recorder, TraceSpan, Verb};

/// The memory of all ranks of a communicator, as one of them reaches it by rank and offset. Cheap
/// to clone; any thread may use it.
///
/// Ranks are numbered as in the [`Communicator`](crate::Communicator) that it is of. It may outlive
/// the communicators of its rank, and does nothing then but return [`Error::Unavailable`].
#[derive(Clone, Debug)]
pub struct Symmetric {
    context: Arc<RankContext>,
    rank: Rank,
    kernel: HostKernel,
    heaps: HeapView,
    targets: Arc<[TargetHeap]>,
}

/// What is reached of one rank.
#[derive(Debug)]
struct TargetHeap {
    /// The rank as the job numbers it.
    member: Rank,
    /// All of its heap; touched after a check against the watermark only.
    heap: Span,
    /// What its threads sleep on that wait for words of its heap.
    park: CellRef<ParkCell>,
}

impl Symmetric {
    /// Reaches the heaps of `members` on behalf of the one of them that is number `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidRank`], not in a job that is intact.
    pub(crate) fn new(context: &Arc<RankContext>, rank: Rank, members: &[Rank]) -> Result<Self> {
        let heaps = context.heap().view().clone();
        let target = |&member: &Rank| {
            let heap = heaps.reach(member, Region::default())?.clone();
            Ok(TargetHeap { member, heap, park: context.mapped().cells(member).word_park() })
        };
        let targets = members.iter().map(target).collect::<Result<_>>()?;
        Ok(Self { context: Arc::clone(context), rank, kernel: *context.kernel(), heaps, targets })
    }

    /// Returns this rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn n_ranks(&self) -> u32 {
        u32::try_from(self.targets.len()).expect("at most 256 members")
    }

    /// Returns what is reached of `rank`.
    #[inline]
    fn target(&self, rank: Rank) -> Result<&TargetHeap> {
        self.targets.get(rank.index()).ok_or_else(|| self.no_rank(rank))
    }

    #[cold]
    fn no_rank(&self, rank: Rank) -> Error {
        Error::InvalidRank { rank: rank.get(), n_ranks: self.n_ranks() }
    }

    /// Returns what is reached of `rank`; the caller touches `region` only.
    #[inline]
    fn reach(&self, rank: Rank, region: Region) -> Result<&TargetHeap> {
        let target = self.target(rank)?;
        self.heaps.check(target.member, region)?;
        Ok(target)
    }

    /// Returns what is reached of `rank`, if `region` may be touched at once. `None` where there is
    /// something to look up, to note or to refuse: [`Symmetric::verb`] does that.
    // Fast path: a verb takes some nanoseconds, so it calls nothing and keeps nothing on the stack.
    #[inline]
    fn at_hand(&self, rank: Rank, region: Region) -> Option<&TargetHeap> {
        let is_at_hand = self.context.is_plain() && self.heaps.is_below_watermark(region);
        self.targets.get(rank.index()).filter(|_| is_at_hand)
    }

    /// Does `change` to the heap of `target`, and wakes its threads that wait for a word of it.
    #[inline]
    fn change<T>(&self, target: &TargetHeap, change: impl FnOnce(&Span) -> T) -> T {
        change_words(&target.park, &self.kernel, || change(&target.heap))
    }

    /// Names a place as the job numbers its rank.
    #[inline]
    fn place(&self, place: HeapPlace) -> Result<HeapPlace> {
        Ok(HeapPlace { rank: self.target(place.rank)?.member, ..place })
    }

    /// Does `run`, which is `verb` towards `rank`. It may be struck by a fault, and it may be
    /// noted.
    // Fast path: one load, and `run` is inlined.
    #[inline]
    fn verb<T>(&self, verb: Verb, rank: Rank, len: u64, run: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        if self.context.is_plain() { run(self) } else { self.verb_watched(verb, rank, len, run) }
    }

    // Not `#[cold]`: tracing has to stay cheap.
    #[inline(never)]
    fn verb_watched<T>(
        &self,
        verb: Verb,
        rank: Rank,
        len: u64,
        run: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        if !self.context.is_open() {
            self.context.enter_verb(verb.name_of_verb())?;
        }
        let span = TraceSpan::of(verb).with(self.target(rank)?.member).of_bytes(len);
        let begun = self.context.recorder().map(Recorder::now);
        let done = run(self);
        self.context.ended(begun, span, done)
    }

    /// Has faults strike what was just put.
    #[inline]
    fn written(&self, rank: Rank, offset: HeapOffset, len: u64) {
        if self.context.is_faulty()
            && let Ok(place) = self.place(HeapPlace { rank, offset })
        {
            self.context.damage(PUT, place, len);
        }
    }
}
