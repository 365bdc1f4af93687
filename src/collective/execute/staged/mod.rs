//! Operations on ordinary memory, piece by piece through the staging areas of those who have the
//! data; and operations on buffers of the heap that are [quicker so](crate::collective::strategy).
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
//! lines are in the cache, and results go there. The selector decides, and hands down a
//! `CacheHint`.
//!
//! Tried by its unit tests and `scenarios collectives:: large_copies:: oracle::`.

mod checked;
mod slots;
mod staging;

use std::ops::Range;

use crate::collective::call::{Call, Operation, Output};
use crate::collective::rendezvous::members::{Members, PerMember, fill};
use crate::collective::strategy::Prestaged;
use crate::error::Result;
use crate::heap::Region;
use crate::reduce::{Source, SourcePlace, Target};
use crate::shm::{CacheHint, Span};
use slots::{Slots, StagedPiece};
pub(crate) use staging::prestage;

/// How a call is executed: the same on all members.
#[derive(Clone, Debug)]
pub(crate) struct StagedCall {
    slots: Slots,
    /// How many bytes the slots of each member begin behind a line.
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

impl StagedCall {
    /// Makes the way to execute `call`, which all members of `members` have posted;
    /// `oversubscribed` ones share cores. Results are stored by `cache_hint`.
    pub(crate) fn new(
        call: &Call<'_>,
        members: &Members,
        oversubscribed: bool,
        cache_hint: CacheHint,
    ) -> Self {
        let slots = Slots::of(call, members, oversubscribed);
        let behind_of = |member| slots.behind(members.board.post_of(member).buffers());
        let behind = (0..members.n_members()).map(behind_of).collect();
        let mut scalars = PerMember::new();
        members.gather_scalars(call, &mut scalars, |post| post.scalar());
        Self { slots, behind, scalars, cache_hint }
    }

    /// Executes `call` after all members have posted, and some have staged `prestaged`.
    ///
    /// # Errors
    /// Fails as [`crate::collective::rendezvous::board::CallBoard::await_post`] does, or with
    /// [`crate::Error::OutOfRange`] for buffers that are not allocated.
    pub(crate) fn run(&self, members: &mut Members, call: &mut Call<'_>, prestaged: Prestaged) -> Result<()> {
        if members.is_watched() {
            self.take_steps::<true>(members, call, prestaged)
        } else {
            self.take_steps::<false>(members, call, prestaged)
        }
    }

    /// Takes all steps of `call`; what is `WATCHED` is checked and struck ([`checked`]).
    fn take_steps<const WATCHED: bool>(
        &self,
        members: &mut Members,
        call: &mut Call<'_>,
        prestaged: Prestaged,
    ) -> Result<()> {
        let slots = self.slots;
        let first = self.begin::<WATCHED>(members, call, prestaged)?;
        let n_told = if prestaged == Prestaged::All { slots.lag } else { 0 };
        for number in 0..slots.pieces + slots.lag {
            if number >= n_told {
                members.board.await_step(first.wrapping_add(number), call.told())?;
            }
            if let Some(piece) = slots.piece(number) {
                self.work::<WATCHED>(members, call, piece)?;
            }
            self.turn_over::<WATCHED>(members, call, number)?;
            if number < slots.pieces {
                members.board.step();
            }
        }
        Ok(())
    }

    /// Takes the steps before which nothing has to be waited for; returns the first.
    fn begin<const WATCHED: bool>(
        &self,
        members: &mut Members,
        call: &Call<'_>,
        prestaged: Prestaged,
    ) -> Result<u64> {
        let lag = self.slots.lag;
        if prestaged == Prestaged::All {
            return Ok(members.board.skip_steps(lag));
        }
        let mut last = 0;
        for number in 0..lag {
            if prestaged == Prestaged::NotMe {
                self.slots.stage::<WATCHED>(members, call, number)?;
            }
            last = members.board.step();
        }
        Ok(last.wrapping_sub(lag - 1))
    }

