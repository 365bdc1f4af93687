//! Records what a rank does.
//!
//! | word of a record | bits | what |
//! |---|---|---|
//! | 0 | 64 | ticks at the beginning; of a long wait, how many nanoseconds it took |
//! | 1 | 64 | ticks at the end |
//! | 2 | 47, 9, 8 | bytes, peer + 1, verb |
//! | 3 | 32, 8, 8, 8, 8 | sequence, manner, thread, epoch, lap |

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use super::Rings;
use super::rings::{Author, MAX_THREADS, NAME_WORDS, RingCells};
use super::verb::Verb;
use crate::error::{Error, Result};
use crate::rank::{MAX_RANKS, Rank};
use crate::shm::prefetch_for_write;
use crate::shm::ticks::TickSource;
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// The most bytes that a record can tell.
const MAX_BYTES: u64 = (1 << 47) - 1;

/// Where they are in their word, and where the peer is.
const BYTES_SHIFT: u32 = 17;
const PEER_SHIFT: u32 = 8;

const _: () =
    assert!((MAX_RANKS as u64) < 1 << (BYTES_SHIFT - PEER_SHIFT) && MAX_BYTES.leading_zeros() == BYTES_SHIFT);

/// How many records ahead the line of a record is fetched: it would have been written to memory
/// since the last lap, and whatever the thread stores after the record, such as the signal of its
/// next put, would wait until it is back.
const AHEAD: u64 = 6;

/// A span without its times: words 2 and 3 of its record, in which thread, epoch and lap are
/// missing.
///
/// Two words, so that it stays in registers while the traced call runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceSpan {
    what: u64,
    rest: u64,
}

/// Returns the bytes and the peer that word 2 of a record tells of, where it does.
pub(super) fn bytes_and_peer(what: u64) -> (Option<u64>, Option<u64>) {
    let peer = what >> PEER_SHIFT & ((1 << (BYTES_SHIFT - PEER_SHIFT)) - 1);
    (Some(what >> BYTES_SHIFT).filter(|bytes| *bytes > 0), peer.checked_sub(1))
}

/// A note whose place in the ring is taken ahead, while whoever notes waits for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedSpan {
    position: Option<u64>,
    span: TraceSpan,
}

impl ReservedSpan {
    /// Marks it as failed, if it has.
    #[inline]
    pub(crate) fn failing(self, has_failed: bool) -> Self {
        Self { span: self.span.failing(has_failed), ..self }
    }
}

/// Added to the manner of what goes over proxied channels.
pub(crate) const PORT: u8 = 64;

/// Added to the manner of what has failed.
pub(crate) const FAILED: u8 = 128;

impl TraceSpan {
    /// Returns a span of `verb`, of which nothing else is told.
    #[inline]
    pub(crate) fn of(verb: Verb) -> Self {
        Self { what: verb.code().into(), rest: 0 }
    }

    /// Adds a number of bytes, where there is none.
    #[inline]
    pub(crate) fn of_bytes(self, bytes: u64) -> Self {
        Self { what: self.what | bytes.min(MAX_BYTES) << BYTES_SHIFT, ..self }
    }

    /// Adds the peer, where there is none.
    #[inline]
    pub(crate) fn with(self, peer: Rank) -> Self {
        Self { what: self.what | (u64::from(peer.get()) + 1) << PEER_SHIFT, ..self }
    }

    /// Adds a number, of which 32 bits are kept, where there is none.
    #[inline]
    pub(crate) fn numbered(self, sequence: u64) -> Self {
        Self { rest: self.rest | sequence << 32, ..self }
    }

    /// Says in which `manner` it was done: the code of an algorithm, 0 where there is none, and
    /// [`PORT`] or [`FAILED`].
    #[inline]
    pub(crate) fn done_in(self, manner: u8) -> Self {
        Self { rest: self.rest | u64::from(manner) << 24, ..self }
    }

    /// Marks it as failed, if it has.
    #[inline]
    pub(crate) fn failing(self, has_failed: bool) -> Self {
        self.done_in(if has_failed { FAILED } else { 0 })
    }
}

