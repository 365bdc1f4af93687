//! Reduces a word once more, of which everything is known but the data.

use arrayvec::ArrayVec;

use crate::collective::call::Operation;
use crate::collective::plan::{KnownWord, WORD_LEN, WordArguments};
use crate::collective::rendezvous::members::Members;
use crate::collective::rendezvous::post::EagerPost;
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::MAX_RANKS;
use crate::shm::Span;

impl KnownWord {
    /// Executes the call.
    ///
    /// # Errors
    /// Those of [`crate::collective::rendezvous::board::CallBoard::await_post`].
    #[inline(always)]
    pub(crate) fn run(&self, members: &mut Members) -> Result<()> {
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
