//! Two shots, directly: members read and write each other's buffers where they lie.
//!
//! After all have posted where their buffers are, each member does its share of the operation in
//! one pass. It reads from all inputs and writes into all outputs that its share belongs to. Then
//! all wait until all are done. Every input is read once, every output written once, and nothing is
//! staged. For an all-reduce this is the reduce-scatter by reads of the peers' buffers and the
//! all-gather by writes into them that MSCCL++ calls two-shot all-pairs, fused. Out of place, a
//! member may write its share of the results into its own output first, and copy it from its cache
//! to the outputs of others. Where these have read what they got the last time, that can take half
//! as long (`shm/reduce/store.rs`).
//!
//! Elements are combined in the order of the members' numbers, by one member for all. Prefixes are
//! combined for the last member first. So a result in place replaces an input that no other result
//! needs any more.

use std::ops::Range;

use crate::collective::call::{Call, Operation, Output, shifted};
use crate::collective::rendezvous::members::{Members, PerMember, fill};
use crate::collective::rendezvous::post::Post;
use crate::error::Result;
use crate::heap::Region;
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::CacheHint;

/// Shares of an operation, and those of a switch channel, end at multiples of this many bytes, so
/// that no two members write the same cache line pair.
const SHARE_ALIGN: u64 = 128;

/// Longer shares are done in pieces of so many bytes, with a look between two of them at whether
/// the epoch has ended: a piece takes milliseconds, and a share can take a second.
const PIECE: u64 = if cfg!(test) { 1 << 20 } else { 32 << 20 };

/// Executes `call`, whose buffers all members reach, after all have posted.
///
/// # Errors
/// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does, or with
/// [`crate::Error::OutOfRange`] for buffers that are not allocated.
pub(crate) fn run(members: &Members, call: &Call<'_>) -> Result<()> {
    work(members, call)?;
    members.board.done();
    members.board.await_all_done(call.told())
}

fn work(members: &Members, call: &Call<'_>) -> Result<()> {
    let block = call.block_len()?;
    let (me, n) = (members.me(), members.n_members());
    let (mine, sent_to_me) = (me as u64 * block, call.operation.block_for(me) as u64 * block);
    let gets = !matches!(call.output, Output::None);
    match call.operation {
        operation if operation.is_prefix() => reduce_prefixes(members, call),
        operation if operation.combines_a_block() => {
            reduce_share(members, call, operation.receivers(call.root, n))
        }
        Operation::ReduceScatter => {
            let (elements, receivers) = (0..call.count, me..me + 1);
            Reduction { elements, most: call.count, input_at: mine, receivers, output_at: 0 }
                .run(members, call)
        }
        // Each gives its own: the root alone would copy everything.
        Operation::Gather => transfer(members, call, at(me, 0), at(call.root, mine), block),
        operation if gets => {
            let sources = operation.sources(me, call.root, n);
            each_from(me, n).filter(|member| sources.contains(member)).try_for_each(|member| {
                let target = at(me, operation.block_from(member) as u64 * block);
                transfer(members, call, at(member, sent_to_me), target, block)
            })
        }
        _ => Ok(()),
    }
}

/// A member, and how many bytes into its buffer something begins.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BufferPosition {
    member: usize,
    at: u64,
}

const fn at(member: usize, at: u64) -> BufferPosition {
    BufferPosition { member, at }
}

/// Does `step` for each piece of `len` bytes, given by where it begins and its length, as long as
/// the epoch lasts.
fn in_pieces(
    members: &Members,
    call: &Call<'_>,
    len: u64,
    mut step: impl FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    while len - at > PIECE {
        step(at, PIECE)?;
        at += PIECE;
        members.board.context().check(call.told().name())?;
    }
    step(at, len - at)
}

/// Returns the members, this one first: so they do not all begin at the same one.
fn each_from(me: usize, n: usize) -> impl Iterator<Item = usize> {
    (me..n).chain(0..me)
}

fn input_of(post: Post<'_>, at: u64, len: u64) -> Region {
    Region::new(shifted(post.input(), at), len)
}

