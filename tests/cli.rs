//! The command as a user meets it: help, exit codes, one line per error, and what changes when the output is piped.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn shmccl(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command.args(words).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(variable);
    }
    command
}

fn run(words: &[&str]) -> Output {
    shmccl(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A path for one test, of which nothing is left over from an earlier run.
fn scratch(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    for part in ["doctor", "run", "64MiB", "Exit code: 0 done, 1 failed or wrong data, 2 wrong usage"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(stderr(&output).is_empty());
}

#[test]
fn every_command_has_help_of_its_own() {
    let help = stdout(&run(&["--help"]));
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut seen = 0;
    for command in listed.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        let output = run(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(stdout(&output).contains(&format!("Usage: shmccl {command}")), "{command}");
        seen += 1;
    }
    assert!(seen > 0, "{help}");
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(stdout(&run(&["--version"])), format!("shmccl {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn no_command_is_wrong_usage_and_shows_the_help() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).is_empty() && stderr(&output).contains("Usage: shmccl"));
}

#[test]
fn wrong_usage_is_exit_code_two_and_one_line_with_the_remedy() {
    for (words, part) in [
        (&["nonsense"][..], "unrecognized subcommand 'nonsense'"),
        (&["doctr"], "'doctor'"),
        (&["doctor", "--jsn", "x"], "'--json'"),
        (&["doctor", "--heap", "4Q"], "expected a whole number with K, M, G or T behind it"),
        (&["doctor", "-g", "0"], "0 is not in 1..=64"),
        (&["doctor", "-g", "two"], "invalid digit"),
        (&["doctor", "--proxy", "nowhere"], "[possible values: thread, process]"),
        (&["doctor", "--json"], "a value is required for '--json <FILE>'"),
    ] {
        let output = run(words);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.starts_with("error: ") && error.contains(part), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{words:?}: {error}");
        let named = if words[0] == "doctor" { "shmccl doctor" } else { "shmccl" };
        assert!(error.ends_with(&format!("; try '{named} --help'\n")), "{words:?}: {error}");
        assert!(stdout(&output).is_empty(), "{words:?}");
    }
}

#[test]
fn doctor_gives_every_finding_a_verdict_and_writes_the_same_as_json() {
    let directory = scratch("doctor");
    let path = directory.join("doctor.json");
    let output = run(&["doctor", "-g", "64", "--json", path.to_str().unwrap()]);
    let table = stdout(&output);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let findings = report["findings"].as_array().unwrap();
    for topic in
        ["cores", "hyper-threads", "NUMA", "spinners", "clock", "memory", "control group", "/dev/shm"]
    {
        assert!(findings.iter().any(|finding| finding["topic"] == topic), "{topic}");
    }
    for finding in findings {
        let (verdict, topic) = (finding["verdict"].as_str().unwrap(), finding["topic"].as_str().unwrap());
        assert!(["ok", "warn", "bad"].contains(&verdict));
        assert!(
            table.lines().any(|line| line.starts_with(verdict) && line.contains(topic)),
            "{topic}: {table}"
        );
        assert_eq!(finding["advice"].is_null(), verdict == "ok", "{topic}");
    }
    let code = if report["verdict"] == "bad" { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(code));
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "a temporary file was left");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn heaps_that_cannot_fit_are_bad_and_exit_code_one() {
    let output = run(&["doctor", "-g", "64", "--heap", "1024T"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).lines().any(|line| line.starts_with("bad")));
}

#[test]
fn a_json_file_that_cannot_be_written_is_told_with_its_causes_before_any_work() {
    let output = run(&["doctor", "--json", "/nonexistent/deep/doctor.json"]);
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("error: cannot write /nonexistent/deep/doctor.json: "), "{error}");
    assert!(
        error.contains("mkdir -p /nonexistent/deep") && error.contains("No such file or directory"),
        "{error}"
    );
    assert!(stdout(&output).is_empty());
}

#[test]
fn piped_output_has_no_colour_and_no_rules() {
    for words in [&["doctor"][..], &["doctor", "--help"], &["--help"]] {
        let output = run(words);
        let text = stdout(&output) + &stderr(&output);
        assert!(!text.contains('\u{1b}') && !text.contains('─'), "{words:?}: {text}");
        assert!(text.ends_with('\n'), "{words:?}: {text}");
    }
    let table = stdout(&run(&["doctor"]));
    assert!(table.lines().all(|line| line == line.trim_end()), "trailing spaces: {table}");
}

#[test]
fn no_color_wins_over_forced_colour() {
    for words in [&["doctor"][..], &["--help"], &["nonsense"]] {
        let text = |no_color: bool| {
            let mut command = shmccl(words);
            command.env("CLICOLOR_FORCE", "1");
            if no_color {
                command.env("NO_COLOR", "1");
            }
            let output = command.output().unwrap();
            stdout(&output) + &stderr(&output)
        };
        assert!(text(false).contains('\u{1b}'), "{words:?}: colour was forced");
        assert!(!text(true).contains('\u{1b}'), "{words:?}: NO_COLOR was set");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = shmccl(&["doctor"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code().is_some_and(|code| code <= 1), "{:?}", output.status);
    assert_eq!(stderr(&output), "");
}
