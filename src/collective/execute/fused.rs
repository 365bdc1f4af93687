//! Eager calls of one group, fused: their inputs share one post, so that one hand-over serves all.
//!
//! The inputs lie one after the other, each at a multiple of 8 bytes: in the post itself if they
//! fit, or else in its eager slot. Every member leaves room for every input, also for those that
//! only a root has. So all members find an input at the same place.
//!
//! The post has the signature of all calls together, by which members in different groups find out.
//! They learn which call differs from the eager slot, at the start of which each member has put the
//! signatures of its calls. Nobody looks there otherwise.
//!
//! # Order
//! All inputs are read before the first output is written. So a call that reads what an earlier one
//! writes cannot be done by that post. Only the rank whose buffers these are knows. It says in its
//! post how many of its calls count, and reads no input behind those. All members read all posts,
//! and execute as many calls as count on every one of them; the others are posted anew.
//!
//! Outputs are written in the order of the calls, and an input that is overwritten was read before.
//! So nothing else that calls share matters.

use arrayvec::ArrayVec;

use super::eager::{INLINE_LEN, contributors, distribute, skipped};
use crate::collective::call::footprint::{ByteRange, MemberMemory};
use crate::collective::call::{
    Call, CallMismatch, CallSignature, Choice, Input, Operation, Output, part, part_mut,
};
use crate::collective::region::EAGER_LEN;
use crate::collective::rendezvous::members::{Members, PerMember, fill};
use crate::collective::rendezvous::post::{EagerPost, INLINE_WORDS, Post};
use crate::collective::strategy::WORD_LEN;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::reduce::{Source, SourcePlace};

/// The most calls that are fused.
pub(crate) const MOST: usize = 64;

/// The length of a signature in the eager slot, in bytes.
const SUMMARY_LEN: u64 = 16;

/// Inputs start at multiples of so many bytes.
const ALIGN: u64 = 8;

const _: () = assert!(MOST as u64 * SUMMARY_LEN < EAGER_LEN && MOST <= u8::MAX as usize);

