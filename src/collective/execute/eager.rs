//! One shot: every member posts its whole input, and the others read there what they need.
//!
//! This is one hand-over per operation, the least there can be. Every member reads from all others,
//! so it is for small inputs:
//!
//! | input | lies |
//! |---|---|
//! | up to [`INLINE_LEN`] bytes | in the post, next to its stamp, like an LL packet of NCCL |
//! | up to [`EAGER_LEN`] bytes | in the eager slot of the post |
//!
//! A reader that finds the stamp of a post has the inline data in its cache. A member takes its own
//! input, if it is one block, from where the caller has it: to read back what it has just stored
//! costs between hyper-threads almost half of the call. A reduction of up to [`WORD_LEN`] bytes
//! does without all that larger ones need, and costs little more than the hand-over.
//!
//! Each member posts the scalar that multiplies its input in a scaled sum. Whoever combines inputs
//! multiplies them in its registers, so a scaled sum takes no more hand-overs than a sum. Inputs
//! stay as they are, also in place. Algorithms that pass partial results on know no scalars but
//! their own; what they add is multiplied before ([`chunked`](super::chunked)).
//!
//! A member that gets nothing (the root of a broadcast, all but the root of a reduce) posts and
//! goes on. Ranks agree on results bit by bit, since each of them combines the same inputs in the
//! same order: that of the members' numbers.

use std::ops::Range;

use arrayvec::ArrayVec;

use super::eager_checked;
use crate::collective::call::{Call, CallSignature, Input, Operation, Output, part, part_mut};
use crate::collective::region::EAGER_LEN;
use crate::collective::rendezvous::members::{Members, PerMember};
use crate::collective::rendezvous::post::{EagerPost, INLINE_WORDS};
use crate::collective::strategy::{KnownWord, WORD_LEN, WordArguments};
use crate::error::Result;
use crate::heap::HeapOffset;
use crate::rank::MAX_RANKS;
use crate::reduce::{Source, SourcePlace};
use crate::shm::Span;

/// The most bytes of input that fit into a post.
pub(crate) const INLINE_LEN: u64 = INLINE_WORDS as u64 * 8;

/// Executes `call`, to which no member contributes more than `len` bytes, at most [`EAGER_LEN`].
/// Where it is an exchange of blocks, and some member's are not even, it is
/// [one of blocks](Call::take_apart) again, and nothing has moved.
///
/// # Errors
/// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does, or with
/// [`crate::Error::OutOfRange`] for buffers that are not allocated.
#[inline]
pub(crate) fn run(
    members: &mut Members,
    call: &mut Call<'_>,
    signature: CallSignature,
    len: u64,
) -> Result<()> {
    members.board.begin(call.told())?;
    let is_word = len <= WORD_LEN && matches!(call.operation, Operation::AllReduce | Operation::Reduce);
    if is_word && !members.is_watched() && !call.is_scaled() {
        return reduce_word(members, call, signature, len);
    }
    exchange(members, call, signature, len)
}

/// Executes any call of at most [`EAGER_LEN`] bytes.
#[inline(never)]
fn exchange(members: &mut Members, call: &mut Call<'_>, signature: CallSignature, len: u64) -> Result<()> {
    assert!(len <= EAGER_LEN, "{len} bytes are not small");
    let mut mine = [0; INLINE_WORDS];
    if len <= INLINE_LEN {
        mine = post_inline(members, call, signature, len)?;
    } else {
        post_in_slot(members, call, signature, len)?;
    }
    if matches!(call.output, Output::None) {
        return Ok(());
    }
    await_inputs(members, call)?;
    if call.layout.is_some() && members.board.meets_blocks() {
        call.take_apart();
        return Ok(());
    }
    if members.is_watched() {
        eager_checked::check_inputs(members, call, len)?;
    }
    deliver(members, call, len, &mine)
}

/// Executes a reduction of one block of at most [`WORD_LEN`] bytes: each member's input is a word,
/// from post to register.
#[inline]
fn reduce_word(members: &mut Members, call: &mut Call<'_>, signature: CallSignature, len: u64) -> Result<()> {
    let word = call.input_word(members.view(), len)?;
    members.board.post(signature, EagerPost::of(&[word]));
    if matches!(call.output, Output::None) {
        return Ok(());
    }
    let mut words = ArrayVec::<u64, { MAX_RANKS as usize }>::new();
    members.board.await_each(call.operation, |post| words.push(post.map_or(word, |post| post.word(0))))?;
    let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
    let result = reducer.combine_words(&words, usize::try_from(len).unwrap_or(0));
    call.write_word(members.view(), result, len)
}

/// Posts the input of `call` in the post itself, and returns its data.
#[inline]
fn post_inline(
    members: &mut Members,
    call: &Call<'_>,
    signature: CallSignature,
    len: u64,
) -> Result<[u64; INLINE_WORDS]> {
    let mut words = [0; INLINE_WORDS];
    let len = if matches!(call.input, Input::None) { 0 } else { len };
    call.read_input(members.view(), 0, part_mut(bytemuck::cast_slice_mut(&mut words), 0, len)?)?;
    if members.is_watched() {
        eager_checked::post_words(members, call, signature, &words[..words_of(len)]);
    } else {
        let scalar = call.scalar();
        members.board.post(signature, EagerPost { checksum: 0, scalar, data: &words[..words_of(len)] });
    }
    Ok(words)
}

fn post_in_slot(members: &mut Members, call: &Call<'_>, signature: CallSignature, len: u64) -> Result<()> {
    let slot = members.eager_slot(members.me(), len)?;
    if !matches!(call.input, Input::None) {
        call.copy_input(members.view(), 0, members.heap_of(members.me(), slot)?, slot)?;
    }
    let checksum = if members.is_watched() { eager_checked::seal(members, call, slot)? } else { 0 };
    members.board.post(signature, EagerPost { checksum, scalar: call.scalar(), data: &[] });
    Ok(())
}

