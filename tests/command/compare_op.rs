//! `shmccl compare --op` as a user meets it: one operation in every way, as tables, sentences and
//! files.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::{remarks, scratch, text};

fn compare(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command
        .arg("compare")
        .args(words)
        .current_dir(directory)
        .env_remove("SHMCCL_HEAP")
        .env("SHMCCL_TUNING", "");
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn every_algorithm_is_held_against_every_other_over_both_channels() {
    let directory = scratch("compare-op");
    // Over ports both shots are one way.
    for (op, ranks, algorithms) in
        [("all_gather", 2, "one_shot two_shot ring recursive_doubling"), ("gather", 3, "one_shot two_shot")]
    {
        let ranks_text = ranks.to_string();
        let words = ["--op", op, "-g", &ranks_text, "-b", "8", "-e", "8K", "-f", "32", "-n", "64"];
        let output = compare(&directory, &words);
        let (table, error) = (text(&output.stdout), remarks(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{error}");
        assert_eq!(error, "wrote compare.json, compare.csv and compare.svg\n");
        assert!(table.contains(&format!("{op} over {ranks} ranks: floats in the heap")), "{table}");
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(directory.join("compare.json")).unwrap()).unwrap();
        let rows = report["rows"].as_array().unwrap();
        let ways = 1 + algorithms.split(' ').count();
        // By puts of a program's own, beside those over memory channels.
        assert_eq!(rows.len(), 3 * (ways + 1 + ways - 1), "{report}");
        assert_eq!(rows.iter().filter(|row| row["variant"] == "puts").count(), 3, "{report}");
        assert!(table.contains("Puts of a program's own") && table.contains("puts/collective"), "{table}");
        for row in rows {
            assert!(row["p50_ns"].as_f64().unwrap() > 0.0 && row["wrong"] == 0, "{row}");
            assert!(row["ratio"].as_f64().unwrap() > 0.0 && row["in_place"] == false, "{row}");
            let is_short = row["bytes"].as_u64().unwrap() <= 8192;
            assert_eq!(row["operations_per_sample"], if is_short { 64 } else { 1 }, "{row}");
            let named = row["variant"].as_str().is_none_or(|name| {
                ["puts"].into_iter().chain(algorithms.split(' ')).any(|other| other == name)
            });
            let is_way =
                row["channel"] == "memory" || row["channel"] == "port" && row["variant"] != "two_shot";
            assert!(named && is_way, "{row}");
        }
        let csv = std::fs::read_to_string(directory.join("compare.csv")).unwrap();
        assert_eq!(csv.lines().count(), 1 + rows.len());
        let svg = std::fs::read_to_string(directory.join("compare.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(algorithms.split(' ').all(|name| svg.contains(name) && table.contains(name)), "{table}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_goes_by_messages_is_compared_directly_and_by_proxy_though_it_has_no_algorithms() {
    let directory = scratch("compare-op-messages");
    // The second by the name that nccl-tests has for it.
    for (word, op) in [("sendrecv", "sendrecv"), ("alltoallv", "all_to_all_v")] {
        let output = compare(&directory, &["--op", word, "-b", "1", "-e", "8K", "-f", "64", "-n", "64"]);
        let (table, error) = (text(&output.stdout), remarks(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{error}");
        assert!(table.contains(&format!("{op} over 2 ranks")) && !table.contains("by algorithm"), "{table}");
        assert!(table.contains("Direct and proxied; "), "{table}");
        let report = std::fs::read(directory.join("compare.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        assert_eq!(report["op"], op);
        let rows = report["rows"].as_array().unwrap();
        for (row, channel) in rows.iter().zip(["memory", "port"].into_iter().cycle()) {
            assert!(row["channel"] == channel && row["variant"].is_null() && row["wrong"] == 0, "{row}");
            assert!(row["bytes"].as_u64().unwrap() > 0 && row["p50_ns"].as_f64().unwrap() > 0.0, "{row}");
        }
        assert!(rows.len() >= 2 * 3, "{report}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn one_size_allows_no_conclusion_and_unchecked_data_are_told_as_such() {
    let directory = scratch("compare-op-one");
    let output = compare(&directory, &["--op", "scatter", "-b", "64", "-e", "64", "-n", "64", "-c", "0"]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(table.contains("Too few samples to conclude anything: "), "{table}");
    let row = table.lines().find(|line| line.trim_start().starts_with("64 B")).unwrap();
    assert!(row.ends_with('-'), "{row}");
    std::fs::remove_dir_all(directory).unwrap();
}
