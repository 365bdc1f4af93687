//! Drawn programs of pipelines and semaphores: the verdict over all sizes, and that of each size.

use shmccl_plan::build::{BlockId, BlockSemaphore, CollectiveProgram};
use shmccl_plan::check::FindingKind;
use shmccl_plan::interpret::SplitMix64;
use shmccl_plan::{ExecutionPlan, check, write};

use crate::corpus::is_long;

const UNITS: [usize; 4] = [16, 32, 48, 80];
/// The longest chunk that is checked on its own.
const LONGEST: usize = 80 * 24;

/// An operation of a block.
#[derive(Clone, Copy)]
enum Step {
    Acquire(usize),
    Release(usize),
    /// From the input to scratch.
    Fill,
    /// From scratch to the output.
    Drain,
}

/// A run of operations: in a pipeline, but where the unit is 0.
type Run = (usize, Vec<Step>);

/// Draws the runs of two blocks: nothing but semaphores that one side releases and the other
/// acquires, mostly as often, and copies through scratch.
fn drawn(random: &mut SplitMix64, wraps: bool) -> (Vec<u32>, [Vec<Run>; 2]) {
    let mut blocks: [Vec<Run>; 2] = [0, 1].map(|_| {
        let unit = UNITS[random.below(4)];
        let pipelines = 1 + random.below(2);
        let unit_of =
            |random: &mut SplitMix64| if random.below(6) == 0 { UNITS[random.below(4)] } else { unit };
        (0..pipelines)
            .flat_map(|_| [(0, Vec::new()), (unit_of(random), Vec::new())])
            .chain([(0, Vec::new())])
            .collect()
    });
    if random.below(4) > 0 {
        blocks[1] = blocks[0].clone();
    }
    let mut initial = Vec::new();
    for semaphore in 0..1 + random.below(3) {
        initial.push(if random.below(2) == 0 { 0 } else { u32::try_from(random.below(12)).unwrap() });
        let adder = random.below(2);
        let taker = if random.below(2) == 0 { adder } else { 1 - adder };
        let times = if random.below(2) == 0 { 0 } else { random.below(5) };
        let at = 1 + 2 * random.below(blocks[adder].len() / 2);
        let other = if random.below(2) > 0 { at } else { 1 + 2 * random.below(blocks[taker].len() / 2) };
        let other = other.min(blocks[taker].len() - 2);
        for (block, at, step) in
            [(adder, at, Step::Release(semaphore)), (taker, other, Step::Acquire(semaphore))]
        {
            put(&mut blocks[block][at].1, step, random);
            let outside = if random.below(2) == 0 { at - 1 } else { at + 1 };
            (0..times).for_each(|_| put(&mut blocks[block][outside].1, step, random));
        }
    }
    for step in [Step::Fill, Step::Drain] {
        let of = random.below(2);
        // Chunks that overlap in scratch are for pipelines only.
        let at =
            if wraps { 1 + 2 * random.below(blocks[of].len() / 2) } else { random.below(blocks[of].len()) };
        put(&mut blocks[of][at].1, step, random);
    }
    (initial, blocks)
}

fn put(steps: &mut Vec<Step>, step: Step, random: &mut SplitMix64) {
    let at = random.below(steps.len() + 1);
    steps.insert(at, step);
}

/// How buffers and pipelines are cut.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// What units are multiplied with, which is the alignment, too.
    unit: usize,
    /// The chunks that each pipeline covers.
    chunks: u32,
    /// The chunks of scratch, where it wraps.
    wraps: Option<u32>,
}

fn build(shape: Shape, (initial, blocks): &(Vec<u32>, [Vec<Run>; 2])) -> Option<ExecutionPlan> {
    let program = CollectiveProgram::new("drawn", "test", 1).chunks(1, 1, shape.wraps.unwrap_or(1));
    let mut program = if shape.wraps.is_some() { program.reuse_resources() } else { program };
    let semaphores: Vec<_> = initial.iter().map(|&value| program.semaphore(0, value)).collect();
    for runs in blocks {
        let block = program.block(0);
        for (unit, steps) in runs.iter().filter(|(_, steps)| !steps.is_empty()) {
            if *unit > 0 {
                program.begin_pipeline(block, unit / 16 * shape.unit, shape.chunks).unwrap();
            }
            steps.iter().for_each(|&step| take(&mut program, block, &semaphores, step));
            if *unit > 0 {
                program.end_pipeline(block).unwrap();
            }
        }
    }
    let plan = program.finish_unproved().ok()?;
    Some(ExecutionPlan { alignment: shape.unit, ..plan })
}

fn take(program: &mut CollectiveProgram, block: BlockId, semaphores: &[BlockSemaphore], step: Step) {
    let [input, scratch, output] =
        [program.input(0, 0..1), program.scratch(0, 0..1), program.output(0, 0..1)];
    match step {
        Step::Acquire(index) => program.acquire(block, semaphores[index]),
        Step::Release(index) => program.release(block, semaphores[index]),
        Step::Fill => program.copy(block, input, scratch),
        Step::Drain => program.copy(block, scratch, output),
    }
    .unwrap();
}

/// Draws programs, and holds the verdict over all sizes against that of each.
fn try_drawn(shape: Shape, seed: u64, wanted: usize) {
    let mut random = SplitMix64::new(seed);
    let [mut clean, mut wrong, mut undecided] = [0; 3];
    for number in 0..wanted {
        let program = drawn(&mut random, shape.wraps.is_some());
        // Pipelines of other lengths may share nothing across blocks.
        let Some(plan) = build(shape, &program) else { continue };
        let text = write::write(&plan);
        let found = check(&plan, None).unwrap().worst().filter(|kind| kind.is_error());
        // Sizes in steps that meet every remainder of the units.
        let sizes = (1..=LONGEST / 16).filter(|size| *size <= 30 || size % 7 == 0);
        let is_wrong = |&size: &usize| !check(&plan, Some((size * shape.unit) as u64)).unwrap().is_clean();
        let fault = { sizes }.find(is_wrong);
        match found {
            None => {
                clean += 1;
                assert_eq!(fault, None, "{number} is clean, but not in that many units: {text}");
            }
            Some(FindingKind::Undecided) => undecided += 1,
            Some(kind) => {
                wrong += 1;
                assert!(fault.is_some(), "{number} is wrong ({kind:?}), but in no size: {text}");
            }
        }
    }
    let told = format!("{clean} clean, {wrong} wrong, {undecided} undecided");
    assert!(clean > wanted / 20 && wrong > wanted / 20, "{told}");
}

fn wanted() -> usize {
    if is_long() { 10_000 } else { 400 }
}

#[test]
fn a_drawn_program_is_clean_exactly_where_each_size_is() {
    try_drawn(Shape { unit: 16, chunks: 1, wraps: None }, 11, wanted());
}

#[test]
fn a_drawn_program_whose_pipelines_cover_more_is_clean_exactly_where_each_size_is() {
    for chunks in [2, 3] {
        try_drawn(Shape { unit: 16, chunks, wraps: None }, 12, wanted() / 2);
    }
}

#[test]
fn a_drawn_program_that_wraps_in_scratch_is_clean_exactly_where_each_size_is() {
    // In 4 units, in 2, and in 6 and a part.
    for chunks in [16, 32, 10] {
        try_drawn(Shape { unit: 1 << 20, chunks: 1, wraps: Some(chunks) }, 13, wanted() / 2);
    }
}
