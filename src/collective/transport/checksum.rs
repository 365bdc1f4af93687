//! Checksums of fragments in pipes, where all members have asked for them (`Options::checksums`).
//! Staged pieces have words of their own (`execute/staged/checked.rs`), and so have posts of eager
//! calls (`execute/eager_checked.rs`).
//!
//! Beside each slot of an inbox lie two words, which only the sender of the slot writes, before it
//! signals. What carries the fragment (S1, or F1 and S1 by way of a proxy) carries them, too.
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0 | 0..32 | the CRC32C of the fragment |
//! | 0 | 32..56 | its length in bytes |
//! | 0 | 56 | whether there is a header of 32 bytes |
//! | 0 | 57..59 | where in the slot the rest begins, in units of 32 bytes |
//! | 0 | 63 | always set |
//! | 1 | 0..32, 63 | of a rendezvous get: the CRC32C of the whole message, and always set |
//!
//! The sender takes the checksum of the source, the receiver that of the slot before it makes
//! anything of it; of a rendezvous get, that of the copy. A checksum does not see the copy out of a
//! slot, nor what happens to data before they are sent and after they are received.

use super::pipe::FragmentArrival;
use crate::collective::call::Output;
use crate::collective::rendezvous::members::Members;
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, Region};
use crate::sync::atomic::AtomicU64;
use crate::sync::plain;

/// Words beside a slot.
pub(crate) const WORDS: usize = 2;

/// Words of what is staged, for each part of a slot.
pub(crate) const PARTS: usize = 8;

/// Says that there is a checksum.
const PRESENT: u64 = 1 << 63;

const HEADER: u64 = 1 << 56;

/// The length of a header, in bytes.
const HEADER_LEN: u64 = 32;

/// Where in a slot a fragment is, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FragmentCheck {
    pub(crate) has_header: bool,
    /// Where what follows the header begins.
    pub(crate) body: u64,
    pub(crate) len: u64,
    pub(crate) crc: u32,
}

impl FragmentCheck {
    /// Writes it into `words`.
    pub(crate) fn tell(self, words: &[AtomicU64], exposed: Option<u32>) {
        let header = if self.has_header { HEADER } else { 0 };
        let word = PRESENT | header | (self.body / HEADER_LEN) << 57 | self.len << 32 | u64::from(self.crc);
        plain::store(&words[0], word);
        plain::store(&words[1], exposed.map_or(0, |crc| PRESENT | u64::from(crc)));
    }

    /// Returns what `words` say, if anything; to be checked before use.
    fn read(words: &[AtomicU64]) -> Option<Self> {
        let word = words.first().map(plain::load).filter(|word| word & PRESENT != 0)?;
        Some(Self {
            has_header: word & HEADER != 0,
            body: (word >> 57 & 3) * HEADER_LEN,
            len: word >> 32 & 0xff_ffff,
            crc: low(word),
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is asked for")]
const fn low(word: u64) -> u32 {
    word as u32
}

/// Returns the word that tells of a checksum.
pub(crate) fn told(crc: u32) -> u64 {
    PRESENT | u64::from(crc)
}

/// Holds the checksum that was `found` of what has come `from` a member against the word that tells
/// what it was.
///
/// # Errors
/// [`Error::Corrupted`]; [`Error::Mismatch`] when the member takes no checksums.
pub(crate) fn compare(members: &Members, from: FragmentArrival, told: u64, found: u32) -> Result<()> {
    if told & PRESENT == 0 {
        return Err(takes_none(members, from));
    }
    from.compare(members, low(told), found)
}

/// Returns the error of who finds no checksum of what has come `from` a member.
fn takes_none(members: &Members, from: FragmentArrival) -> Error {
    let (what, rank) = ("checksums (SHMCCL_CHECKSUMS, the same for all)", members.ranks()[from.member]);
    Error::Mismatch { what, mine: 1, rank, theirs: 0 }
}

/// Holds the fragment that has arrived at `at` of this member's heap against what `words` say of
/// it.
///
/// # Errors
/// [`Error::Corrupted`]; [`Error::Mismatch`] when its sender takes no checksums.
pub(crate) fn check_message(
    members: &Members,
    words: &[AtomicU64],
    at: HeapOffset,
    from: FragmentArrival,
) -> Result<()> {
    let Some(told) = FragmentCheck::read(words) else {
        return Err(takes_none(members, from));
    };
    let FragmentCheck { has_header, body, len, crc: expected } = told;
    // The words themselves may be wrong, so nothing past the slot is read.
    let len = len.min(members.layout().slot_len().saturating_sub(body));
    let heap = members.heap_of(members.me(), Region::new(at, body + len))?;
    let header = if has_header { heap.crc32c(0, at.get(), HEADER_LEN)? } else { 0 };
    from.compare(members, expected, heap.crc32c(header, at.get() + body, len)?)
}

/// Holds the `len` bytes that a rendezvous get has copied into `output` against what `words` say.
///
/// # Errors
/// [`Error::Corrupted`].
pub(crate) fn check_got(
    members: &Members,
    words: &[AtomicU64],
    output: &Output<'_>,
    len: u64,
    from: FragmentArrival,
) -> Result<()> {
    if matches!(output, Output::None) {
        return Ok(());
    }
    let expected = words.get(1).map_or(0, plain::load);
    let found = output.contents().place(members.view(), 0, len)?.crc32c(0, len)?;
    from.compare(members, low(expected), found)
}

impl FragmentArrival {
    fn compare(self, members: &Members, expected: u32, found: u32) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        let (operation, rank) = (self.operation.name(), members.ranks()[self.member]);
        Err(Error::Corrupted { operation, rank, chunk: self.number, expected, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_message_is_what_is_read() {
        let words = [AtomicU64::new(0), AtomicU64::new(7)];
        assert_eq!(FragmentCheck::read(&words), None);
        for (has_header, body) in [(false, 0), (true, 32), (true, 64), (false, 64)] {
            for len in [0, 1, 64 << 10] {
                let message = FragmentCheck { has_header, body, len, crc: u32::MAX };
                message.tell(&words, None);
                assert_eq!(FragmentCheck::read(&words), Some(message));
                assert_eq!(plain::load(&words[1]), 0);
            }
        }
    }
}
