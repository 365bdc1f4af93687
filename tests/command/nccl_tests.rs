//! The tables of collective operations as a parser of nccl-tests' output reads them, and their
//! flags as its users type them.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use regex::Regex;

const OPERATIONS: [&str; 11] = [
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "scan",
    "exscan",
];

/// Ranks spin for each other: two jobs at a time would each wait for the other's time slices.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn perf(words: &[&str]) -> Output {
    perf_with_faults(words, "")
}

fn perf_with_faults(words: &[&str], faults: &str) -> Output {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmccl"));
    command
        .arg("perf")
        .args(words)
        .stdin(Stdio::null())
        .env_remove("SHMCCL_HEAP")
        .env("SHMCCL_TUNING", "")
        .env("SHMCCL_FAULTS", faults)
        .output()
        .unwrap()
}

/// The lines of a run that is to succeed.
fn table(words: &[&str]) -> Vec<String> {
    let output = perf(words);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {error}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// What a row says: size, count, type, operator, root, then time, bandwidths and wrong elements,
/// twice.
fn rows(lines: &[String]) -> Vec<Vec<String>> {
    let data = lines.iter().filter(|line| !line.starts_with('#'));
    data.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Written from the `printf` formats of nccl-tests: every line is one of these.
fn nccl_tests_line() -> Regex {
    let time = r"  [ \d]*[\d.]{3,}";
    let place = format!(r"{time}  [ \d.]{{6}}  [ \d.]{{6}}  (?:[ \d]{{4}}\d|[ ]{{2}}N/A)");
    // As many places as `%8s` and `%6s` have, for the names of `test_typenames` and `test_opnames`.
    let types = [
        "    int8", "   uint8", "   int32", "  uint32", "   int64", "  uint64", "    half", "   float",
        "  double", "bfloat16", "  f8e4m3", "  f8e5m2",
    ]
    .join("|");
    let operators = ["   sum", "  prod", "   max", "   min", "   avg", "mulsum", "  none"].join("|");
    let alternatives = [
        r"# Collective test (starting|concluded): (all_reduce|reduce|broadcast|all_gather|reduce_scatter|alltoall|alltoallv|gather|scatter|scan|exscan|sendrecv)_perf".to_owned(),
        r"# nThread \d+ nGpus \d+ minBytes \d+ maxBytes \d+ step: \d+\((factor|bytes)\) warmup iters: \d+ iters: \d+ agg iters: \d+ validation: \d+ graph: \d+".to_owned(),
        r"#".to_owned(),
        r"# Using devices".to_owned(),
        r"#  Rank [ \d]\d Group [ \d]\d Pid [ \d]{5}\d+ on [ ]*\S{2,} device [ \d]\d \[0x[\da-f]{2,}\] .+".to_owned(),
        r"# {62}out-of-place {23}in-place {10}".to_owned(),
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong".to_owned(),
        r"#        \(B\)    \(elements\)                               \(us\)  \(GB/s\)  \(GB/s\)            \(us\)  \(GB/s\)  \(GB/s\)       ".to_owned(),
        format!(r"[ \d]{{11}}\d  [ \d]{{11}}\d  (?:{types})  (?:{operators})  [ ]{{4}}(?:-1|[ ]\d){place}{place}"),
        r"# Out of bounds values : \d+ (OK|FAILED)".to_owned(),
        r"# Avg bus bandwidth    : [\d.e+-]+ ".to_owned(),
    ];
    Regex::new(&format!("^(?:{})$", alternatives.join("|"))).unwrap()
}

#[test]
fn every_line_of_every_operation_is_one_of_nccl_tests() {
    let pattern = nccl_tests_line();
    for operation in OPERATIONS {
        let lines = table(&[operation, "-b", "8", "-e", "32K", "-f", "64", "-n", "64", "-w", "0"]);
        for line in &lines {
            assert!(pattern.is_match(line), "{operation}: {line:?}");
        }
        let rows = rows(&lines);
        assert_eq!(rows.len(), 3, "{lines:?}");
        for row in &rows {
            assert_eq!(row.len(), 13, "{row:?}");
            assert_eq!((row[8].as_str(), row[12].as_str()), ("0", "0"), "{operation}: {row:?}");
            assert!(row[5].parse::<f64>().unwrap() > 0.0, "{row:?}");
        }
        let has_root = ["reduce", "broadcast", "gather", "scatter"].contains(&operation);
        let reduces = operation.contains("reduce") || operation.contains("scan");
        assert_eq!(rows[0][4], if has_root { "0" } else { "-1" });
        let names_operator = reduces || operation == "sendrecv";
        assert_eq!(rows[0][3], if names_operator { "sum" } else { "none" });
        assert_eq!(rows[2][0], "32768");
    }
}

#[test]
fn what_neighbours_send_each_other_is_measured_in_both_places_and_checked_where_it_is_defined() {
    for ranks in ["2", "3"] {
        let sizes = ["-g", ranks, "-b", "8", "-e", "128K", "-f", "128", "-n", "64", "-w", "0", "--bound"];
        let lines = table(&[&["sendrecv"][..], &sizes].concat());
        assert_eq!(lines[0], "# Collective test starting: sendrecv_perf");
        for row in rows(&lines) {
            // For both places what the limit takes, and how often that is, come behind.
            assert_eq!((row.len(), row[8].as_str(), row[12].as_str()), (17, "0", "N/A"), "{row:?}");
            assert_eq!((row[6].as_str(), row[10].as_str()), (row[7].as_str(), row[11].as_str()), "{row:?}");
            assert!(row[9].parse::<f64>().unwrap() > 0.0 && row[15].parse::<f64>().unwrap() > 0.0, "{row:?}");
        }
    }
    for memory in ["heap", "ordinary"] {
        let sizes = ["-b", "8", "-e", "32K", "-f", "4096", "-n", "64", "--memory", memory];
        let plain = table(&[&["sendrecv"][..], &sizes].concat());
        assert!(plain.iter().all(|line| nccl_tests_line().is_match(line)), "{plain:?}");
        let rows = rows(&plain);
        assert!(rows.len() == 2 && rows.iter().all(|row| row[8] == "0" && row[12] == "N/A"), "{rows:?}");
    }
}

#[test]
fn blocks_of_several_lengths_come_out_right_in_both_places_wherever_they_are() {
    for [ranks, channel, memory] in
        [["2", "memory", "heap"], ["3", "memory", "ordinary"], ["3", "port", "heap"], ["4", "memory", "heap"]]
    {
        let sizes = ["-b", "4", "-e", "256K", "-f", "256", "-n", "64", "-w", "0", "-d", "half", "--bound"];
        let flags = ["-g", ranks, "--channel", channel, "--memory", memory];
        let lines = table(&[&["alltoallv"][..], &sizes, &flags].concat());
        assert_eq!(lines[0], "# Collective test starting: alltoallv_perf");
        for row in rows(&lines) {
            assert_eq!((row[8].as_str(), row[12].as_str()), ("0", "0"), "{row:?}");
        }
    }
}

#[test]
fn prefixes_come_out_right_in_both_places_wherever_they_are_and_have_limits_of_their_own() {
    for [ranks, channel, memory] in
        [["2", "memory", "heap"], ["3", "memory", "ordinary"], ["3", "port", "heap"], ["4", "memory", "heap"]]
    {
        for operation in ["scan", "exscan"] {
            let sizes = ["-b", "4", "-e", "1M", "-f", "64", "-n", "64", "-w", "0", "--json", "-"];
            let flags = ["-g", ranks, "--channel", channel, "--memory", memory];
            let output = perf(&[&[operation][..], &sizes, &flags].concat());
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let rows = report["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 8, "{report}");
            for row in rows {
                assert_eq!(row["wrong"], 0, "{row}");
                if row["bytes"].as_u64().unwrap() > 64 << 10 {
                    let limit = row["limit"].as_str().unwrap();
                    assert!(limit.starts_with("bare prefix sums, "), "{limit}");
                }
            }
        }
    }
    for words in [["exscan", "-d", "all", "-o", "sum"], ["scan", "-d", "double", "-o", "all"]] {
        let size = ["-g", "3", "-b", "3K", "-e", "3K", "-n", "1", "-w", "0"];
        let rows = rows(&table(&[&words[..], &size].concat()));
        assert!(rows.len() > 5 && rows.iter().all(|row| row[8] == "0" && row[12] == "0"), "{rows:?}");
    }
}

#[test]
fn every_type_every_operator_and_every_root_is_a_row_of_its_own() {
    let size = ["-b", "3K", "-e", "3K", "-n", "1", "-w", "0"];
    for (words, column, expected) in [
        (
            &["all_reduce", "-d", "all"][..],
            2,
            "int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2 \
             int16 uint16 bool complex64 complex128",
        ),
        (
            &["all_reduce", "-d", "all", "-o", "bxor"],
            2,
            "int8 uint8 int32 uint32 int64 uint64 int16 uint16 bool",
        ),
        (&["reduce_scatter", "-o", "all", "-d", "bool"], 3, "sum prod max min band bor bxor"),
        (&["reduce_scatter", "-o", "all", "-d", "bf16"], 3, "sum prod max min avg mulsum"),
        (&["reduce", "-r", "-1", "-g", "3"], 4, "0 1 2"),
    ] {
        let rows = rows(&table(&[words, &size].concat()));
        let found: Vec<_> = rows.iter().map(|row| row[column].as_str()).collect();
        assert_eq!(found.join(" "), expected);
        assert!(rows.iter().all(|row| row[8] == "0" && row[12] == "0"), "{rows:?}");
    }
}

#[test]
fn a_limit_that_does_something_else_than_the_operation_says_so_in_its_name() {
    for (words, names) in [
        (&["all_reduce", "-d", "float"][..], ["", ""]),
        (&["all_reduce", "-d", "double"], [", of float sums"; 2]),
        (&["all_reduce", "-o", "max", "--memory", "ordinary"], [", of float sums"; 2]),
        (&["alltoall", "-d", "double"], ["", ", out of place"]),
        (&["alltoallv", "--memory", "ordinary"], [", in the heap", ", out of place, in the heap"]),
        (
            &["all_reduce", "-o", "max", "--memory", "ordinary", "-b", "4K", "-e", "4K"],
            [", of float sums, in the heap"; 2],
        ),
    ] {
        let size = ["-b", "4M", "-e", "4M"];
        let size = if words.contains(&"-b") { &[][..] } else { &size };
        let output = perf(&[words, size, &["-n", "1", "-w", "0", "--json", "-"]].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for (row, name) in report["rows"].as_array().unwrap().iter().zip(names) {
            let limit = row["limit"].as_str().unwrap();
            let additions = [", in the heap", ", out of place", ", of float sums"];
            let plain = additions.into_iter().fold(limit, |limit, addition| limit.trim_end_matches(addition));
            assert_eq!(&limit[plain.len()..], name, "{words:?}");
        }
    }
}

#[test]
fn steps_in_bytes_ordinary_memory_and_no_check_are_told_in_the_table() {
    let pattern = nccl_tests_line();
    let flags = ["-b", "1K", "-e", "3K", "-f", "1", "-i", "1K", "-n", "1", "-w", "2", "-a", "3"];
    let lines = table(&[&["all_gather", "--memory", "ordinary", "-c", "0"][..], &flags].concat());
    assert!(lines.iter().all(|line| pattern.is_match(line)), "{lines:?}");
    assert!(lines[1].contains("step: 1024(bytes) warmup iters: 2 iters: 1 agg iters: 1 validation: 0"));
    let rows = rows(&lines);
    assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["1024", "2048", "3072"]);
    assert!(rows.iter().all(|row| row.len() == 13 && row[8] == "N/A" && row[12] == "N/A"), "{rows:?}");
    // Where nobody says how many, the head tells how many there are at least.
    let unsaid = perf(&["broadcast", "-b", "8", "-e", "8", "--json", "-"]);
    let head = String::from_utf8(unsaid.stderr).unwrap().lines().nth(1).unwrap().to_owned();
    assert!(pattern.is_match(&head) && head.contains(" warmup iters: 1 iters: 15 agg iters: 1 "), "{head}");
    let report: serde_json::Value = serde_json::from_slice(&unsaid.stdout).unwrap();
    assert!(report["rows"].as_array().unwrap().iter().all(|row| row["iterations"].as_u64().unwrap() >= 15));
    let stepped_over = table(&["all_reduce", "-b", "8", "-e", "100", "-f", "4", "-n", "4", "-w", "0"]);
    let sizes: Vec<_> = self::rows(&stepped_over).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(sizes, ["8", "32"]);
    let from_nothing = table(&["all_reduce", "-b", "0", "-e", "8", "-i", "8", "-n", "4", "-w", "0"]);
    assert!(from_nothing.iter().all(|line| pattern.is_match(line)), "{from_nothing:?}");
    let sizes: Vec<_> = self::rows(&from_nothing).into_iter().map(|row| row[0].clone()).collect();
    assert_eq!(sizes, ["0", "8"]);
    let checked = table(&[&["alltoall", "-c", "5"][..], &flags].concat());
    assert!(checked[1].contains("iters: 1 agg iters: 1 validation: 5 "), "{checked:?}");
    assert!(self::rows(&checked).iter().all(|row| row[8] == "0" && row[12] == "0"), "{checked:?}");
}

#[test]
fn nothing_is_timed_where_no_operations_are_asked_for_and_results_are_checked_all_the_same() {
    let flags = ["-b", "8", "-e", "32K", "-f", "4096", "-n", "0", "--memory"];
    for (operation, memory) in [("all_reduce", "heap"), ("all_reduce", "ordinary"), ("broadcast", "heap")] {
        let lines = table(&[&[operation], &flags[..], &[memory]].concat());
        assert!(lines.iter().all(|line| nccl_tests_line().is_match(line)), "{lines:?}");
        assert!(lines[1].contains(" iters: 0 agg iters: 1 validation: 1 "), "{lines:?}");
        let rows = rows(&lines);
        assert_eq!(rows.len(), 2, "{lines:?}");
        for row in rows {
            for place in [&row[5..9], &row[9..13]] {
                assert_eq!(place, ["0.00", "0.00", "0.00", "0"], "{row:?}");
            }
        }
    }
    let output = perf(&["all_reduce", "-b", "8", "-e", "8", "-n", "0", "--json", "-"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in report["rows"].as_array().unwrap() {
        let figures = ["p50_ns", "min_ns", "gb_per_s", "limit_p50_ns", "ratio"];
        assert!(figures.iter().all(|figure| row[figure].is_null()), "{row}");
        assert_eq!((&row["iterations"], &row["wrong"]), (&0.into(), &0.into()), "{row}");
    }
    // What is checked can be wrong.
    let words = ["all_reduce", "-b", "32K", "-e", "32K", "-n", "0", "--memory", "ordinary"];
    let corrupt = perf_with_faults(&words, "corrupt:rank=1,one_in=2,of=stage");
    assert_eq!(corrupt.status.code(), Some(1), "{corrupt:?}");
}

#[test]
fn columns_of_our_own_come_last_and_the_report_has_every_figure() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("report.json");
    let json = path.to_str().unwrap();
    let flags = ["-b", "8", "-e", "8", "-n", "64", "-w", "0", "--bound", "-I", "--json", json];
    let lines = table(&[&["all_reduce"][..], &flags].concat());
    assert_eq!(rows(&lines)[0].len(), 13 + 2 * 6, "{lines:?}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, in_place) in rows.iter().zip([false, true]) {
        for figure in ["min_ns", "p50_ns", "max_ns", "gb_per_s", "limit_p50_ns", "ratio", "algbw", "busbw"] {
            assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {row}");
        }
        // One batch of 64 has too few samples for it, of whatever kind these are.
        assert!(row["p99_ns"].is_null(), "{row}");
        assert_eq!(
            (&row["test"], &row["bytes"], &row["ranks"]),
            (&"all_reduce".into(), &8.into(), &2.into())
        );
        assert_eq!(
            (&row["in_place"], &row["memory"], &row["wrong"]),
            (&in_place.into(), &"heap".into(), &0.into())
        );
        assert_eq!(
            (&row["type"], &row["redop"], &row["root"]),
            (&"float".into(), &"sum".into(), &(-1).into())
        );
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_cannot_be_meant_is_exit_code_two_and_one_line() {
    for (words, told) in [
        (&["broadcast", "-o", "sum"][..], "--op has no effect with broadcast; leave it out"),
        (&["sendrecv", "--algo", "ring"], "--algo has no effect with sendrecv; leave it out"),
        (&["all_to_all_v", "--algo", "one_shot"], "--algo has no effect with all_to_all_v; leave it out"),
        (&["sendrecv", "-o", "sum"], "--op has no effect with sendrecv; leave it out"),
        (&["all_reduce", "-r", "1"], "--root has no effect with all_reduce; leave it out"),
        (&["put_latency", "-n", "0"], "only the collective operations of perf are checked without"),
        (&["all_reduce", "-x", "2"], "there are none; expected 0, or leave it out"),
        (&["all_reduce", "-D", "1"], "the library does the operation; expected 0, or leave it out"),
        (&["all_reduce", "-M", "1"], "there is none; expected 0, or leave it out"),
        (&["put_latency", "-d", "half"], "--datatype has no effect with put_latency; leave it out"),
        (&["all_reduce", "--proxy", "process"], "--proxy has no effect with --channel memory; leave it out"),
        (&["gather", "--algo", "ring"], "ring cannot do gather; these can: one_shot, two_shot"),
        (&["--bound"], "--bound has no effect with all tests; leave it out, or name a collective operation"),
        (&["reduce", "-r", "2"], "--root 2 is no rank; of 2 the last is 1"),
        (&["all_reduce", "reduce", "-r", "2"], "--root 2 is no rank; of 2 the last is 1"),
        (&["reduce", "-r", "x"], "expected a rank, all or -1"),
        (
            &["all_reduce", "-o", "xor"],
            "no such operator, expected sum, prod, min, max, avg, band, bor or bxor, or mulsum or all",
        ),
        (&["all_reduce", "-d", "float128"], "no such data type"),
        (
            &["reduce", "-o", "band"],
            "operator band is not defined on float; use sum, prod, min, max, avg or mulsum",
        ),
        (&["all_reduce", "-o", "mulsum", "-d", "bool"], "operator mulsum is not defined on bool"),
        (&["all_reduce", "-a", "4"], "4 is not in 0..=3"),
        (&["all_reduce", "-i", "0"], "expected steps of at least a byte"),
        (&["all_reduce", "-i", "8", "-f", "2"], "cannot be used with"),
        (&["put_latency", "-f", "1"], "only the collective operations of perf do"),
        (&["all_reduce", "-i", "1", "-e", "1G"], "take larger steps"),
        (&["all_reduce", "-b", "0"], "no factor leads up from there"),
        (&["all_reduce", "-g", "1"], "a rank alone hands nothing over"),
    ] {
        let output = perf(words);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains(told) && error.lines().count() == 1, "{words:?}: {error}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}
