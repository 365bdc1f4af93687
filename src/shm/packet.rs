//! Packets: data that carry their own flag, so that no signal has to follow them.
//!
//! A packet is one 64-bit word (LL8) or two (LL16). Each word holds 4 bytes of data and, in its
//! upper half, a 4-byte flag:
//!
//! | bytes | LL8 | LL16 |
//! |---|---|---|
//! | 0..4 | data | data |
//! | 4..8 | flag | flag |
//! | 8..12 | | data |
//! | 12..16 | | flag |
//!
//! Half of the bandwidth goes into flags. In return a message is there as soon as its last word is,
//! with no second line to fetch. After mscclpp's `LL8Packet` and `LL16Packet`
//! (`packet_device.hpp`).
//!
//! # Ordering
//! All accesses are [`plain`], relaxed ones. A word is loaded whole, so the flag vouches for the
//! data beside it and for nothing else: no other memory may be inferred from a packet that arrived.
//! Nothing is cleared: a slot is told from its previous use by the flag alone. So the flag changes
//! at every use of a slot and is never zero ([`PacketFlag::next`]). A slot is written again only
//! after its reader has said (by a signal, or by a packet of its own) that it has read.

#![allow(unsafe_code, reason = "packets are made of payload in place")]

use std::num::NonZeroU32;

use super::to_usize;
use super::view::Span;
use crate::error::{Error, Result};
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// Bytes of data in a word.
const DATA: usize = 4;

/// How many words are unpacked at once.
const CHUNK: usize = 8;

/// The flag of one use of a packet buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketFlag(NonZeroU32);

impl PacketFlag {
    /// The first flag.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// Returns a flag of a given value; `None` for zero, which is what fresh memory holds.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        match NonZeroU32::new(value) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Returns the flag of the next use. Skips zero; repeats after 2^32 - 1 uses.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(value) => Self(value),
            None => Self::FIRST,
        }
    }

    /// Returns its value.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// The kind of packet: how many bytes of data one carries, and so to what the length of a message
/// is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketKind {
    /// 4 bytes of data in 8.
    Ll8,
    /// 8 bytes of data in 16.
    Ll16,
}

impl PacketKind {
    /// Returns bytes of data in one packet.
    #[must_use]
    pub const fn data_bytes(self) -> u64 {
        match self {
            Self::Ll8 => 4,
            Self::Ll16 => 8,
        }
    }

    /// Returns bytes that a packet takes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        2 * self.data_bytes()
    }

    /// Returns how many packets carry `len` bytes of data.
    #[must_use]
    pub const fn count(self, len: u64) -> u64 {
        len.div_ceil(self.data_bytes())
    }

    /// Returns the number of words that carry `len` bytes of data; `None` past the end of the
    /// integers.
    const fn words(self, len: u64) -> Option<u64> {
        self.count(len).checked_mul(self.bytes() / 8)
    }
}

impl Span {
    /// Writes the `len` bytes at `start` of `source` as packets with `flag`, starting at `offset`.
    /// The last packet is filled up with zeros.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for either range, or [`Error::Misaligned`] if `offset` is not a
    /// multiple of the packet; nothing was changed.
    #[inline]
    pub fn pack_from(
        &self,
        kind: PacketKind,
        offset: u64,
        source: &Self,
        start: u64,
        len: u64,
        flag: PacketFlag,
    ) -> Result<()> {
        let words = self.packet_words(kind, offset, len)?;
        let bytes = source.locate(start, len)?;
        let high = u64::from(flag.get()) << 32;
        let (first, last) = words.split_at(to_usize(len) / DATA);
        for (index, word) in first.iter().enumerate() {
            // SAFETY: `locate` found `len` bytes at `bytes`, of which there are so many whole
            // words.
            let data = unsafe { bytes.wrapping_add(index * DATA).cast::<[u8; DATA]>().read() };
            plain::store(word, high | u64::from(u32::from_le_bytes(data)));
        }
        if last.is_empty() {
            return Ok(());
        }
        let mut filled = [0; DATA];
        source.copy_out(start + (first.len() * DATA) as u64, &mut filled[..to_usize(len) % DATA])?;
        for word in last {
            plain::store(word, high | u64::from(u32::from_le_bytes(std::mem::take(&mut filled))));
        }
        Ok(())
    }

