//! Cards: short parcels that take no slot.
//!
//! Elements in a slot lie in one cache line and the semaphore that tells of them in another, and both have to come from core to core: of a
//! parcel of a few bytes that is most of its time. So such a parcel is posted like a small operation ([`crate::sync::PostCell`]): a stamp,
//! and behind it the sender's summary and the elements. Up to 40 bytes all of it is one line, up to [`MOST`] the pair of a line.
//!
//! The stamp is the number of the message and one. A card takes its turn among the messages of the pipe, is given back as a slot is, and
//! its sender is as far ahead as with slots. Its semaphore is not raised: whoever receives looks for both, at words that stay in its
//! cache until something comes. So it finds out, too, when the other end has called for more or less than fits on a card. It looks at the
//! semaphore first: of a signal that it finds then the message may be behind a card, which it sees by that signal (S1; model in
//! `src/sync/models/cards.rs`).
//!
//! Over proxied channels, with checksums, and where faults are planned, which strike slots, there are no cards.

use super::course::{Course, Stage};
use super::replaced::Replaced;
use crate::channel::Channel;
use crate::collective::algorithm::ChannelKind;
use crate::collective::call::{Input, Output, part, part_mut};
use crate::collective::operation::Summary;
use crate::collective::pipe::Pipes;
use crate::collective::team::Team;
use crate::error::Result;
use crate::heap::HeapView;
use crate::sync::{POST_WORDS, PostCell};

/// The most bytes of elements on a card.
const MOST: u64 = 64;

/// Words that hold as many.
const WORDS: usize = 8;

/// Words of the summary, which come first.
const HEAD: usize = 2;

const _: () = assert!(HEAD + WORDS <= POST_WORDS && MOST == 8 * WORDS as u64);

/// How many words `len` bytes of elements take.
#[inline]
fn words_of(len: u64) -> usize {
    usize::try_from(len.div_ceil(8)).map_or(WORDS, |words| words.min(WORDS))
}

/// The first `len` bytes of `input`, at most [`MOST`].
#[inline]
fn words(input: &Input<'_>, view: &HeapView, len: u64) -> Result<[u64; WORDS]> {
    let mut words = [0; WORDS];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    match len {
        // Of a length that is known here, or a copy is a call of the C library.
        8 => input.read(view, 0, &mut bytes[..8])?,
        4 => input.read(view, 0, &mut bytes[..4])?,
        _ => input.read(view, 0, part_mut(bytes, 0, len)?)?,
    }
    Ok(words)
}

impl Course {
    /// Sends all of `input` on a card, for which there is room, if it may go on one; whether it did.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for elements that are not allocated.
    #[inline]
    pub(super) fn post_card<C: Channel>(
        &mut self,
        input: &Input<'_>,
        pipes: &mut Pipes<'_, C>,
        kind: ChannelKind,
    ) -> Result<bool> {
        let team = pipes.team;
        let may_be = self.len <= MOST && kind == ChannelKind::Memory;
        if !may_be || team.checksums || team.board.context().is_faulty() {
            return Ok(false);
        }
        let words = words(input, team.view(), self.len)?;
        let (card, shown) = pipes.card_to(self.peer);
        card.post(shown, self.summary.words(), &words[..words_of(self.len)]);
        pipes.count_sent(self.peer);
        pipes.wake(self.peer);
        (self.moved, self.stage) = (self.len, Stage::Done);
        Ok(true)
    }

    /// Takes the next message into `output` if it is a card that has come; whether it was.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    #[inline]
    pub(super) fn take_card<C: Channel>(
        &mut self,
        output: &mut Output<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<bool> {
        let Some(card) = self.card(pipes)? else { return Ok(false) };
        self.unpack(card, output, pipes.team)?;
        pipes.give_back(self.peer);
        Ok(true)
    }

    /// The same over a block, once that was given; whether the next message is a card.
    ///
    /// # Errors
    /// Those of [`super::Parcel::advance`].
    pub(super) fn take_card_over<C: Channel>(
        &mut self,
        replaced: &Replaced<'_>,
        pipes: &mut Pipes<'_, C>,
    ) -> Result<bool> {
        let Some(card) = self.card(pipes)? else { return Ok(false) };
        if replaced.has_given(self.len) {
            self.unpack(card, &mut replaced.block().borrow_mut(), pipes.team)?;
            pipes.give_back(self.peer);
        }
        Ok(true)
    }

    /// The card that has come, which is what was called for.
    #[inline]
    fn card<'p, C: Channel>(&self, pipes: &'p Pipes<'_, C>) -> Result<Option<&'p PostCell>> {
        let come = if self.stage == Stage::Fresh { pipes.card_of(self.peer) } else { None };
        let Some(card) = come else { return Ok(None) };
        let theirs = Summary::from_words([card.word(0), card.word(1)]);
        if self.summary.answers(theirs) && self.len <= MOST {
            Ok(Some(card))
        } else {
            Err(pipes.team.board.complain(self.peer, self.summary, theirs))
        }
    }

    /// Copies the elements of `card` to where they belong.
    #[inline]
    fn unpack(&mut self, card: &PostCell, output: &mut Output<'_>, team: &Team) -> Result<()> {
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate().take(words_of(self.len)) {
            *word = card.word(HEAD + index);
        }
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        match self.len {
            8 => output.write(team.view(), 0, &bytes[..8])?,
            4 => output.write(team.view(), 0, &bytes[..4])?,
            len => output.write(team.view(), 0, part(bytes, 0, len)?)?,
        }
        (self.moved, self.stage) = (self.len, Stage::Done);
        Ok(())
    }
}
