//! Reduces a word once more, of which everything is known but the data.

use arrayvec::ArrayVec;

use crate::collective::call::{Algorithm, ChannelKind, Choice, Operation};
use crate::collective::plan::{KnownWord, WORD_LEN, WordArguments};
use crate::collective::rendezvous::members::Members;
use crate::collective::rendezvous::post::EagerPost;
use crate::collective::rendezvous::trace;
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::MAX_RANKS;
use crate::shm::Span;

/// A word that is to be reduced once more.
#[derive(Debug)]
pub(crate) struct WordRun<'e> {
    pub(crate) word: &'e KnownWord,
    pub(crate) members: &'e mut Members,
}

impl WordRun<'_> {
    /// Executes the call.
    ///
    /// # Errors
    /// Those of [`crate::collective::rendezvous::board::CallBoard::await_post`], which end the epoch.
    // Not in line: the result goes straight to where the caller's goes. To copy it costs as much as all the rest.
    #[inline(never)]
    pub(crate) fn run(self) -> Result<()> {
        if !self.members.board.context().is_plain() {
            return self.run_watched();
        }
        self.run_plain()
    }

    #[inline(always)]
    fn run_plain(self) -> Result<()> {
        let Self { word, members } = self;
        match word.run(members) {
            Ok(()) => Ok(()),
            failed => members.board.or_revoke(failed),
        }
    }

    /// Executes the call of a rank that has failed in one before, or notes what it does.
    #[inline(never)]
    fn run_watched(self) -> Result<()> {
        let context = self.members.board.context();
        context.can_call(Operation::AllReduce.name())?;
        if context.recorder().is_some() { self.run_noted() } else { self.run_plain() }
    }

    #[inline(never)]
    fn run_noted(self) -> Result<()> {
        let Self { word, members } = self;
        let begun = trace::begin_word(members, word.len);
        let done = word.run(members);
        let choice = Choice { algorithm: Some(Algorithm::OneShot), channel: ChannelKind::Memory };
        let done = begun.end(members, choice, done);
        members.board.or_revoke(done)
    }
}

impl KnownWord {
    #[inline(always)]
    fn run(&self, members: &mut Members) -> Result<()> {
        let WordArguments { signature, input, output } = self.arguments;
        let (heap, board) = members.heap_and_board();
        board.begin(Operation::AllReduce)?;
        let word = self.read(heap, input)?;
        board.post_first(signature, EagerPost::of(&[word]));
        board.fetch_next();
        let mut words = ArrayVec::<u64, { MAX_RANKS as usize }>::new();
        board.await_each(Operation::AllReduce, |post| {
            words.push(post.map_or(word, |post| post.eager().data(0)))
        })?;
        let len = usize::try_from(self.len).unwrap_or(0);
        self.write(heap, output, self.reducer.combine_words(&words, len))
    }

    #[inline(always)]
    fn read(&self, heap: &Span, offset: HeapOffset) -> Result<u64> {
        match self.len {
            WORD_LEN => heap.read(offset.get()),
            _ => heap.read::<u32>(offset.get()).map(u64::from),
        }
    }

    #[inline(always)]
    fn write(&self, heap: &Span, offset: HeapOffset, word: u64) -> Result<()> {
        let bytes = word.to_ne_bytes();
        match self.len {
            WORD_LEN => heap.copy_in(offset.get(), &bytes),
            _ => heap.copy_in(offset.get(), &bytes[..4]),
        }
    }
}
