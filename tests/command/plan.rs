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

#[test]
fn a_run_ends_with_0_where_all_calls_are_right_and_with_1_where_data_are_wrong_or_nothing_comes() {
    let right = plan(&["run", "generated/ar_2.json", "--sizes", "256,768"]);
    assert_eq!(right.status.code(), Some(0), "{}", text(&right.stderr));
    let table = text(&right.stdout);
    for kind in ["int32     sum", "float     max", "half     sum"] {
        let rows: Vec<_> = table.lines().filter(|line| line.contains(kind)).collect();
        assert_eq!(rows.len(), 2, "{kind}: {table}");
    }
    let wrong = plan(&["run", "faulty/value_03.json", "--sizes", "1K"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("error: wrong data in "), "{}", text(&wrong.stderr));
    let stuck = plan(&["run", "faulty/deadlock_03.json", "--timeout", "1s"]);
    assert_eq!(stuck.status.code(), Some(1));
    let told =
        "plan:allreduce_nvls timed out: rank 0 block 6 operation 9 (rlxwait) waits for signal 2 of rank 1";
    assert!(text(&stuck.stderr).contains(told), "{}", text(&stuck.stderr));
    let exchanged = plan(&["run", "generated/mn_sendrecv_2x1_m0_i1.json", "--sizes", "1K"]);
    assert_eq!(exchanged.status.code(), Some(0), "{}", text(&exchanged.stderr));
    let no_call = plan(&["run", "units/unit_barrier.json"]);
    assert_eq!(no_call.status.code(), Some(2));
    assert!(text(&no_call.stderr).contains("a plan of test; "), "{}", text(&no_call.stderr));
}

fn perf(words: &[&str]) -> Output {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans");
    Command::new(env!("CARGO_BIN_EXE_shmccl")).arg("perf").args(words).current_dir(plans).output().unwrap()
}

#[test]
fn a_plan_is_measured_as_an_algorithm_is_by_its_file_or_its_name() {
    let sizes = ["-b", "256", "-e", "1K", "-n", "5"];
    for ways in
        [["--plan", "generated/ar_2.json"].as_slice(), &["--plans", "generated", "--algo", "plan:ar_2"]]
    {
        let measured = perf(&[["all_reduce"].as_slice(), ways, &sizes, &["--json", "-"]].concat());
        assert_eq!(measured.status.code(), Some(0), "{}", text(&measured.stderr));
        let report: serde_json::Value = serde_json::from_str(&text(&measured.stdout)).unwrap();
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 4, "{report}");
        assert!(rows.iter().all(|row| row["variant"] == "plan:allreduce" && row["wrong"] == 0), "{report}");
    }
}

#[test]
fn what_a_plan_does_not_do_is_refused_by_its_measure() {
    let refused = |words: &[&str], told: &str| {
        let refused = perf(&[["all_reduce"].as_slice(), words].concat());
        assert_ne!(refused.status.code(), Some(0), "{words:?}");
        assert!(text(&refused.stderr).contains(told), "{words:?}: {}", text(&refused.stderr));
    };
    let ar_2 = "generated/ar_2.json";
    refused(&["--plan", ar_2, "-g", "4"], "it is for 2 ranks, and not 4");
    refused(&["--plan", "generated/ag_2.json"], "it does all_gather, and not all_reduce");
    refused(&["--plan", ar_2, "-b", "8", "-e", "64"], "none of the sizes is a multiple of 256");
    refused(
        &["--plan", ar_2, "-b", "256", "-e", "256", "-o", "avg"],
        "it does no all_reduce of avg; take such as sum, max",
    );
    refused(&["--plans", "generated", "--algo", "plan:nothing"], "generated has no plan called nothing");
    refused(&["--algo", "plan:ar_2"], "--algo plan:ar_2 needs --plans DIR");
}
