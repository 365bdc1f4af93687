//! `shmccl tune` as a user meets it, and the table that it writes as programs find it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use shmccl::collective::tuning::Table;

use crate::{scratch, text};

/// `shmccl` with a home directory of its own, in which no table is.
fn shmccl(words: &[&str], home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command.args(words).stdin(Stdio::null()).env("HOME", home);
    for variable in
        ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "SHMCCL_HEAP", "SHMCCL_TUNING", "XDG_CONFIG_HOME"]
    {
        command.env_remove(variable);
    }
    command
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A measurement of a few operations between two ranks.
fn all_reduce(home: &Path) -> Command {
    shmccl(&["perf", "all_reduce", "-g", "2", "-b", "8", "-e", "8", "-n", "64"], home)
}

fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    text(&output.stderr)
}

#[test]
fn a_quick_run_writes_a_table_for_two_ranks_and_nothing_else() {
    let home = scratch("quick");
    let (file, json) = (home.join("table.toml"), home.join("figures.json"));
    let words =
        ["tune", "--quick", "--time", "1s", "-o", file.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let output = shmccl(&words, &home).output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("noise, the built-in choice against itself") && told.contains("wrote "), "{told}");
    assert!(!text(&output.stdout).is_empty());
    assert_eq!(names(&home), ["figures.json", "table.toml"]);
    let table = Table::read(&file).unwrap();
    // Ten operations, two kinds of buffers.
    assert_eq!(table.cases().len(), 20);
    assert!(table.cases().iter().all(|case| case.n_ranks == 2));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert!(figures.iter().all(|figure| figure["wrong"] == 0 && figure["control"]["ratio"].is_f64()));
    // Programs take it: a job runs by it.
    let job = all_reduce(&home).env("SHMCCL_TUNING", &file).output().unwrap();
    assert_eq!(job.status.code(), Some(0), "{}", text(&job.stderr));
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn plans_of_a_directory_take_part_where_they_fit_and_a_table_that_names_one_is_obeyed() {
    let home = scratch("plans");
    let (file, json, plans) = (home.join("table.toml"), home.join("figures.json"), home.join("plans"));
    std::fs::create_dir(&plans).unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/plans/generated");
    for plan in ["ar_2.json", "ag_2.json", "ar_4.json"] {
        std::fs::copy(corpus.join(plan), plans.join(plan)).unwrap();
    }
    let words =
        ["tune", "--quick", "--time", "1s", "-o", file.to_str().unwrap(), "--json", json.to_str().unwrap()];
    let output = shmccl(&words, &home).arg("--plans").arg(&plans).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(Table::read(&file).is_ok());
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for figure in report["figures"].as_array().unwrap() {
        let names = figure["others"].as_array().unwrap().iter().map(|other| other["algorithm"].as_str());
        let plans: Vec<_> = names.flatten().filter(|name| name.starts_with("plan:")).collect();
        let expected = match (figure["operation"].as_str().unwrap(), figure["bytes"].as_u64().unwrap()) {
            ("all_reduce", 256..) => vec!["plan:allreduce"],
            ("all_gather", 256..) => vec!["plan:allgather"],
            _ => vec![],
        };
        assert!(figure["bytes"].as_u64() < Some(256) || plans == expected, "{figure}");
        assert_eq!(figure["wrong"], 0);
    }
    let named = "version = 1\n\n[[case]]\noperation = \"all_reduce\"\nranks = 2\noversubscribed = false\n\
                 buffers = \"heap\"\nup_to = []\nalgorithms = [\"plan:allreduce\"]\n";
    std::fs::write(&file, named).unwrap();
    for plans in [plans.as_path(), Path::new("")] {
        let mut job = all_reduce(&home);
        let job = job.env("SHMCCL_TUNING", &file).env("SHMCCL_PLANS", plans).output().unwrap();
        assert_eq!(job.status.code(), Some(0), "{}", text(&job.stderr));
    }
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn without_a_name_the_table_goes_where_programs_look_for_it() {
    let home = scratch("usual");
    let output = shmccl(&["tune", "--quick", "--time", "10ms"], &home).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let usual = home.join(".config/shmccl/tuning.toml");
    assert!(text(&output.stderr).contains(&format!("wrote {}", usual.display())));
    assert!(Table::read(&usual).is_ok());
    // It is found there: damaged, it is passed over with a warning; an empty name leaves it alone.
    std::fs::write(&usual, "version = 1\nrules = []\n").unwrap();
    let complaint = format!("tuning table {}, line 2: unknown field `rules`", usual.display());
    let complains = |mut job: Command| {
        let output = job.output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{told}");
        told.contains(&complaint) && told.contains("`shmccl tune`")
    };
    assert!(complains(all_reduce(&home)));
    let with = |variable, value: &Path| {
        let mut job = all_reduce(&home);
        job.env(variable, value);
        job
    };
    assert!(!complains(with("SHMCCL_TUNING", Path::new(""))));
    assert!(!complains(with("XDG_CONFIG_HOME", &home.join("empty"))));
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_table_that_cannot_be_used_is_one_line_before_any_process_is_started() {
    let home = scratch("unusable");
    let table = home.join("table.toml");
    std::fs::write(&table, "version = 2\n").unwrap();
    for words in [
        &["perf", "all_reduce"][..],
        &["compare", "--op", "gather"],
        &["compare"],
        &["run", "-n", "2", "--", "touch", "started"],
        &["coordinator", "-n", "2"],
        &["device"],
    ] {
        let mut command = shmccl(words, &home);
        command.current_dir(&home).env("SHMCCL_TUNING", &table).env("XDG_RUNTIME_DIR", &home);
        let told = failed(&command.output().unwrap());
        let complaint = format!("error: tuning table {}, line 1: is of version 2, ", table.display());
        assert!(told.starts_with(&complaint) && told.lines().count() == 1, "{words:?}: {told}");
        assert!(told.contains("measure one with `shmccl tune`"), "{words:?}: {told}");
    }
    assert_eq!(names(&home), ["table.toml"]);
    // What needs no table does not ask for one, and who measures one takes its place.
    let words = ["perf", "fifo_rate", "-n", "1"];
    let output = shmccl(&words, &home).env("SHMCCL_TUNING", &table).output().unwrap();
    assert!(!text(&output.stderr).contains("tuning table"), "{}", text(&output.stderr));
    let tuned = shmccl(&["tune", "--quick", "--time", "10ms"], &home).env("SHMCCL_TUNING", &table).output();
    assert_eq!(tuned.as_ref().unwrap().status.code(), Some(0), "{}", text(&tuned.unwrap().stderr));
    assert!(Table::read(&table).is_ok());
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn what_cannot_be_done_is_told_before_anything_is_measured() {
    let home = scratch("refused");
    for (words, code, part) in [
        (&["-o", "same", "--json", "same"][..], 2, "--json and --output name the same file"),
        (&["-o", "/nonexistent/table.toml"], 1, "directory /nonexistent does not exist"),
        (&["--ranks", "1"], 2, "1 is not in 2..=256"),
        (&["--ranks", "2,3,x"], 2, "'x'"),
        (&["--time", "0s"], 2, "--time"),
        (&["--plans", "/nonexistent"], 2, "cannot read the directory of plans /nonexistent (--plans): "),
    ] {
        let output = shmccl(&[&["tune"], words].concat(), &home).current_dir(&home).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.contains(part) && told.lines().count() == 1, "{told}");
    }
    assert!(names(&home).is_empty());
    std::fs::remove_dir_all(home).unwrap();
}

/// What a table at the usual place may be that cannot be used, and what is said of it.
const UNUSABLE: [(&[u8], &str); 3] = [
    (b"version = 2\nmore = true\n", "line 1: is of version 2, and this is a reader of version 1"),
    (b"", "missing field `version`"),
    (b"\xff\xfe\0", "cannot be read"),
];

#[test]
fn a_table_at_the_usual_place_that_cannot_be_used_is_a_warning_and_one_that_was_named_an_error() {
    let home = scratch("passed-over");
    let usual = home.join(".config/shmccl/tuning.toml");
    std::fs::create_dir_all(usual.parent().unwrap()).unwrap();
    for (content, told) in UNUSABLE {
        std::fs::write(&usual, content).unwrap();
        let run = ["run", "-n", "1", "--", "true"];
        let passed_over = shmccl(&run, &home).output().unwrap();
        let stderr = text(&passed_over.stderr);
        assert_eq!(passed_over.status.code(), Some(0), "{stderr}");
        let warnings: Vec<_> = stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
        let is_right =
            |line: &str| line.contains("the built-in tuning table is taken") && line.contains(told);
        assert!(matches!(&warnings[..], [one] if is_right(one)), "{told}: {stderr}");
        let named = shmccl(&run, &home).env("SHMCCL_TUNING", &usual).output().unwrap();
        let stderr = text(&named.stderr);
        assert_eq!(named.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{stderr}");
        assert!(stderr.contains(told), "{told}: {stderr}");
    }
    std::fs::remove_dir_all(home).unwrap();
}
