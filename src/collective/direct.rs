//! Two shots, directly: members read and write each other's buffers where they lie.
//!
//! After all have posted where their buffers are, each member does its share of the operation in one pass, reading from all
//! inputs and writing into all outputs that its share belongs to; then all wait until all are done. Every input is read once, every output
//! written once, and nothing is staged. For an all-reduce this is the reduce-scatter by reads of the peers' buffers and the
//! all-gather by writes into them that MSCCL++ calls two-shot all-pairs, fused. Out of place, a member may write its share of the
//! results into its own output first, and copy it from its cache to the outputs of others: where these have read what they got the
//! last time, that can take half as long (`shm/reduce/store.rs`).
//!
//! Elements are combined in the order of the members' numbers, by one member for all.

use super::board::Post;
use super::call::{Call, Input, Output, shifted};
use super::operation::Operation;
use super::per_member::{PerMember, fill};
use super::scalars;
use super::team::Team;
use crate::error::Result;
use crate::heap::{HeapOffset, Region};
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::CacheHint;

/// Shares of an operation, and those of a switch channel, end at multiples of this many bytes, so that no two members write the same cache line pair.
const SHARE_ALIGN: u64 = 128;

/// A member posts this as the place of a buffer that is in no heap, less the bytes by which that begins behind a cache line, and less a
/// whole line for an input that is a part of the output.
const ELSEWHERE: u64 = u64::MAX;

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Where this member's buffers are, as it posts them.
#[inline]
pub(crate) fn places(call: &Call<'_>) -> [u64; 2] {
    let start = match &call.output {
        Output::Memory(bytes) | Output::Within(bytes, _) => bytes.as_ptr().addr() as u64,
        Output::Heap(_) | Output::None => 0,
    };
    let input = match &call.input {
        Input::Heap(offset) => offset.get(),
        Input::Memory(bytes) => elsewhere(bytes.as_ptr().addr() as u64),
        Input::InOutput(at) => elsewhere(start.wrapping_add(*at)) - LINE,
        Input::None => 0,
    };
    let output = match call.output {
        Output::Heap(offset) => offset.get(),
        Output::Memory(_) => elsewhere(start),
        Output::Within(_, at) => elsewhere(start.wrapping_add(at)),
        Output::None => 0,
    };
    [input, output]
}

/// What is posted of a buffer at `address`.
#[inline]
fn elsewhere(address: u64) -> u64 {
    ELSEWHERE - address % LINE
}

#[inline]
fn is_elsewhere(place: u64) -> bool {
    place > ELSEWHERE - 2 * LINE
}

/// Whether the input of some member, as posted, is its output or a part of that.
pub(crate) fn some_are_in_place(team: &Team) -> bool {
    (0..team.n_members()).any(|member| is_in_place(team.board.post_of(member).places()))
}

/// Whether the input at these `places`, one member's, is its output or a part of that.
pub(crate) fn is_in_place([input, output]: [u64; 2]) -> bool {
    if is_elsewhere(input) { input <= ELSEWHERE - LINE } else { input == output }
}

/// By how many bytes the buffer at `place`, as it was posted, begins behind a cache line.
pub(super) fn behind_line(place: u64) -> u64 {
    if is_elsewhere(place) { (ELSEWHERE - place) % LINE } else { place % LINE }
}

/// Whether all members' buffers, as posted, can be worked on where they lie.
pub(crate) fn applies(team: &Team, operation: Operation) -> bool {
    (0..team.n_members()).all(|member| is_in_heap(team.board.post_of(member).places(), operation))
}

/// Whether the buffers at these `places`, one member's, can be worked on where they lie.
pub(crate) fn is_in_heap([input, output]: [u64; 2], operation: Operation) -> bool {
    // Blocks that are exchanged in place would be overwritten before they are read.
    let is_exchanged = operation == Operation::AllToAll && input == output;
    !(is_elsewhere(input) || is_elsewhere(output) || is_exchanged)
}

/// Executes `call` after all members have posted and [`applies`] says yes.
///
/// # Errors
/// Those of [`super::board::Board::await_post`]; [`crate::Error::OutOfRange`] for buffers that are not allocated.
pub(crate) fn run(team: &Team, call: &Call<'_>) -> Result<()> {
    work(team, call)?;
    team.board.done();
    team.board.await_all_done(call.operation)
}

fn work(team: &Team, call: &Call<'_>) -> Result<()> {
    let block = call.block_len()?;
    let (me, n) = (team.me(), team.n_members());
    let mine = me as u64 * block;
    let gets = !matches!(call.output, Output::None);
    match call.operation {
        Operation::AllReduce => reduce_share(team, call, 0..n),
        Operation::Reduce => reduce_share(team, call, call.root..call.root + 1),
        Operation::ReduceScatter => reduce(team, call, 0..call.count, call.count, mine, me..me + 1, 0),
        Operation::Broadcast if gets => pull(team, call.root, 0, 0, block),
        Operation::AllGather => {
            each_from(me, n).try_for_each(|member| pull(team, member, 0, member as u64 * block, block))
        }
        Operation::AllToAll => {
            each_from(me, n).try_for_each(|member| pull(team, member, mine, member as u64 * block, block))
        }
        Operation::Gather => push(team, call.root, 0, mine, block),
        Operation::Scatter if gets => pull(team, call.root, mine, 0, block),
        _ => Ok(()),
    }
}

