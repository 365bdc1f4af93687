//! Operations on ordinary memory, piece by piece through the staging areas of those who have the
//! data; and operations on buffers of the heap that are [quicker so](crate::collective::plan).
//!
//! No rank can reach another's ordinary memory. So each *stages* what others need of its input in
//! its staging area, where they read it. What it needs itself it reads where it lies. Elements are
//! combined straight from the staging areas into the output. For members that need the result, they
//! are combined over the very bytes that these have staged, too, and taken from there.
//!
//! The staging area is a ring of slots, twice as many as the *lag*. All members take the same
//! steps. Each tells the others of a step by its progress, or of the first ones by its post:
//!
//! | step | what a member has done by then |
//! |---|---|
//! | s < lag | staged piece s |
//! | s >= lag | worked on piece s - lag; taken the results of s - 2 lag, staged s in their slot |
//!
//! Before it works on piece s, a member waits until all have taken step s. Then all have staged
//! piece s, and all have worked on piece s - lag, whose results it takes now. Nobody needs that
//! slot any more, so the next piece can be staged there. A member may be late by lag - 1 pieces and
//! holds nobody up. All wait for everybody's last step, and then the staging area is free.
//!
//! # Why results go where the input was
//! A line that one core has written and another one reads moves into the other's cache. To write
//! there again takes as long as to read it, and nothing hides that: stores wait for each other,
//! loads do not. Here each core loads a line before it stores to it. It has just read what it
//! overwrites with a result, or has just taken a result from where it stages.
//!
//! A slot begins as far behind a cache line as the input that is staged there, which all members
//! know from its post. As a rule the output begins equally far behind one. Then no vector that is
//! stored, here or there, reaches into a second line. Where nothing returns, slots begin with a
//! line, since plain copies are quicker so.
//!
//! # Results and the cache
//! Where all that members read and write is too long for the cache, results bypass it. Few of them
//! would be found there later, and a store through the cache would first read the line. In place,
//! lines are in the cache, and results go there. The planner decides, and hands down a `CacheHint`.

pub(crate) mod checked;
pub(crate) mod slots;
pub(crate) mod staging;

use std::ops::Range;

use super::combine;
use crate::collective::call::{Call, Operation, Output, part_mut, shifted};
use crate::collective::plan::Prestaged;
use crate::collective::rendezvous::members::{Members, PerMember, fill};
use crate::error::Result;
use crate::heap::Region;
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::{CacheHint, Span};
use checked::Checked;
use slots::StagedPiece;
use staging::Staging;
pub(crate) use staging::prestage;

/// How a call is executed: the same on all members.
#[derive(Clone, Debug)]
pub(crate) struct StagedCall {
    staging: Staging,
    /// By how many bytes the slots of each member begin behind a line.
    behind: PerMember<u64>,
    /// What the input of each member is multiplied by, if it is.
    scalars: PerMember<u64>,
    /// Whether results are read before they would be driven out of the cache again.
    cache_hint: CacheHint,
}

/// Some bytes of one block of a piece.
#[derive(Clone, Debug)]
struct StagedPart {
    piece: StagedPiece,
    block: u64,
    bytes: Range<u64>,
}

impl StagedPart {
    fn new(piece: StagedPiece, block: u64, bytes: Range<u64>) -> Self {
        Self { piece, block, bytes }
    }

