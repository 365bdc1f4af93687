//! `shmccl plan`: verdicts, exit codes, and what it writes.

use std::path::Path;
use std::process::{Command, Output};

use crate::{scratch, text};

fn plan(words: &[&str]) -> Output {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans");
    Command::new(env!("CARGO_BIN_EXE_shmccl")).arg("plan").args(words).current_dir(plans).output().unwrap()
}

#[test]
fn a_check_ends_with_0_for_a_clean_plan_1_for_findings_and_2_for_no_plan() {
    let clean = plan(&["check", "generated/ar_8.json"]);
    assert_eq!((clean.status.code(), text(&clean.stderr)), (Some(0), String::new()));
    assert!(
        text(&clean.stdout).starts_with("generated/ar_8.json: clean (allreduce of 8 ranks"),
        "{}",
        text(&clean.stdout)
    );
    let racy = plan(&["check", "faulty/race_07.json"]);
    assert_eq!(racy.status.code(), Some(1));
    let told = text(&racy.stdout);
    assert!(told.contains("rank 1 block 0 operation") && told.contains("; signal rank"), "{told}");
    let stuck = plan(&["check", "faulty/deadlock_03.json", "--json", "-"]);
    assert_eq!(stuck.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_str(&text(&stuck.stdout)).unwrap();
    assert_eq!((&json["verdict"], &json["clean"]), (&"deadlock".into(), &false.into()));
    let refused = plan(&["check", "faulty/value_11.json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr)
            .starts_with("error: faulty/value_11.json: rank 1 block 1 operation 0 (respkt): "),
        "{}",
        text(&refused.stderr)
    );
    let missing = plan(&["check", "nothing.json"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        text(&missing.stderr).contains("nothing.json: the plan: cannot be read: "),
        "{}",
        text(&missing.stderr)
    );
}

#[test]
fn a_size_that_does_not_fit_names_those_that_do() {
    let odd = plan(&["check", "generated/ar_2.json", "--size", "300"]);
    assert_eq!(odd.status.code(), Some(2));
    assert!(text(&odd.stderr).contains("take 256 or 512"), "{}", text(&odd.stderr));
}

#[test]
fn what_a_gpu_would_do_otherwise_is_named_on_request() {
    let got = plan(&["check", "upstream/reduce.json", "--gpu"]);
    assert_eq!(plan(&["check", "upstream/reduce.json"]).status.code(), Some(0));
    let limits = plan(&["check", "generated/a2a_ring_4.json", "--gpu"]);
    assert_eq!((got.status.code(), limits.status.code()), (Some(0), Some(1)));
    assert!(
        text(&limits.stdout).contains("rank 0: 48 semaphores, of which its executor takes 16"),
        "{}",
        text(&limits.stdout)
    );
}

#[test]
fn show_tells_who_sends_what_to_whom() {
    let shown = text(&plan(&["show", "generated/ag_2.json", "--operations"]).stdout);
    for line in [
        "step 1: 2 pairs of ranks, 32 bytes",
        "  0 -> 1  o[0] to o[0] (of 0)",
        "5 put o[0] -> o[0] of rank 1",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

#[test]
fn a_program_is_imported_drawn_and_compared() {
    let directory = scratch("plan");
    let [json, svg] = ["plan.json", "plan.svg"].map(|name| directory.join(name).display().to_string());
    let imported = plan(&["import", "msccl-xml/ncv4-ag_hier_4_LL.xml", "-o", &json]);
    assert_eq!(imported.status.code(), Some(0), "{}", text(&imported.stderr));
    assert_eq!(plan(&["check", &json]).status.code(), Some(0));
    assert_eq!(plan(&["draw", &json, "-o", &svg]).status.code(), Some(0));
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg "));
    assert_eq!(plan(&["diff", &json, &json]).status.code(), Some(0));
    let other = plan(&["diff", &json, "generated/ag_2.json"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other.stdout).contains("the plan: ranks 4 -> 2"), "{}", text(&other.stdout));
    std::fs::remove_dir_all(directory).unwrap();
}
