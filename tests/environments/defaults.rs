//! Files at default places that cannot be used, and variables that are empty.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{Surroundings, can_be_played};

use crate::job::{Started, end_of, job, shmccl};
use crate::scratch;
use crate::strangers::{STRANGER, executable_by_all, open_scratch};

/// A job that looks for its tuning table at the usual place.
fn usual_job() -> Command {
    let mut job = job(&["-n", "2", "-q"], "sum");
    job.env_remove("SHMCCL_TUNING").env_remove("XDG_CONFIG_HOME");
    job
}

/// A home in which something else has the place of the table.
fn odd_homes(parent: &Path) -> Vec<(&'static str, std::path::PathBuf)> {
    let home = |name: &str| {
        let home = parent.join(name);
        std::fs::create_dir_all(home.join(".config/shmccl")).unwrap();
        home
    };
    let directory = home("directory");
    std::fs::create_dir(directory.join(".config/shmccl/tuning.toml")).unwrap();
    let file = parent.join("file");
    std::fs::write(&file, "").unwrap();
    let circle = home("circle");
    std::os::unix::fs::symlink("tuning.toml", circle.join(".config/shmccl/tuning.toml")).unwrap();
    vec![
        ("a directory in place of the table", directory),
        ("a file in place of the home", file),
        ("a link to itself", circle),
        ("a name that is too long", parent.join("x".repeat(300))),
        ("nothing", parent.join("missing")),
    ]
}

#[test]
fn a_job_runs_whatever_has_the_place_of_the_usual_table() {
    let parent = scratch("homes");
    for (what, home) in odd_homes(&parent) {
        for variable in ["HOME", "XDG_CONFIG_HOME"] {
            assert_eq!(end_of(usual_job().env(variable, &home)), (0, String::new()), "{variable}: {what}");
        }
    }
    // What the user names is not passed over.
    let (code, told) = end_of(usual_job().env("SHMCCL_TUNING", &parent));
    assert!(code == 1 && told.contains("is no regular file") && told.lines().count() == 1, "{code}: {told}");
    std::fs::remove_dir_all(parent).unwrap();
}

#[test]
fn a_user_whose_home_is_another_ones_runs_jobs_and_pools() {
    if !can_be_played("a_user_whose_home_is_another_ones_runs_jobs_and_pools") {
        return;
    }
    let directory = open_scratch("foreign-home");
    let home = directory.join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
    let as_stranger = |command: &Command| {
        let mut command = executable_by_all(command, &directory);
        command.env("HOME", &home).env("XDG_CONFIG_HOME", &home).env("XDG_RUNTIME_DIR", &home);
        Surroundings::plain().as_user(STRANGER).around(&mut command);
        command
    };
    assert_eq!(end_of(&mut as_stranger(&usual_job())), (0, String::new()));
    let doctor = &mut as_stranger(shmccl(&["doctor", "--heap", "4M"]).env_remove("SHMCCL_TUNING"));
    let (_, told, table) = Started::new(doctor, 0).end();
    assert!(table.contains("tuning table") && table.contains("built in"), "{table}{told}");
    let status = &mut as_stranger(&shmccl(&["ctl", "status"]));
    let (code, told) = end_of(status);
    let expected = format!("error: no coordinator listens at /tmp/shmccl-{STRANGER}/coordinator; start one");
    assert!(code == 1 && told.starts_with(&expected), "{told}");
    for words in [&["ps"][..], &["clean", "--dry-run"]] {
        assert_eq!(end_of(&mut as_stranger(&shmccl(words))).0, 0, "{words:?}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_comparison_goes_on_where_the_files_that_nobody_has_named_cannot_be_written() {
    let words = ["compare", "-b", "8", "-e", "8", "-n", "1", "--heap", "4M"];
    let nowhere = &mut shmccl(&words);
    let (code, told, table) = Started::new(nowhere.current_dir("/proc"), 0).end();
    assert!(code == 0 && !table.is_empty(), "{told}");
    assert!(
        told.contains("cannot write compare.json: ") && told.contains("; no file is written: "),
        "{told}"
    );
    let named = &mut shmccl(&[&words[..], &["--csv", "it.csv"]].concat());
    let (code, told) = end_of(named.current_dir("/proc"));
    assert!(code == 1 && told.starts_with("error: cannot write it.csv: "), "{told}");
}

#[test]
fn a_variable_that_is_empty_counts_as_not_set() {
    let variables = [
        "SHMCCL_HEAP",
        "SHMCCL_FAULTS",
        "SHMCCL_TRACE",
        "SHMCCL_CHECKSUMS",
        "SHMCCL_CORES",
        "SHMCCL_LOG",
        "SHMCCL_SOCKET",
        "SHMCCL_TIMEOUT_MS",
        "SHMCCL_DEVICE",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "HOME",
        "NO_COLOR",
    ];
    let all_empty = |mut command: Command| {
        variables.iter().for_each(|variable| _ = command.env(variable, ""));
        command
    };
    assert_eq!(end_of(&mut all_empty(usual_job())), (0, String::new()));
    for variable in variables {
        let run = &mut shmccl(&["run", "-n", "1", "-q", "--", "true"]);
        assert_eq!(end_of(run.env(variable, "")), (0, String::new()), "{variable}");
    }
    for words in [
        &["perf", "put_latency", "--channel", "memory", "-b", "8", "-e", "8", "-n", "1"][..],
        &["doctor"],
        &["ps"],
    ] {
        assert_eq!(end_of(&mut all_empty(shmccl(words))).0, 0, "{words:?}");
    }
    // What is wrong is still refused.
    let (code, told) = end_of(shmccl(&["run", "-n", "1", "--", "true"]).env("SHMCCL_HEAP", "much"));
    assert!(code == 2 && told.contains("--heap <SIZE>"), "{told}");
}
