//! `shmccl perf p2p` as a user meets it: the matrix as table, heat map and JSON.

use std::process::{Command, Output, Stdio};

use regex::Regex;

use crate::{remarks, scratch, text};

fn p2p(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command
        .args(["perf", "p2p"])
        .args(words)
        .stdin(Stdio::null())
        .env_remove("SHMCCL_HEAP")
        .env("SHMCCL_TUNING", "");
    command
}

fn run(words: &[&str]) -> Output {
    p2p(words).output().unwrap()
}

const FEW: [&str; 6] = ["--bandwidth-bytes", "4K", "-n", "2", "-w", "1"];

/// Every line of a table of three ranks is one of these.
fn line() -> Regex {
    let value = r"(?:-|~?[\d.]+\*?)";
    let ratio = r"(?:-|~?[\d.]+!?)";
    let alternatives = [
        r".+, \d+ (?:virtual )?cores?.*, Linux .*".to_owned(),
        String::new(),
        r"(?:Memory channel \(direct\)|Port channel \(proxied\)): the rank of a row puts to the rank of a column\.".to_owned(),
        r"\* both ranks share a core: \d.*|No two ranks share a core\.".to_owned(),
        r"bandwidth (?:one way|of both ways at once), 4 KiB, GB/s".to_owned(),
        r"latency of put_with_signal, 8 B, [nu]s".to_owned(),
        r"rank  core( +\d){3}  time/limit( +\d){3}".to_owned(),
        format!(r" +\d +\d+(?: +{value}){{3}} +\d(?: +{ratio}){{3}}"),
        r"all to all: every rank puts a block to every other at once".to_owned(),
        r"channel +block +time +GB/s in all +per rank +limit +time/limit +\(spread\)".to_owned(),
        r"(?:memory|port) +1344 B +~[\d.]+ [num]?s +~[\d.]+ +~[\d.]+ +plain copies \(.+\) +~[\d.]+!? +-".to_owned(),
        // So few repetitions show nothing.
        r"~: not steady: repetitions are few, .*|!: quicker than its limit: .*".to_owned(),
        r"Data checked: 0 words wrong\.".to_owned(),
    ];
    Regex::new(&format!("^(?:{})$", alternatives.join("|"))).unwrap()
}

#[test]
fn every_pair_is_in_the_table_in_the_heat_map_and_in_the_report() {
    let directory = scratch("p2p");
    let [json, svg] = ["p2p.json", "p2p.svg"].map(|name| directory.join(name));
    let files = ["-g", "3", "--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let output = run(&[&FEW[..], &files].concat());
    let (table, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{error}");
    let line = line();
    for found in table.lines() {
        assert!(line.is_match(found), "{found:?}");
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * (3 * 6 + 1));
    for channel in ["memory", "port"] {
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            for figure in ["unidirectional", "bidirectional", "latency"] {
                let is_it = |row: &&serde_json::Value| {
                    row["channel"] == channel
                        && row["variant"] == figure
                        && row["from"] == from
                        && row["to"] == to
                };
                let row = rows.iter().find(is_it).unwrap();
                assert!(
                    row["p50_ns"].as_f64().unwrap() > 0.0 && row["ratio"].as_f64().unwrap() > 0.0,
                    "{row}"
                );
                assert!(row["wrong"] == 0 && row["limit"].is_string(), "{row}");
            }
        }
        assert!(rows.iter().any(|row| row["channel"] == channel && row["variant"] == "all_to_all"));
    }
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    assert_eq!(drawn.matches("<text").count(), drawn.matches("</text>").count());
    // A ratio in every square of six maps.
    let ratio = Regex::new(r"(?m)^~[\d.]+!? x$").unwrap();
    assert_eq!(ratio.find_iter(&drawn).count(), 6 * 6, "{drawn}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn one_channel_is_measured_alone_and_data_need_not_be_checked() {
    let output = run(&[&FEW[..], &["-g", "2", "--channel", "memory", "-c", "0"]].concat());
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(table.contains("Memory channel") && !table.contains("Port channel"), "{table}");
    assert!(table.contains("\nThe data were not checked.\n"), "{table}");
}

#[test]
fn what_cannot_be_meant_is_exit_code_two_and_one_line() {
    for (words, told) in [
        (&["-g", "1"][..], "1 is not in 2..=256"),
        (&["-b", "8"], "--minbytes has no effect with p2p; leave it out"),
        (&["-e", "8"], "--maxbytes has no effect with p2p; leave it out"),
        (&["--algo", "ring"], "--algo has no effect with p2p; leave it out"),
        (&["--channel", "memory", "--proxy", "process"], "--proxy has no effect with --channel memory"),
        (&["--latency-bytes", "0"], "expected at least a byte"),
        (&["--bandwidth-bytes", "1.3M"], "expected a whole number"),
        (&["--json", "x", "--svg", "x"], "--json and --svg name the same file; give each its own"),
    ] {
        let output = run(words);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains(told) && error.lines().count() == 1, "{words:?}: {error}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    for (words, told) in [
        (&["perf", "put_latency", "--svg", "x"][..], "--svg has no effect with put_latency; leave it out"),
        (&["perf", "--svg", "x"], "--svg has no effect with all tests; leave it out, or name p2p"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_shmccl")).args(words).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), format!("error: {told}\n")));
    }
    let output = run(&["--svg", "/nonexistent/p2p.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: cannot write /nonexistent/p2p.svg: "));
}

#[test]
fn a_reader_that_leaves_after_a_line_is_no_error_and_the_files_are_there() {
    let directory = scratch("p2p-head");
    let svg = directory.join("p2p.svg");
    let words = ["-g", "2", "--channel", "memory", "--svg", svg.to_str().unwrap()];
    let mut child =
        p2p(&[&FEW[..], &words].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), remarks(&output.stderr).as_str()), (Some(0), ""));
    assert!(svg.exists());
    std::fs::remove_dir_all(directory).unwrap();
}
