//! Operations on ordinary memory, piece by piece through the scratch of those who have the data.
//!
//! No rank can reach another's ordinary memory. So each copies what others need of its input into its scratch, where they
//! read it; what it needs itself it reads where it lies. Elements are combined straight from the scratches into the output.
//! A piece goes through these steps, of which each member tells the others by its progress:
//!
//! | step | what | others may then |
//! |---|---|---|
//! | staged | the input that others need is in the scratch | read it |
//! | worked | the others' has been used; this member's share of a reduction is in the scratch | overwrite theirs; read the result |
//!
//! There is room for two pieces, and the next is staged before the current one is waited for: so a member that is a little
//! late holds nobody up. Everybody waits for everybody's last step (one more, where results are read), and then the scratch
//! is free again.
//!
//! Why two slots suffice: the input of piece k is overwritten by that of k + 2, which is staged when all have worked on k. The
//! result of piece k is overwritten by that of k + 2, which is worked on when all have staged k + 2, and before a member does
//! that it has copied all results of piece k.

use arrayvec::ArrayVec;

use super::call::{Call, Input, Output, part, part_mut, shifted};
use super::direct::share;
use super::operation::Operation;
use super::region::SCRATCH_LEN;
use super::team::Team;
use crate::error::Result;
use crate::heap::Region;
use crate::rank::MAX_RANKS;
use crate::reduce::{Source, SourcePlace, Target};

/// What the blocks of a piece take in the scratch, in bytes.
///
/// Much more than stays in the core's own cache: what another core reads comes quicker out of the cache that they share.
const PIECE_LEN: u64 = 512 << 10;

const _: () = assert!(2 * PIECE_LEN <= SCRATCH_LEN);

/// Blocks of a piece begin at multiples of so many bytes.
const ALIGN: u64 = 128;

/// How a call is cut: the same on all members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    /// Elements of each block in all pieces but the last.
    elements: u64,
    pieces: u64,
    /// Bytes of an element.
    size: u64,
    /// Whether results go through the scratch, too.
    returns: bool,
}

/// A part of every block of a call.
#[derive(Clone, Copy, Debug)]
struct Piece {
    number: u64,
    /// Where it begins in each block, in bytes.
    start: u64,
    count: u64,
    /// Of each block, in bytes.
    len: u64,
}

impl Pipeline {
    /// The way to execute `call` among `n_members`.
    pub(crate) fn new(call: &Call<'_>, n_members: usize) -> Self {
        let size = call.data_type.size() as u64;
        let returns = matches!(call.operation, Operation::AllReduce | Operation::Reduce);
        let blocks = call.operation.blocks(n_members as u64).0 + u64::from(returns);
        // There are at most 64 members and so 64 blocks: more than ALIGN each.
        let elements = PIECE_LEN / blocks / ALIGN * ALIGN / size;
        // No elements are one piece of none.
        Self { elements, pieces: call.count.div_ceil(elements).max(1), size, returns }
    }

