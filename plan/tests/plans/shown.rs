//! What `show` tells a reader.

use shmccl_plan::{draw, lower, show};

use crate::corpus::load;

fn shown(name: &str, message: u64) -> String {
    let plan = load(name);
    show::show(&plan, &lower(&plan, message).unwrap()).unwrap()
}

#[test]
fn what_a_rank_reads_and_writes_at_once_is_shown_as_two_steps() {
    let told = shown("generated/ar_4", 512);
    for line in [
        "step 1: 12 pairs of ranks, 1536 bytes",
        "  1 -> 0  o[0..8] to o[0..8] (of 1)",
        "step 2: 12 pairs of ranks, 1536 bytes",
        "  0 -> 1  o[0..8] to o[0..8] (of 0+1+2+3)",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
}

#[test]
fn packets_are_shown_with_what_they_combine_and_in_which_step() {
    let told = shown("upstream/allreduce_packet", 64);
    for line in ["  0 -> 1  o[2..4] to s[0..2] (of 0)", "  0 -> 1  o[0..2] to s[2..4] (of 0+1)"] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(told.find("(of 0)") < told.find("step 2"), "{told}");
}

#[test]
fn a_size_of_more_units_than_are_followed_is_refused() {
    let plan = load("generated/ag_2");
    let lowered = lower(&plan, 1 << 30).unwrap();
    let told = show::show(&plan, &lowered).unwrap_err();
    assert!(told.contains("units of memory, more than 2097152; take a smaller size"), "{told}");
    assert_eq!(draw::draw(&plan, &lowered).unwrap_err(), told);
}

#[test]
fn what_a_switch_reduces_is_shown_as_two_steps() {
    let told = shown("generated/ex_ar_nvls_4", 64);
    assert!(told.contains("step 2: 12 pairs of ranks") && !told.contains("step 3"), "{told}");
}

#[test]
fn a_picture_says_in_each_box_from_whom_to_whom_and_in_which_step() {
    let drawn = |name: &str, message| {
        let plan = load(name);
        draw::draw(&plan, &lower(&plan, message).unwrap()).unwrap()
    };
    let picture = drawn("upstream/reduce", 64);
    for label in [">signal \u{2192}1<", ">wait \u{2190}0<", ">rres \u{2194}1 (1,2)<", ">put \u{2192}0 (2)<"] {
        assert!(picture.contains(label), "{label}: {picture}");
    }
    let picture = drawn("generated/ar_4", 512);
    for told in [">rres \u{2194}1,2,3 (1,2)<", "0 \u{2192} 1  o[0..8] to o[0..8] (of 0+1+2+3)"] {
        assert!(picture.contains(told), "{told}: {picture}");
    }
}
