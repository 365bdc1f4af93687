//! From a message to bytes of chunks and buffers.

use crate::collective::CollectiveKind;
use crate::plan::{ExecutionPlan, Protocol, RankProgram};
use crate::problem::{Place, Problem};

/// The bytes that chunks of scratch wrap in, without and with two halves. Plans hold credits that
/// are computed from it.
const WRAPPED: [usize; 2] = [1 << 26, 1 << 25];

/// The sizes of a plan for one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) message: u64,
    /// The bytes of a chunk.
    pub(crate) chunk: usize,
    pub(crate) ranks: Vec<RankSizes>,
    /// What the units of pipelines are multiplied with and divided by.
    pub(crate) unit_scale: (usize, usize),
    /// What the sizes stand for, where they are scaled down.
    pub(crate) stands_for: Option<StandsFor>,
}

/// The sizes of one rank, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankSizes {
    pub(crate) input: usize,
    pub(crate) output: usize,
    /// The distance from one chunk of scratch to the next.
    pub(crate) stride: usize,
    /// Where an iteration of a pipeline begins again in a chunk of scratch.
    pub(crate) wrap: usize,
    /// The distance from the first half of scratch to the second; 0 where there is one.
    pub(crate) half: usize,
    /// All of scratch.
    pub(crate) scratch: usize,
}

impl Sizes {
    /// Finds the sizes for a message that a caller has given.
    pub(crate) fn of_message(plan: &ExecutionPlan, message: u64) -> Result<Self, Problem> {
        let refuse = |what: String| Err(Problem::new(Place::PLAN, what));
        if !(plan.min_message..=plan.max_message).contains(&message) {
            let (min, max) = (plan.min_message, plan.max_message);
            return refuse(format!(
                "a message of {message} bytes is not within {min}..={max}; give one that is"
            ));
        }
        let Some(granule) = granule(plan) else {
            return refuse("no message fits the counts of chunks; make them smaller".to_owned());
        };
        if message == 0 || !message.is_multiple_of(granule) {
            return refuse(unfit(plan, message, granule));
        }
        let chunk = chunk_of(plan, message);
        let chunk = usize::try_from(chunk).map_err(|_| too_large(message))?;
        Self::of_chunk(plan, chunk, None)
    }

    /// Finds the sizes for chunks of so many bytes, whatever the limits of the plan say. A `wrap`
    /// stands in for that of the format where one is given, with the scale of pipelines' units.
    pub(crate) fn of_chunk(
        plan: &ExecutionPlan,
        chunk: usize,
        scaled: Option<&Scaled>,
    ) -> Result<Self, Problem> {
        let message = message_of(plan, chunk);
        let ranks = plan.ranks.iter().enumerate();
        let ranks = ranks.map(|(rank, program)| rank_sizes(plan, rank, program, chunk, scaled));
        let ranks = ranks.collect::<Option<_>>().ok_or_else(|| too_large(message))?;
        let unit_scale = scaled.map_or((1, 1), |scaled| scaled.unit);
        let stands_for = scaled.map(|scaled| StandsFor::of(plan, chunk, scaled));
        Ok(Self { message, chunk, ranks, unit_scale, stands_for })
    }
}

/// Units of pipelines and wraps of scratch scaled down together, for a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scaled {
    /// What units are multiplied with and divided by.
    pub(crate) unit: (usize, usize),
    /// The wrap of each rank.
    pub(crate) wraps: Vec<usize>,
}

/// The real message that a scaled one stands for, and where its bytes are there.
///
/// Bytes grow by the scale of units. Each lap of a chunk in scratch is as long as the real wrap,
/// which may have been scaled down by more than the units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StandsFor {
    /// What bytes are multiplied with and divided by.
    grow: (usize, usize),
    /// The bytes of a scaled chunk, and of the real one.
    chunk: (usize, usize),
    /// The shortest wrap, scaled and real.
    wrap: (usize, usize),
    /// The distance from one chunk of scratch to the next on each rank, scaled and real.
    strides: Vec<(usize, usize)>,
    /// How many bytes of scratch hold a byte of payload.
    packets: usize,
    /// The unit of the plan, of which real places are multiples.
    unit: usize,
}

