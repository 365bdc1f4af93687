use shmccl::collective::Operation;
use shmccl_harness::report::{RowLimit, RowTimes};
use shmccl_harness::test::Test;

use super::super::conclusions::algorithms::AlgorithmCrossovers;
use super::super::crossover::Crossover;
use super::*;
use crate::perf::report::PerfReport;
use crate::units::ladder;

/// Numbers as a model has them: so many nanoseconds, and so many per byte, for each algorithm; a
/// proxy adds some.
const MODEL: [(Option<&str>, f64, f64); 4] = [
    (None, 1050.0, 0.105),
    (Some("one_shot"), 100.0, 1.0),
    (Some("two_shot"), 1000.0, 0.1),
    (Some("ring"), 2e6, 0.05),
];

fn modelled(proxy_ns: f64, proxy_per_byte: f64) -> Series {
    let row = |bytes: u64, channel, (name, fixed, per_byte): (Option<&str>, f64, f64)| {
        let proxied = if channel == TestChannel::Port { (proxy_ns, proxy_per_byte) } else { (0.0, 1.0) };
        let ns = fixed + proxied.0 + bytes as f64 * per_byte * proxied.1;
        PerfRow {
            channel: Some(channel),
            variant: name.map(str::to_owned),
            bytes: Some(bytes),
            times: RowTimes {
                samples: Some(100),
                p50_ns: Some(ns),
                gb_per_s: Some(bytes as f64 / ns),
                ..RowTimes::default()
            },
            limit: RowLimit { name: Some("bare sum".to_owned()), p50_ns: Some(ns / 2.0), ratio: Some(2.0) },
            spread: [("p50_ns", ns), ("ratio", 2.0)]
                .map(|(key, figure)| (key.to_owned(), (figure * 0.95, figure * 1.05)))
                .into(),
            wrong: Some(0),
            ..PerfRow::new(Test::Operation(Operation::AllReduce), 4)
        }
    };
    let mut rows = Vec::new();
    for bytes in ladder(8, 64 << 20, 4) {
        for channel in [TestChannel::Port, TestChannel::Memory] {
            rows.extend(MODEL.map(|way| row(bytes, channel, way)));
        }
    }
    Series {
        report: PerfReport { machine: fixed_machine(), rows },
        proxy: ProxyPlace::Thread,
        subject: Subject::Operation { test: Test::Operation(Operation::AllReduce), n_ranks: 4 },
    }
}

/// Where algorithms lead, and where the proxy overtakes.
fn found(series: &Series) -> AlgorithmCrossovers {
    match Conclusions::of(series).crossovers {
        Some(Crossovers::Algorithms(found)) => found,
        crossovers => panic!("{crossovers:?}"),
    }
}

#[test]
fn each_algorithm_leads_from_where_it_meets_the_one_before() {
    let series = modelled(3000.0, 1.0);
    let verdict = found(&series);
    let names: Vec<&str> = verdict.memory.iter().map(|lead| lead.algorithm.as_str()).collect();
    assert_eq!(names, ["one_shot", "two_shot", "ring"]);
    // 100 + x = 1000 + 0.1 x at x = 1000; 1000 + 0.1 x = 2e6 + 0.05 x at about 40e6.
    let meets: Vec<_> = verdict.memory.iter().map(|lead| lead.estimate).collect();
    assert_eq!(meets[0], None);
    assert!((900.0..1100.0).contains(&meets[1].unwrap()), "{meets:?}");
    assert!((32e6..48e6).contains(&meets[2].unwrap()), "{meets:?}");
    let told = sentences(&series);
    for part in [
        "Direct: one_shot at first, two_shot from about ",
        "What the library chooses by itself takes up to ",
        " x as long as the quickest (at 8 B).",
        "Against the machine's limit the quickest direct way takes from 2.00 x",
    ] {
        assert!(told.contains(part), "{part}\n{told}");
    }
}