/// Waits for the members whose input this one needs.
#[inline]
fn await_inputs(members: &mut Members, call: &Call<'_>) -> Result<()> {
    match call.operation {
        Operation::Broadcast | Operation::Scatter if call.root == members.me() => Ok(()),
        Operation::Broadcast | Operation::Scatter => {
            members.board.await_post(call.root, call.operation).map(drop)
        }
        _ => members.board.await_posts(call.told()),
    }
}

/// Makes this member's output from what was posted, `mine` by itself where it is inline.
#[inline]
fn deliver(members: &Members, call: &mut Call<'_>, len: u64, mine: &[u64; INLINE_WORDS]) -> Result<()> {
    // Arrays for as many members as there are, or somewhat more: they are filled and searched at
    // every call.
    match members.n_members() {
        0..=2 => deliver_among::<2>(members, call, len, mine),
        3..=8 => deliver_among::<8>(members, call, len, mine),
        9..=64 => deliver_among::<64>(members, call, len, mine),
        _ => deliver_among::<{ MAX_RANKS as usize }>(members, call, len, mine),
    }
}

#[inline]
fn deliver_among<const N: usize>(
    members: &Members,
    call: &mut Call<'_>,
    len: u64,
    mine: &[u64; INLINE_WORDS],
) -> Result<()> {
    let contributors = contributors(members, call);
    let (block, at) = (call.block_len()?, skipped(members, call)?);
    let mut words = [[0; INLINE_WORDS]; N];
    // Each place is made where it is read: to copy one right after it was stored in parts would
    // wait for all stores before it.
    let mut sources = [Source::fresh(SourcePlace::Slice(&[])); N];
    if len <= INLINE_LEN {
        for (words, member) in words.iter_mut().zip(contributors.clone()) {
            let post = members.board.post_of(member);
            let word = |index: usize| if member == members.me() { mine[index] } else { post.word(index) };
            (0..words_of(len)).for_each(|index| words[index] = word(index));
        }
        for (source, words) in sources.iter_mut().zip(&words) {
            source.place = SourcePlace::Slice(part(bytemuck::cast_slice(words), at, block)?);
        }
    } else {
        // Of several blocks the own one stays with the others: a reduce-scatter of 8 KiB took 4 %
        // longer otherwise, between separate cores.
        let is_whole = block == len;
        for (source, member) in sources.iter_mut().zip(contributors.clone()) {
            if is_whole && member == members.me() {
                source.place = call.input.place(members.view(), at, block)?;
                continue;
            }
            let slot = members.eager_slot(member, len)?;
            source.place = SourcePlace::Shared(members.heap_of(member, slot)?, slot.offset.get() + at);
        }
    }
    let sources = &sources[..contributors.len()];
    if call.operation.reduces() {
        let mut scalars = PerMember::new();
        members.gather_scalars(call, &mut scalars, |post| post.eager_scalar());
        call.combine(members, scalars.get(contributors).unwrap_or_default(), sources)
    } else {
        distribute(members, call, sources.iter().map(|source| source.place), block)
    }
}

/// Returns the members whose input the output of `call` is made of.
#[inline]
pub(crate) fn contributors(members: &Members, call: &Call<'_>) -> Range<usize> {
    call.operation.sources(members.me(), call.root, members.n_members())
}

/// Returns how many bytes of each input precede the block that is for this member.
#[inline]
pub(crate) fn skipped(members: &Members, call: &Call<'_>) -> Result<u64> {
    Ok(call.operation.block_for(members.me()) as u64 * call.block_len()?)
}

impl Call<'_> {
    /// Combines `sources`, all of them fresh inputs of one block, each multiplied by its own one of
    /// `scalars`, if there are any, into the start of the output.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn combine(
        &mut self,
        members: &Members,
        scalars: &[u64],
        sources: &[Source<'_>],
    ) -> Result<()> {
        let len = self.block_len()?;
        let reducer = self.reducer.as_ref().expect("an operation that reduces has a reducer");
        let Some(target) = self.output.target(members.view(), 0, len)? else { return Ok(()) };
        reducer.combine_scaled(scalars, sources, &mut [target], self.count)
    }
}

/// Copies one block of `len` bytes of each member's input to its place in the output.
pub(crate) fn distribute<'p>(
    members: &Members,
    call: &mut Call<'_>,
    blocks: impl IntoIterator<Item = SourcePlace<'p>>,
    len: u64,
) -> Result<()> {
    (0..).zip(blocks).try_for_each(|(index, place)| call.output.put(members.view(), index * len, place, len))
}

/// Returns how many words hold `len` bytes, which fit into a post.
#[inline]
pub(super) fn words_of(len: u64) -> usize {
    usize::try_from(len.div_ceil(8)).unwrap_or(INLINE_WORDS)
}

impl KnownWord {
    /// Reduces the word once more, of which everything is known but the data.
    ///
    /// # Errors
    /// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does.
    #[inline(always)]
    pub(crate) fn run(&self, members: &mut Members) -> Result<()> {
        let WordArguments { signature, input, output } = self.arguments;
        let (heap, board) = members.heap_and_board();
        board.begin(Operation::AllReduce)?;
        let word = self.read(heap, input)?;
        board.post_first(signature, EagerPost::of(&[word]));
        board.fetch_next();
        let mut words = ArrayVec::<u64, { MAX_RANKS as usize }>::new();
        board.await_each(Operation::AllReduce, |post| words.push(post.map_or(word, |post| post.word(0))))?;
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
