//! Notes what a rank does.
//!
//! | word of a record | bits | what |
//! |---|---|---|
//! | 0 | 64 | ticks at the beginning; of a long wait, how many nanoseconds it took |
//! | 1 | 64 | ticks at the end |
//! | 2 | 48, 8, 8 | bytes, peer + 1, verb |
//! | 3 | 32, 8, 8, 8, 8 | sequence, manner, thread, epoch, lap |

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use super::Rings;
use super::rings::{Author, MAX_THREADS, NAME_WORDS, RingCells};
use super::verb::Verb;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shm::fetch_ahead;
use crate::shm::ticks::TickSource;
use crate::sync::atomic::AtomicU64;
use crate::sync::{CursorCell, RECORD_WORDS, plain};

/// The most bytes that a record can tell.
const MAX_BYTES: u64 = (1 << 48) - 1;

/// How many records ahead the line of a record is fetched: it would have been written to memory since the last lap, and whatever the
/// thread stores after the record, such as the signal of its next put, would wait until it is back.
const AHEAD: u64 = 6;

/// What is noted of a span besides its times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub(crate) verb: Verb,
    pub(crate) peer: Option<Rank>,
    pub(crate) bytes: u64,
    /// 0 where there is none.
    pub(crate) sequence: u64,
    /// The code of an algorithm, 0 where there is none, and [`PORT`] or [`FAILED`].
    pub(crate) manner: u8,
}

/// Added to the manner of what goes over proxied channels.
pub(crate) const PORT: u8 = 64;

/// Added to the manner of what has failed.
pub(crate) const FAILED: u8 = 128;

impl Note {
    /// A span of `verb`, of which nothing else is told.
    pub(crate) const fn of(verb: Verb) -> Self {
        Self { verb, peer: None, bytes: 0, sequence: 0, manner: 0 }
    }

    /// The same, of something that has failed, if it has.
    #[inline]
    pub(crate) fn failing(self, has_failed: bool) -> Self {
        Self { manner: self.manner | if has_failed { FAILED } else { 0 }, ..self }
    }
}

/// Where a rank notes what it does, in one epoch. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    threads: Lane,
    proxy: Lane,
    /// Writes the file when nobody notes any more, where no launcher does.
    _file: Option<Arc<dyn Keep>>,
}

/// Something that is kept for what its end does.
pub(crate) trait Keep: Any + Send + Sync + std::fmt::Debug {}

/// One ring, to be written to.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    ring: RingCells,
    source: TickSource,
    epoch: u8,
}

impl Recorder {
    /// Notes in the rings of `rank`, if it has some there.
    pub(crate) fn new(rings: &Rings, rank: Rank, epoch: u64) -> Option<Self> {
        let lane = |author| Lane::new(rings, rank, author, epoch);
        Some(Self { threads: lane(Author::Threads)?, proxy: lane(Author::Proxy)?, _file: None })
    }

    /// The same, and keeps `file`.
    #[cfg(feature = "trace")]
    pub(crate) fn keeping(self, file: Arc<dyn Keep>) -> Self {
        Self { _file: Some(file), ..self }
    }

    /// The same, in another epoch.
    pub(crate) fn in_epoch(&self, epoch: u64) -> Self {
        let mut own = self.clone();
        own.threads.epoch = low_bits(epoch);
        own.proxy.epoch = low_bits(epoch);
        own
    }

    /// Where the proxy notes.
    pub(crate) fn proxy(&self) -> &Lane {
        &self.proxy
    }

    /// The ticks now.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.threads.now()
    }

    /// Notes a span of the calling thread that began then and ends now.
    #[inline]
    pub(crate) fn note(&self, begun: u64, note: Note) {
        self.threads.note(begun, self.now(), note);
    }

    /// Notes a span that ends now, and hands on what came of it.
    // Written out: whoever copies a result that is a word of many to where the caller's goes waits until all that the thread has
    // stored before is out, and so would what it does next.
    #[inline(always)]
    pub(crate) fn ended<T>(&self, begun: u64, note: Note, done: Result<T>) -> Result<T> {
        match done {
            Ok(value) => {
                self.note(begun, note);
                Ok(value)
            }
            Err(error) => Err(self.failed(begun, note, error)),
        }
    }

    #[cold]
    #[inline(never)]
    fn failed(&self, begun: u64, note: Note, error: Error) -> Error {
        self.note(begun, note.failing(true));
        error
    }

    /// Notes a span that has ended.
    #[inline]
    pub(crate) fn note_until(&self, begun: u64, ended: u64, note: Note) {
        self.threads.note(begun, ended, note);
    }
}

impl Lane {
    /// The lane of the proxy of `rank`, where it has one there.
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

    // In line whoever calls it: most of the note is known there.
    #[inline(always)]
    pub(crate) fn note(&self, begun: u64, ended: u64, note: Note) {
        let peer = note.peer.map_or(0, |peer| u64::from(peer.get()) + 1);
        let what = note.bytes.min(MAX_BYTES) << 16 | peer << 8 | u64::from(note.verb.code());
        self.write(begun, ended, what, note.sequence << 32 | u64::from(note.manner) << 24);
    }

    /// Writes a record, of the last word of which the thread and the epoch are missing.
    #[inline(never)]
    fn write(&self, begun: u64, ended: u64, what: u64, rest: u64) {
        let thread = thread_number();
        let rest = rest | u64::from(thread) << 16 | u64::from(self.epoch) << 8;
        let words: [u64; RECORD_WORDS] = [begun, ended, what, rest];
        let ring = self.ring.ring();
        let Some(cursor) = self.ring.cursors.get(usize::from(thread)) else { return };
        let own = if thread == MAX_THREADS { None } else { ring.advance(cursor) };
        let position = match own {
            Some(position) => position,
            None => self.take(thread, cursor),
        };
        ring.fill(position, words);
        if let Some(slot) = ring.slot(position + AHEAD) {
            fetch_ahead(slot);
        }
    }

    /// The next position for the thread with this `number`, whose name the lane has from then on.
    #[cold]
    #[inline(never)]
    fn take(&self, number: u8, cursor: &CursorCell) -> u64 {
        let first = usize::from(number) * NAME_WORDS;
        if self.ring.names.get(first).is_some_and(|word| plain::load(word) == 0) {
            self.name(first);
        }
        let ring = self.ring.ring();
        if number == MAX_THREADS { ring.advance_shared(cursor) } else { ring.take_block(cursor) }
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

/// The number of the calling thread among those of its process that have noted something, from 1 on.
#[inline]
fn thread_number() -> u8 {
    thread_local! {
        static NUMBER: Cell<u8> = const { Cell::new(0) };
    }
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
