//! Data that a receiver can check: every word tells its message and its place.

use std::cell::RefCell;

use shmccl::Result;
use shmccl::shm::Span;

use super::clock::now_ns;
use super::lane::Received;

/// Words that are generated or checked at a time, in cache.
const CHUNK: usize = 512;

/// A message of fixed length that is rewritten for every sending and read after every arrival.
#[derive(Debug)]
pub(crate) struct Payload {
    span: Span,
    check: bool,
    /// Room for a part of it, as it is, and as it should be.
    parts: RefCell<[Vec<u64>; 2]>,
}

impl Payload {
    /// A message in all of `span`; `check` compares every word on arrival, otherwise it is only read.
    pub(crate) fn new(span: Span, check: bool) -> Self {
        let words = usize::try_from(span.len().div_ceil(8)).map_or(CHUNK, |words| words.min(CHUNK));
        Self { span, check, parts: RefCell::new([vec![0; words], vec![0; words]]) }
    }

    /// The memory that holds it.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// What it begins with, as soon as that is there.
    #[inline]
    pub(crate) fn first(&self) -> Result<usize> {
        Ok(if self.span.len() >= 8 { self.span.read(0)? } else { usize::from(self.span.read::<u8>(0)?) })
    }

    /// Rewrites it as message `seq`.
    #[inline]
    pub(crate) fn rewrite(&self, seq: u64) {
        if self.span.len() == 8 {
            self.span.write(0, pattern(seq, 0)).expect("in range");
        } else {
            self.rewrite_long(seq).expect("in range");
        }
    }

    fn rewrite_long(&self, seq: u64) -> Result<()> {
        let [part, _] = &mut *self.parts.borrow_mut();
        for (start, len) in chunks(self.span.len()) {
            generate(part, seq, start / 8);
            self.span.copy_in(start, &bytemuck::cast_slice(part)[..len])?;
        }
        Ok(())
    }

    /// Replaces the first word by a stamp.
    pub(crate) fn stamp(&self, stamp: u64) {
        self.span.write(0, stamp).expect("a stamped message has a first word");
    }

    /// Reads all of it and returns its first word (or 0) and how many words are not those of message `seq`; the
    /// first word is not counted when it is a stamp. Then it also tells when the last byte had been read, before any was compared.
    #[inline]
    pub(crate) fn read(&self, seq: u64, stamped: bool) -> Received {
        if self.span.len() == 8 {
            let word: u64 = self.span.read(0).expect("in range");
            let wrong = u64::from(self.check && word != pattern(seq, 0));
            return Received { first: word, read_at: 0, wrong };
        }
        self.read_long(seq, stamped).expect("in range")
    }

    fn read_long(&self, seq: u64, stamped: bool) -> Result<Received> {
        let [found, expected] = &mut *self.parts.borrow_mut();
        let mut received = Received::default();
        if stamped {
            for (start, len) in chunks(self.span.len()) {
                self.span.copy_out(start, &mut bytemuck::cast_slice_mut(found)[..len])?;
                std::hint::black_box(&mut *found);
            }
            received.read_at = now_ns();
        }
        for (start, len) in chunks(self.span.len()) {
            self.span.copy_out(start, &mut bytemuck::cast_slice_mut(found)[..len])?;
            std::hint::black_box(&mut *found);
            let first = if start == 0 { found.first().copied() } else { None };
            received.first = first.unwrap_or(received.first);
            if self.check {
                generate(expected, seq, start / 8);
                if stamped {
                    expected[0] = first.unwrap_or(expected[0]);
                }
                received.wrong +=
                    differing(&bytemuck::cast_slice(found)[..len], bytemuck::cast_slice(expected));
            }
        }
        Ok(received)
    }
}

/// How many words of `found`, the last of which may be cut off, are not as `expected`.
fn differing(found: &[u8], expected: &[u8]) -> u64 {
    let expected = &expected[..found.len()];
    if found == expected {
        return 0;
    }
    let differs = |(one, other): (&[u8], &[u8])| u64::from(one != other);
    found.chunks(8).zip(expected.chunks(8)).map(differs).sum()
}

/// Word `index` of message `seq`.
#[inline]
fn pattern(seq: u64, index: u64) -> u64 {
    seq.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index)
}

fn generate(part: &mut [u64], seq: u64, first: u64) {
    let base = pattern(seq, first);
    for (index, word) in (0..).zip(part) {
        *word = base.wrapping_add(index);
    }
}

/// Where parts of a message of `len` bytes begin, and how many bytes they have.
fn chunks(len: u64) -> impl Iterator<Item = (u64, usize)> {
    const BYTES: usize = 8 * CHUNK;
    (0..len)
        .step_by(BYTES)
        .map(move |start| (start, usize::try_from(len - start).map_or(BYTES, |rest| rest.min(BYTES))))
}
