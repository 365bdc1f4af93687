//! Operations on ordinary memory, piece by piece through the staging area of those who have the data; and those on buffers of the heap that are
//! quicker so ([`detour`](crate::collective::plan::measured)).
//!
//! No rank can reach another's ordinary memory. So each *stages* what others need of its input in its staging area, where they read
//! it; what it needs itself it reads where it lies. Elements are combined straight from the staging areas into the output and, for
//! those who need the result, over the very bytes that they have staged, from where they take it.
//!
//! The staging area is a ring of slots, twice as many as the *lag*. Each member takes the same steps, and tells the others of each by
//! its progress, or of the first ones by its post ([`prestaged`]):
//!
//! | step | what it has done by then |
//! |---|---|
//! | s < lag | staged piece s |
//! | s >= lag | worked on piece s - lag; taken the results of s - 2 lag, in whose slot it has staged s |
//!
//! Before it works on piece s it waits until all have taken step s: then all have staged piece s, and all have worked on piece
//! s - lag, whose results it takes now. Nobody needs that slot any more, so the next piece can be staged there. So a member may
//! be late by lag - 1 pieces and holds nobody up. Everybody waits for everybody's last step, and then the staging area is free.
//!
//! # Why results go where the input was
//! What a core has written and another one reads moves into the other's cache, and to write there again takes as long as to read
//! it, but nothing hides that: stores wait for each other, loads do not. Here each core loads a line before it stores to it:
//! whoever combines has just read what it overwrites, and who stages has just taken a result from there.
//!
//! A slot begins as far behind a cache line as the input that is staged there, which all know from its post. As a rule the output
//! begins equally far behind one: then no vector that is stored, here or there, reaches into a second line. Where nothing returns,
//! slots begin with a line: plain copies are quicker so.
//!
//! Where what all members read and write is too long for the cache, results go past it, those that are taken and those that a member
//! makes for its own output: few of them would be found there later, and a store through it would first read the line. Where it is just
//! too long, both ways of an all-reduce on ordinary memory are tried out ([`detour`](crate::collective::plan::measured)). In place lines are in the cache, and
//! results go there.

pub(crate) mod checksum;
pub(crate) mod slots;
pub(crate) mod staging;

use std::ops::Range;

use super::combine;
use crate::collective::call::{Call, Operation, Output, part_mut, shifted};
use crate::collective::plan::Prestaged;
use crate::collective::rendezvous::members::{Members, PerMember, fill};
use crate::error::{Error, Result};
use crate::faults::STAGE;
use crate::heap::{HeapPlace, Region};
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::{CacheHint, Span};
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

    /// Where it begins in the block.
    fn start(&self) -> u64 {
        self.piece.start + self.bytes.start
    }

    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