impl StandsFor {
    fn of(plan: &ExecutionPlan, chunk: usize, scaled: &Scaled) -> Self {
        let wraps: Vec<_> = (plan.ranks.iter().zip(&scaled.wraps))
            .map(|(program, &wrap)| (wrap, if wrap == usize::MAX { wrap } else { wrap_of(plan, program) }))
            .collect();
        let mut found = Self {
            grow: (scaled.unit.1, scaled.unit.0),
            chunk: (chunk, chunk),
            wrap: wraps.iter().copied().min().unwrap_or((usize::MAX, usize::MAX)),
            strides: Vec::new(),
            packets: if plan.protocol == Protocol::LowLatency { 2 } else { 1 },
            unit: plan.alignment,
        };
        found.chunk.1 = found.along(chunk);
        let stride = |&(short, long): &(usize, usize)| (chunk.min(short), found.chunk.1.min(long));
        found.strides = wraps.iter().map(stride).collect();
        found
    }

    /// Returns the bytes of the real chunk.
    pub(crate) fn chunk(&self) -> usize {
        self.chunk.1
    }

    /// Returns how many bytes so many are, in whole units.
    pub(crate) fn grown(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.grow.0) / self.grow.1 / self.unit * self.unit
    }

    /// Returns where the byte `at` of a chunk is.
    fn along(&self, at: usize) -> usize {
        let (short, long) = self.wrap;
        let laps = if short == usize::MAX { 0 } else { at / short };
        laps.saturating_mul(long).saturating_add(self.grown(at - laps * short.min(at)))
    }

    /// Returns where the byte `at` of input or output is.
    pub(crate) fn in_message(&self, at: usize) -> usize {
        let (short, long) = self.chunk;
        (at / short).saturating_mul(long).saturating_add(self.along(at % short))
    }

    /// Returns where the byte `at` of the scratch of a rank is, whose halves have so many.
    pub(crate) fn in_scratch(&self, rank: usize, at: usize, half: usize) -> usize {
        let (short, long) = self.strides[rank];
        let halves = at.checked_div(half).unwrap_or(0);
        let rest = at - halves * half;
        let chunks = half / short * halves + rest / self.packets / short * self.packets;
        let within = self.grown(rest - rest / self.packets / short * self.packets * short);
        chunks.saturating_mul(long).saturating_add(within)
    }
}

/// Says why a message does not fit, and which next to it do.
fn unfit(plan: &ExecutionPlan, message: u64, granule: u64) -> String {
    let below = message / granule * granule;
    let near = [Some(below).filter(|&below| below > 0), below.checked_add(granule)];
    let allowed =
        near.into_iter().flatten().filter(|near| (plan.min_message..=plan.max_message).contains(near));
    let allowed: Vec<_> = allowed.map(|near| near.to_string()).collect();
    let remedy = match allowed.is_empty() {
        true => "take a multiple within the limits of the plan".to_owned(),
        false => format!("take {}", allowed.join(" or ")),
    };
    match message {
        0 => format!("a message of 0 bytes has nothing to do; {remedy}"),
        _ => format!(
            "a message of {message} bytes is no multiple of {granule}, the unit of its chunks; {remedy}"
        ),
    }
}

fn too_large(message: u64) -> Problem {
    let what = format!(
        "a message of {message} bytes takes more memory than there are addresses; take a smaller one"
    );
    Problem::new(Place::PLAN, what)
}

