//! Execution plans run by the engine, each held against what its collective is.

#[macro_use]
#[expect(dead_code, unused_macros, reason = "scenarios use more of it")]
#[path = "../scenarios/harness.rs"]
mod harness;
#[path = "../scenarios/keep_algorithm.rs"]
mod keep_algorithm;

mod corpus;
mod killed;
mod refused;
mod registered;
mod stalled;
mod tuned;
mod verified;

use std::time::Duration;

use harness::Job;

/// How long all plans of some ranks may take: the long form does so in minutes, on an idle machine.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Runs all plans of so many ranks.
macro_rules! all_plans {
    ($name:ident, $n_ranks:literal ranks, $count:literal plans) => {
        scenario!($name, Job::of($n_ranks).heap_len(64 << 20).patience(PATIENCE), |comm| {
            verified::all(comm, $count)?;
        });
    };
}

all_plans!(plans_of_2_ranks_compute_their_collectives, 2 ranks, 30 plans);
all_plans!(plans_of_4_ranks_compute_their_collectives, 4 ranks, 27 plans);
all_plans!(plans_of_8_ranks_compute_their_collectives, 8 ranks, 27 plans);
all_plans!(plans_of_16_ranks_compute_their_collectives, 16 ranks, 1 plans);

scenario!(a_plan_does_the_calls_that_fit_it_however_they_are_made_and_no_others, Job::of(2), |comm| {
    registered::by_what_fits(comm)?;
});

scenario!(
    a_table_says_which_plans_do_which_calls_and_the_built_in_choice_does_the_rest,
    Job::of(2),
    |comm| {
        tuned::by_the_table(comm)?;
    }
);

scenario!(ranks_whose_tables_name_different_plans_all_learn_of_it, Job::of(2).broken(), |comm| {
    tuned::by_different_tables(comm)?;
});

scenario!(ranks_that_register_different_plans_all_learn_of_it, Job::of(2), |comm| {
    tuned::different_plans(comm)?;
});

scenario!(
    a_sendrecv_is_called_by_the_name_of_its_plan_and_refused_where_it_does_not_fit,
    Job::of(2),
    |comm| {
        registered::by_name(comm)?;
    }
);

scenario!(an_algorithm_of_the_users_own_does_calls_before_any_plan, Job::of(2), |comm| {
    tuned::beside_algorithms_of_the_users_own(comm)?;
});

scenario!(memory_of_plans_comes_back_when_all_ranks_have_left, Job::of(2).heap_len(256 << 20), |comm| {
    registered::memory_comes_back(comm)?;
});

scenario!(what_the_engine_does_not_run_is_refused_by_place_as_it_is_registered, Job::of(4), |comm| {
    refused::by_place(comm)?;
});

scenario!(
    a_plan_that_stalls_names_the_block_and_the_operation,
    Job::of(2).timeout(Duration::from_secs(1)).broken(),
    |comm| {
        stalled::without_a_signal(comm)?;
    }
);

scenario!(
    ranks_that_wait_for_each_other_are_told_of_the_circle,
    Job::of(2).timeout(Duration::from_secs(1)).broken(),
    |comm| {
        stalled::in_a_circle(comm)?;
    }
);

scenario!(
    a_rank_whose_blocks_never_wait_sees_that_the_other_one_has_given_up,
    Job::of(2).timeout(Duration::from_secs(1)).broken(),
    |comm| {
        stalled::elsewhere(comm)?;
    }
);

#[test]
fn whoever_survives_a_rank_that_was_killed_amid_plans_is_told() {
    killed::again_and_again("whoever_survives_a_rank_that_was_killed_amid_plans_is_told");
}
