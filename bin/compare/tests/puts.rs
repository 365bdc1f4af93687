use shmccl_harness::report::{FIGURES, RowFifo, RowLimit, RowTimes};
use shmccl_harness::test::Test;

use super::*;
use crate::perf::report::PerfReport;
use crate::units::ladder;

/// Numbers as a model has them: a direct put costs 130 ns and 0.1 ns per byte, a proxied one
/// `trigger_ns` more; the device pays for the whole direct put, and 60 ns for a trigger.
fn modelled(trigger_ns: f64, cores: usize, overlap: f64) -> Series {
    let row = |bytes: f64, extra: f64, cpu: f64| PerfRow {
        iterations: 10_000,
        times: RowTimes {
            min_ns: Some(120.0 + extra + bytes * 0.1),
            p50_ns: Some(130.0 + extra + bytes * 0.1),
            p99_ns: Some(190.0 + 2.0 * extra + bytes * 0.12),
            max_ns: Some(30_000.0 + bytes),
            gb_per_s: Some(bytes / (30.0 + extra / 4.0 + bytes * 0.1)),
            ..RowTimes::default()
        },
        device_cpu_ns: Some(cpu),
        limit: RowLimit {
            name: Some("raw copy + flag".to_owned()),
            p50_ns: Some(125.0 + bytes * 0.1),
            ratio: Some((130.0 + extra + bytes * 0.1) / (125.0 + bytes * 0.1)),
        },
        wrong: Some(0),
        ..PerfRow::new(Test::PutLatency, 2)
    };
    let rows = |bytes: u64| {
        let of = |channel, row| PerfRow { channel: Some(channel), bytes: Some(bytes), ..row };
        let fifo = |figure| (bytes <= 2 << 20).then_some(figure);
        let proxied = PerfRow {
            fifo: RowFifo {
                depth: fifo(512.0),
                depth_p50: fifo(300.0),
                stall_share: fifo(16.0 / 8192.0),
                ..RowFifo::default()
            },
            overlap: Some(overlap * bytes as f64 / (bytes as f64 + 4096.0)),
            ..row(bytes as f64, trigger_ns, 60.0)
        };
        let direct = row(bytes as f64, 0.0, 25.0 + bytes as f64 * 0.1);
        [of(TestChannel::Memory, direct), of(TestChannel::Port, proxied)].map(steady)
    };
    let machine = MachineInfo { cores, ..fixed_machine() };
    Series {
        report: PerfReport { machine, rows: ladder(8, 64 << 20, 4).into_iter().flat_map(rows).collect() },
        proxy: ProxyPlace::Thread,
        subject: Subject::Puts {
            overlap_place: Some("proxy on other cores".to_owned()),
            overlap_left_out: None,
        },
    }
}

/// Lets rounds agree on all figures of a row.
fn steady(mut row: PerfRow) -> PerfRow {
    for (key, of) in FIGURES {
        if let Some(figure) = *of(&mut row) {
            row.spread.insert(key.to_owned(), (figure * 0.95, figure * 1.05));
        }
    }
    row
}

/// The rows of one channel.
fn over(series: &mut Series, channel: TestChannel) -> impl Iterator<Item = &mut PerfRow> {
    series.report.rows.iter_mut().filter(move |row| row.channel == Some(channel))
}

/// Where device time crosses.
fn mark(series: &Series) -> Option<f64> {
    Conclusions::of(series).mark_of_puts(|found| Some(found.main()))
}

