//! Operations on ordinary memory, piece by piece through the scratch of those who have the data; and those on buffers of the heap that are
//! quicker so ([`detour`](super::detour)).
//!
//! No rank can reach another's ordinary memory. So each *stages* what others need of its input in its scratch, where they read
//! it; what it needs itself it reads where it lies. Elements are combined straight from the scratches into the output and, for
//! those who need the result, over the very bytes that they have staged, from where they take it.
//!
//! The scratch is a ring of slots, twice as many as the *lag*. Each member takes the same steps, and tells the others of each by
//! its progress, or of the first ones by its post ([`ahead`]):
//!
//! | step | what it has done by then |
//! |---|---|
//! | s < lag | staged piece s |
//! | s >= lag | worked on piece s - lag; taken the results of s - 2 lag, in whose slot it has staged s |
//!
//! Before it works on piece s it waits until all have taken step s: then all have staged piece s, and all have worked on piece
//! s - lag, whose results it takes now. Nobody needs that slot any more, so the next piece can be staged there. So a member may
//! be late by lag - 1 pieces and holds nobody up. Everybody waits for everybody's last step, and then the scratch is free.
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
//! too long, both ways of an all-reduce on ordinary memory are tried out ([`detour`](super::detour)). In place lines are in the cache, and
//! results go there.

mod ahead;
mod slots;
mod staging;
mod sums;

use std::ops::Range;

pub(super) use ahead::{Ahead, stage_ahead};
use slots::Piece;
use staging::Staging;

use super::call::{Call, Output, part_mut, shifted};
use super::operation::Operation;
use super::per_member::{PerMember, fill};
use super::scalars;
use super::team::Team;
use crate::error::{Error, Result};
use crate::faults::STAGE;
use crate::heap::{HeapPlace, Region};
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::copy::fills_cache;
use crate::shm::{CacheHint, Span};

/// How a call is executed: the same on all members.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
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
struct Part {
    piece: Piece,
    block: u64,
    bytes: Range<u64>,
}

