//! `shmccl plan` and its kin where they refuse, and what they say of names that are no names.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::{scratch, text};

fn shmccl(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command.args(words).env_remove("SHMCCL_PLANS").current_dir(plans());
    command
}

fn plans() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans")
}

/// A plan of the corpus with one change, in a file that goes with it.
struct Changed(PathBuf);

impl Changed {
    fn new(test: &str, plan: &str, change: impl FnOnce(&mut Value)) -> Self {
        let text = std::fs::read(plans().join(plan)).unwrap();
        let mut plan: Value = serde_json::from_slice(&text).unwrap();
        change(&mut plan);
        let directory = scratch(test);
        std::fs::write(directory.join("plan.json"), plan.to_string()).unwrap();
        Self(directory)
    }

    fn file(&self) -> String {
        self.0.join("plan.json").display().to_string()
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Checks that a command has refused its input with `told`, before anything ran.
fn assert_refused(refused: &Output, told: &[&str]) {
    let stderr = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert_eq!(text(&refused.stdout), "");
    assert!(told.iter().all(|part| stderr.contains(part)), "{told:?}: {stderr}");
}

#[test]
fn an_output_that_cannot_be_written_is_no_finding() {
    let clean = "generated/ag_2.json";
    for words in [
        ["plan", "check", clean, "--json", "/nonexistent/x"],
        ["plan", "draw", clean, "-o", "/nonexistent/x"],
        ["plan", "import", "msccl-xml/ncv4-ag_hier_4_LL.xml", "-o", "/nonexistent/x"],
    ] {
        assert_refused(&shmccl(&words), &["directory /nonexistent does not exist"]);
    }
}

#[test]
fn a_check_without_a_verdict_tells_a_program_why() {
    let report = |words: &[&str]| {
        let refused = shmccl(&[&["plan", "check"], words, &["--json", "-"]].concat());
        assert_eq!(refused.status.code(), Some(2));
        serde_json::from_slice::<Value>(&refused.stdout).unwrap()
    };
    let broken = report(&["faulty/value_11.json"]);
    let problem = &broken["problems"][0];
    assert_eq!(broken["file"], "faulty/value_11.json");
    assert_eq!((&broken["verdict"], &broken["clean"]), (&json!("refused"), &json!(false)));
    assert_eq!(
        (&problem["rank"], &problem["block"], &problem["operation"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!(problem["name"], "respkt");
    assert!(!problem["what"].as_str().unwrap().is_empty());
    for words in [["nothing.json"].as_slice(), &["generated/ar_2.json", "--size", "300"]] {
        let refused = report(words);
        assert_eq!(refused["problems"].as_array().unwrap().len(), 1, "{refused}");
        assert_eq!(refused["problems"][0]["rank"], Value::Null);
    }
}

#[test]
fn the_verdict_of_a_plan_with_nothing_but_lints_is_clean_and_the_lints_stand_beside_it() {
    let checked = shmccl(&["plan", "check", "upstream/reduce_nvls.json", "--json", "-"]);
    assert_eq!(checked.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!((&report["verdict"], &report["clean"]), (&json!("clean"), &json!(true)));
    assert_eq!(report["notes"], json!(["relaxed signals only"]));
    for class in report["classes"].as_array().unwrap() {
        assert_eq!(class["verdict"], "clean");
        let findings = class["findings"].as_array().unwrap();
        assert!(findings.iter().all(|finding| finding["error"] == false), "{class}");
    }
    assert!(text(&checked.stderr).contains(": clean\n    note: "), "{}", text(&checked.stderr));
}

#[test]
fn sizes_that_a_plan_does_not_do_are_all_named_with_its_unit_and_nothing_is_run() {
    let run = |plan: &str, sizes: &str| shmccl(&["plan", "run", plan, "--sizes", sizes]);
    let told = ["--sizes: it does no messages of 33, 100 bytes; give multiples of 32 from 32 on"];
    assert_refused(&run("generated/ag_2.json", "33,64,100"), &told);
    assert_refused(&run("generated/ag_2.json", "0"), &["it does no messages of 0 bytes"]);
    let limited =
        Changed::new("limited", "generated/ag_2.json", |plan| plan["max_message_size"] = json!(128));
    assert_refused(&run(&limited.file(), "128,160"), &["no messages of 160 bytes", "of 32 within 32..=128"]);
}

#[test]
fn types_whose_elements_a_plan_cuts_are_left_out_of_its_run_and_refused_where_asked_for() {
    for (alignment, types, cut) in
        [(2, "half alone", "int32 and float"), (1, "int8 and uint8 alone", "int32 and float and half")]
    {
        let plan = Changed::new(&format!("aligned-{alignment}"), "generated/ag_2.json", |plan| {
            plan["buffer_alignment"] = json!(alignment);
        });
        let run = shmccl(&["plan", "run", &plan.file()]);
        let told = text(&run.stderr);
        assert_eq!(run.status.code(), Some(0), "{told}");
        let note = format!("run with {types}: the plan's `buffer_alignment` cuts {cut}\n");
        assert!(told.contains(&note), "{told}");
        let sweep = ["-b", "64", "-e", "64", "-n", "2", "-d"];
        let perf = |data_type| {
            shmccl(
                &[&["perf", "all_gather", "--plan", &plan.file()], sweep.as_slice(), &[data_type]].concat(),
            )
        };
        assert_refused(
            &perf("float"),
            &[&format!("no float, as its `buffer_alignment` is {alignment} bytes")],
        );
        assert_eq!(perf("uint8").status.code(), Some(0));
    }
}

#[test]
fn operators_with_a_last_step_are_refused_of_plans_before_anything_runs() {
    let sweep = ["-b", "256", "-e", "256", "-n", "2", "-o"];
    let perf = |operator| {
        shmccl(
            &[&["perf", "all_reduce", "--plan", "generated/ar_2.json"], sweep.as_slice(), &[operator]]
                .concat(),
        )
    };
    for operator in ["avg", "mulsum"] {
        assert_refused(&perf(operator), &[&format!("no all_reduce of {operator}; take such as sum, max")]);
    }
    assert_eq!(perf("min").status.code(), Some(0));
}

#[test]
fn names_with_control_characters_reach_no_terminal_as_they_are() {
    let odd = "a\n\u{1b}[31m\u{9b}b";
    let told = "a\\n\\u{1b}[31m\\u{9b}b";
    let plan = Changed::new("odd", "generated/ag_2.json", |plan| plan["name"] = json!(odd));
    let other = Changed::new("odd-collective", "generated/ag_2.json", |plan| {
        plan["collective"] = json!(odd);
        plan[odd] = json!(1);
    });
    let wrong = Changed::new("odd-operation", "generated/ag_2.json", |plan| {
        plan["gpus"][0]["threadblocks"][0]["ops"][0]["name"] = json!(odd);
    });
    let (plan, other, wrong) = (plan.file(), other.file(), wrong.file());
    for (words, is_told) in [
        (["show", &plan].as_slice(), true),
        (&["diff", &plan, "generated/ag_2.json"], true),
        (&["diff", &other, "generated/ag_2.json"], true),
        (&["check", &plan], false),
        (&["check", &other], true),
        (&["check", &wrong], false),
        (&["run", &other], true),
    ] {
        let output = shmccl(&[["plan"].as_slice(), words].concat());
        let lines = text(&output.stdout) + &text(&output.stderr);
        assert!(!lines.chars().any(|c| c.is_control() && c != '\n'), "{words:?}: {lines:?}");
        assert_eq!(lines.contains(told), is_told, "{words:?}: {lines}");
    }
}

#[test]
fn a_directory_of_plans_that_is_not_there_is_named_with_what_has_named_it() {
    let program = ["run", "-n", "2", "--", "true"];
    let by_flag = shmccl(&["run", "-n", "2", "--plans", "nodir", "--", "true"]);
    assert_refused(&by_flag, &["cannot read the directory of plans nodir (--plans): "]);
    let by_variable = command(&program).env("SHMCCL_PLANS", "nodir").output().unwrap();
    assert_refused(&by_variable, &["cannot read the directory of plans nodir (SHMCCL_PLANS): "]);
    for words in [
        ["perf", "all_gather", "--plans", "nodir"].as_slice(),
        &["perf", "all_gather", "--plans", "nodir", "--algo", "plan:ag_2"],
        &["tune", "--quick", "--plans", "nodir", "-o", "/dev/null"],
    ] {
        assert_refused(&shmccl(words), &["cannot read the directory of plans nodir (--plans): "]);
    }
    assert_eq!(command(&program).env("SHMCCL_PLANS", "").output().unwrap().status.code(), Some(0));
}

#[test]
fn a_heap_that_a_plan_makes_too_large_is_told_with_its_scratch_and_the_flag_of_sizes() {
    let large = Changed::new("large", "generated/ag_2.json", |plan| {
        plan["gpus"][0]["scratch_chunks"] = json!(4_000_000_000_u32);
    });
    let refused = shmccl(&["plan", "run", &large.file(), "--sizes", "1M"]);
    assert_refused(&refused, &["messages of 1048576 bytes (--sizes) and 2097152000000000 bytes of scratch"]);
    let words = ["perf", "all_gather", "--plan", "generated/ag_2.json", "-b", "1T", "-e", "1T"];
    assert_refused(&shmccl(&words), &["messages of 1099511627776 bytes (--maxbytes) and 0 bytes of scratch"]);
}

/// Changes what semaphores begin with, where that is anything.
fn with_credits(plan: &mut Value, credits: u32) {
    for gpu in plan["gpus"].as_array_mut().unwrap() {
        for semaphore in gpu["semaphores"].as_array_mut().unwrap() {
            if semaphore["init_value"] != json!(0) {
                semaphore["init_value"] = json!(credits);
            }
        }
    }
}

#[test]
fn what_is_undecided_is_no_verdict() {
    let changed = Changed::new("undecided", "upstream/allreduce_pipeline.json", |plan| {
        with_credits(plan, 1 << 20);
        let text = plan.to_string().replace("\"unit_size\":524288", "\"unit_size\":64");
        *plan = serde_json::from_str(&text).unwrap();
        plan["max_message_size"] = json!(1 << 20);
    });
    let checked = shmccl(&["plan", "check", &changed.file()]);
    let told = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(2), "{told}");
    assert!(told.contains(": undecided (allreduce") && told.contains("so many iterations"), "{told}");
}

#[test]
fn a_size_that_is_a_multiple_and_reaches_beyond_scratch_is_refused_with_the_reason() {
    let units = |plan: &mut Value| {
        let text = plan.to_string().replace("\"unit_size\":1048576", "\"unit_size\":96");
        *plan = serde_json::from_str(&text).unwrap();
    };
    let changed = Changed::new("beyond", "generated/ar_pipeline_2.json", units);
    let refused = shmccl(&["plan", "run", &changed.file(), "--sizes", "64M,67109376"]);
    let told = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(
        told.contains("--sizes: it does no messages of 67109376 bytes: rank 0 block 0 operation"),
        "{told}"
    );
    assert!(told.contains("of the scratch of rank 0") && !told.contains("multiples of"), "{told}");
    let checked = shmccl(&["plan", "check", &changed.file()]);
    let told = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{told}");
    assert!(told.contains("right up to messages of 67108864 bytes, and no longer ones:"), "{told}");
    assert!(told.contains("out of bounds: a message of 67108896 bytes is refused"), "{told}");
}
