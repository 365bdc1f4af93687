//! Files that are no plans: an error that names the place, no panic, no unbounded memory.

use std::time::{Duration, Instant};

use shmccl_plan::interpret::SplitMix64;
use shmccl_plan::{check, import, read};

use crate::corpus::{folder, is_long};

fn refusal(text: &str) -> String {
    let refusal = read::read("broken.json", text.as_bytes()).unwrap_err();
    refusal
        .problems
        .iter()
        .map(|problem| format!("{}: {problem}", refusal.file))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Returns a small plan with one text replaced.
fn with(from: &str, to: &str) -> String {
    let text = std::fs::read_to_string(folder().join("generated/ag_2.json")).unwrap();
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn broken_files_are_refused_with_their_place_and_a_remedy() {
    let put = r#""name":"put","src_buff":[{"type":"o","index":0,"size":1}]"#;
    let cases = [
        ("", "the plan: no plan: EOF"),
        ("[]", "the plan: no plan: invalid type: sequence"),
        ("{", "line 1 column 1"),
        ("<algo name=\"x\">", "MSCCL's XML, not a plan in JSON; import it first"),
        ("\u{1}", "the plan: no plan"),
        (r#"{"name":"x","inputChunks":1}"#, "layout before August 2025"),
    ];
    for (text, told) in cases {
        assert!(refusal(text).contains(told), "{told}: {}", refusal(text));
    }
    let changes = [
        (
            r#""protocol":"Simple""#,
            r#""protocol":"Fast""#,
            "the plan: `protocol` is \"Fast\"; expected a name",
        ),
        (r#""inplace":true"#, r#""inplace":1"#, "the plan: `inplace` is 1; expected true or false"),
        (r#""name":"allgather","#, "", "the plan: `name` is missing; expected a text"),
        (r#""id":0,"input_chunks":1"#, r#""id":1,"input_chunks":1"#, "a rank 1 twice"),
        (
            r#""input_chunks":1"#,
            r#""input_chunks":-1"#,
            "rank 0: `input_chunks` is -1; expected a whole number",
        ),
        (r#""input_chunks":1"#, r#""chunkGroups":1"#, "layout before August 2025"),
        (put, r#""name":"put","i_buff":0"#, "rank 0 block 0 operation 5: `i_buff` is of MSCCL++'s layout"),
        (put, r#""name":"push""#, "rank 0 block 0 operation 5: `name` is \"push\"; expected a name"),
        (
            put,
            r#""name":"put","src_buff":[]"#,
            "rank 0 block 0 operation 5 (put): `src_buff` has 0 references",
        ),
        (
            put,
            r#""name":"put","src_buff":[{"type":"o","index":2,"size":1}]"#,
            "chunks 2..3 of buffer \"o\" of rank 0, which has 2",
        ),
        (
            put,
            r#""name":"put","src_buff":[{"type":"o","index":0,"size":2}]"#,
            "references of 2 and of 1 chunks",
        ),
        (
            put,
            r#""name":"put","src_buff":[{"type":"x","index":0,"size":1}]"#,
            "operation 5 (put): `type` is \"x\"",
        ),
        (
            put,
            r#""name":"put","src_buff":[{"rank":1,"type":"o","index":0,"size":1}]"#,
            "names rank 1; use a remote buffer",
        ),
        (
            r#"{"buffer_id":0,"index":0"#,
            r#"{"buffer_id":7,"index":0"#,
            "`dst_buff` 0: `buffer_id` 7 of 1; name one there is",
        ),
        (
            r#""name":"signal","channel_ids":[0]"#,
            r#""name":"signal","channel_ids":[3]"#,
            "rank 0 block 0 operation 7 (signal): memory channel 3 of 1",
        ),
        (
            r#""connected_to":[1]"#,
            r#""connected_to":[0]"#,
            "rank 0: a memory channel leads to the rank itself",
        ),
        (r#""connected_to":[1]"#, r#""connected_to":[9]"#, "rank 0: a memory channel leads to rank 9 of 2"),
        (
            r#"{"rank":1,"type":"o""#,
            r#"{"rank":0,"type":"o""#,
            "rank 0: a remote buffer leads to the rank itself",
        ),
        (
            r#"{"name":"nop"}"#,
            r#"{"name":"barrier","barrier_id":0,"num_threadblocks":2}"#,
            "operation 0 (barrier): barrier 0 is of 2 blocks, but 1 use it",
        ),
        (
            r#"{"name":"nop"}"#,
            r#"{"name":"sem_acquire","semaphore_ids":[0]}"#,
            "operation 0 (sem_acquire): semaphore 0 of 0",
        ),
        (
            r#"{"name":"nop"}"#,
            r#"{"name":"pipeline","iter_context":{"unit_size":0,"num_chunks":1},"ops":[]}"#,
            "`unit_size` is 0",
        ),
        (
            r#"{"name":"nop"}"#,
            r#"{"name":"pipeline","iter_context":{"unit_size":16,"num_chunks":1},"ops":[{"name":"pipeline","iter_context":{"unit_size":16,"num_chunks":1},"ops":[]}]}"#,
            "operation 0.0 (pipeline): a pipeline stands within",
        ),
        (
            r#"{"name":"nop"}"#,
            r#"{"name":"upkt","src_buff":[{"type":"o","index":0,"size":1}],"dst_buff":[{"type":"o","index":0,"size":1}]}"#,
            "packets in a plan of protocol Simple",
        ),
        (
            r#""channel_type":"memory"},{"name":"nop"}"#,
            r#""channel_type":"port"},{"name":"nop"}"#,
            "rank 0 block 0 operation 1 (rlxsignal): `channel_type` is port; expected memory",
        ),
    ];
    assert!(changes.len() >= 20);
    for (from, to, told) in changes {
        let told_in_fact = refusal(&with(from, to));
        assert!(told_in_fact.contains(told), "{to}: {told_in_fact}");
        assert!(told_in_fact.starts_with("broken.json: "), "{told_in_fact}");
    }
}

#[test]
fn all_errors_of_a_file_are_reported() {
    let text =
        with(r#""inplace":true"#, r#""inplace":1"#).replace(r#""name":"signal""#, r#""name":"signals""#);
    assert_eq!(refusal(&text).lines().count(), 3, "{}", refusal(&text));
}

#[test]
fn unknown_fields_are_ignored_with_one_warning_for_each_name() {
    let text = with(r#""inplace":true"#, r#""inplace":true,"colour":"red""#);
    let text = text.replace(r#"{"name":"nop"}"#, r#"{"name":"nop","why":1}"#);
    let reading = read::read("plan.json", text.as_bytes()).unwrap();
    assert_eq!(
        reading.warnings,
        [
            "field `colour` of the plan is unknown, and ignored",
            "field `why` of operation nop is unknown, and ignored"
        ]
    );
}

#[test]
fn lists_beyond_their_limits_are_refused_before_they_are_read() {
    let many = "{\"name\":\"nop\"},".repeat(70_000);
    let text = with(r#"{"name":"nop"}"#, &format!("{many}{{\"name\":\"nop\"}}"));
    assert!(refusal(&text).contains("rank 0 block 0: `ops` is"), "{}", refusal(&text));
    let deep = format!("{{\"gpus\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refusal(&deep).contains("the plan:"), "{}", refusal(&deep));
}

/// Changes some bytes of a text: to others, to nothing, to numbers at limits, or to a copy.
fn spoil(text: &mut Vec<u8>, random: &mut SplitMix64) {
    const PIECES: [&str; 14] = [
        "0",
        "1",
        "2",
        "3",
        "64",
        "-1",
        "4294967295",
        "18446744073709551615",
        "{}",
        "[]",
        "null",
        "\"",
        "1e99",
        "<algo>",
    ];
    for _ in 0..=random.below(3) {
        let at = random.below(text.len());
        match random.below(5) {
            0 => text[at] = random.draw().to_le_bytes()[0],
            1 => drop(text.drain(at..(at + random.below(30)).min(text.len()))),
            2 | 3 => {
                let digits = (at..text.len()).find(|&at| text[at].is_ascii_digit()).unwrap_or(at);
                let piece = PIECES[random.below(PIECES.len())];
                text.splice(digits..(digits + 1).min(text.len()), piece.bytes());
            }
            _ => {
                let copy: Vec<_> = text[at..(at + random.below(200)).min(text.len())].to_vec();
                let to = random.below(text.len());
                text.splice(to..to, copy);
            }
        }
        if text.is_empty() {
            text.push(b'{');
        }
    }
}

fn small_files(folder_name: &str, largest: u64) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder().join(folder_name)).unwrap().map(|entry| entry.unwrap());
    let mut small: Vec<_> =
        files.filter(|file| file.metadata().unwrap().len() < largest).map(|file| file.path()).collect();
    small.sort();
    small.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
#[expect(clippy::print_stdout, reason = "the figures of the long form")]
fn spoiled_files_are_refused_or_checked_and_never_panic() {
    let mut plans = small_files("units", 20_000);
    plans.extend(small_files("generated", 8_000));
    plans.extend(small_files("upstream", 8_000));
    let programs = small_files("msccl-xml", 20_000);
    let (limit, most) = if is_long() { (Duration::from_secs(600), u64::MAX) } else { (Duration::MAX, 3000) };
    let start = Instant::now();
    let (mut tried, mut read_again) = (0, 0);
    while tried < most && start.elapsed() < limit {
        let mut random = SplitMix64::new(tried);
        let is_program = random.below(10) == 0;
        let files = if is_program { &programs } else { &plans };
        let mut text = files[random.below(files.len())].clone();
        spoil(&mut text, &mut random);
        tried += 1;
        if is_program {
            let _ = import::import("spoiled.xml", &text);
        } else if let Ok(reading) = read::read("spoiled.json", &text) {
            read_again += 1;
            let _ = check(&reading.plan, None);
        }
    }
    println!("{tried} spoiled files, {read_again} of them plans still");
    assert!(read_again > 0);
}