impl Part {
    fn new(piece: Piece, block: u64, bytes: Range<u64>) -> Self {
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

impl Pipeline {
    /// The way to execute `call`, which all members of `team` have posted; `crowded` ones share cores. Whether results are `cache_hint`
    /// goes by their length if it is not said.
    pub(crate) fn new(call: &Call<'_>, team: &Team, crowded: bool, cache_hint: Option<CacheHint>) -> Self {
        let staging = Staging::new(call, team, crowded);
        let cache_hint = cache_hint.unwrap_or_else(|| by_length(call, team.n_members() as u64));
        let behind_of = |member| staging.behind(team.board.post_of(member).places());
        let behind = (0..team.n_members()).map(behind_of).collect();
        let mut scalars = PerMember::new();
        scalars::gather(team, call, &mut scalars, scalars::of_large);
        Self { staging, behind, scalars, cache_hint }
    }

    /// Executes `call` after all members have posted, and some have staged `ahead`.
    ///
    /// # Errors
    /// Those of [`super::board::Board::await_post`]; [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn run(&self, team: &mut Team, call: &mut Call<'_>, ahead: Ahead) -> Result<()> {
        let slots = self.staging.slots;
        let first = self.begin(team, call, ahead)?;
        let n_told = if ahead == Ahead::All { slots.lag } else { 0 };
        for number in 0..slots.pieces + slots.lag {
            if number >= n_told {
                team.board.await_step(first.wrapping_add(number), call.operation)?;
            }
            if let Some(piece) = slots.piece(number) {
                self.work(team, call, piece)?;
            }
            self.turn_over(team, call, number)?;
            if number < slots.pieces {
                team.board.step();
            }
        }
        Ok(())
    }

    /// Takes the steps before which nothing has to be waited for; returns the first.
    fn begin(&self, team: &mut Team, call: &Call<'_>, ahead: Ahead) -> Result<u64> {
        let lag = self.staging.slots.lag;
        if ahead == Ahead::All {
            return Ok(team.board.skip_steps(lag));
        }
        let mut last = 0;
        for number in 0..lag {
            if ahead == Ahead::NotMe {
                self.staging.stage(team, call, number)?;
            }
            last = team.board.step();
        }
        Ok(last.wrapping_sub(lag - 1))
    }

    /// Takes the results of the piece before `number` whose slot is free then, and stages the next one there.
    fn turn_over(&self, team: &Team, call: &mut Call<'_>, number: u64) -> Result<()> {
        let slots = self.staging.slots;
        let later = number + slots.lag;
        let done = number.checked_sub(slots.lag).and_then(|number| slots.piece(number));
        match (done.filter(|_| self.staging.returns), slots.piece(later)) {
            (Some(done), Some(next)) if done.count == next.count => self.exchange(team, call, done, next),
            (Some(done), _) => {
                self.take_results(team, call, done)?;
                self.staging.stage(team, call, later)
            }
            (None, _) => self.staging.stage(team, call, later),
        }
    }

    /// Takes the results of `done` out of the slot in which it stages `next`, of which it is as long.
    fn exchange(&self, team: &Team, call: &mut Call<'_>, done: Piece, next: Piece) -> Result<()> {
        if team.checksums {
            self.check_results(team, call, done)?;
        }
        self.staging.others_shares(team, done).into_iter().try_for_each(|bytes| {
            let part = Part::new(done, 0, bytes);
            let region = self.slot(team, team.me(), &part);
            let span = team.heap_of(team.me(), region)?;
            let input_at = next.start + part.bytes.start;
            call.exchange(team.view(), part.start(), input_at, span, region, self.cache_hint)?;
            damage_staged(team, team.me(), region);
            Ok::<_, Error>(())
        })?;
        if team.checksums { self.staging.tell_shares(team, call, next) } else { Ok(()) }
    }

    /// Where `part` is in the scratch of `member`.
    fn slot(&self, team: &Team, member: usize, part: &Part) -> Region {
        self.staging.slot(team, member, self.behind[member], part)
    }

    /// Uses the inputs that all have staged.
    fn work(&self, team: &Team, call: &mut Call<'_>, piece: Piece) -> Result<()> {
        let (me, n) = (team.me(), team.n_members());
        match call.operation {
            Operation::AllReduce | Operation::Reduce => {
                self.reduce(team, call, &Part::new(piece, 0, self.staging.share(team, me, piece)))
            }
            Operation::ReduceScatter => self.reduce(team, call, &Part::new(piece, me as u64, 0..piece.len)),
            Operation::Broadcast => self.take(team, call, piece, call.root, 0, 0),
            Operation::Scatter => self.take(team, call, piece, call.root, me, 0),
            Operation::AllToAll => {
                (0..n).try_for_each(|member| self.take(team, call, piece, member, me, member as u64))
            }
            _ => (0..n).try_for_each(|member| self.take(team, call, piece, member, 0, member as u64)),
        }
    }

    /// Copies block `block` of what `member` has staged to block `to` of this member's output, if it has one; what is its own it takes
    /// where it lies.
    fn take(
        &self,
        team: &Team,
        call: &mut Call<'_>,
        piece: Piece,
        member: usize,
        block: usize,
        to: u64,
    ) -> Result<()> {
        let part = Part::new(piece, block as u64, 0..piece.len);
        let at = to * call.block_len()? + piece.start;
        if member == team.me() {
            let input_at = part.block * call.block_len()? + piece.start;
            return call.keep(team.view(), input_at, at, piece.len);
        }
        if team.checksums && !matches!(call.output, Output::None) {
            self.check_staged(team, call, member, &part, block)?;
        }
        let source = self.slot(team, member, &part);
        let span = team.heap_of(member, source)?;
        call.output.copy(team.view(), at, span, source.offset.get(), source.len)
    }

    /// Combines `part` of all inputs, this member's own where it lies, into its output and the scratches of those who need the
    /// result.
    fn reduce(&self, team: &Team, call: &mut Call<'_>, part: &Part) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        let (me, members) = (team.me(), 0..team.n_members());
        if team.checksums {
            let mut others = members.clone().filter(|&member| member != me);
            others.try_for_each(|member| self.check_staged(team, call, member, part, me))?;
        }
        let receivers = receivers(call.operation, call.root, members.end);
        self.combine(team, call, part, receivers.clone())?;
        if team.checksums {
            self.tell_result(team, call, part)?;
        }
        if team.board.context().is_faulty() {
            let others = receivers.filter(|&member| member != me);
            others.for_each(|member| damage_staged(team, member, self.slot(team, member, part)));
        }
        Ok(())
    }

    /// Combines `part` of all inputs into the output and the scratches of `receivers`.
    fn combine(&self, team: &Team, call: &mut Call<'_>, part: &Part, receivers: Range<usize>) -> Result<()> {
        let (mut sources, mut targets) = (PerMember::new(), PerMember::new());
        self.sources(team, call, part, &mut sources)?;
        self.targets(team, &mut call.output, receivers, part, &mut targets)?;
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
        team: &'a Team,
        call: &Call<'a>,
        part: &Part,
        sources: &mut PerMember<Source<'a>>,
    ) -> Result<()> {
        let input_at = part.block * call.block_len()? + part.start();
        let source = |member| {
            if member == team.me() {
                return call.input.place(team.view(), input_at, part.len()).map(Source::fresh);
            }
            let (span, offset) = self.staged(team, member, part)?;
            Ok(Source::fresh(SourcePlace::Shared(span, offset)))
        };
        fill(sources, (0..team.n_members()).map(source))
    }

    /// Finds where the results of `part` go: into `output`, which comes first if there is one, and over what the other `receivers`
    /// have staged.
    #[inline]
    fn targets<'a>(
        &self,
        team: &'a Team,
        output: &'a mut Output<'_>,
        receivers: Range<usize>,
        part: &Part,
        targets: &mut PerMember<Target<'a>>,
    ) -> Result<()> {
        targets.extend(own_output(team, output, part.start(), part.len())?);
        let others = receivers.filter(|&member| member != team.me());
        let staged = |member| {
            let (span, offset) = self.staged(team, member, part)?;
            Ok(Target::Shared(span, offset))
        };
        fill(targets, others.map(staged))
    }