#[test]
fn whether_proxied_overtakes_direct_is_told_with_where_or_that_it_never_does() {
    let told = sentences(&modelled(3000.0, 1.0));
    let never = "Proxied never overtakes direct: each at its quickest, it takes 28.8 x as long at 8 B and 1.00 x as long at 64 MiB; \
                 from 2 MiB on the two are level (within 5 %).";
    assert!(told.contains(never), "{told}");
    let ahead = modelled(3000.0, 0.5);
    assert!(sentences(&ahead).contains("Proxied overtakes direct at about "), "{}", sentences(&ahead));
    assert!(matches!(found(&ahead).proxied, Some(Crossover::Between { .. })));
    assert!(sentences(&modelled(0.0, 0.5)).contains("Proxied overtakes direct"));
    assert!(sentences(&modelled(-50.0, 0.5)).contains("Proxied is ahead of direct at every size measured."));
}

#[test]
fn direct_and_proxied_are_compared_only_where_the_cores_were_alike() {
    let mut series = modelled(3000.0, 0.5);
    for row in &mut series.report.rows {
        row.cores.probe_ns = Some(130.0);
    }
    let (even, told) = (found(&series), sentences(&series));
    assert!(!told.contains("hyper-thread"), "{told}");
    let turned = |row: &&mut PerfRow| row.channel == Some(TestChannel::Port) && row.bytes == Some(8);
    series.report.rows.iter_mut().filter(turned).for_each(|row| row.cores.probe_ns = Some(30.0));
    assert!(series.even_point(8).is_none() && series.even_point(32).is_some());
    assert_eq!(found(&series).proxied, even.proxied);
    let told = sentences(&series);
    for part in
        ["x as long at 32 B and ", "Direct is not held against proxied at 8 B: between the two the cores"]
    {
        assert!(told.contains(part), "{part}\n{told}");
    }
    for row in &mut series.report.rows {
        row.cores.probe_ns = Some(if row.channel == Some(TestChannel::Port) { 30.0 } else { 130.0 });
    }
    let told = sentences(&series);
    assert!(!told.contains("overtakes") && told.contains("64 MiB: between the two"), "{told}");
    assert!(json(&series)["crossover"]["proxied"].is_null());
    assert!(plot(&series).contains("No size tells whether"));
}

#[test]
fn no_algorithm_is_marked_as_the_quickest_by_too_few_samples() {
    let mut series = modelled(3000.0, 1.0);
    let marks = |series: &Series| super::text(TableLook::plain(), series).matches('*').count();
    // One for each kind of channel, and what it stands for above each of the two tables.
    let all = 2 * series.sizes().len() + 2;
    assert_eq!(marks(&series), all);
    series
        .report
        .rows
        .iter_mut()
        .filter(|row| row.bytes == Some(8))
        .for_each(|row| row.times.samples = Some(1));
    assert_eq!(marks(&series), all - 2);
}

#[test]
fn a_lead_within_the_noise_does_not_change_hands() {
    let mut series = modelled(3000.0, 1.0);
    series.report.rows.retain(|row| row.variant.as_deref() != Some("ring"));
    for row in &mut series.report.rows {
        if row.variant.as_deref() == Some("two_shot") {
            row.times.p50_ns = Some(nearly_one_shot(row.bytes));
        }
    }
    let verdict = found(&series);
    assert_eq!(verdict.memory.len(), 1, "{:?}", verdict.memory);
    assert!(sentences(&series).contains("Direct: two_shot at every size: within 3 % of the quickest."));
}

/// What one_shot takes directly, and a little less at every other size.
fn nearly_one_shot(bytes: Option<u64>) -> f64 {
    let bytes = bytes.unwrap_or(0);
    (100.0 + bytes as f64) * if bytes.ilog2() % 4 == 3 { 1.03 } else { 0.97 }
}