    /// Takes the results of the piece before `number` whose slot is free then, and stages the next
    /// one there.
    fn turn_over<const WATCHED: bool>(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        number: u64,
    ) -> Result<()> {
        let slots = self.slots;
        let later = number + slots.lag;
        let done = number.checked_sub(slots.lag).and_then(|number| slots.piece(number));
        match (done.filter(|_| self.slots.returns), slots.piece(later)) {
            (Some(done), Some(next)) if done.count == next.count => {
                self.exchange::<WATCHED>(members, call, done, next)
            }
            (Some(done), _) => {
                self.take_results::<WATCHED>(members, call, done)?;
                self.slots.stage::<WATCHED>(members, call, later)
            }
            (None, _) => self.slots.stage::<WATCHED>(members, call, later),
        }
    }

    /// Uses the inputs that all have staged.
    fn work<const WATCHED: bool>(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        piece: StagedPiece,
    ) -> Result<()> {
        let me = members.me();
        match call.operation {
            operation if operation.combines_a_block() => {
                let part = StagedPart::new(piece, 0, self.slots.share(members, me, piece));
                self.reduce::<WATCHED>(members, call, &part)
            }
            Operation::ReduceScatter => {
                self.reduce::<WATCHED>(members, call, &StagedPart::new(piece, me as u64, 0..piece.len))
            }
            operation => operation
                .sources(me, call.root, members.n_members())
                .try_for_each(|member| self.take::<WATCHED>(members, call, piece, member)),
        }
    }

    /// Returns where `part` is in the staging area of `member`.
    fn slot(&self, members: &Members, member: usize, part: &StagedPart) -> Region {
        self.slots.slot(members, member, self.behind[member], part)
    }

    /// Combines `part` of the inputs into the results of all members that get one.
    fn combine(&self, members: &Members, call: &mut Call<'_>, part: &StagedPart) -> Result<()> {
        if call.operation.is_prefix() {
            return self.combine_prefixes(members, call, part);
        }
        self.combine_for_all(members, call, part)
    }

    /// Combines `part` of the inputs up to each member into the result of that: from the last one
    /// on, since a result replaces an input that members before it have no part of.
    fn combine_prefixes(&self, members: &Members, call: &mut Call<'_>, part: &StagedPart) -> Result<()> {
        let (view, at, len) = (members.view(), part.start(), part.len());
        let (operation, n) = (call.operation, members.n_members());
        let reducer = call.reducer.clone().expect("an operation that reduces has a reducer");
        receivers(members, call).rev().try_for_each(|receiver| {
            let (own, target) = if receiver == members.me() {
                (call.input.place(view, at, len)?, call.output.target(view, at, len)?)
            } else {
                (call.source(view, at, len)?, Some(self.target(members, receiver, part)?))
            };
            let Some(target) = target else { return Ok(()) };
            let (contributors, mut sources) = (operation.sources(receiver, 0, n), PerMember::new());
            let n_combined = contributors.len();
            let scalars = self.scalars.get(contributors.clone()).unwrap_or_default();
            fill(&mut sources, contributors.map(|member| self.source(members, member, part, own)))?;
            let count = len / self.slots.size;
            reducer.among(n_combined).combine_scaled(scalars, &sources, &mut [target], count)
        })
    }

    /// Combines `part` of all inputs, this member's own where it lies, into its output, which comes
    /// first if there is one, and over what the other members have staged that get the result.
    fn combine_for_all(&self, members: &Members, call: &mut Call<'_>, part: &StagedPart) -> Result<()> {
        let (mut sources, mut targets) = (PerMember::new(), PerMember::new());
        let (view, len) = (members.view(), part.len());
        let own = call.input.place(view, part.block * call.block_len()? + part.start(), len)?;
        let everyone = 0..members.n_members();
        fill(&mut sources, everyone.map(|member| self.source(members, member, part, own)))?;
        let receivers = other_receivers(members, call);
        targets.extend(call.output.target(view, part.start(), len)?);
        fill(&mut targets, receivers.map(|member| self.target(members, member, part)))?;
        let reducer = call.reducer.as_ref().expect("an operation that reduces has a reducer");
        let count = len / self.slots.size;
        if self.cache_hint == CacheHint::Bypass && targets.len() > 1 {
            return reducer.combine_keeping_others(&self.scalars, &sources, &mut targets, count);
        }
        reducer.combine_scaled(&self.scalars, &sources, &mut targets, count)
    }

