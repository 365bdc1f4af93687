//! Writes plans of three algorithms, each proved before it is written:
//! `cargo run -p shmccl-plan --example plans -- ring 4 > ring.json`.

mod one_shot;
mod ring;
mod two_shot;

use std::process::ExitCode;

use shmccl_plan::build::BuildError;
use shmccl_plan::{ExecutionPlan, write};

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own")]
fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let ranks = words.next().and_then(|ranks| ranks.parse().ok()).filter(|ranks| (2..=256).contains(ranks));
    let (Some(ranks), Some(program)) = (ranks, program_of(&name)) else {
        eprintln!("usage: plans ring|one_shot|two_shot RANKS, with 2 to 256 ranks");
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

fn program_of(name: &str) -> Option<fn(usize) -> Result<ExecutionPlan, BuildError>> {
    match name {
        "ring" => Some(ring::ring),
        "one_shot" => Some(one_shot::one_shot),
        "two_shot" => Some(two_shot::two_shot),
        _ => None,
    }
}

/// Returns a count of ranks as one of chunks.
fn chunks(ranks: usize) -> u32 {
    u32::try_from(ranks).unwrap_or(u32::MAX)
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
