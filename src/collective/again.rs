//! A word reduced once more: one of the last calls of that kind, with the same arguments.
//!
//! Programs that agree on a word do so in every step of a loop. What leads up to the hand-over (the operator's loop, the way that
//! suits the call, what the members compare) follows from the arguments, and takes as long as the hand-over itself where two
//! members are threads of one core. So the arguments of the last few are kept with what followed from them, and compared first.
//!
//! What else it depends on, the tuning and the algorithms that are registered, belongs to the engine, which forgets the call when
//! they change. That the buffers are memory was found when the call was executed first, and stays so: a watermark only rises, whoever
//! owns what is below it. The members compare what they post as ever.

use arrayvec::ArrayVec;

use super::algorithm::{Algorithm, ChannelKind, Manner};
use super::call::{Call, Input, Output};
use super::noting;
use super::operation::{Operation, Summary};
use super::small::WORD_LEN;
use super::team::Team;
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::MAX_RANKS;
use crate::reduce::{DataType, ReduceOp, Reducer};
use crate::shm::Span;

/// Half a word, in bytes: one element of the most usual types.
const HALF_LEN: u64 = WORD_LEN / 2;

/// How many calls are kept: the words that a step of a loop agrees on, one after the other.
const KEPT: usize = 8;

/// The arguments of an all-reduce of a word, or half a one, of the symmetric heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    summary: Summary,
    input: HeapOffset,
    output: HeapOffset,
}

/// A call that has been executed, with what followed from its arguments.
#[derive(Debug)]
pub(crate) struct Again {
    arguments: Arguments,
    /// The length of the word in bytes.
    len: u64,
    reducer: Reducer,
}

/// The last calls that can be repeated.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    calls: ArrayVec<Again, KEPT>,
    /// The one that makes room for the next, where all places are taken.
    oldest: usize,
}

/// A call that is to be executed once more.
#[derive(Debug)]
pub struct Repeat<'e> {
    again: &'e Again,
    team: &'e mut Team,
}

impl Arguments {
    /// Those of an all-reduce, if it is one of a word.
    #[inline]
    pub(crate) fn new(
        (count, data_type): (u64, DataType),
        op: &ReduceOp,
        input: &Input<'_>,
        output: &Output<'_>,
    ) -> Option<Self> {
        let (&Input::Heap(input), &Output::Heap(output)) = (input, output) else { return None };
        let size = data_type.size() as u64;
        let is_word = count == WORD_LEN / size || count == HALF_LEN / size && size <= HALF_LEN;
        let summary = Summary::new(Operation::AllReduce).of(count, data_type).by(op.plain_code()?);
        is_word.then_some(Self { summary, input, output })
    }

    /// The same of a call that is done in `manner`.
    #[inline]
    pub(crate) fn in_manner(self, manner: Manner) -> Self {
        Self { summary: self.summary.in_manner(manner), ..self }
    }
}

impl Again {
    /// `call`, to which each member contributed `len` bytes in its post, if it can be repeated; the members compared `summary`.
    #[inline]
    pub(crate) fn of(call: &Call<'_>, summary: Summary, len: u64) -> Option<Self> {
        let (Operation::AllReduce, WORD_LEN | HALF_LEN) = (call.operation, len) else { return None };
        let (&Input::Heap(input), &Output::Heap(output)) = (&call.input, &call.output) else { return None };
        let reducer = call.reducer.as_ref().filter(|reducer| reducer.is_plain())?;
        Some(Self { arguments: Arguments { summary, input, output }, len, reducer: reducer.clone() })
    }
}

impl Kept {
    /// Keeps `call`, unless one with the same arguments is kept: those of a stream are executed without a look here.
    pub(crate) fn keep(&mut self, call: Again) {
        if self.calls.iter().any(|kept| kept.arguments == call.arguments) {
            return;
        }
        if let Err(refused) = self.calls.try_push(call) {
            self.calls[self.oldest] = refused.element();
            self.oldest = (self.oldest + 1) % KEPT;
        }
    }

    /// The call that had these `arguments`, for `team` to repeat it.
    #[inline]
    pub(crate) fn repeat<'e>(&'e self, team: &'e mut Team, arguments: &Arguments) -> Option<Repeat<'e>> {
        let again = self.calls.iter().find(|call| call.arguments == *arguments)?;
        Some(Repeat { again, team })
    }
}

impl Repeat<'_> {
    /// Executes the call.
    ///
    /// # Errors
    /// Those of [`super::board::Board::await_post`], which end the epoch.
    // Not in line: the result goes straight to where the caller's goes. To copy it costs as much as all the rest.
    #[inline(never)]
    pub(crate) fn run(self) -> Result<()> {
        if !self.team.board.context().is_plain() {
            return self.run_watched();
        }
        self.run_plain()
    }

    #[inline(always)]
    fn run_plain(self) -> Result<()> {
        let Self { again, team } = self;
        match again.run(team) {
            Ok(()) => Ok(()),
            failed => team.board.or_revoke(failed),
        }
    }

    /// Executes the call of a rank that has failed in one before, or notes what it does.
    #[inline(never)]
    fn run_watched(self) -> Result<()> {
        let context = self.team.board.context();
        context.can_call(Operation::AllReduce.name())?;
        if context.recorder().is_some() { self.run_noted() } else { self.run_plain() }
    }
}

impl Repeat<'_> {
    #[inline(never)]
    fn run_noted(self) -> Result<()> {
        let Self { again, team } = self;
        let begun = noting::begin_word(team, again.len);
        let done = again.run(team);
        let manner = Manner { algorithm: Some(Algorithm::OneShot), channel: ChannelKind::Memory };
        let done = begun.end(team, manner, done);
        team.board.or_revoke(done)
    }
}

impl Again {
    #[inline(always)]
    fn run(&self, team: &mut Team) -> Result<()> {
        let Arguments { summary, input, output } = self.arguments;
        let (heap, board) = team.heap_and_board();
        board.begin(Operation::AllReduce)?;
        let word = self.read(heap, input)?;
        board.post_first(summary, [0; 2], &[word]);
        board.fetch_next();
        let mut words = ArrayVec::<u64, { MAX_RANKS as usize }>::new();
        board.await_each(Operation::AllReduce, |post| words.push(post.map_or(word, |post| post.data(0))))?;
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
