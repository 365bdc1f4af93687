//! Writes plans of three algorithms, each proved before it is written:
//! `cargo run -p shmccl-plan --example programs -- ring 4 > ring.json`.

use std::process::ExitCode;

use shmccl_plan::build::{BlockId, BuildError, Channel, Program};
use shmccl_plan::{Plan, write};

/// Gathers around a ring: each rank hands the latest chunk that it has to the next.
fn ring(ranks: usize) -> Result<Plan, BuildError> {
    let mut program = Program::new("ring", "allgather", ranks).in_place().chunks(1, chunks(ranks), 0);
    let channels: Vec<_> = (0..ranks)
        .map(|rank| {
            let next = (rank + 1) % ranks;
            (program.memory_channel(rank, next), program.memory_channel(next, rank))
        })
        .collect();
    for rank in 0..ranks {
        let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let (to_next, from_before) = (channels[rank].0, channels[before].1);
        let block = program.block(rank);
        // A rank is ready to be written once its launch has begun.
        program.relaxed_signal(block, from_before)?;
        program.relaxed_wait(block, to_next)?;
        for step in 0..ranks - 1 {
            let chunk = (rank + ranks - step) % ranks;
            let (own, far) = (program.output(rank, chunk..chunk + 1), program.output(next, chunk..chunk + 1));
            program.put(block, own, far)?;
            program.signal(block, to_next)?;
            program.wait(block, from_before)?;
        }
    }
    program.finish()
}

/// Reduces in one hop, for small messages: each rank sends all it has to all others, as packets.
fn one_shot(ranks: usize) -> Result<Plan, BuildError> {
    let mut program =
        Program::new("one_shot", "allreduce", ranks).in_place().packets().chunks(1, 1, chunks(ranks));
    for rank in 0..ranks {
        let block = program.block(rank);
        let own = program.input(rank, 0..1);
        let others = || (0..ranks).filter(move |&peer| peer != rank);
        for peer in others() {
            program.put_packets(block, own, program.scratch(peer, rank..rank + 1))?;
        }
        let packets: Vec<_> = others().map(|peer| program.scratch(rank, peer..peer + 1)).collect();
        program.reduce_packets(block, (own, &packets), (own, &[]))?;
    }
    program.finish()
}

/// Reduces where the data lie, for large messages: each rank combines its part of all inputs and
/// writes the result to all, without scratch.
fn two_shot(ranks: usize) -> Result<Plan, BuildError> {
    let parts = chunks(ranks);
    let mut program = Program::new("two_shot", "allreduce", ranks).in_place().chunks(parts, parts, 0);
    let channels: Vec<Vec<_>> = (0..ranks)
        .map(|rank| {
            (0..ranks).map(|peer| (peer != rank).then(|| program.memory_channel(rank, peer))).collect()
        })
        .collect();
    for (rank, channels) in channels.iter().enumerate() {
        let block = program.block(rank);
        let own: Vec<Channel> = channels.iter().flatten().copied().collect();
        meet(&mut program, block, &own, true)?;
        let part = |peer| program.input(peer, rank..rank + 1);
        let others = (0..ranks).filter(|&peer| peer != rank).map(part);
        let all: Vec<_> = std::iter::once(part(rank)).chain(others).collect();
        program.reduce(block, &all, &all)?;
        meet(&mut program, block, &own, false)?;
    }
    program.finish()
}

/// Lets a rank and its peers wait for each other: at the start, or for each other's data.
fn meet(
    program: &mut Program,
    block: BlockId,
    channels: &[Channel],
    is_start: bool,
) -> Result<(), BuildError> {
    for &channel in channels {
        if is_start { program.relaxed_signal(block, channel)? } else { program.signal(block, channel)? }
    }
    for &channel in channels {
        if is_start { program.relaxed_wait(block, channel)? } else { program.wait(block, channel)? }
    }
    Ok(())
}

fn chunks(ranks: usize) -> u32 {
    u32::try_from(ranks).unwrap_or(u32::MAX)
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own")]
fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let ranks = words.next().and_then(|ranks| ranks.parse().ok()).filter(|ranks| (2..=64).contains(ranks));
    let (Some(ranks), Some(program)) = (ranks, program_of(&name)) else {
        eprintln!("usage: programs ring|one_shot|two_shot RANKS, with 2 to 64 ranks");
        return ExitCode::from(2);
    };
    match program(ranks) {
        Ok(plan) => print!("{}", write::write(&plan)),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn program_of(name: &str) -> Option<fn(usize) -> Result<Plan, BuildError>> {
    match name {
        "ring" => Some(ring),
        "one_shot" => Some(one_shot),
        "two_shot" => Some(two_shot),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_are_proved_for_two_to_eight_ranks() {
        for ranks in [2, 3, 4, 8] {
            for name in ["ring", "one_shot", "two_shot"] {
                let plan = program_of(name).unwrap()(ranks);
                assert!(plan.is_ok(), "{name} of {ranks} ranks: {}", plan.unwrap_err());
            }
        }
    }
}