    /// Executes `call` after all members have posted.
    ///
    /// # Errors
    /// Those of [`super::board::Board::await_post`]; [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn run(&self, team: &mut Team, call: &mut Call<'_>) -> Result<()> {
        self.stage(team, call, 0)?;
        let first = team.board.step();
        let operation = call.operation;
        let until = |team: &mut Team, step| team.board.await_step(first.wrapping_add(step), operation);
        for number in 0..self.pieces {
            if number + 1 < self.pieces {
                if number > 0 {
                    until(team, self.worked(number - 1))?;
                }
                self.stage(team, call, number + 1)?;
                team.board.step();
            }
            until(team, self.staged(number))?;
            self.work(team, call, self.piece(call, number))?;
            team.board.step();
            if self.returns {
                until(team, self.worked(number))?;
                self.take_results(team, call, self.piece(call, number))?;
            }
        }
        // Whatever comes next may put something else into the scratch.
        let last =
            if self.returns { team.board.step().wrapping_sub(first) } else { self.worked(self.pieces - 1) };
        until(team, last)
    }

    /// The step, counted from the first, with which piece `number` is staged.
    const fn staged(&self, number: u64) -> u64 {
        if number == 0 { 0 } else { 2 * number - 1 }
    }

    /// The step with which it has been worked on: after the next has been staged, if there is one.
    const fn worked(&self, number: u64) -> u64 {
        if number + 1 < self.pieces { 2 * number + 2 } else { 2 * number + 1 }
    }

    fn piece(&self, call: &Call<'_>, number: u64) -> Piece {
        let first = number * self.elements;
        let count = self.elements.min(call.count - first);
        Piece { number, start: first * self.size, count, len: count * self.size }
    }

    /// Where block `block` of `piece` is in the scratch of `member`.
    fn input(&self, team: &Team, member: usize, piece: Piece, block: u64) -> Region {
        let at = piece.number % 2 * PIECE_LEN + block * self.elements * self.size;
        Region::new(shifted(team.scratch(member).offset, at), piece.len)
    }

    /// Where the result of `len` bytes at `at` of `piece` is, which `member` has made.
    fn result(&self, team: &Team, member: usize, piece: Piece, at: u64, len: u64) -> Region {
        let slot = self.input(team, member, piece, 1);
        Region::new(shifted(slot.offset, at), len)
    }

    /// Copies what others need of a piece of this member's input into its scratch.
    fn stage(&self, team: &Team, call: &Call<'_>, number: u64) -> Result<()> {
        let (piece, me) = (self.piece(call, number), team.me());
        if matches!(call.input, Input::None) {
            return Ok(());
        }
        if self.returns {
            let mine = share(piece.count, self.size, me, team.n_members());
            self.stage_part(team, call, piece, 0, 0..mine.start)?;
            return self.stage_part(team, call, piece, 0, mine.end..piece.len);
        }
        let blocks = call.operation.blocks(team.n_members() as u64).0;
        let own = (call.operation == Operation::ReduceScatter).then_some(me as u64);
        (0..blocks)
            .filter(|&block| Some(block) != own)
            .try_for_each(|block| self.stage_part(team, call, piece, block, 0..piece.len))
    }

    fn stage_part(
        &self,
        team: &Team,
        call: &Call<'_>,
        piece: Piece,
        block: u64,
        bytes: std::ops::Range<u64>,
    ) -> Result<()> {
        let target = self.input(team, team.me(), piece, block).part(bytes.start, bytes.end - bytes.start)?;
        let at = block * call.block_len()? + piece.start + bytes.start;
        call.copy_input(team.view(), at, team.heap_of(team.me(), target)?, target)
    }

    /// Uses the inputs that all have staged.
    fn work(&self, team: &Team, call: &mut Call<'_>, piece: Piece) -> Result<()> {
        let (me, n) = (team.me(), team.n_members());
        match call.operation {
            Operation::AllReduce | Operation::Reduce => {
                self.reduce(team, call, piece, share(piece.count, self.size, me, n))
            }
            Operation::ReduceScatter => self.reduce(team, call, piece, 0..piece.len),
            Operation::Broadcast => self.take(team, call, piece, call.root, 0, 0),
            Operation::Scatter => self.take(team, call, piece, call.root, me as u64, 0),
            Operation::AllToAll => {
                (0..n).try_for_each(|member| self.take(team, call, piece, member, me as u64, member as u64))
            }
            _ => (0..n).try_for_each(|member| self.take(team, call, piece, member, 0, member as u64)),
        }
    }

    /// Copies block `block` of what `member` has staged to block `to` of this member's output, if it has one.
    fn take(
        &self,
        team: &Team,
        call: &mut Call<'_>,
        piece: Piece,
        member: usize,
        block: u64,
        to: u64,
    ) -> Result<()> {
        let source = self.input(team, member, piece, block);
        let at = to * call.block_len()? + piece.start;
        let span = team.heap_of(member, source)?;
        call.copy_output(team.view(), at, span, source.offset.get(), source.len)
    }

    /// Combines `bytes` of all inputs of a piece, this member's own where it lies, into its output and, if others need the
    /// result, into the scratch.
    fn reduce(
        &self,
        team: &Team,
        call: &mut Call<'_>,
        piece: Piece,
        bytes: std::ops::Range<u64>,
    ) -> Result<()> {
        let len = bytes.end - bytes.start;
        if len == 0 {
            return Ok(());
        }
        let (me, block) = (team.me(), if self.returns { 0 } else { team.me() as u64 });
        let at = piece.start + bytes.start;
        let own_at = block * call.block_len()? + at;
        let mut targets: ArrayVec<Target<'_>, 2> =
            output_at(team, &mut call.output, at, len)?.into_iter().collect();
        if self.returns {
            let region = self.result(team, me, piece, bytes.start, len);
            targets.push(Target::Shared(team.heap_of(me, region)?, region.offset.get()));
        }
        let source = |member| {
            if member == me {
                return input_at(team, &call.input, own_at, len).map(Source::fresh);
            }
            let region = self.input(team, member, piece, block).part(bytes.start, len)?;
            Ok(Source::fresh(SourcePlace::Shared(team.heap_of(member, region)?, region.offset.get())))
        };
        let sources: ArrayVec<_, { MAX_RANKS as usize }> =
            (0..team.n_members()).map(source).collect::<Result<_>>()?;
        let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
        reducer.combine(&sources, &mut targets, len / self.size, true)
    }

    /// Copies the shares of a result that others have made into this member's output, if it has one.
    fn take_results(&self, team: &Team, call: &mut Call<'_>, piece: Piece) -> Result<()> {
        let (me, n) = (team.me(), team.n_members());
        (0..n).filter(|&member| member != me).try_for_each(|member| {
            let bytes = share(piece.count, self.size, member, n);
            let source = self.result(team, member, piece, bytes.start, bytes.end - bytes.start);
            let span = team.heap_of(member, source)?;
            call.copy_output(team.view(), piece.start + bytes.start, span, source.offset.get(), source.len)
        })
    }
}

/// Where the `len` bytes at `at` of this member's input are.
fn input_at<'a>(team: &'a Team, input: &Input<'a>, at: u64, len: u64) -> Result<SourcePlace<'a>> {
    let view = team.view();
    match input {
        Input::Heap(offset) => {
            let region = Region::new(shifted(*offset, at), len);
            Ok(SourcePlace::Shared(view.reach(view.rank(), region)?, region.offset.get()))
        }
        Input::Memory(memory) => Ok(SourcePlace::Slice(part(memory, at, len)?)),
        // In place: the output is the first of the targets.
        Input::InOutput(_) => Ok(SourcePlace::Target(0)),
        Input::None => Ok(SourcePlace::Slice(&[])),
    }
}

/// Where the `len` bytes at `at` of this member's output go, if it has one.
fn output_at<'a>(
    team: &'a Team,
    output: &'a mut Output<'_>,
    at: u64,
    len: u64,
) -> Result<Option<Target<'a>>> {
    let view = team.view();
    Ok(match output {
        Output::Heap(offset) => {
            let region = Region::new(shifted(*offset, at), len);
            Some(Target::Shared(view.reach(view.rank(), region)?, region.offset.get()))
        }
        Output::Memory(memory) => Some(Target::Slice(part_mut(memory, at, len)?)),
        Output::None => None,
    })
}
