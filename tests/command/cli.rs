//! The command as a user meets it: help, exit codes, one line per error, and what changes when the
//! output is piped.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::{Watchdog, plain_command};

use crate::{remarks, scratch, text};

fn shmccl(words: &[&str]) -> Command {
    let mut command = plain_command(env!("CARGO_BIN_EXE_shmccl"));
    command.args(words);
    command
}

fn run(words: &[&str]) -> Output {
    shmccl(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    text(&output.stdout)
}

fn stderr(output: &Output) -> String {
    remarks(&output.stderr)
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    for part in [
        "doctor",
        "run",
        "perf",
        "compare",
        "tune",
        "64MiB",
        "Exit code: 0 done, 1 failed or wrong data, 2 wrong usage",
    ] {
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
fn a_front_that_is_not_installed_is_one_line_with_the_remedy() {
    for words in [&["grpc", "--listen", "unix"][..], &["top", "--page"]] {
        let output = shmccl(words).env("PATH", "/nowhere").output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let told = stderr(&output);
        assert!(told.contains("cargo install --path bindings/grpc") && told.lines().count() == 1, "{told}");
    }
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
        (&["doctor", "-g", "0"], "0 is not in 1..=256"),
        (&["doctor", "-g", "two"], "expected a number from 1 to 256"),
        (&["doctor", "--proxy", "nowhere"], "[possible values: thread, process]"),
        (&["doctor", "--json"], "a value is required for '--json <FILE>'"),
        (&["perf", "put_latncy"], "'put_latency'"),
        (&["perf", "--jsn", "x"], "'--json'"),
        (&["perf", "-b", "1.3K"], "a decimal one that makes whole bytes"),
        (&["perf", "-g", "1"], "1 is not in 2..=256"),
        (&["compare", "-g", "2"], "required arguments were not provided: --op <OP>"),
        (&["compare", "--op", "put"], "expected one of all_reduce, reduce, broadcast"),
        (&["compare", "--op", "all_reduce", "-g", "1"], "1 is not in 2..=256"),
        (&["compare", "--proxy", "nowhere"], "[possible values: thread, process]"),
        (&["run", "-n", "2"], "<PROGRAM>"),
    ] {
        let output = run(words);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.starts_with("error: ") && error.contains(part), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{words:?}: {error}");
        let named = match words[0] {
            command @ ("doctor" | "perf" | "compare" | "run") => format!("shmccl {command}"),
            _ => "shmccl".to_owned(),
        };
        assert!(error.ends_with(&format!("; try '{named} --help'\n")), "{words:?}: {error}");
        assert!(stdout(&output).is_empty(), "{words:?}");
    }
}

#[test]
fn a_word_that_names_no_job_is_told_in_one_line() {
    for command in ["report", "top"] {
        for (word, told) in [
            ("", "an empty word names no job; see `shmccl ps`"),
            ("../../etc/passwd", "no job ../../etc/passwd, and no process of one; see `shmccl ps`"),
            ("99999999999999999999", "no job 99999999999999999999, and no process of one; see `shmccl ps`"),
        ] {
            let output = run(&[command, word]);
            let expected = (Some(1), format!("error: {told}\n"));
            assert_eq!((output.status.code(), stderr(&output)), expected, "{command} {word:?}");
        }
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
fn a_file_that_cannot_be_written_is_told_with_its_causes_before_any_work() {
    for flag in [
        &["doctor", "--json"][..],
        &["perf", "--json"],
        &["compare", "--json"],
        &["compare", "--csv"],
        &["compare", "--svg"],
    ] {
        let output = run(&[flag, &["/nonexistent/deep/report"]].concat());
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{flag:?}");
        assert_eq!(error.lines().count(), 1, "{flag:?}: {error}");
        assert!(error.starts_with("error: cannot write /nonexistent/deep/report: "), "{flag:?}: {error}");
        assert!(
            error.contains("mkdir -p /nonexistent/deep") && error.contains("No such file or directory"),
            "{flag:?}: {error}"
        );
        assert!(stdout(&output).is_empty(), "{flag:?}");
    }
}

#[test]
fn a_standard_output_that_cannot_be_written_is_named_and_exit_code_one() {
    for words in [
        &["--help"][..],
        &["perf", "--help"],
        &["doctor"],
        &["perf", "signal_latency", "-n", "1"],
        &["run", "-n", "1", "-q", "--prefix", "--", "echo", "x"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = shmccl(words).stdout(full).output().unwrap();
        let told = "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), told), "{words:?}");
    }
}

#[test]
fn flags_without_effect_and_flags_that_contradict_each_other_are_wrong_usage() {
    for (words, told) in [
        (
            &["perf", "fifo_rate", "--channel", "port"][..],
            "--channel has no effect with fifo_rate; leave it out",
        ),
        (&["perf", "barrier", "--proxy", "process"], "--proxy has no effect with barrier; leave it out"),
        (
            &["perf", "put_latency", "-b", "2M", "-e", "1M"],
            "--minbytes 2 MiB is above --maxbytes 1 MiB; swap them or leave one out",
        ),
        (
            &["clean", "../x"],
            "\"../x\" is no prefix of names: expected 1 to 200 letters, digits, '.', '_' and '-', not starting with '.'",
        ),
        (
            &["compare", "--csv", "x", "--svg", "x"],
            "two of --json, --csv and --svg name the same file; give each its own",
        ),
    ] {
        let output = run(words);
        assert_eq!(
            (output.status.code(), stderr(&output)),
            (Some(2), format!("error: {told}\n")),
            "{words:?}"
        );
        assert!(stdout(&output).is_empty(), "{words:?}");
    }
    // From the environment the same setting is no mistake.
    let output = shmccl(&["perf", "signal_latency", "-n", "1"]).env("SHMCCL_HEAP", "32M").output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn a_report_that_goes_to_standard_output_has_it_to_itself() {
    for (words, head) in [
        (&["doctor"][..], "This machine carries"),
        (&["perf", "signal_latency", "-n", "1"], "signal_latency"),
        (&["perf", "all_reduce", "-b", "8", "-e", "8", "-n", "1"], "# "),
    ] {
        let directory = scratch("standard-output");
        let output = shmccl(&[words, &["--json", "-"]].concat()).current_dir(&directory).output().unwrap();
        let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(report["machine"].is_object(), "{report}");
        assert!(stderr(&output).contains(head), "{}", stderr(&output));
        // No file of that name.
        std::fs::remove_dir(directory).unwrap();
    }
    let output = run(&["compare", "--json", "-", "--csv", "-"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn perf_runs_every_test_and_gives_each_figure_its_limit() {
    let directory = scratch("perf");
    let path = directory.join("perf.json");
    let output = run(&["perf", "-b", "8", "-e", "8", "-n", "2", "-w", "1", "--json", path.to_str().unwrap()]);
    let (table, error) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(!table.contains('\u{1b}') && table.lines().all(|line| line == line.trim_end()), "{table}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let lines: Vec<_> = table.lines().skip(3).collect();
    assert!(
        lines.iter().zip(rows).all(|(line, row)| line.starts_with(row["test"].as_str().unwrap())),
        "{table}"
    );
    assert!(lines.len() > rows.len() && lines[rows.len()].starts_with("ops/sample: "), "{table}");
    for row in rows {
        let is_limit = row["test"] == "limits";
        assert_eq!(row["limit"].is_null(), is_limit, "{row}");
        assert_eq!(row["ratio"].is_null(), is_limit, "{row}");
        assert!(row["samples"].as_u64().unwrap() > 0 && row["p50_ns"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["wrong"].is_null() || row["wrong"] == 0, "{row}");
    }
    for test in ["limits", "signal_latency", "put_bandwidth", "message_rate", "barrier", "launch"] {
        assert!(rows.iter().any(|row| row["test"] == test), "{test}");
    }
    let variants = |test: &str| {
        let rows = rows.iter().filter(|row| row["test"] == test);
        rows.map(|row| row["variant"].as_str().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!(variants("p_latency"), ["write", "write and quiet"]);
    assert_eq!((variants("g_latency"), variants("wait_until_latency")), (vec!["read"], vec![""]));
    assert_eq!(variants("atomic_latency"), ["fetch_add", "compare_swap", "swap", "fetch_add of f64"]);
    assert_eq!(variants("put_signal_latency"), ["SET", "SET", "ADD", "ADD"]);
    assert_eq!(variants("atomic_rate"), ["fetch_add", "fetch_add of f64"]);
    // Both ranks have taken their share, or one has found the core taken all the time.
    let rates = rows.iter().filter(|row| row["test"] == "atomic_rate");
    assert!(rates.clone().all(|row| row["per_s"].as_f64().unwrap() > 0.0), "{table}");
    assert!(rates.filter_map(|row| row["share_ratio"].as_f64()).all(|ratio| ratio >= 1.0), "{table}");
    // A proxy beside two devices has something to show on a core of its own only.
    let has_overlap = rows.iter().any(|row| row["test"] == "overlap");
    assert!(has_overlap != error.contains("left out: overlap needs three cores"), "{error}");
    assert!(table.contains("\n~: not steady: "), "{table}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn on_one_core_limits_give_way_and_what_needs_two_is_refused() {
    let mut core = CpuSet::new();
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    core.set((0..CpuSet::count()).find(|&core| allowed.is_set(core).unwrap()).unwrap()).unwrap();
    // Of this thread only; what it starts inherits it.
    sched_setaffinity(Pid::from_raw(0), &core).unwrap();
    let output = run(&["perf", "limits", "signal_latency", "-b", "8", "-e", "8", "-n", "16"]);
    assert_eq!(output.status.code(), Some(0));
    let (table, note) = (stdout(&output), stderr(&output));
    assert!(
        table.contains("raw flag ping-pong, yielding") && table.contains("raw copy + flag, yielding"),
        "{table}"
    );
    assert!(note.starts_with("one core for two ranks: ") && note.lines().count() == 1, "{note}");
    let output = run(&["perf", "fifo_rate"]);
    let error = stderr(&output);
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.starts_with("error: fifo_rate needs two cores"), "{error}");
}

#[test]
fn what_several_ranks_complain_of_is_told_once_with_who_they_are() {
    let sizes = ["-b", "8M", "-e", "8M", "-n", "1", "--heap", "2M"];
    for command in [&["perf", "put_bandwidth", "--channel", "memory"][..], &["compare"]] {
        let output = run(&[command, &sizes].concat());
        let error = stderr(&output);
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        // A rank that is slow to complain is ended before.
        assert!(error.starts_with("error: rank") && error.contains(": in put_"), "{error}");
        assert_eq!(error.matches("out of device memory").count(), 1, "{error}");
        assert!(stdout(&output).is_empty());
    }
}

/// For how many ticks of 10 ms a process has run as itself or in the system.
fn ticks_of(process: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_rank_that_is_killed_while_others_wait_over_bare_flags_ends_the_measurement_soon() {
    let words = ["perf", "all_reduce", "-g", "3", "-b", "64K", "-e", "64K", "-n", "100000000"];
    let launcher = shmccl(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let listed = format!("/proc/{0}/task/{0}/children", launcher.id());
    let ranks = || -> Vec<i32> {
        let listed = std::fs::read_to_string(&listed).unwrap();
        listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    support::wait_until("there are three ranks", || ranks().len() == 3);
    // They are measuring by then, and most of their time in slices, which begin and end over such
    // flags.
    support::wait_until("a rank has computed for a second", || ticks_of(ranks()[1]) > 100);
    // Otherwise the measurement goes on for hours.
    let _watchdog = Watchdog::start("a measurement of which a rank was killed", Duration::from_secs(120));
    kill(Pid::from_raw(ranks()[1]), Signal::SIGKILL).unwrap();
    let output = launcher.wait_with_output().unwrap();
    let error = stderr(&output);
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.ends_with("was killed by SIGKILL\n"), "{error}");
}

#[test]
fn a_heap_that_is_too_long_is_laid_at_the_door_of_the_flag_that_asks_for_it() {
    for (flags, told) in [
        (&["--heap", "2T"][..], "error: --heap: heap length is 2199023255552, expected at most "),
        (&["-b", "1T", "-e", "1T"], "error: --minbytes and --maxbytes ask for too much: heap length is 32"),
        (
            &["-b", "8388608T", "-e", "8388608T"],
            "error: --minbytes and --maxbytes ask for too much: heap length is 18",
        ),
    ] {
        let output = run(&[&["perf", "put_latency", "-n", "1"], flags].concat());
        let error = stderr(&output);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
        assert!(error.starts_with(told), "{error}");
    }
}

#[test]
fn compare_writes_its_three_files_and_concludes_nothing_from_a_single_put() {
    let directory = scratch("compare");
    let compare = |sizes: &[&str], environment: Option<&str>| {
        let mut command = shmccl(&[&["compare"], sizes].concat());
        command.current_dir(&directory).envs(environment.map(|name| (name, "1"))).env("CLICOLOR_FORCE", "1");
        command.output().unwrap()
    };
    let output = compare(&["-b", "8", "-e", "8", "-n", "1"], Some("NO_COLOR"));
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "wrote compare.json, compare.csv and compare.svg\n");
    assert!(!table.contains('\u{1b}') && table.contains("Too few samples to conclude anything: "), "{table}");
    assert!(!table.contains("rossover"), "{table}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(directory.join("compare.json")).unwrap()).unwrap();
    assert!(report["crossover"].is_null());
    assert_eq!(report["rows"].as_array().unwrap().len(), 2);
    assert!(std::fs::read_to_string(directory.join("compare.csv")).unwrap().lines().count() == 2);
    assert!(std::fs::read_to_string(directory.join("compare.svg")).unwrap().contains("Too few samples"));
    for kind in ["json", "csv", "svg"] {
        std::fs::remove_file(directory.join("compare").with_extension(kind)).unwrap();
    }
    // One that is named is all that is written.
    let output = compare(&["-b", "8", "-e", "8", "-n", "1", "--csv", "only.csv"], None);
    assert_eq!(stderr(&output), "wrote only.csv\n");
    let names = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["only.csv"]);
    let output = compare(&["-b", "8", "-e", "128", "-n", "128"], None);
    let table = stdout(&output);
    // What it concludes depends on how many timings the machine had time for.
    assert!(table.contains('\u{1b}'), "{table}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn piped_output_has_no_colour_and_no_rules() {
    for words in
        [&["doctor"][..], &["doctor", "--help"], &["--help"], &["perf", "--help"], &["compare", "-n", "0"]]
    {
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
    for words in [&["doctor"][..], &["--help"], &["nonsense"], &["perf", "nonsense"], &["run", "--help"]] {
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
    for words in [&["doctor"][..], &["perf", "signal_latency", "-n", "1"]] {
        let mut child = shmccl(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.code().is_some_and(|code| code <= 1), "{:?}", output.status);
        assert_eq!(stderr(&output), "");
    }
}
