//! The buffers of all ranks, as bytes.

use crate::lower::{BufferRange, Form, Lowered};
use crate::plan::Buffer;

/// The bytes of a word of packets that are payload, and of the word.
const PAYLOAD: usize = 4;
const WORD: usize = 8;

/// Bytes of a buffer of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteSpan {
    pub(super) rank: usize,
    pub(super) buffer: Buffer,
    pub(super) first: usize,
    pub(super) bytes: usize,
}

impl ByteSpan {
    pub(super) fn of_region(rank: usize, region: &BufferRange) -> Self {
        Self { rank, buffer: region.buffer, first: region.offset, bytes: region.bytes }
    }
}

/// All buffers: zero in the beginning.
#[derive(Debug)]
pub(super) struct ByteMemory {
    ranks: Vec<[Vec<u8>; 3]>,
}

impl ByteMemory {
    pub(super) fn new(lowered: &Lowered) -> Self {
        Self { ranks: lowered.ranks.iter().map(|code| code.buffers.map(|bytes| vec![0; bytes])).collect() }
    }

    pub(super) fn read(&self, span: ByteSpan) -> &[u8] {
        &self.ranks[span.rank][span.buffer as usize][span.first..span.first + span.bytes]
    }

    fn place(&mut self, span: ByteSpan) -> &mut [u8] {
        &mut self.ranks[span.rank][span.buffer as usize][span.first..span.first + span.bytes]
    }

    /// Writes bytes. What the caller gives beyond the span, or less, is left out.
    pub(super) fn write(&mut self, span: ByteSpan, bytes: &[u8]) {
        self.place(span).iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    }

    pub(super) fn copy(&mut self, from: ByteSpan, to: ByteSpan) {
        let bytes = self.read(from).to_vec();
        self.write(to, &bytes);
    }

    /// Reads the payload of a span. Returns nothing where a packet is of another launch.
    pub(super) fn load(&self, span: ByteSpan, form: Form, launch: u64) -> Option<Vec<u8>> {
        let bytes = self.read(span);
        if form == Form::Plain {
            return Some(bytes.to_vec());
        }
        let mut payload = Vec::with_capacity(bytes.len() / 2);
        for word in bytes.chunks(WORD) {
            let (data, flag) = word.split_at(word.len() / 2);
            if flag != &flag_of(launch)[..flag.len()] {
                return None;
            }
            payload.extend_from_slice(data);
        }
        Some(payload)
    }

    /// Writes the payload of a span.
    pub(super) fn store(&mut self, span: ByteSpan, form: Form, launch: u64, payload: &[u8]) {
        if form == Form::Plain {
            return self.write(span, payload);
        }
        let words = self.place(span).chunks_mut(WORD);
        for (word, data) in words.zip(payload.chunks(PAYLOAD)) {
            let (place, flag) = word.split_at_mut(data.len());
            place.copy_from_slice(data);
            flag.copy_from_slice(&flag_of(launch)[..flag.len()]);
        }
    }
}

/// Returns the flag of a launch: its number in 32 bits, without 0.
fn flag_of(launch: u64) -> [u8; 4] {
    let flag = (launch - 1) % u64::from(u32::MAX) + 1;
    let [a, b, c, d, ..] = flag.to_le_bytes();
    [a, b, c, d]
}
