//! Checksums of what eager calls post, where all members
//! [take](crate::collective::transport::checksum) them, and faults in what they post.
//!
//! With checksums, a post has the CRC32C of its data: of the words of the post, or of the caller's
//! buffer whose copy is in the eager slot (bit 63 always). A member holds the data against it
//! before it makes anything of them. What says that a post is there (C1) carries the checksum as it
//! does the data.
//!
//! Words are not combined in passing then, calls of a group are not fused, and no call is repeated
//! without being looked at.

use super::eager::{INLINE_LEN, contributors, words_of};
use crate::collective::call::{Call, CallSignature, Input};
use crate::collective::rendezvous::members::Members;
use crate::collective::rendezvous::post::{EagerPost, INLINE_WORDS};
use crate::collective::transport::checksum;
use crate::collective::transport::pipe::FragmentArrival;
use crate::error::Result;
use crate::faults::POST;
use crate::heap::{HeapPlace, Region};

/// Posts `words` with their checksum.
#[cold]
#[inline(never)]
pub(super) fn post_words(members: &mut Members, call: &Call<'_>, signature: CallSignature, words: &[u64]) {
    let checksum = checksum_word(members, crc32c::crc32c(bytemuck::cast_slice(words)));
    // This member's own copy stays as it is.
    let mut posted = [0; INLINE_WORDS];
    let posted = &mut posted[..words.len()];
    posted.copy_from_slice(words);
    members.board.context().spoil(POST, bytemuck::cast_slice_mut(posted));
    members.board.post(signature, EagerPost { checksum, scalar: call.scalar(), data: posted });
}

/// Returns the word of the checksum of the input of `call`, which is in `slot`, and has faults
/// strike what is there.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for a buffer that is not there.
#[cold]
#[inline(never)]
pub(super) fn seal(members: &Members, call: &Call<'_>, slot: Region) -> Result<u64> {
    if matches!(call.input, Input::None) {
        return Ok(0);
    }
    let source = call.source(members.view(), 0, slot.len)?;
    let crc = if members.checksums { source.crc32c(0, slot.len)? } else { 0 };
    let context = members.board.context();
    context.damage(POST, HeapPlace { rank: context.rank(), offset: slot.offset }, slot.len);
    Ok(checksum_word(members, crc))
}

/// Holds what the members have posted whose input this one needs, `len` bytes each, against the
/// checksums beside it.
///
/// # Errors
/// Fails as [`checksum::compare`] does.
#[cold]
#[inline(never)]
pub(super) fn check_inputs(members: &Members, call: &Call<'_>, len: u64) -> Result<()> {
    if !members.checksums {
        return Ok(());
    }
    let is_inline = len <= INLINE_LEN;
    // This member knows its own inline data. It reads its eager slot as the others do.
    for member in contributors(members, call).filter(|member| !is_inline || *member != members.me()) {
        let post = members.board.post_of(member);
        let found = if is_inline {
            let words: [u64; INLINE_WORDS] = std::array::from_fn(|index| post.word(index));
            crc32c::crc32c(bytemuck::cast_slice(&words[..words_of(len)]))
        } else {
            let slot = members.eager_slot(member, len)?;
            members.heap_of(member, slot)?.crc32c(0, slot.offset.get(), slot.len)?
        };
        let from = FragmentArrival { operation: call.operation, member, number: members.board.sequence() };
        checksum::compare(members, from, post.checksum(), found)?;
    }
    Ok(())
}

/// Returns the word of the checksum `crc`, where checksums are taken.
fn checksum_word(members: &Members, crc: u32) -> u64 {
    if members.checksums { checksum::told(crc) } else { 0 }
}