    /// Returns where it begins in the block.
    fn start(&self) -> u64 {
        self.piece.start + self.bytes.start
    }

    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// Moves bytes between buffers and the staging areas of members, from one step to the next.
trait MovePieces {
    /// Copies what others need of piece `number` of this member's input, if there is that piece,
    /// into its staging area.
    fn stage(&self, members: &Members, call: &Call<'_>, number: u64) -> Result<()>;

    /// Copies block `block` of what `member` has staged to block `to` of this member's output, if
    /// it has one. A member takes its own where that lies.
    fn take(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        piece: StagedPiece,
        member: usize,
        block: usize,
        to: u64,
    ) -> Result<()>;

    /// Combines `part` of all inputs, this member's own where it lies, into its output and the
    /// staging areas of the members that get the result.
    fn reduce(&self, members: &Members, call: &mut Call<'_>, part: &StagedPart) -> Result<()>;

    /// Copies the results that others have left in this member's staging area into its output, if
    /// it has one.
    fn take_results(&self, members: &Members, call: &mut Call<'_>, piece: StagedPiece) -> Result<()>;

    /// Takes the results of `done` out of the slot in which it stages `next`, of which it is as
    /// long.
    fn exchange(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        done: StagedPiece,
        next: StagedPiece,
    ) -> Result<()>;
}

impl StagedCall {
    /// Makes the way to execute `call`, which all members of `members` have posted;
    /// `oversubscribed` ones share cores. Results are stored by `cache_hint`.
    pub(crate) fn new(
        call: &Call<'_>,
        members: &Members,
        oversubscribed: bool,
        cache_hint: CacheHint,
    ) -> Self {
        let staging = Staging::new(call, members, oversubscribed);
        let behind_of = |member| staging.behind(members.board.post_of(member).large().buffers());
        let behind = (0..members.n_members()).map(behind_of).collect();
        let mut scalars = PerMember::new();
        combine::gather_scalars(members, call, &mut scalars, |post| post.large().scalar());
        Self { staging, behind, scalars, cache_hint }
    }

    /// Executes `call` after all members have posted, and some have staged `prestaged`.
    ///
    /// # Errors
    /// Those of [`crate::collective::rendezvous::board::CallBoard::await_post`];
    /// [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn run(&self, members: &mut Members, call: &mut Call<'_>, prestaged: Prestaged) -> Result<()> {
        if members.is_watched() {
            self.take_steps(&Checked::new(self), members, call, prestaged)
        } else {
            self.take_steps(self, members, call, prestaged)
        }
    }

    /// Takes all steps of `call`, in which `moves` moves the bytes.
    fn take_steps(
        &self,
        moves: &impl MovePieces,
        members: &mut Members,
        call: &mut Call<'_>,
        prestaged: Prestaged,
    ) -> Result<()> {
        let slots = self.staging.slots;
        let first = self.begin(moves, members, call, prestaged)?;
        let n_told = if prestaged == Prestaged::All { slots.lag } else { 0 };
        for number in 0..slots.pieces + slots.lag {
            if number >= n_told {
                members.board.await_step(first.wrapping_add(number), call.operation)?;
            }
            if let Some(piece) = slots.piece(number) {
                self.work(moves, members, call, piece)?;
            }
            self.turn_over(moves, members, call, number)?;
            if number < slots.pieces {
                members.board.step();
            }
        }
        Ok(())
    }

    /// Takes the steps before which nothing has to be waited for; returns the first.
    fn begin(
        &self,
        moves: &impl MovePieces,
        members: &mut Members,
        call: &Call<'_>,
        prestaged: Prestaged,
    ) -> Result<u64> {
        let lag = self.staging.slots.lag;
        if prestaged == Prestaged::All {
            return Ok(members.board.skip_steps(lag));
        }
        let mut last = 0;
        for number in 0..lag {
            if prestaged == Prestaged::NotMe {
                moves.stage(members, call, number)?;
            }
            last = members.board.step();
        }
        Ok(last.wrapping_sub(lag - 1))
    }

    /// Takes the results of the piece before `number` whose slot is free then, and stages the next
    /// one there.
    fn turn_over(
        &self,
        moves: &impl MovePieces,
        members: &Members,
        call: &mut Call<'_>,
        number: u64,
    ) -> Result<()> {
        let slots = self.staging.slots;
        let later = number + slots.lag;
        let done = number.checked_sub(slots.lag).and_then(|number| slots.piece(number));
        match (done.filter(|_| self.staging.returns), slots.piece(later)) {
            (Some(done), Some(next)) if done.count == next.count => moves.exchange(members, call, done, next),
            (Some(done), _) => {
                moves.take_results(members, call, done)?;
                moves.stage(members, call, later)
            }
            (None, _) => moves.stage(members, call, later),
        }
    }

    /// Uses the inputs that all have staged.
    fn work(
        &self,
        moves: &impl MovePieces,
        members: &Members,
        call: &mut Call<'_>,
        piece: StagedPiece,
    ) -> Result<()> {
        let (me, n) = (members.me(), members.n_members());
        match call.operation {
            Operation::AllReduce | Operation::Reduce => moves.reduce(
                members,
                call,
                &StagedPart::new(piece, 0, self.staging.share(members, me, piece)),
            ),
            Operation::ReduceScatter => {
                moves.reduce(members, call, &StagedPart::new(piece, me as u64, 0..piece.len))
            }
            Operation::Broadcast => moves.take(members, call, piece, call.root, 0, 0),
            Operation::Scatter => moves.take(members, call, piece, call.root, me, 0),
            Operation::AllToAll => {
                (0..n).try_for_each(|member| moves.take(members, call, piece, member, me, member as u64))
            }
            _ => (0..n).try_for_each(|member| moves.take(members, call, piece, member, 0, member as u64)),
        }
    }

    /// Returns where `part` is in the staging area of `member`.
    fn slot(&self, members: &Members, member: usize, part: &StagedPart) -> Region {
        self.staging.slot(members, member, self.behind[member], part)
    }

    /// Combines `part` of all inputs into the output and the staging areas of `receivers`.
    fn combine(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        part: &StagedPart,
        receivers: Range<usize>,
    ) -> Result<()> {
        let (mut sources, mut targets) = (PerMember::new(), PerMember::new());
        self.sources(members, call, part, &mut sources)?;
        self.targets(members, &mut call.output, receivers, part, &mut targets)?;
        let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
        let count = part.len() / self.staging.size;
        if self.cache_hint == CacheHint::Bypass && targets.len() > 1 {
            return reducer.combine_keeping_others(&self.scalars, &sources, &mut targets, count);
        }
        reducer.combine_scaled(&self.scalars, &sources, &mut targets, count)
    }

    /// Finds where `part` of each member's input is.
    #[inline]
    fn sources<'a>(
        &self,
        members: &'a Members,
        call: &Call<'a>,
        part: &StagedPart,
        sources: &mut PerMember<Source<'a>>,
    ) -> Result<()> {
        let input_at = part.block * call.block_len()? + part.start();
        let source = |member| {
            if member == members.me() {
                return call.input.place(members.view(), input_at, part.len()).map(Source::fresh);
            }
            let (span, offset) = self.staged(members, member, part)?;
            Ok(Source::fresh(SourcePlace::Shared(span, offset)))
        };
        fill(sources, (0..members.n_members()).map(source))
    }

    /// Finds where the results of `part` go: into `output`, which comes first if there is one, and
    /// over what the other `receivers` have staged.
    #[inline]
    fn targets<'a>(
        &self,
        members: &'a Members,
        output: &'a mut Output<'_>,
        receivers: Range<usize>,
        part: &StagedPart,
        targets: &mut PerMember<Target<'a>>,
    ) -> Result<()> {
        targets.extend(own_output(members, output, part.start(), part.len())?);
        let others = receivers.filter(|&member| member != members.me());
        let staged = |member| {
            let (span, offset) = self.staged(members, member, part)?;
            Ok(Target::Shared(span, offset))
        };
        fill(targets, others.map(staged))
    }

