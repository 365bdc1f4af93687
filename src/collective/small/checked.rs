//! Checksums of what small operations post, where all have asked for them (see [`checks`](super::super::checks)), and faults that
//! strike it.
//!
//! A post of a small operation has two words for places that it does not need. With checksums the first of them tells the CRC32C of the
//! data, of the words of the post or of the caller's buffer whose copy is in the mail (bit 63 always); whoever is to make something of
//! the data holds them against it first. What says that a post is there (C1) carries the word as it does the data. Words are not combined
//! in passing then, calls of a group are not fused, and none is repeated without being looked at.

use super::super::board::INLINE_WORDS;
use super::super::call::{Call, Input};
use super::super::checks;
use super::super::operation::Summary;
use super::super::pipe::Arrival;
use super::super::scalars;
use super::super::team::Team;
use super::{INLINE_LEN, contributors, words_of};
use crate::error::Result;
use crate::faults::POST;
use crate::heap::{HeapPlace, Region};

/// Posts `words` with their checksum.
#[cold]
#[inline(never)]
pub(super) fn post_words(team: &mut Team, call: &Call<'_>, summary: Summary, words: &[u64]) {
    let places = places(team, call, crc32c::crc32c(bytemuck::cast_slice(words)));
    // This member's own copy stays as it is.
    let mut posted = [0; INLINE_WORDS];
    let posted = &mut posted[..words.len()];
    posted.copy_from_slice(words);
    team.board.context().spoil(POST, bytemuck::cast_slice_mut(posted));
    team.board.post(summary, places, posted);
}

/// Posts that the input of `call` is in `mail`, with its checksum and what this member has `told`.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for a buffer that is not there.
#[cold]
#[inline(never)]
pub(super) fn post_mail(
    team: &mut Team,
    call: &Call<'_>,
    summary: Summary,
    mail: Region,
    told: &[u64],
) -> Result<()> {
    if matches!(call.input, Input::None) {
        team.board.post(summary, [0, scalars::own(call)], told);
        return Ok(());
    }
    let crc = if team.checksums { checks::of_call(team, call, 0, mail.len)? } else { 0 };
    let context = team.board.context();
    context.damage(POST, HeapPlace { rank: context.rank(), offset: mail.offset }, mail.len);
    let places = places(team, call, crc);
    team.board.post(summary, places, told);
    Ok(())
}

/// Holds what the members have posted whose input this one needs, `len` bytes each, against the checksums beside it.
///
/// # Errors
/// Those of [`checks::compare`].
#[cold]
#[inline(never)]
pub(super) fn check_inputs(team: &Team, call: &Call<'_>, len: u64) -> Result<()> {
    let is_inline = len <= INLINE_LEN;
    // What is inline this member knows of itself; its mail it reads as the others do.
    for member in contributors(team, call).filter(|member| !is_inline || *member != team.me()) {
        let post = team.board.post_of(member);
        let found = if is_inline {
            let words: [u64; INLINE_WORDS] = std::array::from_fn(|index| post.data(index));
            crc32c::crc32c(bytemuck::cast_slice(&words[..words_of(len)]))
        } else {
            let mail = team.mail(member, len)?;
            team.heap_of(member, mail)?.crc32c(0, mail.offset.get(), mail.len)?
        };
        let from = Arrival { operation: call.operation, member, number: team.board.sequence() };
        checks::compare(team, from, post.places()[0], found)?;
    }
    Ok(())
}

fn places(team: &Team, call: &Call<'_>, crc: u32) -> [u64; 2] {
    [if team.checksums { checks::told(crc) } else { 0 }, scalars::own(call)]
}