fn output_of(post: Post<'_>, at: u64, len: u64) -> Region {
    Region::new(shifted(post.output(), at), len)
}

/// Returns `len` bytes of the input of `member`, from `at` on.
fn source_of(members: &Members, member: usize, at: u64, len: u64) -> Result<Source<'_>> {
    let region = input_of(members.board.post_of(member), at, len);
    Ok(Source::fresh(SourcePlace::Shared(members.heap_of(member, region)?, region.offset.get())))
}

/// Returns `len` bytes of the output of `member`, from `at` on.
fn target_of(members: &Members, member: usize, at: u64, len: u64) -> Result<Target<'_>> {
    let region = output_of(members.board.post_of(member), at, len);
    Ok(Target::Shared(members.heap_of(member, region)?, region.offset.get()))
}

/// Combines this member's share of the elements of all inputs into the outputs of `receivers`.
fn reduce_share(members: &Members, call: &Call<'_>, receivers: Range<usize>) -> Result<()> {
    let size = call.data_type.size() as u64;
    let share_of = |member| share(call.count, size, member, members.n_members());
    let (bytes, most) = (share_of(members.me()), share_of(0).end / size);
    let elements = bytes.start / size..bytes.end / size;
    Reduction { elements, most, input_at: 0, receivers, output_at: bytes.start }.run(members, call)
}

/// Prefixes are combined so many bytes at a time. Up to 64 members the inputs and results fit into
/// a second-level cache, where inputs stay until the last result is made of them.
const PREFIX_PIECE: u64 = 16 << 10;

/// Combines this member's share of the inputs up to each member into the output of that.
fn reduce_prefixes(members: &Members, call: &Call<'_>) -> Result<()> {
    let bytes = share(call.count, call.data_type.size() as u64, members.me(), members.n_members());
    let mut scalars = PerMember::new();
    members.gather_scalars(call, &mut scalars, |post| post.scalar());
    in_pieces(members, call, bytes.end - bytes.start, |at, len| {
        let (mut at, end) = (bytes.start + at, bytes.start + at + len);
        while at < end {
            let len = PREFIX_PIECE.min(end - at);
            combine_prefixes(members, call, &scalars, at, len)?;
            at += len;
        }
        Ok(())
    })
}

/// Combines `len` bytes from `at` on: from the last member's on, since in place a result replaces
/// an input that members before it have no part of.
fn combine_prefixes(members: &Members, call: &Call<'_>, scalars: &[u64], at: u64, len: u64) -> Result<()> {
    let n = members.n_members();
    let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
    for receiver in call.operation.receivers(call.root, n).rev() {
        let contributors = call.operation.sources(receiver, call.root, n);
        let (n_combined, mut sources) = (contributors.len(), PerMember::new());
        let scalars = scalars.get(contributors.clone()).unwrap_or_default();
        fill(&mut sources, contributors.map(|member| source_of(members, member, at, len)))?;
        let target = target_of(members, receiver, at, len)?;
        let count = len / call.data_type.size() as u64;
        reducer.among(n_combined).combine_scaled(scalars, &sources, &mut [target], count)?;
    }
    Ok(())
}

/// Returns the bytes of `count` elements of `size` that are the share of `member`.
pub(crate) fn share(count: u64, size: u64, member: usize, n_members: usize) -> Range<u64> {
    let each = count.div_ceil(n_members as u64).next_multiple_of(SHARE_ALIGN / size);
    let start = each.saturating_mul(member as u64).min(count);
    start * size..start.saturating_add(each).min(count) * size
}

/// Elements of all inputs that this member combines into the outputs of some.
struct Reduction {
    elements: Range<u64>,
    /// Some member combines so many.
    most: u64,
    /// How many bytes into the inputs the elements are counted from.
    input_at: u64,
    receivers: Range<usize>,
    /// How many bytes into the outputs they go.
    output_at: u64,
}

