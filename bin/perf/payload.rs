//! Data that a receiver can check: every word tells its message and its place.

use shmccl::Result;
use shmccl::shm::Span;

/// Bytes that are generated or checked at a time, in cache.
const CHUNK: usize = 4096;

/// A message of fixed length that is rewritten for every sending and read after every arrival.
#[derive(Debug)]
pub(crate) struct Payload {
    span: Span,
    check: bool,
}

impl Payload {
    /// A message in all of `span`; `check` compares every word on arrival, otherwise it is only read.
    pub(crate) fn new(span: Span, check: bool) -> Self {
        Self { span, check }
    }

    /// The memory that holds it.
    pub(crate) fn span(&self) -> &Span {
        &self.span
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
        let mut chunk = [0_u64; CHUNK / 8];
        for (start, len) in chunks(self.span.len()) {
            generate(&mut chunk, seq, start / 8);
            self.span.copy_in(start, &bytemuck::cast_slice(&chunk)[..len])?;
        }
        Ok(())
    }

    /// Replaces the first word by a stamp.
    pub(crate) fn stamp(&self, stamp: u64) {
        self.span.write(0, stamp).expect("a stamped message has a first word");
    }

    /// Reads all of it and returns its first word (or 0) and how many words are not those of message `seq`; the
    /// first word is not counted when it is a stamp.
    #[inline]
    pub(crate) fn read(&self, seq: u64, stamped: bool) -> super::lane::Received {
        if self.span.len() == 8 {
            let word: u64 = self.span.read(0).expect("in range");
            let wrong = u64::from(self.check && word != pattern(seq, 0));
            return super::lane::Received { stamp: word, wrong };
        }
        self.read_long(seq, stamped).expect("in range")
    }

    fn read_long(&self, seq: u64, stamped: bool) -> Result<super::lane::Received> {
        let mut received = super::lane::Received::default();
        let (mut chunk, mut expected) = ([0_u64; CHUNK / 8], [0_u64; CHUNK / 8]);
        for (start, len) in chunks(self.span.len()) {
            self.span.copy_out(start, &mut bytemuck::cast_slice_mut(&mut chunk)[..len])?;
            generate(&mut expected, seq, start / 8);
            if start == 0 && stamped {
                received.stamp = chunk[0];
                expected[0] = chunk[0];
            }
            let (found, wanted): (&[u8], &[u8]) =
                (bytemuck::cast_slice(&chunk), bytemuck::cast_slice(&expected));
            if self.check && found[..len] != wanted[..len] {
                let differing = |(a, b): (&[u8], &[u8])| u64::from(a != b);
                received.wrong +=
                    found[..len].chunks(8).zip(wanted[..len].chunks(8)).map(differing).sum::<u64>();
            }
        }
        std::hint::black_box(&chunk);
        Ok(received)
    }
}

/// Word `index` of message `seq`.
#[inline]
fn pattern(seq: u64, index: u64) -> u64 {
    seq.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index)
}

fn generate(chunk: &mut [u64; CHUNK / 8], seq: u64, first: u64) {
    let base = pattern(seq, first);
    for (index, word) in (0..).zip(chunk) {
        *word = base.wrapping_add(index);
    }
}

fn chunks(len: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..len)
        .step_by(CHUNK)
        .map(move |start| (start, usize::try_from(len - start).map_or(CHUNK, |rest| rest.min(CHUNK))))
}