/// Where a rank notes what it does, in one epoch. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    threads: TraceRing,
    proxy: TraceRing,
    /// Writes the file when nobody notes any more, where no launcher does.
    _file: Option<Arc<dyn Any + Send + Sync>>,
}

/// One ring, to be written to.
#[derive(Clone, Debug)]
pub(crate) struct TraceRing {
    ring: RingCells,
    source: TickSource,
    epoch: u8,
}

impl Recorder {
    /// Notes in the rings of `rank`, if it has some there.
    pub(crate) fn new(rings: &Rings, rank: Rank, epoch: u64) -> Option<Self> {
        let lane = |author| TraceRing::new(rings, rank, author, epoch);
        Some(Self { threads: lane(Author::Threads)?, proxy: lane(Author::Proxy)?, _file: None })
    }

    /// Keeps `file` until nobody records there.
    pub(crate) fn keeping(self, file: Arc<dyn Any + Send + Sync>) -> Self {
        Self { _file: Some(file), ..self }
    }

    /// Returns a recorder for another epoch.
    pub(crate) fn in_epoch(&self, epoch: u64) -> Self {
        let mut own = self.clone();
        own.threads.epoch = low_bits(epoch);
        own.proxy.epoch = low_bits(epoch);
        own
    }

    /// Returns where the proxy notes.
    pub(crate) fn proxy(&self) -> &TraceRing {
        &self.proxy
    }

    /// Returns the ticks now.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.threads.now()
    }

    /// Notes a span of the calling thread that began then and ends now.
    #[inline]
    pub(crate) fn record(&self, begun: u64, span: TraceSpan) {
        self.threads.record(begun, self.now(), span);
    }

    /// Notes a span that ends now, and hands on what came of it.
    // Written out: whoever copies a result that is a word of many to where the caller's goes waits
    // until all that the thread has stored before is out, and so would what it does next.
    #[inline(always)]
    pub(crate) fn ended<T>(&self, begun: u64, span: TraceSpan, done: Result<T>) -> Result<T> {
        match done {
            Ok(value) => {
                self.record(begun, span);
                Ok(value)
            }
            Err(error) => Err(self.failed(begun, span, error)),
        }
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, begun: u64, span: TraceSpan, error: Error) -> Error {
        self.record(begun, span.failing(true));
        error
    }

    /// Takes the place of a span of the calling thread that has begun.
    #[inline(always)]
    pub(crate) fn reserve(&self, span: TraceSpan) -> ReservedSpan {
        self.threads.reserve(span)
    }

    /// Notes a span that began then and ends now.
    #[inline(always)]
    pub(crate) fn record_reserved(&self, begun: u64, reserved: ReservedSpan) {
        self.threads.fill(begun, self.now(), reserved);
    }

    /// Notes a span that has ended.
    #[inline]
    pub(crate) fn record_until(&self, begun: u64, ended: u64, span: TraceSpan) {
        self.threads.record(begun, ended, span);
    }
}

impl TraceRing {
    /// Returns the lane of the proxy of `rank`, where it has one there.
    pub(crate) fn of_proxy(rings: &Rings, rank: Rank, epoch: u64) -> Option<Self> {
        Self::new(rings, rank, Author::Proxy, epoch)
    }

