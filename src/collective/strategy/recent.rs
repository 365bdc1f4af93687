//! The words that were reduced last, with what followed from the arguments of each call.
//!
//! Programs that agree on a word do so in every step of a loop. All that leads up to the hand-over
//! follows from the arguments: the operator's loop, the way that suits the call, the words that
//! members compare. It takes as long as the hand-over itself where two members are threads of one
//! core. So it is kept for the last few calls, and looked up by their arguments.
//!
//! It also depends on the tuning and on the algorithms that are registered: the selector forgets
//! the calls when these change. That the buffers are memory was found when the call was executed
//! first, and stays so: a watermark only rises, whoever owns what is below it. The members compare
//! what they post as ever.

use arrayvec::ArrayVec;

use crate::collective::call::{Call, CallSignature, Choice, Input, Operation, Output, Request};
use crate::heap::HeapOffset;
use crate::reduce::Reducer;

/// The length of a word in bytes.
pub(crate) const WORD_LEN: u64 = 8;

/// Half a word, in bytes: one element of the most usual types.
const HALF_LEN: u64 = WORD_LEN / 2;

/// How many calls are kept: the words that a step of a loop agrees on, one after the other.
const KEPT: usize = 8;

/// The arguments of an all-reduce of a word, or half a one, of the symmetric heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordArguments {
    pub(crate) signature: CallSignature,
    pub(crate) input: HeapOffset,
    pub(crate) output: HeapOffset,
}

/// A call that was executed, with what followed from its arguments.
#[derive(Debug)]
pub(crate) struct KnownWord {
    pub(crate) arguments: WordArguments,
    /// The length of the word in bytes: a whole word, or half a one.
    pub(crate) len: u64,
    pub(crate) reducer: Reducer,
}

/// The last calls that can be repeated.
#[derive(Debug, Default)]
pub(super) struct RecentWords {
    calls: ArrayVec<KnownWord, KEPT>,
    /// The one that makes room for the next, where all places are taken.
    oldest: usize,
}

impl WordArguments {
    /// Returns those of `request`, done as `choice` says, if it is an all-reduce of a word.
    #[inline]
    fn of(request: &Request<'_, '_>, choice: Choice) -> Option<Self> {
        let &Request { operation: Operation::AllReduce, data_type, count, op: Some(op), .. } = request else {
            return None;
        };
        let (&Input::Heap(input), &Output::Heap(output)) = (&request.input, &request.output) else {
            return None;
        };
        let size = data_type.size() as u64;
        let is_word = count == WORD_LEN / size || count == HALF_LEN / size && size <= HALF_LEN;
        let signature = CallSignature::new(Operation::AllReduce).of(count, data_type).by(op.plain_code()?);
        is_word.then_some(Self { signature: signature.with_choice(choice), input, output })
    }
}

impl KnownWord {
    /// Makes one of `call`, to which each member contributed `len` bytes in its post, if it can be
    /// repeated; the members compared `signature`.
    #[inline]
    fn of(call: &Call<'_>, signature: CallSignature, len: u64) -> Option<Self> {
        let (Operation::AllReduce, WORD_LEN | HALF_LEN) = (call.operation, len) else { return None };
        let (&Input::Heap(input), &Output::Heap(output)) = (&call.input, &call.output) else { return None };
        let reducer = call.reducer.as_ref().filter(|reducer| reducer.is_plain())?.clone();
        Some(Self { arguments: WordArguments { signature, input, output }, len, reducer })
    }
}

impl RecentWords {
    /// Keeps `call`, if it can be repeated and is not kept: those of a stream are executed without
    /// a look here.
    #[inline(never)]
    pub(super) fn keep(&mut self, call: &Call<'_>, signature: CallSignature, len: u64) {
        let Some(call) = KnownWord::of(call, signature, len) else { return };
        if self.calls.iter().any(|kept| kept.arguments == call.arguments) {
            return;
        }
        if let Err(refused) = self.calls.try_push(call) {
            self.calls[self.oldest] = refused.element();
            self.oldest = (self.oldest + 1) % KEPT;
        }
    }

    /// Finds the call that `request` makes once more.
    #[inline]
    pub(super) fn find(&self, request: &Request<'_, '_>, choice: Choice) -> Option<&KnownWord> {
        let arguments = WordArguments::of(request, choice)?;
        self.calls.iter().find(|call| call.arguments == arguments)
    }
}
