//! Verdicts of the checker on the corpus.

use std::collections::BTreeMap;

use shmccl_plan::build::CollectiveProgram;
use shmccl_plan::check::{CheckReport, FindingKind};
use shmccl_plan::{ExecutionPlan, check, read};

use crate::corpus::{folder, listed, load};

/// Returns the verdict in the words of the manifest.
fn verdict(report: &CheckReport) -> &'static str {
    let told = |kind| matches!(kind, FindingKind::UnequalOrder | FindingKind::Unchecked);
    let findings = report.classes.iter().flat_map(|class| &class.findings);
    match findings.map(|finding| finding.kind).filter(|kind| !told(*kind)).min() {
        None => "clean",
        Some(FindingKind::Deadlock) => "hangs",
        Some(FindingKind::RelaxedOrder) => "end ordered by relaxed signals only",
        Some(FindingKind::Race | FindingKind::RaceOnGpu) => "race",
        Some(kind) => kind.name(),
    }
}

/// Checks the class of the smallest messages, which the manifest is about.
fn smallest(plan: &ExecutionPlan) -> CheckReport {
    let mut report = check(plan, None).unwrap();
    report.classes.truncate(1);
    report
}

#[test]
fn each_plan_has_the_verdict_of_the_manifest() {
    let mut wrong = Vec::new();
    for listed in listed(&["generated", "upstream", "units"]) {
        let report = smallest(&listed.plan);
        if verdict(&report) != listed.verdict {
            wrong.push(format!(
                "{}: {} instead of {}: {:#?}",
                listed.name,
                verdict(&report),
                listed.verdict,
                report.classes[0].findings.first().map(ToString::to_string)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_faulty_plan_has_the_verdict_that_is_expected() {
    let text = std::fs::read_to_string(folder().join("faulty/expected.json")).unwrap();
    let expected: BTreeMap<String, BTreeMap<String, serde_json::Value>> =
        serde_json::from_str(&text).unwrap();
    let mut wrong = Vec::new();
    for (file, about) in &expected {
        let found = match read::read_file(&folder().join("faulty").join(file)) {
            Err(_) => "refused",
            Ok(reading) => smallest(&reading.plan).worst().map_or("clean", FindingKind::name),
        };
        if found != about["verdict"] {
            wrong.push(format!("{file}: {found} instead of {}: {}", about["verdict"], about["change"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_deadlock_names_the_signals_that_are_missing() {
    let report = smallest(&load("faulty/deadlock_03"));
    let told = report.classes[0].findings[0].to_string();
    let missing = "a launch adds 1 to the signals of rank 1 to rank 0 on memory channel 6 and takes 2";
    assert!(told.starts_with("deadlock: ") && told.contains(missing), "{told}");
}

#[test]
fn no_plan_of_the_corpus_has_a_field_that_is_unknown() {
    for listed in listed(&["generated", "upstream", "units"]) {
        let reading = read::read_file(&folder().join(format!("{}.json", listed.name))).unwrap();
        let unknown: Vec<_> = reading.warnings.iter().filter(|warning| warning.contains("unknown")).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", listed.name);
    }
}

#[test]
fn a_nop_that_nothing_needs_is_named() {
    let plan = load("generated/ag_2");
    let redundant: Vec<_> = check::redundant(&plan).iter().map(ToString::to_string).collect();
    // Nothing is accessed before the first of a block, and its end lets threads meet anyway.
    for index in [0, 9] {
        assert!(redundant.contains(&format!("rank 0 block 0 operation {index} (nop)")), "{redundant:?}");
    }
    assert!(!redundant.contains(&"rank 0 block 0 operation 6 (nop)".to_owned()), "{redundant:?}");
    assert!(check::redundant(&load("upstream/reduce_tbg")).is_empty());
}

#[test]
fn a_signal_with_its_wait_and_a_flush_that_nothing_needs_are_named() {
    let mut program = CollectiveProgram::new("twice", "allgather", 2).in_place().chunks(1, 2, 0);
    let [here, there] = [(0, 1), (1, 0)].map(|(rank, peer)| program.memory_channel(rank, peer));
    let ports = [(0, 1), (1, 0)].map(|(rank, peer)| program.port_channel(rank, peer));
    for (rank, channel) in [here, there].into_iter().enumerate() {
        let block = program.block(rank);
        let own = rank..rank + 1;
        program.relaxed_signal(block, channel).unwrap();
        program.relaxed_wait(block, channel).unwrap();
        program.put(block, program.output(rank, own.clone()), program.output(1 - rank, own)).unwrap();
        program.signal(block, channel).unwrap();
        program.wait(block, channel).unwrap();
        program.signal(block, channel).unwrap();
        program.wait(block, channel).unwrap();
        program.flush(block, ports[rank]).unwrap();
    }
    let redundant: Vec<_> =
        check::redundant(&program.finish().unwrap()).iter().map(ToString::to_string).collect();
    let of = |name: &str| redundant.iter().filter(|told| told.contains(name)).collect::<Vec<_>>();
    assert_eq!(of("(flush)").len(), 2, "{redundant:?}");
    // Either pair of the two will do, and none of those that begin the launch.
    assert_eq!((of("(wait)").len(), of("(rlxwait)").len()), (4, 0), "{redundant:?}");
    assert!(of("(wait)")[0].contains("(signal) and rank"), "{redundant:?}");
}

#[test]
fn no_size_that_a_plan_allows_makes_it_wrong_but_where_scratch_wraps_without_credits() {
    let mut found = Vec::new();
    for listed in listed(&["generated", "upstream"]).into_iter().filter(|listed| listed.verdict != "race") {
        let report = check(&listed.plan, None).unwrap();
        for class in report.classes.iter().filter(|class| class.worst().is_some_and(FindingKind::is_error)) {
            found.push(format!("{}: {}: {}", listed.name, class.about, class.findings[0]));
        }
    }
    assert!(
        matches!(&found[..], [one] if one.starts_with("generated/ar_pipeline_2: messages of more than 67108864")),
        "{found:#?}"
    );
}
