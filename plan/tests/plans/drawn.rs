//! Drawn programs of pipelines and semaphores: the verdict over all sizes, and that of each size.

use shmccl_plan::build::{BlockId, Program, Semaphore};
use shmccl_plan::check::Kind;
use shmccl_plan::interpret::Random;
use shmccl_plan::{Plan, check, write};

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
fn drawn(random: &mut Random) -> (Vec<u32>, [Vec<Run>; 2]) {
    let mut blocks: [Vec<Run>; 2] = [0, 1].map(|_| {
        let unit = UNITS[random.below(4)];
        let pipelines = 1 + random.below(2);
        let unit_of = |random: &mut Random| if random.below(6) == 0 { UNITS[random.below(4)] } else { unit };
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
        initial.push(if random.below(2) == 0 { 0 } else { u32::try_from(random.below(6)).unwrap() });
        let adder = random.below(2);
        let taker = if random.below(4) == 0 { adder } else { 1 - adder };
        let times = if random.below(2) == 0 { 0 } else { random.below(5) };
        let at = 1 + 2 * random.below(blocks[adder].len() / 2);
        let other = if random.below(4) > 0 { at } else { 1 + 2 * random.below(blocks[taker].len() / 2) };
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
        let at = random.below(blocks[of].len());
        put(&mut blocks[of][at].1, step, random);
    }
    (initial, blocks)
}

fn put(steps: &mut Vec<Step>, step: Step, random: &mut Random) {
    let at = random.below(steps.len() + 1);
    steps.insert(at, step);
}

fn build((initial, blocks): &(Vec<u32>, [Vec<Run>; 2])) -> Option<Plan> {
    let mut program = Program::new("drawn", "test", 1).chunks(1, 1, 1);
    let semaphores: Vec<_> = initial.iter().map(|&value| program.semaphore(0, value)).collect();
    for runs in blocks {
        let block = program.block(0);
        for (unit, steps) in runs.iter().filter(|(_, steps)| !steps.is_empty()) {
            if *unit > 0 {
                program.begin_pipeline(block, *unit, 1).unwrap();
            }
            steps.iter().for_each(|&step| take(&mut program, block, &semaphores, step));
            if *unit > 0 {
                program.end_pipeline(block).unwrap();
            }
        }
    }
    program.finish_unproved().ok()
}

fn take(program: &mut Program, block: BlockId, semaphores: &[Semaphore], step: Step) {
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

#[test]
fn a_drawn_program_is_clean_exactly_where_each_size_is() {
    let wanted = if is_long() { 20_000 } else { 400 };
    let mut random = Random::new(11);
    let [mut clean, mut wrong, mut undecided] = [0; 3];
    for number in 0..wanted {
        // Pipelines of other lengths may share nothing across blocks.
        let Some(plan) = build(&drawn(&mut random)) else { continue };
        let text = write::write(&plan);
        let found = check(&plan, None).unwrap().worst().filter(|kind| kind.is_error());
        // Sizes in steps that meet every remainder of the units.
        let sizes = (16..=LONGEST).step_by(16).filter(|size| *size <= 480 || size % 112 == 0);
        let mut of_sizes = sizes.filter(|&size| !check(&plan, Some(size as u64)).unwrap().is_clean());
        let fault = of_sizes.next();
        match found {
            None => {
                clean += 1;
                assert_eq!(fault, None, "{number} is clean, but not in that size: {text}");
            }
            Some(Kind::Undecided) => undecided += 1,
            Some(kind) => {
                wrong += 1;
                assert!(fault.is_some(), "{number} is wrong ({kind:?}), but in no size: {text}");
            }
        }
    }
    let told = format!("{clean} clean, {wrong} wrong, {undecided} undecided");
    assert!(clean > wanted / 4 && wrong > wanted / 4 && undecided < wanted / 100, "{told}");
}
