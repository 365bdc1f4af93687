//! Plans that once passed as clean, and are not: `tests/plans/false_clean`.

use shmccl_plan::build::CollectiveProgram;
use shmccl_plan::check::{Finding, FindingKind};
use shmccl_plan::{check, read, write};

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
fn has(name: &str, kind: FindingKind, told: &str) {
    let errors = errors(name);
    let is = |(_, finding): &(String, Finding)| finding.kind == kind && finding.to_string().contains(told);
    assert!(errors.iter().any(is), "{name}: {told}: {errors:#?}");
}

#[test]
fn a_packet_that_is_written_twice_in_a_launch_races_with_its_reader_in_any_order_of_blocks() {
    for name in ["packet_twice", "pkt_helper_first", "pkt_helper_last"] {
        has(name, FindingKind::Race, "(ppkt)");
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
    has("identity", FindingKind::Value, "rank 0 has its own input; sendrecv gives it that of another rank");
}

#[test]
fn operators_that_differ_between_chunks_or_ranks_are_no_allreduce() {
    has(
        "mixed_ops",
        FindingKind::Value,
        "bytes 0..16 of the output of rank 0 by sum, and bytes 16..32 of the output of rank 0 by max",
    );
    has(
        "mixed_ranks",
        FindingKind::Value,
        "of the output of rank 0 by sum, and bytes 0..16 of the output of rank 1 by min",
    );
}

#[test]
fn a_collective_without_chunks_is_refused() {
    is_refused("nochunks", "no rank has chunks of input or output, so nothing is left of allreduce");
}

#[test]
fn slices_that_lie_otherwise_in_some_size_are_checked_in_that_size() {
    has("slice4of2", FindingKind::Race, "(copy) reads");
    has("quarters_halves", FindingKind::Race, "(copy) reads");
}

#[test]
fn chunks_and_slices_that_overlap_in_scratch_are_checked() {
    has("reuse_nopipe", FindingKind::Value, "does not belong");
    has(
        "reuse_nopipe",
        FindingKind::Undecided,
        "rank 0 block 0 operation 3 (put) names scratch outside of a pipeline",
    );
    has("slice_wrap", FindingKind::Value, "does not belong");
}

#[test]
fn a_group_whose_buffer_is_not_that_of_its_channel_is_refused() {
    let told = "rank 0 block 0 operation 3 (glre): `buffer_type` is \"s\", and switch channel 0 is of \"i\"";
    is_refused("glre", told);
    let text = std::fs::read_to_string(folder().join("false_clean/glre.json")).unwrap();
    let right = text.replace(r#""name":"glre","buffer_type":"s""#, r#""name":"glre","buffer_type":"i""#);
    read::read("right", right.as_bytes()).unwrap();
    let two = right.replace(
        r#""channel_ids":[0],"channel_type":"switch""#,
        r#""channel_ids":[0,0],"channel_type":"switch""#,
    );
    let refusal = read::read("two", two.as_bytes()).unwrap_err().to_string();
    assert!(refusal.contains("(glre): 2 `channel_ids`; give the one"), "{refusal}");
    let list = r#""channel_type":"switch","channel_ids":[0]"#;
    let other = right.replace(list, &format!(r#"{list},"buff":"o""#));
    let refusal = read::read("other", other.as_bytes()).unwrap_err().to_string();
    assert!(
        refusal.contains("rank 0 block 0: `buff` is not that of switch channel 0 of the rank"),
        "{refusal}"
    );
}

#[test]
fn plans_that_no_message_runs_are_refused() {
    is_refused(
        "nolimits",
        "no message is within `min_message_size` 17 and `max_message_size` 31 and a multiple of 16",
    );
    is_refused(
        "align2",
        "rank 0 block 0 operation 0 (ppkt): packets at a `buffer_alignment` of 2; give a multiple of 4",
    );
    let mut program = CollectiveProgram::new("uneven", "allgather", 2).chunks(1, 3, 0);
    let block = program.block(0);
    program.copy(block, program.input(0, 0..1), program.output(0, 0..1)).unwrap();
    let problems = check(&program.finish_unproved().unwrap(), None).unwrap_err();
    assert!(
        problems[0].to_string().contains("no message of allgather fits the counts of chunks"),
        "{problems:?}"
    );
}

#[test]
fn units_that_do_not_fit_the_wrap_and_buffers_beyond_four_gibibytes_are_warned_of() {
    let pipeline = |unit| {
        let mut program = CollectiveProgram::new("units", "test", 1).chunks(1, 1, 64).reuse_resources();
        let block = program.block(0);
        program.begin_pipeline(block, unit, 1).unwrap();
        program.copy(block, program.input(0, 0..1), program.scratch(0, 0..1)).unwrap();
        program.end_pipeline(block).unwrap();
        program.finish_unproved().unwrap()
    };
    let warnings = |plan| read::read("plan", write::write(&plan).as_bytes()).unwrap().warnings;
    assert_eq!(warnings(pipeline(1 << 20)), Vec::<String>::new());
    let told = "`unit_size` 2097152 is larger than the 1048576 bytes in which scratch wraps";
    assert!(warnings(pipeline(2 << 20))[0].contains(told), "{:?}", warnings(pipeline(2 << 20)));
    assert!(warnings(pipeline(48))[0].contains("`unit_size` 48 does not divide the 1048576 bytes"));
    let large = CollectiveProgram::new("large", "test", 1).chunks(1, 1, 0).limits(1 << 33, u64::MAX);
    let told = "messages of 8589934592 bytes take buffers beyond the 4 GiB of MSCCL++'s executor";
    assert_eq!(warnings(large.finish_unproved().unwrap()), [told]);
}

#[test]
fn blocks_out_of_order_and_outputs_without_chunks_are_warned_of() {
    let text = std::fs::read_to_string(folder().join("false_clean/pkt_helper_last.json")).unwrap();
    let swapped =
        text.replace(r#"{"id":1,"ops""#, r#"{"id":9,"ops""#).replace(r#"{"id":2,"ops""#, r#"{"id":1,"ops""#);
    let swapped = swapped.replace(r#"{"id":9,"ops""#, r#"{"id":2,"ops""#);
    let warnings = read::read("swapped", swapped.as_bytes()).unwrap().warnings;
    let told = "rank 0: `threadblocks` are not in the order of `id`, as MSCCL++'s executor takes them";
    assert_eq!(warnings[0], told);
    let program = CollectiveProgram::new("inputs", "test", 1).chunks(1, 0, 0).finish_unproved().unwrap();
    let told = "rank 0: its executor divides by the chunks of output, of which there are none";
    assert_eq!(check::gpu::differences(&program), [told]);
}
