//! Plans that once passed as clean, and are not: `tests/plans/false_clean`.

use shmccl_plan::check::{Finding, Kind};
use shmccl_plan::{check, read};

use crate::corpus::{folder, load};

/// Returns all errors of a plan, of any size, with the class that they are of.
fn errors(name: &str) -> Vec<(String, Finding)> {
    let report = check(&load(&format!("false_clean/{name}")), None).unwrap();
    let of_class = |class: check::ClassReport| {
        let about = class.about;
        class.findings.into_iter().map(move |finding| (about.clone(), finding))
    };
    let all = report.classes.into_iter().flat_map(of_class);
    all.filter(|(_, finding)| finding.kind.is_error()).collect()
}

/// Checks that some size has an error of a kind, in words of which these are a part.
fn has(name: &str, kind: Kind, told: &str) {
    let errors = errors(name);
    let is = |(_, finding): &(String, Finding)| finding.kind == kind && finding.to_string().contains(told);
    assert!(errors.iter().any(is), "{name}: {told}: {errors:#?}");
}

#[test]
fn a_packet_that_is_written_twice_in_a_launch_races_with_its_reader_in_any_order_of_blocks() {
    for name in ["packet_twice", "pkt_helper_first", "pkt_helper_last"] {
        has(name, Kind::Race, "(ppkt)");
    }
}

/// Checks that a plan is refused, in words of which these are a part.
fn is_refused(name: &str, told: &str) {
    let refusal = read::read_file(&folder().join(format!("false_clean/{name}.json"))).unwrap_err();
    assert!(refusal.to_string().contains(told), "{name}: {told}: {refusal}");
}

#[test]
fn blocks_that_share_a_channel_in_pipelines_of_other_lengths_are_refused() {
    let told = "rank 1 block 0 operation 8.0 (signal): synchronises with rank 0 block 1 operation 0.0 (wait) by signals";
    is_refused("pipe_counts", told);
}

#[test]
fn a_rank_that_keeps_its_own_input_is_no_sendrecv() {
    has("identity", Kind::Value, "rank 0 has its own input; sendrecv gives it that of another rank");
}

#[test]
fn operators_that_differ_between_chunks_or_ranks_are_no_allreduce() {
    has(
        "mixed_ops",
        Kind::Value,
        "bytes 0..16 of the output of rank 0 by sum, and bytes 16..32 of the output of rank 0 by max",
    );
    has(
        "mixed_ranks",
        Kind::Value,
        "of the output of rank 0 by sum, and bytes 0..16 of the output of rank 1 by min",
    );
}

#[test]
fn a_collective_without_chunks_is_refused() {
    is_refused("nochunks", "no rank has chunks of input or output, so nothing is left of allreduce");
}

#[test]
fn slices_that_lie_otherwise_in_some_size_are_checked_in_that_size() {
    has("slice4of2", Kind::Race, "(copy) reads");
    has("quarters_halves", Kind::Race, "(copy) reads");
}

#[test]
fn chunks_and_slices_that_overlap_in_scratch_are_checked() {
    has("reuse_nopipe", Kind::Value, "does not belong");
    has(
        "reuse_nopipe",
        Kind::Undecided,
        "rank 0 block 0 operation 3 (put) names scratch outside of a pipeline",
    );
    has("slice_wrap", Kind::Value, "does not belong");
}