    /// Reads packets with `flag` from `offset` into the `len` bytes at `start` of `target`, as far
    /// as they have arrived.
    ///
    /// `done` counts the bytes read so far. It starts at zero, and the call is repeated with the
    /// same arguments until it answers `true`: all bytes are there. Never waits.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for either range, [`Error::Misaligned`]; nothing was changed.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "two places, what is there, and how far it has come")]
    pub fn unpack_to(
        &self,
        kind: PacketKind,
        offset: u64,
        target: &Self,
        start: u64,
        len: u64,
        flag: PacketFlag,
        done: &mut usize,
    ) -> Result<bool> {
        let words = self.packet_words(kind, offset, len)?;
        let bytes = target.locate(start, len)?;
        let (first, last) = words.split_at(to_usize(len) / DATA);
        let mut arrived = (*done / DATA).min(first.len());
        // SAFETY: `locate` found `len` bytes at `bytes`, of which there are so many whole words.
        arrived += unsafe { unpack_chunks(&first[arrived..], flag, bytes.wrapping_add(arrived * DATA)) };
        while let Some(word) = first.get(arrived) {
            let Some(data) = arrival(word, flag) else { break };
            // SAFETY: `locate` found `len` bytes at `bytes`, of which there are so many whole
            // words.
            unsafe { bytes.wrapping_add(arrived * DATA).cast::<[u8; DATA]>().write(data) };
            arrived += 1;
        }
        *done = arrived * DATA;
        if arrived < first.len() {
            return Ok(false);
        }
        // What is left of the data, and of the packet that it is in.
        let rest = to_usize(len) % DATA;
        if let (1.., Some(word)) = (rest, last.first()) {
            let Some(data) = arrival(word, flag) else { return Ok(false) };
            target.copy_in(start + (arrived * DATA) as u64, &data[..rest])?;
            *done += rest;
        }
        Ok(true)
    }

    /// Returns the words that carry `len` bytes from `offset` on.
    #[inline]
    fn packet_words(&self, kind: PacketKind, offset: u64, len: u64) -> Result<&[AtomicU64]> {
        if !offset.is_multiple_of(kind.bytes()) {
            return Err(Error::Misaligned { what: "packet", offset, align: kind.bytes() });
        }
        let words = kind.words(len).unwrap_or(u64::MAX);
        self.atomics_u64(offset, words)
    }
}

/// Returns the data beside `flag`, once it is there.
#[inline]
fn arrival(word: &AtomicU64, flag: PacketFlag) -> Option<[u8; DATA]> {
    let [a, b, c, d, high @ ..] = plain::load(word).to_le_bytes();
    (u32::from_le_bytes(high) == flag.get()).then_some([a, b, c, d])
}

/// Words that are unpacked at once.
type Chunk = [AtomicU64; CHUNK];

/// Writes the data beside `flag` of `words` to `bytes`, chunk by chunk, as long as all words of a
/// chunk are there: with one branch for all of them, where word by word each takes one. Returns the
/// number of words written.
///
/// # Safety
/// At `bytes` the data of all `words` can be written.
#[inline]
unsafe fn unpack_chunks(words: &[AtomicU64], flag: PacketFlag, bytes: *mut u8) -> usize {
    let (chunks, _) = words.as_chunks();
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    if vectors::can_load(words) {
        // SAFETY: the caller's contract, for whole chunks.
        return unsafe { unpack_chunks_by(vectors::load, chunks, flag, bytes) };
    }
    // SAFETY: the caller's contract, for whole chunks.
    unsafe { unpack_chunks_by(load, chunks, flag, bytes) }
}

/// # Safety
/// As for [`unpack_chunks`].
#[inline]
unsafe fn unpack_chunks_by(
    load: impl Fn(&Chunk) -> [[u32; 2]; CHUNK],
    chunks: &[Chunk],
    flag: PacketFlag,
    bytes: *mut u8,
) -> usize {
    let mut n_words = 0;
    for chunk in chunks {
        let words = load(chunk);
        if words.iter().fold(0, |differing, [_, high]| differing | (high ^ flag.get())) != 0 {
            break;
        }
        let data = words.map(|[data, _]| data.to_le_bytes());
        // SAFETY: the caller's contract, for the words up to these.
        unsafe { bytes.wrapping_add(n_words * DATA).cast::<[[u8; DATA]; CHUNK]>().write(data) };
        n_words += CHUNK;
    }
    n_words
}

/// Loads words one by one: the data and the flag of each.
#[inline]
fn load(chunk: &Chunk) -> [[u32; 2]; CHUNK] {
    bytemuck::cast(chunk.each_ref().map(|word| plain::load(word).to_le()))
}