#[test]
fn from_too_few_samples_nothing_is_concluded() {
    let mut series = modelled(3000.0, 1.0);
    series.report.rows.retain(|row| row.bytes.is_some_and(|bytes| bytes < 64));
    assert_eq!(
        sentences(&series),
        "Too few samples to conclude anything: measure 3 sizes at least (-b, -e, -f)."
    );
    assert!(json(&series)["crossover"].is_null());
    assert!(plot(&series).contains("Too few samples for a crossover"));
    series.report.rows.clear();
    assert_eq!(sentences(&series), "Nothing was measured.");
    plot(&series);
    super::text(TableLook::plain(), &series);
}

#[test]
fn tables_fit_a_terminal_of_eighty_columns_and_the_quickest_is_marked() {
    let series = modelled(3000.0, 1.0);
    let look = TableLook { width: Some(80), ..TableLook::plain() };
    let text = super::text(look, &series);
    let tables = text.lines().skip(2).take_while(|line| !line.starts_with("Time of the quickest"));
    for line in tables {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let line = super::text(TableLook::plain(), &series);
    let line = line.lines().find(|line| line.contains("1.05 us") && line.contains('*')).unwrap();
    assert!(line.contains("108 ns*"), "{line}");
}

#[test]
fn where_there_is_no_choice_the_default_is_held_against_itself_by_proxy() {
    let mut series = modelled(3000.0, 1.0);
    series.report.rows.retain(|row| row.variant.is_none());
    series.subject = Subject::Operation { test: Test::Operation(Operation::Send), n_ranks: 4 };
    assert_eq!(series.quickest(8, TestChannel::Port).and_then(|row| row.times.p50_ns), Some(4050.84));
    let told = sentences(&series);
    assert!(told.starts_with("Proxied never overtakes direct: it takes 3.85 x as long at 8 B"), "{told}");
    assert!(told.contains("Against the machine's limit direct takes from 2.00 x"), "{told}");
    assert!(!told.contains("quickest") && !told.contains("by itself"), "{told}");
    let seen = super::text(TableLook::plain(), &series);
    assert!(seen.contains("Direct and proxied; bandwidth and limit are those of direct"), "{seen}");
    assert!(!seen.contains("quickest") && !seen.contains("algorithm"), "{seen}");
    let drawn = plot(&series);
    assert!(drawn.contains("sendrecv over 4 ranks of one host, direct and proxied"));
    assert!(
        drawn.contains("Dashed: the machine&apos;s limit.") || drawn.contains("Dashed: the machine's limit.")
    );
}

#[test]
fn an_algorithm_is_shown_for_a_channel_where_it_was_measured_over_it() {
    let mut series = modelled(3000.0, 1.0);
    let is_proxied = |row: &PerfRow| row.channel == Some(TestChannel::Port);
    series.report.rows.retain(|row| !is_proxied(row) || row.variant.as_deref() != Some("two_shot"));
    assert!(series.algorithms_over(TestChannel::Memory).contains(&"two_shot"));
    assert_eq!(series.algorithms_over(TestChannel::Port), ["default", "one_shot", "ring"]);
    let proxied = found(&series).port;
    assert!(proxied.iter().all(|lead| lead.algorithm != "two_shot"), "{proxied:?}");
    let seen = super::text(TableLook::plain(), &series);
    let heads: Vec<_> =
        seen.lines().filter(|line| line.contains("one_shot") && line.contains("ring")).collect();
    assert!(heads[0].contains("two_shot") && !heads[1].contains("two_shot"), "{heads:?}");
}

#[test]
fn the_files_have_every_way_at_every_size() {
    let series = modelled(3000.0, 1.0);
    let json = super::json(&series);
    assert_eq!(json["rows"].as_array().unwrap().len(), series.report.rows.len());
    assert_eq!((&json["op"], &json["ranks"]), (&"all_reduce".into(), &4.into()));
    assert_eq!(json["crossover"]["memory"][1]["algorithm"], "two_shot");
    assert_eq!(json["crossover"]["proxied"]["where"], "never");
    let csv = csv::text(&series);
    let width = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == width), "{csv}");
    assert_eq!(csv.lines().count(), 1 + series.report.rows.len());
    let drawn = plot(&series);
    for part in ["one_shot", "two_shot", "ring", "The quickest of each", "all_reduce over 4 ranks"] {
        assert!(drawn.contains(part), "{part}");
    }
    // For looking at it: SHMCCL_KEEP_PLOT=plot.svg cargo test the_files_have
    if let Ok(path) = std::env::var("SHMCCL_KEEP_PLOT") {
        crate::file::write(path.as_ref(), drawn.as_bytes()).unwrap();
    }
}