    /// Returns `part` of the input of `member`: `own` where that is this member, and otherwise what
    /// is staged.
    fn source<'a>(
        &self,
        members: &'a Members,
        member: usize,
        part: &StagedPart,
        own: SourcePlace<'a>,
    ) -> Result<Source<'a>> {
        if member == members.me() {
            return Ok(Source::fresh(own));
        }
        let (span, offset) = self.staged(members, member, part)?;
        Ok(Source::fresh(SourcePlace::Shared(span, offset)))
    }

    /// Returns the place of a result over what `member` has staged.
    fn target<'a>(&self, members: &'a Members, member: usize, part: &StagedPart) -> Result<Target<'a>> {
        let (span, offset) = self.staged(members, member, part)?;
        Ok(Target::Shared(span, offset))
    }

    /// Returns the heap in which `part` of the input of `member` is staged, and where.
    fn staged<'a>(&self, members: &'a Members, member: usize, part: &StagedPart) -> Result<(&'a Span, u64)> {
        let region = self.slot(members, member, part);
        Ok((members.heap_of(member, region)?, region.offset.get()))
    }

    /// Copies the block of what `member` has staged that is for this member to the block of its
    /// output that is for `member`, if it has one. A member takes its own where that lies.
    fn take<const WATCHED: bool>(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        piece: StagedPiece,
        member: usize,
    ) -> Result<()> {
        let block = call.operation.block_for(members.me());
        let part = StagedPart::new(piece, block as u64, 0..piece.len);
        let at = call.operation.block_from(member) as u64 * call.block_len()? + piece.start;
        if member == members.me() {
            let input_at = part.block * call.block_len()? + piece.start;
            return call.keep(members.view(), input_at, at, piece.len);
        }
        if WATCHED && !matches!(call.output, Output::None) {
            self.check_staged(members, call, member, &part, block)?;
        }
        let (span, offset) = self.staged(members, member, &part)?;
        call.output.copy(members.view(), at, span, offset, part.len())
    }

    /// Combines `part` of all inputs.
    fn reduce<const WATCHED: bool>(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        part: &StagedPart,
    ) -> Result<()> {
        if part.len() == 0 {
            return Ok(());
        }
        if WATCHED {
            self.check_inputs(members, call, part)?;
        }
        self.combine(members, call, part)?;
        if WATCHED { self.tell_result(members, call, part) } else { Ok(()) }
    }

    /// Copies the results that others have left in this member's staging area into its output, if
    /// it has one.
    fn take_results<const WATCHED: bool>(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        piece: StagedPiece,
    ) -> Result<()> {
        if WATCHED {
            self.check_results(members, call, piece)?;
        }
        self.slots.others_shares(members, piece).into_iter().try_for_each(|bytes| {
            let part = StagedPart::new(piece, 0, bytes);
            let source = self.slot(members, members.me(), &part);
            let span = members.heap_of(members.me(), source)?;
            call.take_result(members.view(), part.start(), span, source, self.cache_hint)
        })
    }

    /// Takes the results of `done` out of the slot in which it stages `next`, of which it is as
    /// long.
    fn exchange<const WATCHED: bool>(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        done: StagedPiece,
        next: StagedPiece,
    ) -> Result<()> {
        if WATCHED {
            self.check_results(members, call, done)?;
        }
        self.slots.others_shares(members, done).into_iter().try_for_each(|bytes| {
            let part = StagedPart::new(done, 0, bytes);
            let region = self.slot(members, members.me(), &part);
            let span = members.heap_of(members.me(), region)?;
            let input_at = next.start + part.bytes.start;
            call.exchange(members.view(), part.start(), input_at, span, region, self.cache_hint)
        })?;
        if WATCHED { self.tell_exchanged(members, call, done, next) } else { Ok(()) }
    }
}

/// Returns the members in whose staging area the results of `call` are left.
fn receivers(members: &Members, call: &Call<'_>) -> Range<usize> {
    call.operation.receivers(call.root, members.n_members())
}

/// Returns those but this member.
fn other_receivers(members: &Members, call: &Call<'_>) -> impl Iterator<Item = usize> + use<> {
    let me = members.me();
    receivers(members, call).filter(move |&member| member != me)
}
