//! `perf p2p`: every rank to every other, one pair at a time, and then all at once.
//!
//! | module | what |
//! |---|---|
//! | [`device`] | the side of device processes: pairs, and all at once |
//! | [`cells`] | rows put in order of ranks |
//! | [`view`], [`heat`] | the tables, the heat map |

use anyhow::Result;
use indicatif::ProgressBar;
use shmccl_harness::cores::allowed_cpus;
use shmccl_harness::report::PerfRow;
use shmccl_harness::test::{Test, TestChannel};

use super::flags::PerfArgs;
use super::jobs;
use super::spec::{MatrixSettings, PerfSpec};
use crate::device_job;
pub(crate) use heat::text as svg;
pub(crate) use view::text;

mod cells;
mod device;
mod heat;
mod view;

/// The most ranks where the user does not say how many: a narrow table has room for no more.
const MOST_RANKS: usize = 8;

/// Measures all pairs over `channel`, and shows in `progress` which.
///
/// # Errors
/// Bad sizes, a job that fails.
pub(crate) fn run(
    args: &PerfArgs,
    channel: TestChannel,
    spec: PerfSpec,
    progress: &ProgressBar,
) -> Result<Vec<PerfRow>> {
    let cores = allowed_cpus().len();
    let n_ranks = match args.ranks {
        Some(n_ranks) => n_ranks,
        None => u32::try_from(cores.clamp(2, MOST_RANKS))?,
    };
    let settings = MatrixSettings {
        bandwidth_bytes: args.matrix.bandwidth_bytes,
        latency_bytes: args.matrix.latency_bytes,
        cores: device_job::cores(n_ranks, &args.job)?,
        oversubscribed: n_ranks as usize > cores,
    };
    let spec = PerfSpec {
        tests: vec![(Test::P2p, Some(channel))],
        sizes: vec![settings.bandwidth_bytes, settings.latency_bytes],
        matrix: Some(settings),
        ..spec
    };
    let mut tell = |row: &PerfRow| {
        if let Some(place) = &row.place {
            progress.set_message(format!("p2p {}: {} to {}", channel.name(), place.from, place.to));
        }
    };
    Ok(jobs::run(&spec, n_ranks, &args.job, &mut tell)?.rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::MachineInfo;
    use crate::output::TableLook;
    use crate::perf::report::PerfReport;
    use crate::perf::spec::MatrixFigure;
    use crate::units::three_digits;
    use shmccl_harness::report::{PairPlacement, RowLimit, RowTimes};

    /// Returns the figure of a pair of a modelled matrix: no two alike.
    fn value(figure: MatrixFigure, from: u32, to: u32) -> f64 {
        let pair = f64::from(from * 10 + to);
        match figure {
            MatrixFigure::Latency => 1000.0 + pair,
            MatrixFigure::Bidirectional => 100.0 + pair,
            _ => 10.0 + pair / 10.0,
        }
    }

    /// Makes a matrix of `n_ranks` ranks on `n_cores` cores.
    fn modelled(n_ranks: u32, n_cores: Option<u32>) -> PerfReport {
        let core = |rank: u32| n_cores.map(|n_cores| rank % n_cores);
        let row = |figure: MatrixFigure| PerfRow {
            channel: Some(TestChannel::Memory),
            variant: Some(figure.name().to_owned()),
            bytes: Some(8),
            times: RowTimes { p50_ns: Some(123_456.0), ..RowTimes::default() },
            limit: RowLimit {
                name: Some("plain copies (avx2 streaming)".to_owned()),
                ratio: Some(1.23),
                ..RowLimit::default()
            },
            spread: ["p50_ns", "gb_per_s", "ratio"].map(|key| (key.to_owned(), (1.2, 1.3))).into(),
            wrong: Some(0),
            ..PerfRow::new(Test::P2p, n_ranks)
        };
        let mut rows = Vec::new();
        for from in 0..n_ranks {
            for to in (0..n_ranks).filter(|to| *to != from) {
                rows.extend(MatrixFigure::OF_PAIRS.map(|figure| PerfRow {
                    times: RowTimes {
                        p50_ns: Some(value(figure, from, to)),
                        gb_per_s: Some(value(figure, from, to)),
                        ..RowTimes::default()
                    },
                    place: Some(PairPlacement { from, to, from_core: core(from), to_core: core(to) }),
                    ..row(figure)
                }));
            }
        }
        let mut all = row(MatrixFigure::AllToAll);
        all.times.gb_per_s = Some(40.0);
        rows.push(all);
        let machine = MachineInfo { cpu: "Example CPU".to_owned(), commit: None, ..MachineInfo::detect() };
        PerfReport { machine, rows }
    }

    fn narrow() -> TableLook {
        TableLook { terminal: true, width: Some(80), ..TableLook::plain() }
    }

    #[test]
    fn eight_ranks_fit_a_terminal_of_eighty_columns() {
        let text = text(narrow(), &modelled(8, Some(2)));
        for line in text.lines().skip(1) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let head: Vec<&str> =
            text.lines().find(|line| line.starts_with("rank")).unwrap().split(' ').collect();
        let names: Vec<&str> = head.into_iter().filter(|word| !word.is_empty()).collect();
        assert_eq!(names, ["rank", "core", "0", "1", "2", "3", "4", "5", "6", "7"]);
        assert!(text.contains("\n   7     1  ") || text.contains("\n   7 "), "{text}");
    }

    #[test]
    fn more_ranks_than_a_line_has_room_for_are_told_in_several_tables() {
        let text = text(narrow(), &modelled(12, Some(2)));
        assert!(text.lines().skip(1).all(|line| line.chars().count() <= 80), "{text}");
        for to in 0..12 {
            let value = three_digits(value(MatrixFigure::Latency, if to == 0 { 1 } else { 0 }, to));
            assert!(text.contains(&value), "{value}: {text}");
        }
    }

    #[test]
    fn the_table_says_who_shares_a_core_and_which_pairs_those_are() {
        let told = text(TableLook::plain(), &modelled(4, Some(2)));
        assert!(told.contains("* both ranks share a core: 0, 2; 1, 3\n"), "{told}");
        let row: Vec<&str> =
            told.lines().find(|line| line.starts_with("   2 ")).unwrap().split_whitespace().collect();
        assert_eq!(row, ["2", "0", "12.0*", "12.1", "-", "12.3", "2", "1.23", "1.23", "-", "1.23"]);
        assert!(text(TableLook::plain(), &modelled(2, Some(2))).contains("No two ranks share a core."));
        let unpinned = text(TableLook::plain(), &modelled(2, None));
        assert!(unpinned.contains("The scheduler decides who shares a core."), "{unpinned}");
    }

    #[test]
    fn wrong_data_are_told_with_the_pair_they_came_from() {
        let mut report = modelled(3, Some(3));
        assert!(text(TableLook::plain(), &report).ends_with("Data checked: 0 words wrong.\n"));
        report.rows[4].wrong = Some(7);
        let told = text(TableLook::plain(), &report);
        assert!(
            told.ends_with("Data checked: 7 words wrong.\nwrong: bidirectional from 0 to 2, 7 words\n"),
            "{told}"
        );
        report.rows[0].wrong = None;
        assert!(text(TableLook::plain(), &report).ends_with("The data were not checked.\n"));
    }

    #[test]
    fn latencies_of_many_microseconds_are_told_in_microseconds() {
        let mut report = modelled(2, Some(2));
        report.rows[2].times.p50_ns = Some(43_210.0);
        let told = text(TableLook::plain(), &report);
        assert!(told.contains("latency of put_with_signal, 8 B, us\n") && told.contains("43.2"), "{told}");
    }

    #[test]
    fn the_heat_map_has_a_square_for_every_pair_and_a_scale_with_its_unit() {
        for n_ranks in [2, 3, 8] {
            let drawn = svg(&modelled(n_ranks, Some(2))).unwrap();
            let lines: Vec<&str> = drawn.lines().collect();
            for from in 0..n_ranks {
                for to in (0..n_ranks).filter(|to| *to != from) {
                    for figure in MatrixFigure::OF_PAIRS {
                        let shared = if from % 2 == to % 2 { "*" } else { "" };
                        let text = three_digits(value(figure, from, to)) + shared;
                        assert!(lines.contains(&text.as_str()), "{text}");
                    }
                }
            }
            for part in ["0 GB/s", "0 ns", "to rank", "All to all at once: memory 40.0 GB/s in blocks of 8 B"]
            {
                assert!(drawn.contains(part), "{part}");
            }
        }
    }

    #[test]
    fn a_report_without_pairs_is_drawn_and_told_without_matrices() {
        let mut report = modelled(2, Some(2));
        report.rows.clear();
        svg(&report).unwrap();
        assert!(text(TableLook::plain(), &report).contains("0 words wrong"));
    }
}
