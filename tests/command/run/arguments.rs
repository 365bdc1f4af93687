//! What `shmccl run` is asked to do, and what it refuses.

use crate::run::{job, run, scratch, text, told};

#[test]
fn arguments_arrive_as_they_were_given() {
    let script = r#"[ "$#" = 4 ] && [ "$1" = "a  b" ] && [ "$2" = "c'd\"e" ] && [ "$3" = "" ] && [ "$4" = "--prefix" ]"#;
    let output = run(&["-n", "1", "-q", "--", "sh", "-c", script, "sh", "a  b", "c'd\"e", "", "--prefix"]);
    assert_eq!(told(&output), (0, String::new()));
}

#[test]
fn a_program_that_cannot_run_is_one_line_and_the_exit_code_of_a_shell() {
    let directory = scratch("programs");
    let plain = directory.join("plain");
    std::fs::write(&plain, "text").unwrap();
    for (program, code, part) in [
        ("no-such-program", 127, "it is not in PATH"),
        ("./no-such-program", 127, "no such file"),
        (plain.to_str().unwrap(), 126, "chmod +x"),
        (directory.to_str().unwrap(), 126, "it is a directory"),
    ] {
        let output = run(&["-n", "64", "--", program]);
        let (found, error) = told(&output);
        assert!(
            error.starts_with(&format!("error: cannot run {program}: ")) && error.contains(part),
            "{error}"
        );
        assert_eq!((found, error.lines().count()), (code, 1), "{error}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn wrong_usage_is_one_line_that_names_the_help_of_run() {
    for (words, part) in [
        (&["-n", "257", "--", "true"][..], "257 is not in 1..=256"),
        (&["-n", "0", "--", "true"], "0 is not in 1..=256"),
        (&["--", "true"], "--ranks <N>"),
        (&["-n", "2"], "<PROGRAM>"),
        (&["-n", "2", "--heap", "4Q", "--", "true"], "expected a whole number"),
        (&["-n", "2", "--segment", "disk", "--", "true"], "expected memfd, named:PREFIX"),
        (&["-n", "2", "--segment", "named:a/b", "--", "true"], "expected memfd, named:PREFIX"),
        (&["-n", "2", "--timeout", "0", "--", "true"], "above zero"),
    ] {
        let (code, error) = told(&run(words));
        assert_eq!((code, error.lines().count()), (2, 1), "{words:?}: {error}");
        assert!(error.contains(part) && error.ends_with("; try 'shmccl run --help'\n"), "{words:?}: {error}");
    }
}

#[test]
fn a_heap_beyond_all_bounds_is_refused_before_anything_starts() {
    let (code, error) = told(&run(&["-n", "2", "--heap", "2T", "--", "true"]));
    assert_eq!((code, error.lines().count()), (1, 1), "{error}");
    assert!(error.contains("at most 2 MiB less than 1 TiB"), "{error}");
}

#[test]
fn the_heap_can_be_told_by_the_environment() {
    let mut command = job(&["-n", "2", "-q"], "alloc 4194304");
    let output = command.env("SHMCCL_HEAP", "2M").output().unwrap();
    assert!(!output.status.success() && text(&output.stderr).contains("--heap"), "{output:?}");
    assert_eq!(told(&command.env("SHMCCL_HEAP", "8M").output().unwrap()).0, 0);
}

#[test]
fn records_of_no_trace_are_refused_and_those_of_a_trace_that_the_environment_asks_for_are_not() {
    let directory = scratch("records-of-no-trace");
    let words = ["-n", "1", "-q", "--trace-records", "1024"];
    for (variable, code) in [(None, 2), (Some(""), 2), (Some("trace.json"), 0)] {
        let mut command = job(&words, "ring");
        let output =
            command.envs(variable.map(|value| ("SHMCCL_TRACE", value))).current_dir(&directory).output();
        let (found, error) = told(&output.unwrap());
        assert_eq!(found, code, "{variable:?}: {error}");
        assert_eq!(
            error.starts_with("error: --trace-records has no effect without --trace"),
            code == 2,
            "{error}"
        );
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_trace_does_not_go_where_the_ranks_print() {
    let directory = scratch("trace-to-stdout");
    for (flags, variable) in [(&["--trace", "-"][..], ""), (&[], "-")] {
        let mut command = job(&[&["-n", "1", "-q"], flags].concat(), "ring");
        let output = command.env("SHMCCL_TRACE", variable).current_dir(&directory).output().unwrap();
        let (code, error) = told(&output);
        assert_eq!((code, error.lines().count()), (2, 1), "{error}");
        assert!(error.ends_with("standard output; name a file\n"), "{error}");
    }
    // No file of that name.
    std::fs::remove_dir(directory).unwrap();
}