    /// The heap in which `part` of the input of `member` is staged, and where.
    fn staged<'a>(&self, team: &'a Team, member: usize, part: &Part) -> Result<(&'a Span, u64)> {
        let region = self.slot(team, member, part);
        Ok((team.heap_of(member, region)?, region.offset.get()))
    }

    /// Copies the results that others have left in this member's scratch into its output, if it has one.
    fn take_results(&self, team: &Team, call: &mut Call<'_>, piece: Piece) -> Result<()> {
        if team.checksums {
            self.check_results(team, call, piece)?;
        }
        self.staging.others_shares(team, piece).into_iter().try_for_each(|bytes| {
            let part = Part::new(piece, 0, bytes);
            let source = self.slot(team, team.me(), &part);
            let span = team.heap_of(team.me(), source)?;
            call.take_result(team.view(), part.start(), span, source, self.cache_hint)
        })
    }
}

/// Whether results of `call` are read before what all members read and write has driven them out of the cache: as where a copy goes past
/// it, a store through it would first read what it overwrites.
fn by_length(call: &Call<'_>, n_members: u64) -> CacheHint {
    let len = call.count.saturating_mul(call.data_type.size() as u64);
    let n_outputs = if call.operation == Operation::Reduce { 1 } else { n_members };
    // By half, as a copy reads as much as it writes.
    if fills_cache(len.saturating_mul(n_members + n_outputs) / 2) {
        CacheHint::Bypass
    } else {
        CacheHint::Keep
    }
}

/// Has faults strike what this member has written to `region` of the heap of `member`.
#[inline]
fn damage_staged(team: &Team, member: usize, region: Region) {
    let context = team.board.context();
    if context.is_faulty() {
        context.damage(STAGE, HeapPlace { rank: team.members()[member], offset: region.offset }, region.len);
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
        Output::Within(memory, start) => {
            Some(Target::Slice(part_mut(memory, start.saturating_add(at), len)?))
        }
        Output::None => None,
    })
}
