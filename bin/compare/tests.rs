mod algorithms;
mod puts;

use shmccl_harness::test::TestChannel;

use super::*;

/// A machine that is the same wherever tests run.
fn fixed_machine() -> MachineInfo {
    MachineInfo {
        cores: 4,
        cores_online: 8,
        siblings_seen: false,
        sibling_slices: Some(0.0),
        virtual_machine: true,
        kernel: "6.18".to_owned(),
        cpu: "Example CPU".to_owned(),
        version: "0.1.0".to_owned(),
        commit: None,
        optimised: true,
    }
}

fn sentences(series: &Series) -> String {
    Conclusions::of(series).summary.join("\n")
}

fn text(look: TableLook, series: &Series) -> String {
    view::text(look, series, &Conclusions::of(series))
}

fn plot(series: &Series) -> String {
    svg::text(series, &Conclusions::of(series)).unwrap()
}

fn json(series: &Series) -> serde_json::Value {
    serde_json::to_value(CompareJson::of(series, &Conclusions::of(series))).unwrap()
}

/// Holds all that a comparison comes to against what it was: the text and the values stand in
/// files, of the longer JSON and the plot there are digests. To look at what has changed:
/// SHMCCL_KEEP_COMPARISON=DIRECTORY cargo test as_they_were
fn assert_unchanged(name: &str, series: &Series, digests: [u64; 2]) {
    let look = TableLook { width: Some(80), terminal: true, ..TableLook::plain() };
    let screen = text(TableLook::plain(), series) + &text(look, series);
    let mut json = serde_json::to_string_pretty(&CompareJson::of(series, &Conclusions::of(series))).unwrap();
    json.push('\n');
    let forms = [("txt", screen), ("csv", csv::text(series)), ("json", json), ("svg", plot(series))];
    if let Ok(directory) = std::env::var("SHMCCL_KEEP_COMPARISON") {
        for (kind, content) in &forms {
            std::fs::write(format!("{directory}/{name}.{kind}"), content).unwrap();
        }
    }
    let [screen, csv, json, svg] = forms.map(|(_, content)| content);
    let expected = |kind: &str| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/compare/tests/expected");
        std::fs::read_to_string(format!("{folder}/{name}.{kind}")).unwrap()
    };
    assert_eq!(screen, expected("txt"));
    assert_eq!(csv, expected("csv"));
    assert_eq!([json, svg].map(|form| digest(&form)), digests, "JSON and plot of {name}");
}

/// FNV-1a.
fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