#[test]
fn the_crossover_is_where_the_trigger_costs_the_device_less_than_the_copy() {
    let series = modelled(900.0, 4, 0.95);
    // 60 = 0.95 * (25 + 0.1 x) at x = 382; between 128 B and 512 B.
    let mark = mark(&series).unwrap();
    assert!((200.0..512.0).contains(&mark), "{mark}");
    let text = sentences(&series);
    for part in [
        "Crossover at about ",
        "costs the device thread less time than a direct one, and a device with other work to do is better off",
        "Latency: the proxy adds 900 ns at 8 B (7.88 x direct); from 512 KiB on the two are level (within 5 %).",
        "Device time, proxied against direct: 60.0 ns against 25.8 ns at 8 B, 60.0 ns against 6.71 ms at 64 MiB.",
        "Overlap: at best 95 % of a proxied transfer hides behind computation (at 64 MiB, proxy on other cores); nothing of a direct one",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_crossover_that_rounds_disagree_on_is_given_with_its_range() {
    let mut series = modelled(900.0, 4, 0.95);
    let spread = |series: &mut Series, by: f64| {
        for row in &mut series.report.rows {
            let ns = row.device_cpu_ns.unwrap();
            row.spread.insert("device_cpu_ns".to_owned(), (ns / by, ns * by));
        }
    };
    spread(&mut series, 1.01);
    assert!(!sentences(&series).contains("by round"));
    spread(&mut series, 1.5);
    let range = &json(&series)["crossover"]["device_time_range"];
    let (low, high) = (range[0].as_f64().unwrap(), range[1].as_f64().unwrap());
    let mark = mark(&series).unwrap();
    assert!(low < mark && mark < high && low >= 8.0, "{low} {mark} {high}");
    assert!(sentences(&series).contains(" by round)"), "{}", sentences(&series));
}

#[test]
fn a_proxy_without_a_core_of_its_own_is_named_as_the_reason_for_little_overlap() {
    assert!(
        sentences(&modelled(900.0, 2, 0.05))
            .contains("if the proxy had a core of its own, which it has not here")
    );
    assert!(
        sentences(&modelled(900.0, 8, 0.05))
            .contains("little of the transfer hid behind computation in this run")
    );
}

#[test]
fn without_a_crossover_the_verdict_says_so() {
    let mut series = modelled(900.0, 4, 0.9);
    over(&mut series, TestChannel::Port).for_each(|row| row.device_cpu_ns = Some(1e9));
    assert!(sentences(&series).starts_with("No crossover: at no size"));
    over(&mut series, TestChannel::Port).for_each(|row| row.device_cpu_ns = None);
    let text = sentences(&series);
    assert!(text.starts_with("No crossover: at no size") && text.contains("is quicker"), "{text}");
    assert!(!text.contains("Device time"), "{text}");
    series.report.rows.clear();
    assert_eq!(sentences(&series), "Nothing was measured.");
}

#[test]
fn the_text_holds_the_tables_the_charts_and_the_verdict_and_stays_narrow() {
    let series = modelled(900.0, 4, 0.95);
    let text = super::text(TableLook::plain(), &series);
    for part in [
        "proxied/direct",
        "overlap proxied",
        "depth p50",
        "7.88 x",
        "64 MiB",
        "Crossover at about",
        "◇ proxied",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // First what it comes to, and no line is longer than a hundred characters.
    assert!(text.lines().nth(2).unwrap().starts_with("Crossover at about "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(!text.contains('\u{1b}'));
    let coloured = super::text(TableLook { colour: true, ..TableLook::plain() }, &series);
    assert!(coloured.contains('\u{1b}'));
}

#[test]
fn percentiles_of_means_are_told_with_the_sizes_they_are_of() {
    let mut series = modelled(900.0, 4, 0.95);
    assert!(!super::text(TableLook::plain(), &series).contains("of means of"));
    for (channel, puts) in [(TestChannel::Memory, 32), (TestChannel::Port, 2)] {
        for row in over(&mut series, channel) {
            row.times.operations_per_sample = Some(if row.bytes < Some(1024) { puts } else { 1 });
        }
    }
    let text = super::text(TableLook::plain(), &series);
    assert!(text.contains("p50, p99: up to 512 B of means of several puts, since"), "{text}");
}

#[test]
fn the_fifo_has_a_table_of_its_own_that_says_what_its_columns_mean() {
    let mut series = modelled(900.0, 4, 0.95);
    let text = super::text(TableLook { width: Some(80), ..TableLook::plain() }, &series);
    let (_, table) = text.split_once("The fifo under proxied puts").unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["size", "depth", "p50", "depth", "max", "stalls"]);
    assert_eq!(lines[2], ["8", "B", "300", "512", "0.195", "%"]);
    // Sizes that flood nothing are not in it.
    assert!(!table.split_once("\n\n").unwrap().0.contains("64 MiB"), "{table}");
    for part in ["there is room for 512.", "as a share of all; 0.195 %, one in\n"] {
        assert!(table.contains(part), "{part}\n{table}");
    }
    let (notes, _) = table.split_once("\n\n").unwrap();
    assert!(notes.lines().all(|line| line.chars().count() <= 80), "{notes}");
    series.report.rows.retain(|row| row.bytes > Some(2 << 20));
    assert!(!super::text(TableLook::plain(), &series).contains("The fifo under"));
}

#[test]
fn from_too_few_samples_nothing_is_concluded() {
    let begins = "Too few samples to conclude anything: ";
    let mut series = modelled(900.0, 4, 0.95);
    series.report.rows.iter_mut().for_each(|row| row.times.samples = Some(1));
    assert_eq!(
        sentences(&series),
        format!("{begins}let it do more operations (-n), or as many as it finds time for (without -n).")
    );
    assert!(mark(&series).is_none());
    assert!(json(&series)["crossover"].is_null());
    series.report.rows.truncate(2);
    assert_eq!(
        sentences(&series),
        format!("{begins}measure 3 sizes at least (-b, -e, -f), each more often (-n).")
    );
    let mut one_size = modelled(900.0, 4, 0.95);
    one_size.report.rows.truncate(4);
    assert_eq!(sentences(&one_size), format!("{begins}measure 3 sizes at least (-b, -e, -f)."));
    // The longest transfers are few in any run.
    let mut usual = modelled(900.0, 4, 0.95);
    over(&mut usual, TestChannel::Memory).last().unwrap().times.samples = Some(4);
    assert!(sentences(&usual).starts_with("Crossover at about"));
}

#[test]
fn a_lead_that_only_noise_makes_is_not_told() {
    let told = |widen: f64| {
        let mut series = modelled(900.0, 4, 0.95);
        for row in over(&mut series, TestChannel::Port).filter(|row| row.bytes == Some(8)) {
            row.times.p50_ns = Some(50.0);
            row.spread.insert("p50_ns".to_owned(), (50.0, 50.0 * widen));
        }
        sentences(&series)
    };
    assert!(told(1.1).contains("quicker at some sizes"), "{}", told(1.1));
    assert!(!told(4.0).contains("quicker at some sizes"), "{}", told(4.0));
}

#[test]
fn what_is_not_steady_or_below_its_limit_says_so_in_tables_and_sentences() {
    let mut series = modelled(900.0, 4, 0.95);
    let text_of = |series: &Series| super::text(TableLook::plain(), series);
    assert!(!text_of(&series).contains('~') && !text_of(&series).contains('!'), "{}", text_of(&series));
    series.report.rows[0].spread.insert("p50_ns".to_owned(), (100.0, 180.0));
    series.report.rows[1].spread.remove("device_cpu_ns");
    series.report.rows[2].limit.ratio = Some(0.672);
    let text = text_of(&series);
    for part in [
        "   ~131 ns",
        "~7.88 x",
        "the proxy adds ~900 ns at 8 B (~7.88 x direct)",
        "~60.0 ns against 25.8 ns at 8 B",
        "0.672 x!",
        "\n~: not steady: ",
        "\n!: quicker than its limit: noise, or that limit is none.\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let csv = csv::text(&series);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| lines[0].iter().position(|head| *head == name).unwrap();
    assert_eq!(
        (lines[1][column("direct_p50_ns_low")], lines[1][column("direct_p50_ns_high")]),
        ("100.0000", "180.0000")
    );
    assert_eq!(lines[1][column("proxied_device_cpu_ns_low")], "");
}

#[test]
fn overlap_that_the_machine_cannot_show_is_left_out_with_the_reason() {
    let mut series = modelled(900.0, 2, 0.0);
    series.report.rows.iter_mut().for_each(|row| row.overlap = None);
    let overlap_left_out = Some("overlap needs three cores; this process may use two".to_owned());
    series.subject = Subject::Puts { overlap_place: None, overlap_left_out };
    let text = super::text(TableLook::plain(), &series);
    assert!(text.contains("Overlap: not measured: overlap needs three cores; this"), "{text}");
    assert!(!text.contains("overlap proxied"), "{text}");
    assert!(json(&series)["overlap_left_out"].is_string());
}

#[test]
fn the_tables_fit_a_terminal_of_eighty_columns() {
    let series = modelled(900.0, 4, 0.95);
    let text = super::text(TableLook { width: Some(80), ..TableLook::plain() }, &series);
    let is_of_table =
        |line: &&str| line.contains("MiB") || line.contains("KiB") || line.contains("direct p50");
    let lines: Vec<&str> = text.lines().skip(8).filter(is_of_table).collect();
    assert!(lines.len() > 20, "{text}");
    for line in lines {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(text.contains("(left out: p99)"), "{text}");
    // On a terminal columns stand further apart, and a head that has no room is broken in two.
    let text = super::text(TableLook { width: Some(80), terminal: true, ..TableLook::plain() }, &series);
    let lines: Vec<&str> = text.lines().collect();
    let heads = (0..lines.len()).filter(|&line| lines[line].trim_start().starts_with("size "));
    assert_eq!(heads.clone().count(), 3, "{text}");
    for head in heads {
        assert!(lines[head + 1].starts_with('─'), "{text}");
    }
}

#[test]
fn the_file_has_two_rows_per_size_and_what_they_mean() {
    let series = modelled(900.0, 4, 0.95);
    let json = json(&series);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * series.sizes().len());
    assert_eq!((&rows[0]["channel"], &rows[1]["channel"]), (&"memory".into(), &"port".into()));
    assert!(rows[0]["fifo_depth"].is_null() && rows[1]["fifo_depth"] == 512.0);
    assert_eq!(json["crossover"]["device_time"]["where"], "between");
    assert_eq!(json["crossover"]["latency"]["where"], "never");
    assert!(json["summary"][0].as_str().unwrap().starts_with("Crossover at about"));
}

#[test]
fn the_csv_is_rectangular_and_numeric() {
    let mut series = modelled(900.0, 4, 0.95);
    series.report.rows[0].overlap = None;
    let text = csv::text(&series);
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    assert!(head.contains(&"bytes") && head.contains(&"proxied_p99_ns") && head.contains(&"direct_wrong"));
    for line in lines.clone() {
        assert_eq!(line.len(), head.len());
        assert!(line.iter().all(|field| field.is_empty() || field.parse::<f64>().is_ok()), "{line:?}");
    }
    assert_eq!(lines.count(), series.sizes().len());
}

#[test]
fn wrong_data_on_either_side_is_counted() {
    let mut series = modelled(900.0, 4, 0.95);
    assert_eq!((series.report.wrong_rows(), series.wrong_at(512)), (0, Some(0)));
    series.report.rows[5].wrong = Some(3);
    series.report.rows[6].wrong = Some(1);
    assert_eq!((series.report.wrong_rows(), series.wrong_at(512)), (2, Some(1)));
}

#[test]
fn the_plot_is_drawn_with_labels_and_without_figures_too() {
    let mut series = modelled(900.0, 4, 0.95);
    let svg = plot(&series);
    for part in
        ["<svg", "Latency, one way", "GB/s", "size of a put", "32 KiB", "10 us", "crossover", "proxied"]
    {
        assert!(svg.contains(part), "{part}");
    }
    // For looking at it: SHMCCL_KEEP_PLOT=plot.svg cargo test the_plot
    if let Ok(path) = std::env::var("SHMCCL_KEEP_PLOT") {
        file::write(path.as_ref(), svg.as_bytes()).unwrap();
        output::print(&super::text(TableLook::plain(), &series)).unwrap();
    }
    series.report.rows.iter_mut().for_each(|row| row.overlap = None);
    assert!(plot(&series).contains("not measured"));
    series.report.rows.truncate(2);
    plot(&series);
    super::text(TableLook::plain(), &series);
    series.report.rows.clear();
    plot(&series);
    super::text(TableLook::plain(), &series);
}

#[test]
fn three_files_are_written() {
    let directory = std::env::temp_dir().join(format!("shmccl-compare-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| directory.join(name);
    let mut files =
        CompareFiles { json: Some(path("a.json")), csv: Some(path("a.csv")), svg: Some(path("a.svg")) };
    check_files(&files).unwrap();
    let series = modelled(900.0, 4, 0.95);
    write_files(&files, &series, &Conclusions::of(&series)).unwrap();
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 3);
    files.svg = Some(path("missing/a.svg"));
    assert!(check_files(&files).is_err());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn all_forms_of_a_comparison_of_puts_are_as_they_were_byte_for_byte() {
    let mut series = modelled(900.0, 4, 0.95);
    let sizes: Vec<u64> = series.sizes().into_iter().step_by(3).collect();
    series.report.rows.retain(|row| row.bytes.is_some_and(|bytes| sizes.contains(&bytes)));
    for (index, row) in series.report.rows.iter_mut().enumerate() {
        let ns = row.device_cpu_ns.unwrap();
        row.spread.insert("device_cpu_ns".to_owned(), (ns / 1.5, ns * 1.5));
        row.times.samples = Some(100 / (index as u64 + 1));
        row.times.operations_per_sample = Some(if index < 4 { 32 } else { 2 });
        row.times.p99_ns = row.times.p99_ns.filter(|_| index < 6);
    }
    assert_unchanged("puts", &series, [0xba69_ec7d_c19b_7ed8, 0x4c8e_4f71_c627_a2c8]);
}