#[test]
fn wrong_data_of_any_way_are_counted() {
    let mut series = modelled(3000.0, 1.0);
    assert_eq!((series.report.wrong_rows(), series.wrong_at(8)), (0, Some(0)));
    series.report.rows[2].wrong = Some(3);
    assert_eq!((series.report.wrong_rows(), series.wrong_at(8)), (1, Some(3)));
    series.report.rows[3].wrong = None;
    assert_eq!(series.wrong_at(8), None);
}

#[test]
fn all_forms_of_a_comparison_of_algorithms_are_as_they_were_byte_for_byte() {
    let mut series = modelled(3000.0, 0.5);
    let sizes: Vec<u64> = series.sizes().into_iter().step_by(3).collect();
    series.report.rows.retain(|row| row.bytes.is_some_and(|bytes| sizes.contains(&bytes)));
    for (index, row) in series.report.rows.iter_mut().enumerate() {
        let is_turned = row.channel == Some(TestChannel::Port) && row.bytes == Some(8);
        row.cores.probe_ns = Some(if is_turned { 30.0 } else { 130.0 });
        (row.times.min_ns, row.times.p99_ns, row.times.max_ns) = (Some(10.0), Some(1e4), Some(2e4));
        row.wrong = Some(u64::from(index % 9 == 0));
    }
    assert_unchanged("algorithms", &series, [0x8ffb_f1b7_0b26_d155, 0xd5da_ffa6_5167_60ce]);
    series.report.rows.retain(|row| row.variant.is_none());
    series.subject = Subject::Operation { test: Test::Operation(Operation::Send), n_ranks: 4 };
    assert_unchanged("sendrecv", &series, [0xd803_d162_866f_3a0d, 0xdd34_a4bb_8be7_948c]);
}

/// The same with puts of a program's own, which take so many nanoseconds and so many per byte.
fn beside_puts(fixed: f64, per_byte: f64) -> Series {
    let mut series = modelled(3000.0, 1.0);
    let is_default = |row: &&PerfRow| row.channel == Some(TestChannel::Memory) && row.variant.is_none();
    let rows: Vec<PerfRow> = series.report.rows.iter().filter(is_default).cloned().collect();
    series.report.rows.extend(rows.into_iter().map(|mut row| {
        row.variant = Some("puts".to_owned());
        let bytes = row.bytes.unwrap_or(0) as f64;
        let ns = fixed + bytes * per_byte;
        (row.times.p50_ns, row.times.gb_per_s) = (Some(ns), Some(bytes / ns));
        row
    }));
    series
}

