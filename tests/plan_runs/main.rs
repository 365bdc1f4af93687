//! Execution plans run by the engine, each held against what its collective is.

#[macro_use]
#[expect(dead_code, unused_macros, reason = "scenarios use more of it")]
#[path = "../scenarios/harness.rs"]
mod harness;

mod corpus;
mod killed;
mod stalled;
mod verified;

use std::time::Duration;

use harness::Job;

/// Runs all plans of so many ranks.
macro_rules! all_plans {
    ($name:ident, $n_ranks:literal) => {
        scenario!($name, Job::of($n_ranks).heap_len(64 << 20), |comm| {
            verified::all(comm)?;
        });
    };
}

all_plans!(plans_of_2_ranks_compute_their_collectives, 2);
all_plans!(plans_of_3_ranks_compute_their_collectives, 3);
all_plans!(plans_of_4_ranks_compute_their_collectives, 4);
all_plans!(plans_of_8_ranks_compute_their_collectives, 8);
all_plans!(plans_of_16_ranks_compute_their_collectives, 16);

scenario!(
    a_plan_that_stalls_names_the_block_and_the_operation,
    Job::of(2).timeout(Duration::from_secs(1)).broken(),
    |comm| {
        stalled::without_a_signal(comm)?;
    }
);

#[test]
fn whoever_survives_a_rank_that_was_killed_amid_plans_is_told() {
    killed::again_and_again("whoever_survives_a_rank_that_was_killed_amid_plans_is_told");
}