    /// Returns the heap in which `part` of the input of `member` is staged, and where.
    fn staged<'a>(&self, members: &'a Members, member: usize, part: &StagedPart) -> Result<(&'a Span, u64)> {
        let region = self.slot(members, member, part);
        Ok((members.heap_of(member, region)?, region.offset.get()))
    }
}

impl MovePieces for StagedCall {
    fn stage(&self, members: &Members, call: &Call<'_>, number: u64) -> Result<()> {
        self.staging.stage(members, call, number)
    }

    fn take(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        piece: StagedPiece,
        member: usize,
        block: usize,
        to: u64,
    ) -> Result<()> {
        let part = StagedPart::new(piece, block as u64, 0..piece.len);
        let at = to * call.block_len()? + piece.start;
        if member == members.me() {
            let input_at = part.block * call.block_len()? + piece.start;
            return call.keep(members.view(), input_at, at, piece.len);
        }
        let (span, offset) = self.staged(members, member, &part)?;
        call.output.copy(members.view(), at, span, offset, part.len())
    }

    fn reduce(&self, members: &Members, call: &mut Call<'_>, part: &StagedPart) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        let receivers = receivers(call.operation, call.root, members.n_members());
        self.combine(members, call, part, receivers)
    }

    fn take_results(&self, members: &Members, call: &mut Call<'_>, piece: StagedPiece) -> Result<()> {
        self.staging.others_shares(members, piece).into_iter().try_for_each(|bytes| {
            let part = StagedPart::new(piece, 0, bytes);
            let source = self.slot(members, members.me(), &part);
            let span = members.heap_of(members.me(), source)?;
            call.take_result(members.view(), part.start(), span, source, self.cache_hint)
        })
    }

    fn exchange(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        done: StagedPiece,
        next: StagedPiece,
    ) -> Result<()> {
        self.staging.others_shares(members, done).into_iter().try_for_each(|bytes| {
            let part = StagedPart::new(done, 0, bytes);
            let region = self.slot(members, members.me(), &part);
            let span = members.heap_of(members.me(), region)?;
            let input_at = next.start + part.bytes.start;
            call.exchange(members.view(), part.start(), input_at, span, region, self.cache_hint)
        })
    }
}

/// Returns the members in whose staging area the results of `operation` are left.
fn receivers(operation: Operation, root: usize, n_members: usize) -> Range<usize> {
    match operation {
        Operation::AllReduce => 0..n_members,
        Operation::Reduce => root..root + 1,
        _ => 0..0,
    }
}

/// Returns where the `len` bytes at `at` of this member's output go, if it has one.
fn own_output<'a>(
    members: &'a Members,
    output: &'a mut Output<'_>,
    at: u64,
    len: u64,
) -> Result<Option<Target<'a>>> {
    let view = members.view();
    Ok(match output {
        Output::Heap(offset) => {
            let region = Region::new(shifted(*offset, at), len);
            Some(Target::Shared(view.reach(view.rank(), region)?, region.offset.get()))
        }
        Output::Memory(memory) => Some(Target::Slice(part_mut(memory, at, len)?)),
        Output::Within(memory, start) => {
            Some(Target::Slice(part_mut(memory, start.saturating_add(at), len)?))
        }
        Output::None => None,
    })
}
