//! Execution plans run by the engine, each held against what its collective is.

#[macro_use]
#[expect(dead_code, unused_macros, reason = "scenarios use more of it")]
#[path = "../scenarios/harness.rs"]
mod harness;

mod corpus;
mod verified;

use harness::Job;

/// Runs all plans of so many ranks.
macro_rules! all_plans {
    ($name:ident, $n_ranks:literal) => {
        scenario!($name, Job::of($n_ranks).heap_len(64 << 20), |comm| { verified::all(comm)?; });
    };
}

all_plans!(plans_of_2_ranks_compute_their_collectives, 2);
all_plans!(plans_of_3_ranks_compute_their_collectives, 3);
all_plans!(plans_of_4_ranks_compute_their_collectives, 4);
all_plans!(plans_of_8_ranks_compute_their_collectives, 8);
all_plans!(plans_of_16_ranks_compute_their_collectives, 16);