impl StagedCall {
    /// The way to execute `call`, which all members of `members` have posted; `oversubscribed` ones share cores. Whether results are `cache_hint`
    /// goes by their length if it is not said.
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
    /// Those of [`crate::collective::rendezvous::board::CallBoard::await_post`]; [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn run(&self, members: &mut Members, call: &mut Call<'_>, prestaged: Prestaged) -> Result<()> {
        let slots = self.staging.slots;
        let first = self.begin(members, call, prestaged)?;
        let n_told = if prestaged == Prestaged::All { slots.lag } else { 0 };
        for number in 0..slots.pieces + slots.lag {
            if number >= n_told {
                members.board.await_step(first.wrapping_add(number), call.operation)?;
            }
            if let Some(piece) = slots.piece(number) {
                self.work(members, call, piece)?;
            }
            self.turn_over(members, call, number)?;
            if number < slots.pieces {
                members.board.step();
            }
        }
        Ok(())
    }

    /// Takes the steps before which nothing has to be waited for; returns the first.
    fn begin(&self, members: &mut Members, call: &Call<'_>, prestaged: Prestaged) -> Result<u64> {
        let lag = self.staging.slots.lag;
        if prestaged == Prestaged::All {
            return Ok(members.board.skip_steps(lag));
        }
        let mut last = 0;
        for number in 0..lag {
            if prestaged == Prestaged::NotMe {
                self.staging.stage(members, call, number)?;
            }
            last = members.board.step();
        }
        Ok(last.wrapping_sub(lag - 1))
    }

    /// Takes the results of the piece before `number` whose slot is free then, and stages the next one there.
    fn turn_over(&self, members: &Members, call: &mut Call<'_>, number: u64) -> Result<()> {
        let slots = self.staging.slots;
        let later = number + slots.lag;
        let done = number.checked_sub(slots.lag).and_then(|number| slots.piece(number));
        match (done.filter(|_| self.staging.returns), slots.piece(later)) {
            (Some(done), Some(next)) if done.count == next.count => self.exchange(members, call, done, next),
            (Some(done), _) => {
                self.take_results(members, call, done)?;
                self.staging.stage(members, call, later)
            }
            (None, _) => self.staging.stage(members, call, later),
        }
    }

    /// Takes the results of `done` out of the slot in which it stages `next`, of which it is as long.
    fn exchange(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        done: StagedPiece,
        next: StagedPiece,
    ) -> Result<()> {
        if members.checksums {
            self.check_results(members, call, done)?;
        }
        self.staging.others_shares(members, done).into_iter().try_for_each(|bytes| {
            let part = StagedPart::new(done, 0, bytes);
            let region = self.slot(members, members.me(), &part);
            let span = members.heap_of(members.me(), region)?;
            let input_at = next.start + part.bytes.start;
            call.exchange(members.view(), part.start(), input_at, span, region, self.cache_hint)?;
            damage_staged(members, members.me(), region);
            Ok::<_, Error>(())
        })?;
        if members.checksums { self.staging.tell_shares(members, call, next) } else { Ok(()) }
    }

    /// Where `part` is in the scratch of `member`.
    fn slot(&self, members: &Members, member: usize, part: &StagedPart) -> Region {
        self.staging.slot(members, member, self.behind[member], part)
    }

    /// Uses the inputs that all have staged.
    fn work(&self, members: &Members, call: &mut Call<'_>, piece: StagedPiece) -> Result<()> {
        let (me, n) = (members.me(), members.n_members());
        match call.operation {
            Operation::AllReduce | Operation::Reduce => {
                self.reduce(members, call, &StagedPart::new(piece, 0, self.staging.share(members, me, piece)))
            }
            Operation::ReduceScatter => {
                self.reduce(members, call, &StagedPart::new(piece, me as u64, 0..piece.len))
            }
            Operation::Broadcast => self.take(members, call, piece, call.root, 0, 0),
            Operation::Scatter => self.take(members, call, piece, call.root, me, 0),
            Operation::AllToAll => {
                (0..n).try_for_each(|member| self.take(members, call, piece, member, me, member as u64))
            }
            _ => (0..n).try_for_each(|member| self.take(members, call, piece, member, 0, member as u64)),
        }
    }

    /// Copies block `block` of what `member` has staged to block `to` of this member's output, if it has one; what is its own it takes
    /// where it lies.
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
        if members.checksums && !matches!(call.output, Output::None) {
            self.check_staged(members, call, member, &part, block)?;
        }
        let source = self.slot(members, member, &part);
        let span = members.heap_of(member, source)?;
        call.output.copy(members.view(), at, span, source.offset.get(), source.len)
    }

    /// Combines `part` of all inputs, this member's own where it lies, into its output and the staging areas of those who need the
    /// result.
    fn reduce(&self, members: &Members, call: &mut Call<'_>, part: &StagedPart) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        let (me, n) = (members.me(), members.n_members());
        if members.checksums {
            let mut others = (0..n).filter(|&member| member != me);
            others.try_for_each(|member| self.check_staged(members, call, member, part, me))?;
        }
        let receivers = receivers(call.operation, call.root, n);
        self.combine(members, call, part, receivers.clone())?;
        if members.checksums {
            self.tell_result(members, call, part)?;
        }
        if members.board.context().is_faulty() {
            let others = receivers.filter(|&member| member != me);
            others.for_each(|member| damage_staged(members, member, self.slot(members, member, part)));
        }
        Ok(())
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

    /// Finds where the results of `part` go: into `output`, which comes first if there is one, and over what the other `receivers`
    /// have staged.
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

    /// The heap in which `part` of the input of `member` is staged, and where.
    fn staged<'a>(&self, members: &'a Members, member: usize, part: &StagedPart) -> Result<(&'a Span, u64)> {
        let region = self.slot(members, member, part);
        Ok((members.heap_of(member, region)?, region.offset.get()))
    }

    /// Copies the results that others have left in this member's staging area into its output, if it has one.
    fn take_results(&self, members: &Members, call: &mut Call<'_>, piece: StagedPiece) -> Result<()> {
        if members.checksums {
            self.check_results(members, call, piece)?;
        }
        self.staging.others_shares(members, piece).into_iter().try_for_each(|bytes| {
            let part = StagedPart::new(piece, 0, bytes);
            let source = self.slot(members, members.me(), &part);
            let span = members.heap_of(members.me(), source)?;
            call.take_result(members.view(), part.start(), span, source, self.cache_hint)
        })
    }
}

/// Has faults strike what this member has written to `region` of the heap of `member`.
#[inline]
fn damage_staged(members: &Members, member: usize, region: Region) {
    let context = members.board.context();
    if context.is_faulty() {
        context.damage(STAGE, HeapPlace { rank: members.ranks()[member], offset: region.offset }, region.len);
    }
}

/// The members in whose scratch the results of `operation` are left.
fn receivers(operation: Operation, root: usize, n_members: usize) -> Range<usize> {
    match operation {
        Operation::AllReduce => 0..n_members,
        Operation::Reduce => root..root + 1,
        _ => 0..0,
    }
}

/// Where the `len` bytes at `at` of this member's output go, if it has one.
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