fn rank_sizes(
    plan: &ExecutionPlan,
    rank: usize,
    program: &RankProgram,
    chunk: usize,
    scaled: Option<&Scaled>,
) -> Option<RankSizes> {
    let collective = CollectiveKind::of(plan);
    let (input_share, output_share) = collective.shares(plan.ranks.len());
    let bytes = |chunks: u32, share: usize| match collective {
        CollectiveKind::Other => chunk.checked_mul(chunks as usize),
        _ => usize::try_from(message_of(plan, chunk)).ok().map(|message| message / share),
    };
    let wrap = scaled.map_or_else(|| wrap_of(plan, program), |scaled| scaled.wraps[rank]);
    let stride = chunk.min(wrap);
    let packets = if plan.protocol == Protocol::LowLatency { 2 } else { 1 };
    let half = stride.checked_mul(program.scratch_chunks as usize)?.checked_mul(packets)?;
    let halves = if plan.double_scratch { 2 } else { 1 };
    Some(RankSizes {
        input: bytes(program.input_chunks, input_share)?,
        output: bytes(program.output_chunks, output_share)?,
        stride,
        wrap,
        half: if plan.double_scratch { half } else { 0 },
        scratch: half.checked_mul(halves)?,
    })
}

/// Returns the bytes in which a chunk of scratch wraps, or the largest number where it does not.
pub(crate) fn wrap_of(plan: &ExecutionPlan, program: &RankProgram) -> usize {
    match program.scratch_chunks as usize {
        chunks if plan.reuse_resources && chunks > 0 => {
            WRAPPED[usize::from(plan.double_scratch)].div_ceil(chunks).next_multiple_of(plan.alignment)
        }
        _ => usize::MAX,
    }
}

/// Returns how many chunks make up the message.
pub(crate) fn chunks_of_message(plan: &ExecutionPlan) -> u64 {
    let (input_share, output_share) = CollectiveKind::of(plan).shares(plan.ranks.len());
    let most = |chunks: fn(&RankProgram) -> u32| plan.ranks.iter().map(chunks).max().map_or(0, u64::from);
    let (input, output) = (most(|rank| rank.input_chunks), most(|rank| rank.output_chunks));
    match (input, output) {
        (0, 0) => 1,
        (0, output) => output * output_share as u64,
        (input, _) => input * input_share as u64,
    }
}

/// Returns the message whose chunks have so many bytes.
pub(crate) fn message_of(plan: &ExecutionPlan, chunk: usize) -> u64 {
    chunks_of_message(plan).saturating_mul(chunk as u64)
}

/// Returns the bytes of a chunk. A plan without input and output has chunks of no bytes.
fn chunk_of(plan: &ExecutionPlan, message: u64) -> u64 {
    let has_chunks = plan.ranks.iter().any(|rank| rank.input_chunks > 0 || rank.output_chunks > 0);
    if has_chunks { message / chunks_of_message(plan) } else { 0 }
}

/// Returns the unit of messages: a plan runs at its multiples only. Returns nothing where no
/// message fits.
#[must_use]
pub fn granule(plan: &ExecutionPlan) -> Option<u64> {
    let chunks = chunks_of_message(plan);
    if CollectiveKind::of(plan) != CollectiveKind::Other {
        let (input_share, output_share) = CollectiveKind::of(plan).shares(plan.ranks.len());
        let fits = |given: u32, share: usize| given == 0 || u64::from(given) * share as u64 == chunks;
        let all = plan.ranks.iter();
        if !all
            .clone()
            .all(|rank| fits(rank.input_chunks, input_share) && fits(rank.output_chunks, output_share))
        {
            return None;
        }
    }
    chunks.checked_mul(plan.alignment as u64)
}

/// Returns the smallest message in which every slice of every operation has data, and which the
/// limits of the plan allow.
#[must_use]
pub fn smallest(plan: &ExecutionPlan) -> Option<u64> {
    let granule = granule(plan)?;
    let message = granule.checked_mul(slices(plan) as u64)?;
    let least = plan.min_message.checked_next_multiple_of(granule)?;
    Some(message.max(least)).filter(|&message| message <= plan.max_message)
}

/// Returns into how many slices an operation is cut at most.
pub(crate) fn slices(plan: &ExecutionPlan) -> usize {
    let mut most = 1;
    let mut visit = |operation: &crate::plan::BlockOperation, _: Place| {
        most = operation.slice.map_or(most, |(_, of)| most.max(of));
    };
    for block in plan.ranks.iter().flat_map(|rank| &rank.blocks) {
        crate::problem::each_operation(&block.operations, Place::PLAN, &mut visit);
    }
    most as usize
}