/// Returns how many of `calls`, from the first on, are fused among `n_members`, if each of them is
/// small: the same on all members.
///
/// Two members with cores of their own hand over quickly. Calls that do not fit into a post are
/// better done one by one then. Where more members wait for each other, or they are
/// `oversubscribed`, to save a hand-over is worth it.
///
/// # Errors
/// [`Error::OutOfRange`] for a call whose input cannot be counted.
pub(crate) fn fitting(calls: &[Call<'_>], n_members: usize, oversubscribed: bool) -> Result<usize> {
    let data_limit = if n_members > 2 || oversubscribed { EAGER_LEN } else { INLINE_LEN };
    let mut end = 0;
    for (index, call) in (0..).zip(calls.iter().take(MOST)) {
        end += call.input_len(n_members)?.min(EAGER_LEN).next_multiple_of(ALIGN);
        if end > data_limit || end + (index + 1) * SUMMARY_LEN > EAGER_LEN {
            return Ok(usize::try_from(index).unwrap_or(MOST));
        }
    }
    Ok(calls.len().min(MOST))
}

/// Executes the first of `calls`, which are as many as are [`fitting`], in `choice`. Returns how
/// many: all, unless one of them reads what an earlier one writes on some member.
///
/// # Errors
/// Fails as [`super::eager::run`] does.
pub(crate) fn run(members: &mut Members, calls: &mut [Call<'_>], choice: Choice) -> Result<usize> {
    let mine: ArrayVec<CallSignature, MOST> =
        calls.iter().map(|call| call.signature().with_choice(choice)).collect();
    let len = fused_len(calls, members.n_members())?;
    let n_counting = counting(calls, members.memory());
    members.board.begin(Operation::Group)?;
    let data_at = write_summaries(members, &mine)?;
    let group = CallSignature::of_group(mine.iter().copied());
    let mut mine_inline = [0; INLINE_WORDS];
    if len <= INLINE_LEN {
        mine_inline = post_inline(members, &calls[..n_counting], group)?;
    } else {
        post_in_slot(members, &calls[..n_counting], group, data_at)?;
    }
    let mut posted = PerMember::new();
    let (is_inline, mut least) = (len <= INLINE_LEN, n_counting as u64);
    let met = members.board.await_each(Operation::Group, |post| {
        least = post.map_or(least, |post| least.min(post.n_counting()));
        if is_inline {
            let told = |post: Post<'_>| std::array::from_fn(|index| post.word(index));
            posted.push(post.map_or(mine_inline, told));
        }
    });
    met.map_err(|error| name_call(members, &mine, error))?;
    let n_done = usize::try_from(least).map_or(n_counting, |least| least.clamp(1, n_counting));
    deliver(members, &mut calls[..n_done], &posted, data_at)?;
    Ok(n_done)
}

/// Returns how many of `calls`, from the first on, read nothing on this member that an earlier one
/// writes.
fn counting(calls: &[Call<'_>], memory: MemberMemory) -> usize {
    let (mut written, mut all) = (ArrayVec::<ByteRange, MOST>::new(), ByteRange::NONE);
    for (index, call) in calls.iter().enumerate() {
        let read = call.bytes_read(memory);
        // As a rule buffers lie in the order of the calls: one comparison tells.
        if all.overlaps(read) && written.iter().any(|written| written.overlaps(read)) {
            return index;
        }
        written.push(call.bytes_written(memory));
        all = all.hull(written[index]);
    }
    calls.len()
}

/// Returns the length of all inputs together.
fn fused_len(calls: &[Call<'_>], n_members: usize) -> Result<u64> {
    calls.iter().try_fold(0, |end, call| Ok(end + call.input_len(n_members)?.next_multiple_of(ALIGN)))
}

/// Puts the signatures of this member's calls at the start of its eager slot, and returns where in
/// the eager slot data can start.
fn write_summaries(members: &Members, mine: &[CallSignature]) -> Result<u64> {
    let slot = members.eager_slot(members.me(), EAGER_LEN)?;
    let heap = members.heap_of(members.me(), slot)?;
    for (index, signature) in (0..).zip(mine) {
        heap.write(slot.offset.get() + index * SUMMARY_LEN, signature.words())?;
    }
    Ok(mine.len() as u64 * SUMMARY_LEN)
}

/// Posts the inputs of `calls` in the post itself, and returns its data.
fn post_inline(
    members: &mut Members,
    calls: &[Call<'_>],
    group: CallSignature,
) -> Result<[u64; INLINE_WORDS]> {
    let mut words = [0; INLINE_WORDS];
    let mut at = 0;
    for call in calls {
        let len = call.input_len(members.n_members())?;
        match call.input {
            Input::None => {}
            // A word costs a load and a store only.
            _ if len == WORD_LEN => words[word_at(at)] = call.input_word(members.view(), len)?,
            _ => {
                call.read_input(members.view(), 0, part_mut(bytemuck::cast_slice_mut(&mut words), at, len)?)?
            }
        }
        at += len.next_multiple_of(ALIGN);
    }
    members.board.post(group, EagerPost::of_several(calls.len() as u64, &words));
    Ok(words)
}

fn post_in_slot(members: &mut Members, calls: &[Call<'_>], group: CallSignature, data_at: u64) -> Result<()> {
    let slot = members.eager_slot(members.me(), EAGER_LEN)?;
    let mut at = data_at;
    for call in calls {
        let len = call.input_len(members.n_members())?;
        if !matches!(call.input, Input::None) {
            call.copy_input(members.view(), 0, members.heap_of(members.me(), slot)?, slot.part(at, len)?)?;
        }
        at += len.next_multiple_of(ALIGN);
    }
    members.board.post(group, EagerPost::of_several(calls.len() as u64, &[]));
    Ok(())
}

/// Makes this member's outputs from what was `posted`, or, where it was too long for that, lies in
/// the eager slot from `data_at` on.
fn deliver(
    members: &Members,
    calls: &mut [Call<'_>],
    posted: &PerMember<[u64; INLINE_WORDS]>,
    data_at: u64,
) -> Result<()> {
    let mut at = 0;
    for call in calls {
        let (start, len) = (at, call.input_len(members.n_members())?);
        at += len.next_multiple_of(ALIGN);
        match (&call.output, &call.reducer) {
            (Output::None, _) => {}
            // Nothing lies where it starts, which may be where the post ends.
            _ if len == 0 => {}
            (_, Some(reducer)) if len <= WORD_LEN && call.block_len()? == len && !posted.is_empty() => {
                let mut words = PerMember::new();
                words.extend(posted[contributors(members, call)].iter().map(|words| words[word_at(start)]));
                let result = reducer.combine_words(&words, usize::try_from(len).unwrap_or(0));
                call.write_word(members.view(), result, len)?;
            }
            _ => deliver_blocks(members, call, posted, FusedPlaces { start, slot: data_at + start })?,
        }
    }
    Ok(())
}

/// Returns the word that starts at byte `at` of a post's data.
fn word_at(at: u64) -> usize {
    usize::try_from(at / ALIGN).unwrap_or(INLINE_WORDS)
}

/// Where the input of a call is, of every member: in what it posted, or in its eager slot.
#[derive(Clone, Copy)]
struct FusedPlaces {
    start: u64,
    slot: u64,
}

/// Makes the output of one call of any kind.
fn deliver_blocks(
    members: &Members,
    call: &mut Call<'_>,
    posted: &PerMember<[u64; INLINE_WORDS]>,
    places: FusedPlaces,
) -> Result<()> {
    let (block, skipped) = (call.block_len()?, skipped(members, call)?);
    let source = |member: usize| {
        let place = match posted.get(member) {
            Some(words) => {
                SourcePlace::Slice(part(bytemuck::cast_slice(words), places.start + skipped, block)?)
            }
            None => {
                let slot = members.eager_slot(member, EAGER_LEN)?.part(places.slot + skipped, block)?;
                SourcePlace::Shared(members.heap_of(member, slot)?, slot.offset.get())
            }
        };
        Ok(Source::fresh(place))
    };
    let mut sources = PerMember::new();
    fill(&mut sources, contributors(members, call).map(source))?;
    if call.operation.reduces() {
        return call.combine(members, &[], &sources);
    }
    distribute(members, call, sources.iter().map(|source| source.place), block)
}

/// Returns what `error` says of groups that differ, said of the first of their calls that do. Where
/// one group ends before that, the groups themselves are told apart by how many calls they have.
#[cold]
fn name_call(members: &Members, mine: &[CallSignature], error: Error) -> Error {
    let Some(&CallMismatch { mine: group, rank, theirs }) = error.detail() else { return error };
    let first = match [group, theirs].map(CallSignature::calls) {
        [Some(_), Some(n_theirs)] => differing(members, mine, rank, n_theirs).ok().flatten(),
        _ => None,
    };
    let (mine, theirs) = first.unwrap_or((group, theirs));
    CallMismatch { mine, rank, theirs }.into()
}

/// Returns the first of the calls of this member that is not like that of `rank`, which has
/// `n_theirs`, and the latter.
fn differing(
    members: &Members,
    mine: &[CallSignature],
    rank: Rank,
    n_theirs: u64,
) -> Result<Option<(CallSignature, CallSignature)>> {
    let Some(member) = members.ranks().iter().position(|&member| member == rank) else { return Ok(None) };
    let slot = members.eager_slot(member, EAGER_LEN)?;
    let heap = members.heap_of(member, slot)?;
    // `rank` has written nothing of this group behind the signatures of its own calls.
    for (index, &mine) in (0..n_theirs).zip(mine) {
        let theirs = CallSignature::from_words(heap.read(slot.offset.get() + index * SUMMARY_LEN)?);
        if theirs != mine {
            return Ok(Some((mine, theirs)));
        }
    }
    Ok(None)
}
