//! Plans run by the interpreter.

use shmccl_plan::collective::CollectiveKind;
use shmccl_plan::{lower, lower::smallest};

use crate::corpus::{fault, listed, load, run};

#[test]
fn each_plan_computes_its_collective_in_launches_without_a_barrier() {
    let mut count = 0;
    for listed in listed(&["generated", "upstream"]) {
        assert_ne!(CollectiveKind::of(&listed.plan), CollectiveKind::Other);
        if listed.verdict == "race" {
            continue;
        }
        for seed in 0..2 {
            let outcome = run(&listed.plan, listed.smallest, 3, seed);
            if let Some(fault) = fault(&listed.plan, &outcome, 3) {
                panic!("{} with seed {seed}: {fault}", listed.name);
            }
        }
        count += 1;
    }
    assert_eq!(count, 85);
}

#[test]
fn a_race_shows_in_some_schedule() {
    let plan = load("upstream/reduce_tbg");
    assert!((0..20).any(|seed| fault(&plan, &run(&plan, 128, 3, seed), 3).is_some()));
}

#[test]
fn the_smallest_message_of_each_plan_is_that_of_the_manifest() {
    for listed in listed(&["generated", "upstream", "units"]) {
        assert_eq!(smallest(&listed.plan), Some(listed.smallest), "{}", listed.name);
    }
}

#[test]
fn units_run_or_hang_as_the_manifest_says() {
    for listed in listed(&["units"]) {
        lower(&listed.plan, listed.smallest).unwrap();
        let outcome = run(&listed.plan, listed.smallest, 2, 1);
        let expected = listed.verdict == "hangs";
        assert_eq!(!outcome.stuck.is_empty(), expected, "{}: {:?}", listed.name, outcome.stuck);
    }
}
