//! Memory of a plan: what each rank takes from its arena for it, and where the buffers of a launch
//! lie.
//!
//! Each rank takes memory by itself and tells the others where. All know how much each needs, so
//! they take and tell at the same launches.

use shmccl_plan::Lowered;
use shmccl_plan::collective::Overlap;
use shmccl_plan::lower::RankCode;
use shmccl_plan::plan::Buffer;

use super::compiled::CompiledPlan;
use crate::collective::call::{Call, CallSignature, Operation};
use crate::collective::rendezvous::buffers::Buffers;
use crate::collective::rendezvous::members::{Members, PerMember};
use crate::error::{Error, Result};
use crate::heap::{Arena, ArenaBuffer, HeapOffset, HeapPlace, Region};
use crate::shm::CacheHint;

/// Memory of all members for one purpose: as much on each.
#[derive(Debug, Default)]
pub(super) struct Area {
    mine: Option<ArenaBuffer<u8>>,
    bytes: u64,
    /// The start of the area of each member.
    pub(super) starts: Vec<HeapOffset>,
}

/// Areas start at multiples of so many bytes, as semaphores do.
const ALIGN: u64 = 128;

impl Area {
    /// Takes `bytes` of zeros, unless there are as many. All members call it alike within
    /// `operation`.
    ///
    /// # Errors
    /// Fails as [`Arena::alloc`] does, or with [`Error::FailedElsewhere`], or as
    /// [`Members::exchange`] does.
    pub(super) fn grow(&mut self, members: &mut Members, operation: Operation, bytes: usize) -> Result<()> {
        if self.has(bytes) {
            return Ok(());
        }
        *self = Self::default();
        let bytes = bytes as u64;
        let taken = zeroed(members, bytes);
        let told = [u64::from(taken.is_ok()), taken.as_ref().map_or(0, |area| area.region().offset.get())];
        members.board.count_inner_steps(1);
        let all = members.exchange(operation, CallSignature::new(operation), &told)?;
        let mine = taken?;
        if let Some(member) = all.iter().position(|words| words[0] == 0) {
            let rank = members.ranks()[member];
            return Err(members.board.context().failed_elsewhere(operation.name(), rank));
        }
        let starts = all.iter().map(|words| HeapOffset::new(words[1])).collect();
        *self = Self { mine: Some(mine), bytes, starts };
        Ok(())
    }

    fn has(&self, bytes: usize) -> bool {
        bytes as u64 <= self.bytes
    }

    fn start(&self, member: usize) -> u64 {
        self.starts.get(member).map_or(0, |start| start.get())
    }

    /// Hands over the memory of this rank, which others may still touch.
    pub(super) fn into_memory(self) -> Option<ArenaBuffer<u8>> {
        self.mine
    }
}

fn zeroed(members: &Members, bytes: u64) -> Result<ArenaBuffer<u8>> {
    let count = usize::try_from(bytes).unwrap_or(usize::MAX);
    let taken = Arena::new(members.board.context().heap().clone()).alloc_aligned::<u8>(count, ALIGN)?;
    let region = taken.region();
    members.heap_of(members.me(), region)?.fill(region.offset.get(), region.len, 0)?;
    Ok(taken)
}

/// How the buffers of a rank are brought to where a plan works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placing {
    /// They are there.
    Direct,
    /// Parts of the input are copied to where they belong in the output.
    InputMoves,
    /// Both are staged.
    Staged,
}

impl Placing {
    /// Decides for a rank whose `buffers` the caller has there.
    fn of(lowered: &Lowered, code: &RankCode, buffers: Buffers) -> Self {
        let [input, output] = [buffers.input, buffers.output].map(|place| place.to_word());
        let behind = |start: u64, bytes: usize| start.saturating_add(bytes as u64);
        let are_apart =
            behind(input, code.input.bytes) <= output || behind(output, code.output.bytes) <= input;
        match lowered.overlap {
            _ if !buffers.are_in_heap() => Self::Staged,
            Overlap::Apart if are_apart => Self::Direct,
            Overlap::Same | Overlap::InputInOutput if input == behind(output, code.input.offset) => {
                Self::Direct
            }
            Overlap::Same | Overlap::InputInOutput if are_apart => Self::InputMoves,
            Overlap::OutputInInput if output == behind(input, code.output.offset) => Self::Direct,
            _ => Self::Staged,
        }
    }
}

/// What a plan has in the arenas, and where the buffers of its current launch lie.
#[derive(Debug, Default)]
pub(super) struct PlanMemory {
    scratch: Area,
    stage: Area,
    /// The starts of the three buffers of the plan on each rank, as far as they are known.
    starts: Vec<[u64; 3]>,
}

impl PlanMemory {
    /// Finds where this member works, if no other has to be asked: whether there is memory for all
    /// that it needs.
    pub(super) fn place_own(&mut self, members: &Members, call: &Call<'_>, plan: &CompiledPlan) -> bool {
        let (me, buffers) = (members.me(), Buffers::of(call));
        let placing = Placing::of(&plan.lowered, &plan.lowered.ranks[me], buffers);
        self.starts.resize(members.n_members(), [0; 3]);
        for member in 0..self.starts.len() {
            self.starts[member][2] = self.scratch_start(plan, member);
        }
        self.starts[me] = self.start_of(plan, me, buffers);
        self.scratch.has(plan.bounce + plan.scratch)
            && (placing != Placing::Staged || self.stage.has(plan.stage))
    }

