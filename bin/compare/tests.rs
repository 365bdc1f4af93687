mod algorithms;
mod puts;

use super::*;
use crate::perf::test::TestChannel;

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

fn text(look: Look, series: &Series) -> String {
    view::text(look, series, &Conclusions::of(series))
}

fn plot(series: &Series) -> String {
    svg::text(series, &Conclusions::of(series)).unwrap()
}

fn json(series: &Series) -> serde_json::Value {
    serde_json::to_value(CompareJson::of(series, &Conclusions::of(series))).unwrap()
}
