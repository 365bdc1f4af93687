//! Inline messages: short messages that take no slot.
//!
//! Elements in a slot lie in one cache line and the semaphore that tells of them in another. Both
//! have to come from core to core, which is most of the time of a message of a few bytes. So such a
//! message is posted like a small operation ([`crate::sync::PostCell`]): a stamp, and behind it the
//! sender's signature and the elements. Up to 40 bytes all of it is one line, up to [`MOST`] the
//! pair of a line.
//!
//! The stamp is the number of the message and one. An inline message takes its turn among the
//! messages of the pipe, is given back as a slot is, and its sender is as far ahead as with slots.
//! Its semaphore is not raised: whoever receives looks for both, at words that stay in its cache
//! until something comes. So it finds out, too, when the other end has called for more or less than
//! fits on an inline message. It looks at the semaphore first: of a signal that it finds then the
//! message may be behind an inline message, which it sees by that signal (S1; model in
//! `src/sync/models/posts.rs`).
//!
//! Over proxied channels, with checksums, and where faults are planned, which strike slots, there
//! are no inline messages.

use super::in_place::InPlaceBlock;
use super::state::{Front, MessageStage, MessageState};
use crate::collective::call::{CallSignature, Input, Output, part, part_mut};
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::link::Link;
use crate::collective::transport::pipe::Pipes;
use crate::error::Result;
use crate::heap::HeapView;
use crate::sync::{POST_WORDS, PostCell};

/// The most bytes of elements on an inline message.
const MOST: u64 = 64;

/// Words that hold as many.
const WORDS: usize = 8;

/// Words of the signature, which come first.
const HEAD: usize = 2;

const _: () = assert!(HEAD + WORDS <= POST_WORDS && MOST == 8 * WORDS as u64);

/// Returns how many words `len` bytes of elements take.
#[inline]
fn words_of(len: u64) -> usize {
    usize::try_from(len.div_ceil(8)).map_or(WORDS, |words| words.min(WORDS))
}

/// Returns the first `len` bytes of `input`, at most [`MOST`].
#[inline]
fn words(input: &Input<'_>, view: &HeapView, len: u64) -> Result<[u64; WORDS]> {
    let mut words = [0; WORDS];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    match len {
        // A copy of a constant length needs no call of the C library.
        8 => input.read(view, 0, &mut bytes[..8])?,
        4 => input.read(view, 0, &mut bytes[..4])?,
        _ => input.read(view, 0, part_mut(bytes, 0, len)?)?,
    }
    Ok(words)
}

/// Returns what an inline message was sent as.
#[inline]
pub(super) fn sent_as(inline: &PostCell) -> CallSignature {
    CallSignature::from_words([inline.word(0), inline.word(1)])
}

impl MessageState {
    /// Sends all of `input` as an inline message, for which there is room, if it may go as one;
    /// whether it did.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for elements that are not allocated.
    #[inline]
    pub(super) fn send_inline<L: Link>(
        &mut self,
        input: &Input<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<bool> {
        let members = pipes.members;
        if self.len > MOST || !L::HAS_INLINE {
            return Ok(false);
        }
        let words = words(input, members.view(), self.len)?;
        let (inline, shown) = pipes.inline_to(self.peer);
        inline.post(shown, self.signature.words(), &words[..words_of(self.len)]);
        pipes.count_sent(self.peer);
        pipes.wake(self.peer);
        (self.moved, self.stage) = (self.len, MessageStage::Done);
        Ok(true)
    }

    /// Takes the next message into `output` if it is an inline message that has come, and returns
    /// what is in front if that is one.
    ///
    /// # Errors
    /// Fails as [`super::progress::run`] does.
    #[inline]
    pub(super) fn receive_inline<L: Link>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<Front<()>> {
        let inline = match self.inline(pipes)? {
            Front::Own(inline) => inline,
            Front::Nothing => return Ok(Front::Nothing),
            Front::Other => return Ok(Front::Other),
        };
        self.unpack(inline, output, pipes.members)?;
        pipes.give_back(self.peer);
        Ok(Front::Own(()))
    }

    /// Takes the next message over a block, once that was copied out, and returns what is in front
    /// if that is an inline message.
    ///
    /// # Errors
    /// Fails as [`super::progress::run`] does.
    pub(super) fn receive_inline_over<L: Link>(
        &mut self,
        in_place: &InPlaceBlock<'_>,
        pipes: &mut Pipes<'_, L>,
    ) -> Result<Front<()>> {
        let inline = match self.inline(pipes)? {
            Front::Own(inline) => inline,
            Front::Nothing => return Ok(Front::Nothing),
            Front::Other => return Ok(Front::Other),
        };
        if in_place.was_copied_out(self.len) {
            self.unpack(inline, &mut in_place.block().borrow_mut(), pipes.members)?;
            pipes.give_back(self.peer);
        }
        Ok(Front::Own(()))
    }

    /// Returns the inline message that has come, if it is what was called for.
    #[inline]
    fn inline<'p, L: Link>(&self, pipes: &'p Pipes<'_, L>) -> Result<Front<&'p PostCell>> {
        let come = if self.stage == MessageStage::Fresh { pipes.inline_from(self.peer) } else { None };
        let Some(inline) = come else { return Ok(Front::Nothing) };
        let theirs = sent_as(inline);
        if self.signature.answers(theirs) && self.len <= MOST {
            Ok(Front::Own(inline))
        } else {
            self.other(pipes.members, theirs)
        }
    }

    /// Copies the elements of `inline` to where they belong.
    #[inline]
    fn unpack(&mut self, inline: &PostCell, output: &mut Output<'_>, members: &Members) -> Result<()> {
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate().take(words_of(self.len)) {
            *word = inline.word(HEAD + index);
        }
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        match self.len {
            8 => output.write(members.view(), 0, &bytes[..8])?,
            4 => output.write(members.view(), 0, &bytes[..4])?,
            len => output.write(members.view(), 0, part(bytes, 0, len)?)?,
        }
        (self.moved, self.stage) = (self.len, MessageStage::Done);
        Ok(())
    }
}
