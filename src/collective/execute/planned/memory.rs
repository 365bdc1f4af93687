//! Memory of a plan: what each rank takes from its arena for it, and where the buffers of a launch
//! lie.
//!
//! Each rank takes memory by itself and tells the others where. All know how much each needs, so
//! they take and tell at the same launches.

use shmccl_plan::Lowered;
use shmccl_plan::collective::Overlap;
use shmccl_plan::lower::RankCode;
use shmccl_plan::plan::Buffer;

use crate::collective::call::{Call, CallSignature, Operation};
use crate::collective::rendezvous::members::Members;
use crate::error::{Error, Result};
use crate::heap::{Arena, ArenaBuffer, HeapOffset, HeapPlace, Region};
use crate::shm::CacheHint;

/// Memory of all members for one purpose: as much on each.
#[derive(Debug, Default)]
pub(super) struct Area {
    mine: Option<ArenaBuffer<u8>>,
    bytes: u64,
    /// Where that of each member starts.
    pub(super) starts: Vec<HeapOffset>,
}

/// Areas start at multiples of so many bytes, as semaphores do.
const ALIGN: u64 = 128;

impl Area {
    /// Takes `bytes` of zeros, unless there are as many. All members call it alike within
    /// `operation`.
    ///
    /// # Errors
    /// Those of [`Arena::alloc`]; [`Error::FailedElsewhere`]; those of [`Members::exchange`].
    pub(super) fn grow(&mut self, members: &mut Members, operation: Operation, bytes: usize) -> Result<()> {
        let bytes = bytes as u64;
        if bytes <= self.bytes {
            return Ok(());
        }
        *self = Self::default();
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

/// How the buffers of a call are brought to where a plan works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placing {
    /// They are there.
    Direct,
    /// Inputs are copied to where they belong in the outputs.
    InputsMove,
    /// Both are staged.
    Staged,
}

/// Where the buffers of all ranks lie in a launch: those of the caller, or the stage.
#[derive(Debug)]
pub(super) struct Placed {
    placing: Placing,
    /// By rank: where the input and the output start, as the caller has them.
    posted: Vec<[u64; 2]>,
    /// By rank: where each of the three buffers of the plan starts.
    pub(super) starts: Vec<[u64; 3]>,
}

impl Placed {
    /// Finds where the members work that have posted `call`; stages begin behind `bounce` bytes of
    /// their area.
    ///
    /// # Errors
    /// Those of [`Area::grow`].
    pub(super) fn find(
        members: &mut Members,
        call: &Call<'_>,
        lowered: &Lowered,
        (scratch, stage, bounce): (&mut Area, &mut Area, usize),
    ) -> Result<Self> {
        let post = |member| members.board.post_of(member);
        let are_in_heap = (0..members.n_members()).all(|member| post(member).buffers().are_in_heap());
        let posted: Vec<_> = (0..members.n_members())
            .map(|member| [post(member).input().get(), post(member).output().get()])
            .collect();
        let placing = if are_in_heap { placing(lowered, &posted) } else { Placing::Staged };
        let most = |bytes: fn(&RankCode) -> usize| lowered.ranks.iter().map(bytes).max().unwrap_or(0);
        scratch.grow(members, call.operation, most(|rank| rank.buffers[2]))?;
        let staged = if placing == Placing::Staged { most(staged) } else { 0 };
        stage.grow(members, call.operation, bounce + staged)?;
        let start = |area: &Area, member: usize| area.starts.get(member).map_or(0, |start| start.get());
        let starts = (0..members.n_members()).map(|member| {
            let first = start(stage, member) + bounce as u64;
            let [input, output] = match placing {
                Placing::Staged => [first, first + output_of_stage(&lowered.ranks[member]) as u64],
                _ => posted[member],
            };
            [input, output, start(scratch, member)]
        });
        let starts = starts.collect();
        Ok(Self { placing, posted, starts })
    }

    /// Brings this member's input to where the plan expects it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for buffers that are not allocated.
    pub(super) fn bring_input(&self, members: &Members, call: &Call<'_>, code: &RankCode) -> Result<()> {
        let me = members.me();
        let (target, len) = (self.place(me, code.input.buffer, code.input.offset), code.input.bytes as u64);
        match self.placing {
            Placing::Direct => Ok(()),
            Placing::InputsMove => {
                let rank = members.ranks()[me];
                let place = |offset| HeapPlace { rank, offset: HeapOffset::new(offset) };
                let source = self.posted[me][0];
                if source == target {
                    return Ok(());
                }
                members.view().copy(place(source), place(target), len, CacheHint::Keep)
            }
            Placing::Staged => {
                let region = Region::new(HeapOffset::new(target), len);
                call.copy_input(members.view(), 0, members.heap_of(me, region)?, region)
            }
        }
    }

    /// Takes this member's output to where the caller wants it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for buffers that are not allocated.
    pub(super) fn take_output(&self, members: &Members, call: &mut Call<'_>, code: &RankCode) -> Result<()> {
        if self.placing != Placing::Staged {
            return Ok(());
        }
        let me = members.me();
        let (source, len) =
            (self.place(me, code.output.buffer, code.output.offset), code.output.bytes as u64);
        let span = members.heap_of(me, Region::new(HeapOffset::new(source), len))?;
        call.output.copy(members.view(), 0, span, source, len)
    }

    /// Returns where byte `offset` of a buffer of `member` is.
    pub(super) fn place(&self, member: usize, buffer: Buffer, offset: usize) -> u64 {
        self.starts[member][index(buffer)] + offset as u64
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
fn staged(code: &RankCode) -> usize {
    output_of_stage(code) + code.buffers[1]
}

/// Returns where the output begins behind the input in the stage.
fn output_of_stage(code: &RankCode) -> usize {
    code.buffers[0].next_multiple_of(64)
}

/// Decides how buffers in the heap, which start at `posted`, are brought to where the plan works.
fn placing(lowered: &Lowered, posted: &[[u64; 2]]) -> Placing {
    let all = |fits: fn(&RankCode, u64, u64) -> bool| {
        lowered.ranks.iter().zip(posted).all(|(code, &[input, output])| fits(code, input, output))
    };
    let are_apart = |code: &RankCode, input: u64, output: u64| {
        input + code.input.bytes as u64 <= output || output + code.output.bytes as u64 <= input
    };
    match lowered.overlap {
        Overlap::Apart if all(are_apart) => Placing::Direct,
        Overlap::Same | Overlap::InputInOutput => Placing::InputsMove,
        Overlap::OutputInInput if all(|code, input, output| output == input + code.output.offset as u64) => {
            Placing::Direct
        }
        _ => Placing::Staged,
    }
}

/// Refuses a counter that is not there: it was read from shared memory.
pub(super) fn strange(what: &'static str, limit: usize, found: u64) -> Error {
    Error::Layout { what, expected: limit as u64, found }
}