impl Reduction {
    fn run(self, members: &Members, call: &Call<'_>) -> Result<()> {
        let size = call.data_type.size() as u64;
        let Self { elements, receivers, .. } = &self;
        in_pieces(members, call, (elements.end - elements.start) * size, |at, len| {
            let start = elements.start + at / size;
            let (elements, receivers) = (start..start + len / size, receivers.clone());
            let output_at = self.output_at + at;
            Self { elements, receivers, output_at, ..self }.run_piece(members, call)
        })
    }

    fn run_piece(&self, members: &Members, call: &Call<'_>) -> Result<()> {
        let size = call.data_type.size() as u64;
        let count = self.elements.end - self.elements.start;
        if count == 0 {
            return Ok(());
        }
        let (input_at, len) = (self.input_at + self.elements.start * size, count * size);
        let source = |member| source_of(members, member, input_at, len);
        let target = |member| target_of(members, member, self.output_at, len);
        let (mut sources, mut targets) = (PerMember::new(), PerMember::new());
        fill(&mut sources, (0..members.n_members()).map(source))?;
        // This member's own comes first: from there it may be copied to the others.
        let receivers = each_from(members.me(), members.n_members()).filter(|to| self.receivers.contains(to));
        fill(&mut targets, receivers.map(target))?;
        let mut scalars = PerMember::new();
        members.gather_scalars(call, &mut scalars, |post| post.scalar());
        let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
        reducer.combine_for_all(&scalars, &sources, &mut targets, count, self.most)
    }
}

/// Copies `len` bytes of the input of one member to the output of another one.
fn transfer(
    members: &Members,
    call: &Call<'_>,
    from: BufferPosition,
    to: BufferPosition,
    len: u64,
) -> Result<()> {
    let source = input_of(members.board.post_of(from.member), from.at, len);
    let target = output_of(members.board.post_of(to.member), to.at, len);
    let is_own = from.member == to.member;
    if is_own && source == target {
        return Ok(());
    }
    let (span, to_span) = (members.heap_of(from.member, source)?, members.heap_of(to.member, target)?);
    let copy = |at, len| {
        let (from, to) = (source.offset.get() + at, target.offset.get() + at);
        span.copy_to(from, to_span, to, len, CacheHint::Keep)
    };
    // Pieces of what overlaps would not be copied as a whole is.
    if is_own && source.overlaps(target) { copy(0, len) } else { in_pieces(members, call, len, copy) }
}

#[cfg(test)]
mod tests {
    use super::PIECE;
    use crate::bootstrap::Options;
    use crate::error::Error;
    use crate::reduce::{CustomOp, ReduceOp};
    use crate::{Collectives, Communicator};

    #[test]
    fn a_member_of_an_epoch_that_ends_does_no_more_than_its_piece() {
        const N_PIECES: u64 = 4;
        let options = Options { heap_len: 64 << 20, ..Options::default() };
        let part = |mut comm: Communicator| {
            let len = 2 * N_PIECES * PIECE / 8;
            let [input, output] = [1, 0].map(|value| {
                let buffer = comm.alloc::<u64>(len.try_into().unwrap()).unwrap();
                buffer.fill(value);
                buffer
            });
            let aborter = comm.aborter();
            let ending = CustomOp::new("ending sum", move |sums: &mut [u64], others: &[u64]| {
                aborter.revoke();
                sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
            });
            let error = comm.all_reduce(&input, &output, &ReduceOp::Custom(ending)).unwrap_err();
            assert!(matches!(error.origin(), Error::Revoked { .. }), "{error}");
            output.to_vec().into_iter().filter(|sum| *sum == 2).count() as u64
        };
        let comms = Communicator::init_all_with(2, &options).unwrap();
        let threads = comms.into_iter().map(|comm| std::thread::spawn(move || part(comm)));
        let threads: Vec<_> = threads.collect();
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(done.iter().all(|done| *done <= 2 * PIECE / 8), "{done:?}");
        assert!(done.iter().any(|done| *done > 0), "whoever has ended it has done its piece");
    }
}