#[test]
fn puts_of_a_program_are_held_against_the_collective_with_where_it_overtakes_them() {
    let series = beside_puts(300.0, 0.5);
    let told = sentences(&series);
    // 300 + 0.5 x = 1050 + 0.105 x at x = 1899.
    let told_of_puts = "The collective overtakes puts of a program's own at about 2 KiB; \
                        puts take 0.289 x as long at 8 B and 4.76 x as long at 64 MiB.";
    assert!(told.contains(told_of_puts), "{told}");
    let crossover = found(&series).puts;
    assert!(
        matches!(crossover, Some(Crossover::Between { estimate, .. }) if (1700.0..2100.0).contains(&estimate)),
        "{crossover:?}"
    );
    assert_eq!(json(&series)["crossover"]["puts"]["where"], "between");
    let seen = super::text(TableLook::plain(), &series);
    let table = seen.split("or the collective\n").nth(1).unwrap();
    let last = |size: &str| {
        let line = table.lines().find(|line| line.trim_start().starts_with(size)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!([last("8 B"), last("64 MiB")], ["puts", "collective"]);
    assert!(sentences(&beside_puts(1.0, 0.01)).contains("The collective never overtakes puts"));
    let always = "The collective is ahead of puts at every size measured; puts take ";
    assert!(sentences(&beside_puts(9e3, 0.5)).contains(always));
}

#[test]
fn puts_of_a_program_are_no_algorithm_of_the_library() {
    let (without, series) = (modelled(3000.0, 1.0), beside_puts(1.0, 0.001));
    assert_eq!(series.algorithms(), without.algorithms());
    for bytes in without.sizes() {
        let quickest =
            |series: &Series| series.quickest(bytes, TestChannel::Memory).map(|row| row.variant.clone());
        assert_eq!(quickest(&series), quickest(&without));
    }
    assert_eq!(plot(&series), plot(&without));
    assert_eq!(csv::text(&series).matches(",puts,").count(), without.sizes().len());
    assert!(found(&without).puts.is_none() && json(&without)["crossover"].get("puts").is_none());
    let mut alone = series;
    alone.report.rows.retain(|row| row.variant.as_deref().is_none_or(|name| name == "puts"));
    assert!(!alone.has_choice());
}

#[test]
fn wrong_or_few_puts_are_no_reason_to_use_them() {
    let mut series = beside_puts(1.0, 0.001);
    let is_by_puts = |row: &&mut PerfRow| row.variant.as_deref() == Some("puts");
    series.report.rows.iter_mut().filter(is_by_puts).for_each(|row| row.times.samples = Some(1));
    let seen = super::text(TableLook::plain(), &series);
    let table = seen.split("or the collective\n").nth(1).unwrap();
    let rows = table.lines().skip(1).take(series.sizes().len());
    assert!(rows.into_iter().all(|line| line.ends_with("either")), "{table}");
    assert!(found(&series).puts.is_none() && json(&series)["crossover"].get("puts").is_none());
    assert!(!sentences(&series).contains("puts"), "{}", sentences(&series));

    let mut series = beside_puts(1.0, 0.001);
    let wrong = series.report.rows.iter_mut().find(is_by_puts).unwrap();
    wrong.wrong = Some(3);
    assert_eq!((wrong.bytes, series.report.wrong_rows()), (Some(8), 1));
    let seen = super::text(TableLook::plain(), &series);
    let table = seen.split("or the collective\n").nth(1).unwrap();
    let advice: Vec<&str> = table
        .lines()
        .skip(1)
        .take(series.sizes().len())
        .map(|line| line.split_whitespace().last().unwrap())
        .collect();
    assert!(advice[0] == "either" && advice[1..].iter().all(|word| *word == "puts"), "{table}");
    let told = sentences(&series);
    let (_, of_puts) = told.split_once("The collective never overtakes puts").unwrap();
    assert!(of_puts.contains(" as long at 32 B and ") && !of_puts.contains(" at 8 B and"), "{told}");
}

#[test]
fn all_forms_of_a_comparison_with_puts_are_as_they_were_byte_for_byte() {
    let mut series = beside_puts(300.0, 0.5);
    let sizes: Vec<u64> = series.sizes().into_iter().step_by(3).collect();
    series.report.rows.retain(|row| row.bytes.is_some_and(|bytes| sizes.contains(&bytes)));
    assert_unchanged("beside_puts", &series, [0x1e38_17c0_31d3_966c, 0xbd5f_1778_b336_4a0e]);
}