    fn new(rings: &Rings, rank: Rank, author: Author, epoch: u64) -> Option<Self> {
        Some(Self { ring: rings.ring(rank, author)?, source: rings.source(), epoch: low_bits(epoch) })
    }

    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.source.now()
    }

    /// Notes a span of the calling thread.
    // Of what it does nothing comes back, and what is rare it leaves to others at its end: so it
    // needs no stack.
    #[inline(never)]
    pub(crate) fn record(&self, begun: u64, ended: u64, span: TraceSpan) {
        self.fill(begun, ended, self.reserve(span));
    }

    /// Takes the next place of the calling thread's block, if there is one.
    #[inline(always)]
    fn reserve(&self, span: TraceSpan) -> ReservedSpan {
        let number = NUMBER.get();
        let own = if number == MAX_THREADS { None } else { self.ring.cursors.get(usize::from(number)) };
        let ring = self.ring.ring();
        let position = own.and_then(|cursor| ring.advance(cursor));
        if let Some(slot) = position.and_then(|position| ring.slot(position + AHEAD)) {
            prefetch_for_write(slot);
        }
        ReservedSpan { position, span: TraceSpan { rest: span.rest | self.writer(number), ..span } }
    }

    /// Fills in the record of a span, in its place where that is still its own.
    #[inline(always)]
    fn fill(&self, begun: u64, ended: u64, ReservedSpan { position, span }: ReservedSpan) {
        let ring = self.ring.ring();
        match position.filter(|position| ring.is_usable(*position)) {
            Some(position) => ring.fill(position, [begun, ended, span.what, span.rest]),
            None => self.record_slowly(begun, ended, span),
        }
    }

    /// Returns the bits of a record's last word that say which thread has written it.
    #[inline]
    fn writer(&self, number: u8) -> u64 {
        u64::from(number) << 16 | u64::from(self.epoch) << 8
    }

    /// Notes a span of a thread that has no number yet, shares one, has filled its block, or has
    /// waited while the ring went round; the lane has its name from then on.
    #[cold]
    #[inline(never)]
    fn record_slowly(&self, begun: u64, ended: u64, span: TraceSpan) {
        let number = thread_number();
        let Some(cursor) = self.ring.cursors.get(usize::from(number)) else { return };
        let first = usize::from(number) * NAME_WORDS;
        if self.ring.names.get(first).is_some_and(|word| plain::load(word) == 0) {
            self.name(first);
        }
        let ring = self.ring.ring();
        let position = match number {
            MAX_THREADS => ring.advance_shared(cursor),
            // A long wait of the thread may have taken a block meanwhile.
            _ => ring.advance(cursor).unwrap_or_else(|| ring.take_block(cursor)),
        };
        ring.fill(position, [begun, ended, span.what, span.rest | self.writer(number)]);
    }

    fn name(&self, first: usize) {
        let thread = std::thread::current();
        let mut bytes = [0; 8 * NAME_WORDS];
        let name = if usize::from(MAX_THREADS) * NAME_WORDS == first {
            "others"
        } else {
            thread.name().unwrap_or("thread")
        };
        // A name may be cut within a character; whoever reads it does not mind.
        let len = name.len().min(bytes.len());
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        for (word, bytes) in self.ring.names[first..].iter().zip(bytes.chunks_exact(8)) {
            plain::store(word, u64::from_le_bytes(bytes.try_into().expect("of 8 bytes")));
        }
    }
}

thread_local! {
    /// The number of the thread among those of its process that have noted something, from 1 on; 0
    /// before. Nobody advances the cursor of that number.
    static NUMBER: Cell<u8> = const { Cell::new(0) };
}

/// Returns the number of the calling thread, from now on if it has none.
fn thread_number() -> u8 {
    match NUMBER.get() {
        0 => {
            let number = next_number();
            NUMBER.set(number);
            number
        }
        number => number,
    }
}

#[cold]
fn next_number() -> u8 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    u8::try_from(plain::next(&NEXT)).map_or(MAX_THREADS, |number| number.min(MAX_THREADS))
}

fn low_bits(epoch: u64) -> u8 {
    epoch.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch_id::EpochId;

    #[test]
    fn a_wait_that_is_noted_within_another_span_costs_no_block_of_the_ring() {
        let (rings, _segment) = Rings::create(EpochId { job: 1, epoch: 1 }, 0..1, 1024).unwrap();
        let recorder = Recorder::new(&rings, Rank::known(0), 1).unwrap();
        let span = TraceSpan::of(Verb::PUT);
        recorder.record(0, span);
        let mut noted = 1;
        let last = loop {
            let reserved = recorder.reserve(span);
            if reserved.position.is_none() {
                break reserved;
            }
            recorder.record_reserved(0, reserved);
            noted += 1;
        };
        recorder.record(0, TraceSpan::of(Verb::LONG_WAIT));
        recorder.record_reserved(0, last);
        let ring = rings.ring(Rank::known(0), Author::Threads).unwrap();
        let kept = ring.ring().kept();
        assert_eq!((kept.records.len(), kept.unfinished), (noted + 2, 0));
    }
}