    /// Finds where all members work, which have posted `call`, and takes what memory is missing.
    ///
    /// # Errors
    /// Fails as [`Area::grow`] does.
    pub(super) fn place_all(
        &mut self,
        members: &mut Members,
        call: &Call<'_>,
        plan: &CompiledPlan,
    ) -> Result<()> {
        // Reads the posts of this call before another one overwrites them.
        let mut posted = PerMember::new();
        posted.extend((0..members.n_members()).map(|member| members.board.post_of(member).buffers()));
        self.scratch.grow(members, call.operation, plan.bounce + plan.scratch)?;
        let codes = &plan.lowered.ranks;
        let is_staged = |(code, &buffers)| Placing::of(&plan.lowered, code, buffers) == Placing::Staged;
        if codes.iter().zip(&posted).any(is_staged) {
            self.stage.grow(members, call.operation, plan.stage)?;
        }
        self.starts.resize(posted.len(), [0; 3]);
        for (member, &buffers) in posted.iter().enumerate() {
            self.starts[member] = self.start_of(plan, member, buffers);
        }
        Ok(())
    }

    fn start_of(&self, plan: &CompiledPlan, member: usize, buffers: Buffers) -> [u64; 3] {
        let code = &plan.lowered.ranks[member];
        let scratch = self.scratch_start(plan, member);
        if Placing::of(&plan.lowered, code, buffers) != Placing::Staged {
            return [buffers.input.to_word(), buffers.output.to_word(), scratch];
        }
        let stage = self.stage.start(member);
        let output = stage + output_of_stage(code) as u64;
        let input =
            if code.input.buffer == Buffer::Output { output + code.input.offset as u64 } else { stage };
        [input, output, scratch]
    }

    /// Returns where the scratch of `member` begins, behind the memory in which it unpacks.
    fn scratch_start(&self, plan: &CompiledPlan, member: usize) -> u64 {
        self.scratch.start(member) + plan.bounce as u64
    }

    /// Forgets what is in scratch.
    pub(super) fn forget_scratch(&mut self) {
        self.scratch = Area::default();
    }

    /// Brings this member's input to where the plan expects it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for buffers that are not allocated.
    pub(super) fn bring_input(&self, members: &Members, call: &Call<'_>, plan: &CompiledPlan) -> Result<()> {
        let (me, buffers) = (members.me(), Buffers::of(call));
        let code = &plan.lowered.ranks[me];
        let target = self.place(me, code.input.buffer, code.input.offset);
        match Placing::of(&plan.lowered, code, buffers) {
            Placing::Direct => Ok(()),
            Placing::InputMoves => {
                let rank = members.ranks()[me];
                let place = |start, at: usize| HeapPlace { rank, offset: HeapOffset::new(start + at as u64) };
                plan.moved[me].iter().try_for_each(|part| {
                    let source = place(buffers.input.to_word(), part.start);
                    members.view().copy(source, place(target, part.start), part.len() as u64, CacheHint::Keep)
                })
            }
            Placing::Staged => {
                let region = Region::new(HeapOffset::new(target), code.input.bytes as u64);
                call.copy_input(members.view(), 0, members.heap_of(me, region)?, region)
            }
        }
    }

    /// Takes this member's output to where the caller wants it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for buffers that are not allocated.
    pub(super) fn take_output(
        &self,
        members: &Members,
        call: &mut Call<'_>,
        plan: &CompiledPlan,
    ) -> Result<()> {
        let me = members.me();
        let code = &plan.lowered.ranks[me];
        if Placing::of(&plan.lowered, code, Buffers::of(call)) != Placing::Staged {
            return Ok(());
        }
        let (source, len) =
            (self.place(me, code.output.buffer, code.output.offset), code.output.bytes as u64);
        let span = members.heap_of(me, Region::new(HeapOffset::new(source), len))?;
        call.output.copy(members.view(), 0, span, source, len)
    }

    /// Returns where byte `offset` of a buffer of `member` is.
    pub(super) fn place(&self, member: usize, buffer: Buffer, offset: usize) -> u64 {
        self.starts[member][index(buffer)].saturating_add(offset as u64)
    }

    /// Returns where this member unpacks.
    pub(super) fn bounce(&self, me: usize) -> u64 {
        self.scratch.start(me)
    }

    /// Hands over the memory of this rank, which others may still touch.
    pub(super) fn into_memory(self) -> impl Iterator<Item = ArenaBuffer<u8>> {
        [self.scratch, self.stage].into_iter().filter_map(Area::into_memory)
    }
}

const fn index(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Input => 0,
        Buffer::Output => 1,
        Buffer::Scratch => 2,
    }
}

/// Returns the bytes of both buffers of a rank in the stage.
pub(super) fn staged(code: &RankCode) -> usize {
    output_of_stage(code) + code.buffers[1]
}

/// Returns where the output begins behind the input in the stage.
fn output_of_stage(code: &RankCode) -> usize {
    code.buffers[0].next_multiple_of(64)
}

/// Refuses a counter that is not there: it was read from shared memory.
pub(super) fn strange(what: &'static str, limit: usize, found: u64) -> Error {
    Error::Layout { what, expected: limit as u64, found }
}