/// Loads of two words at once.
///
/// Packets come in lines that another core has written. The fewer instructions a line takes, the
/// more lines a core fetches at once. A processor with AVX promises that it loads 16 aligned bytes
/// whole. So each word is loaded as by a relaxed load, which is all that packets need.
#[cfg(all(target_arch = "x86_64", not(loom)))]
mod vectors {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;

    use super::{CHUNK, Chunk};
    use crate::sync::atomic::AtomicU64;

    /// Returns whether `words` can be loaded two at a time.
    #[inline]
    pub(super) fn can_load(words: &[AtomicU64]) -> bool {
        words.as_ptr().addr().is_multiple_of(align_of::<__m128i>()) && is_x86_feature_detected!("avx")
    }

    /// Does what [`super::load`] does, for words that can be loaded so.
    #[inline]
    pub(super) fn load(chunk: &Chunk) -> [[u32; 2]; CHUNK] {
        let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
        // SAFETY: it reads the bytes of `chunk`, each word whole, and changes nothing.
        unsafe {
            asm!(
                "movdqa {a}, [{chunk}]",
                "movdqa {b}, [{chunk} + 16]",
                "movdqa {c}, [{chunk} + 32]",
                "movdqa {d}, [{chunk} + 48]",
                chunk = in(reg) chunk,
                a = out(xmm_reg) a,
                b = out(xmm_reg) b,
                c = out(xmm_reg) c,
                d = out(xmm_reg) d,
                options(nostack, preserves_flags, readonly),
            );
        }
        bytemuck::cast([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Mapping;

    const KINDS: [PacketKind; 2] = [PacketKind::Ll8, PacketKind::Ll16];

    fn span(len: u64) -> Span {
        Mapping::boxed(4096).unwrap().span(0, len).unwrap()
    }

    fn flag(value: u32) -> PacketFlag {
        PacketFlag::new(value).unwrap()
    }

    /// Packs `data`, as they lie at an odd place of a heap.
    fn put(packets: &Span, kind: PacketKind, offset: u64, data: &[u8], flag: PacketFlag) -> Result<()> {
        let heap = span(64);
        heap.copy_in(3, data)?;
        packets.pack_from(kind, offset, &heap, 3, data.len() as u64, flag)
    }

    /// Unpacks to an odd place of a heap, and from there to `data`.
    fn poll(
        packets: &Span,
        kind: PacketKind,
        offset: u64,
        data: &mut [u8],
        flag: PacketFlag,
        done: &mut usize,
    ) -> Result<bool> {
        let heap = span(64);
        heap.copy_in(5, data)?;
        let is_there = packets.unpack_to(kind, offset, &heap, 5, data.len() as u64, flag, done)?;
        heap.copy_out(5, data)?;
        let mut found = [0; 64];
        heap.copy_out(0, &mut found)?;
        assert!(found[..5].iter().chain(&found[5 + data.len()..]).all(|byte| *byte == 0));
        Ok(is_there)
    }

    /// What packets are, by their definition.
    fn packed(kind: PacketKind, data: &[u8], flag: PacketFlag) -> Vec<u8> {
        let mut data = data.to_vec();
        data.resize(data.len().next_multiple_of(usize::try_from(kind.data_bytes()).unwrap()), 0);
        let (words, _) = data.as_chunks::<DATA>();
        words.iter().flat_map(|word| [*word, flag.get().to_le_bytes()].concat()).collect()
    }

    #[test]
    fn packets_are_as_defined_and_arrive_as_they_were_put_for_every_length() {
        let data: Vec<u8> = (1..=40).collect();
        for kind in KINDS {
            for len in 0..=data.len() {
                let (packets, flag) = (span(256), flag(u32::try_from(len).unwrap() + 1));
                put(&packets, kind, 16, &data[..len], flag).unwrap();
                let expected = packed(kind, &data[..len], flag);
                let mut found = [0; 256];
                packets.copy_out(0, &mut found).unwrap();
                assert_eq!(found[16..16 + expected.len()], expected);
                assert!(found[..16].iter().chain(&found[16 + expected.len()..]).all(|byte| *byte == 0));
                let (mut out, mut done) = (vec![0; len], 0);
                assert!(poll(&packets, kind, 16, &mut out, flag, &mut done).unwrap());
                assert_eq!((&out[..], done), (&data[..len], len));
            }
        }
    }

    #[test]
    fn a_packet_that_has_not_arrived_stops_the_reader_and_it_resumes_there() {
        for kind in KINDS {
            let (packets, part) = (span(256), usize::try_from(kind.data_bytes()).unwrap());
            let data: Vec<u8> = (1..=32).collect();
            let (mut out, mut done) = ([0; 32], 0);
            assert!(!poll(&packets, kind, 0, &mut out, flag(5), &mut done).unwrap());
            assert_eq!(done, 0);
            put(&packets, kind, 0, &data[..part], flag(5)).unwrap();
            assert!(!poll(&packets, kind, 0, &mut out, flag(5), &mut done).unwrap());
            assert_eq!(done, part);
            put(&packets, kind, 0, &data, flag(5)).unwrap();
            assert!(poll(&packets, kind, 0, &mut out, flag(5), &mut done).unwrap());
            assert_eq!(out, data[..]);
            assert!(poll(&packets, kind, 0, &mut out, flag(5), &mut done).unwrap());
        }
    }

    #[test]
    fn one_packet_of_many_that_is_missing_stops_the_reader_whichever_it_is_and_wherever_they_begin() {
        let data: Vec<u8> = (1..=40).collect();
        for (missing, start) in (0..data.len()).step_by(DATA).flat_map(|missing| [(missing, 0), (missing, 8)])
        {
            let packets = span(256);
            put(&packets, PacketKind::Ll8, start, &data, flag(2)).unwrap();
            let old = start + 2 * missing as u64;
            put(&packets, PacketKind::Ll8, old, &data[missing..missing + DATA], flag(1)).unwrap();
            let (mut out, mut done) = ([0; 40], 0);
            assert!(!poll(&packets, PacketKind::Ll8, start, &mut out, flag(2), &mut done).unwrap());
            assert_eq!((done, &out[..missing]), (missing, &data[..missing]));
            put(&packets, PacketKind::Ll8, old, &data[missing..missing + DATA], flag(2)).unwrap();
            assert!(poll(&packets, PacketKind::Ll8, start, &mut out, flag(2), &mut done).unwrap());
            assert_eq!(out, data[..]);
        }
    }

    #[test]
    fn packets_of_the_previous_use_are_not_taken_for_new_ones() {
        let packets = span(64);
        put(&packets, PacketKind::Ll8, 0, &[1; 8], flag(1)).unwrap();
        let (mut out, mut done) = ([0; 8], 0);
        assert!(!poll(&packets, PacketKind::Ll8, 0, &mut out, flag(2), &mut done).unwrap());
        assert_eq!((out, done), ([0; 8], 0));
    }

    #[test]
    fn flags_skip_zero_when_they_wrap() {
        assert_eq!(PacketFlag::new(0), None);
        assert_eq!(PacketFlag::FIRST.get(), 1);
        assert_eq!(flag(u32::MAX - 1).next().get(), u32::MAX);
        assert_eq!(flag(u32::MAX).next().get(), 1);
    }

    #[test]
    fn a_progress_past_the_end_reads_nothing() {
        let (mut out, mut done) = ([0; 8], usize::MAX);
        assert!(poll(&span(64), PacketKind::Ll8, 0, &mut out, flag(2), &mut done).unwrap());
        assert_eq!(out, [0; 8]);
    }

    #[test]
    fn packets_out_of_range_or_misaligned_change_nothing() {
        for kind in KINDS {
            let (heap, packets) = (span(256), span(64));
            heap.fill(0, 256, 1).unwrap();
            let fits = 64 / kind.bytes() * kind.data_bytes();
            let put = |offset, start, len| packets.pack_from(kind, offset, &heap, start, len, flag(1));
            let poll = |offset, start, len| {
                packets.unpack_to(kind, offset, &heap, start, len, flag(1), &mut 0).map(drop)
            };
            for (offset, start, len) in [
                (0, 0, fits + 1),
                (64, 0, 1),
                (u64::MAX - 15, 0, 1),
                (0, 256, 1),
                (0, u64::MAX, 1),
                (0, 250, 7),
            ] {
                assert!(matches!(put(offset, start, len), Err(Error::OutOfRange { .. })));
                assert!(matches!(poll(offset, start, len), Err(Error::OutOfRange { .. })));
            }
            assert!(matches!(put(4, 0, 1), Err(Error::Misaligned { .. })));
            assert!(matches!(poll(4, 0, 1), Err(Error::Misaligned { .. })));
            assert_eq!(packets.read::<[u64; 8]>(0).unwrap(), [0; 8]);
            assert!(heap.equals(0, &[1; 256]).unwrap());
            put(0, 0, fits).unwrap();
            put(64, 0, 0).unwrap();
        }
    }
}
