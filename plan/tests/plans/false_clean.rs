//! Plans that once passed as clean, and are not: `tests/plans/false_clean`.

use shmccl_plan::check::{Finding, Kind};
use shmccl_plan::check;

use crate::corpus::load;

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