/// The members, this one first: so they do not all begin at the same one.
fn each_from(me: usize, n: usize) -> impl Iterator<Item = usize> {
    (me..n).chain(0..me)
}

fn input_of(post: Post<'_>, at: u64, len: u64) -> Region {
    Region::new(shifted(HeapOffset::new(post.places()[0]), at), len)
}

fn output_of(post: Post<'_>, at: u64, len: u64) -> Region {
    Region::new(shifted(HeapOffset::new(post.places()[1]), at), len)
}

/// Combines this member's share of the elements of all inputs into the outputs of `receivers`.
fn reduce_share(team: &Team, call: &Call<'_>, receivers: std::ops::Range<usize>) -> Result<()> {
    let size = call.data_type.size() as u64;
    let share_of = |member| share(call.count, size, member, team.n_members());
    let (bytes, most) = (share_of(team.me()), share_of(0).end / size);
    reduce(team, call, bytes.start / size..bytes.end / size, most, 0, receivers, bytes.start)
}

/// The bytes of `count` elements of `size` that are the share of `member`.
pub(crate) fn share(count: u64, size: u64, member: usize, n_members: usize) -> std::ops::Range<u64> {
    let each = count.div_ceil(n_members as u64).next_multiple_of(SHARE_ALIGN / size);
    let start = each.saturating_mul(member as u64).min(count);
    start * size..start.saturating_add(each).min(count) * size
}

/// Combines `elements` of all inputs, `input_at` bytes into them, into the outputs of `receivers`, `output_at` bytes into those. Some
/// member combines `most`.
fn reduce(
    team: &Team,
    call: &Call<'_>,
    elements: std::ops::Range<u64>,
    most: u64,
    input_at: u64,
    receivers: std::ops::Range<usize>,
    output_at: u64,
) -> Result<()> {
    let size = call.data_type.size() as u64;
    let (count, len) = (elements.end - elements.start, (elements.end - elements.start) * size);
    if count == 0 {
        return Ok(());
    }
    let source = |member| {
        let region = input_of(team.board.post_of(member), input_at + elements.start * size, len);
        let place = SourcePlace::Shared(team.heap_of(member, region)?, region.offset.get());
        Ok(Source { place, fresh: true })
    };
    let target = |member| {
        let region = output_of(team.board.post_of(member), output_at, len);
        Ok(Target::Shared(team.heap_of(member, region)?, region.offset.get()))
    };
    let (mut sources, mut targets) = (PerMember::new(), PerMember::new());
    fill(&mut sources, (0..team.n_members()).map(source))?;
    // This member's own comes first: from there it may be copied to the others.
    fill(
        &mut targets,
        each_from(team.me(), team.n_members()).filter(|to| receivers.contains(to)).map(target),
    )?;
    let mut scalars = PerMember::new();
    scalars::gather(team, call, &mut scalars, scalars::of_large);
    let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
    reducer.combine_for_all(&scalars, &sources, &mut targets, count, most)
}

/// Copies `len` bytes at `input_at` of the input of `member` to `output_at` of this member's output.
fn pull(team: &Team, member: usize, input_at: u64, output_at: u64, len: u64) -> Result<()> {
    transfer(team, (member, input_at), (team.me(), output_at), len)
}

/// Copies `len` bytes at `input_at` of this member's input to `output_at` of the output of `member`.
fn push(team: &Team, member: usize, input_at: u64, output_at: u64, len: u64) -> Result<()> {
    transfer(team, (team.me(), input_at), (member, output_at), len)
}

fn transfer(team: &Team, from: (usize, u64), to: (usize, u64), len: u64) -> Result<()> {
    let source = input_of(team.board.post_of(from.0), from.1, len);
    let target = output_of(team.board.post_of(to.0), to.1, len);
    if from.0 == to.0 && source == target {
        return Ok(());
    }
    let span = team.heap_of(from.0, source)?;
    span.copy_to(source.offset.get(), team.heap_of(to.0, target)?, target.offset.get(), len, CacheHint::Keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_of_ordinary_memory_tells_its_lines_and_is_no_offset() {
        for address in [0, 16, 63, 64, 0x7fff_ffff_f010, u64::MAX] {
            let place = elsewhere(address);
            assert!(is_elsewhere(place));
            assert_eq!(behind_line(place), address % LINE);
            let within = place - LINE;
            assert!(is_elsewhere(within) && is_in_place([within, place]) && !is_in_place([place, place]));
            assert_eq!(behind_line(within), address % LINE);
        }
        // Offsets end below the length of a heap, 1 TiB at most.
        for offset in [0, 128, 192 + 16, 1 << 40] {
            assert!(!is_elsewhere(offset));
            assert_eq!(behind_line(offset), offset % LINE);
            assert!(is_in_place([offset, offset]) && !is_in_place([offset, offset + 1]));
        }
    }
}
