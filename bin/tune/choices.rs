//! From figures to a table: which algorithm takes the place of the built-in choice, from which size
//! on, and how that looks to people.

use anyhow::Result;
use shmccl::collective::PLANS_VARIABLE;
use shmccl::collective::tuning::{BufferKind, Case, ONE_SHOT_LEN, Step};
use shmccl::collective::{AlgorithmName, Operation};
use shmccl_harness::stats::quantile;

use super::spec::{AlgorithmTimes, TuneFigure};
use crate::output::TableLook;
use crate::table::TextTable;
use crate::units::{format_ns, format_size, percent, three_digits};

/// The least gain for which the built-in choice is given up, as a share of its time.
const LEAST_GAIN: f64 = 0.05;

/// The noise from which on the user is told what to do about it.
const NOISY: f64 = 0.05;

/// The algorithm that is chosen at one size.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SizeChoice {
    pub(super) operation: Operation,
    pub(super) ranks: u32,
    pub(super) oversubscribed: bool,
    pub(super) buffers: BufferKind,
    pub(super) bytes: u64,
    /// The built-in choice.
    pub(super) built_in: AlgorithmName,
    /// The algorithm that is chosen, or the execution plan.
    pub(super) chosen: AlgorithmName,
    /// Its time, in nanoseconds.
    pub(super) p50_ns: f64,
    /// Its time over that of the built-in choice.
    pub(super) ratio: f64,
}

impl SizeChoice {
    /// Whether both belong to the same case of a table.
    pub(super) fn is_of_case(&self, other: &Self) -> bool {
        let key = |choice: &Self| (choice.operation, choice.ranks, choice.oversubscribed, choice.buffers);
        key(self) == key(other)
    }

    /// Whether the built-in choice gives way.
    pub(super) fn is_change(&self) -> bool {
        self.chosen != self.built_in
    }
}

/// Chooses an algorithm for each figure.
///
/// Up to [`ONE_SHOT_LEN`] both kinds of buffers have the same choice, as ranks choose before they
/// know the kind.
///
/// # Errors
/// A figure of an operation or algorithm that this program does not know.
pub(super) fn choose(figures: &[TuneFigure]) -> Result<Vec<SizeChoice>> {
    figures.iter().map(|figure| choice(figure, figures)).collect()
}

fn choice(figure: &TuneFigure, all: &[TuneFigure]) -> Result<SizeChoice> {
    let key = |figure: &TuneFigure| (figure.operation.clone(), figure.ranks, figure.bytes);
    let twin = all.iter().find(|other| {
        figure.bytes <= ONE_SHOT_LEN && other.buffers != figure.buffers && key(other) == key(figure)
    });
    let together: Vec<&TuneFigure> = [Some(figure), twin].into_iter().flatten().collect();
    let chosen = best(&together).and_then(|name| result(figure, name)).unwrap_or(&figure.built_in);
    let operation = Operation::ALL.into_iter().find(|operation| operation.name() == figure.operation);
    Ok(SizeChoice {
        operation: operation.ok_or_else(|| anyhow::anyhow!("no such operation: {}", figure.operation))?,
        ranks: figure.ranks,
        oversubscribed: figure.oversubscribed,
        buffers: figure.buffers,
        bytes: figure.bytes,
        built_in: figure.built_in.algorithm.parse()?,
        chosen: chosen.algorithm.parse()?,
        p50_ns: chosen.p50_ns,
        ratio: chosen.ratio,
    })
}

fn result<'f>(figure: &'f TuneFigure, name: &str) -> Option<&'f AlgorithmTimes> {
    figure.others.iter().find(|result| result.algorithm == name)
}

/// Returns the algorithm that beats the built-in choice in all `figures` by most, and by more than
/// noise.
fn best<'f>(figures: &[&'f TuneFigure]) -> Option<&'f str> {
    let names = figures.first()?.others.iter().map(|result| result.algorithm.as_str());
    let ratio = |name: &str| {
        let results = figures.iter().map(|figure| result(figure, name)).collect::<Option<Vec<_>>>()?;
        let sure = results.iter().all(|result| result.ratio_p75 < 1.0);
        let product: f64 = results.iter().map(|result| result.ratio).product();
        let ratio = if results.len() == 2 { product.sqrt() } else { product };
        (sure && ratio <= 1.0 - figures.iter().map(|figure| noise(figure)).fold(LEAST_GAIN, f64::max))
            .then_some(ratio)
    };
    let able = names.filter_map(|name| Some((name, ratio(name)?)));
    able.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(name, _)| name)
}

/// Returns how much the built-in choice differs from itself, as a share of its time.
fn noise(figure: &TuneFigure) -> f64 {
    (figure.control.ratio - 1.0).abs()
}

/// Makes the cases of a table from choices, which come case by case and by size.
pub(super) fn cases(choices: &[SizeChoice]) -> Vec<Case> {
    choices.chunk_by(SizeChoice::is_of_case).map(case).collect()
}

fn case(choices: &[SizeChoice]) -> Case {
    let first = &choices[0];
    let runs: Vec<&[SizeChoice]> = choices.chunk_by(|one, next| one.chosen == next.chosen).collect();
    let ends = runs.windows(2).map(|pair| Some(between(pair[0][pair[0].len() - 1].bytes, pair[1][0].bytes)));
    let step = |(run, up_to): (&&[SizeChoice], _)| Step { up_to, algorithm: run[0].chosen.clone() };
    Case {
        operation: first.operation,
        n_ranks: first.ranks,
        oversubscribed: first.oversubscribed,
        buffers: first.buffers,
        steps: runs.iter().zip(ends.chain([None])).map(step).collect(),
    }
}

/// Returns the last size for the algorithm that is best at `below` bytes, where another one is best
/// at `above`.
///
/// That is the middle by factor, or the size at which the library changes its own way.
fn between(below: u64, above: u64) -> u64 {
    if (below..above).contains(&ONE_SHOT_LEN) { ONE_SHOT_LEN } else { below.saturating_mul(above).isqrt() }
}

/// Lays out a row for each run of sizes at which one algorithm takes the place of the built-in
/// choice.
pub(super) fn table(look: TableLook, choices: &[SizeChoice]) -> String {
    let together = |one: &SizeChoice, next: &SizeChoice| {
        one.is_of_case(next) && (&one.built_in, &one.chosen) == (&next.built_in, &next.chosen)
    };
    let runs = choices.chunk_by(together).filter(|run| run[0].is_change());
    let head = "operation, ranks, buffers, size, built-in, best, p50, time/built-in, (best size)";
    let rows: Vec<_> = runs.map(|run| (row(run), false)).collect();
    if rows.is_empty() {
        return "the built-in choice is as good as any other here, at all sizes\n".to_owned();
    }
    TextTable { head: head.split(", ").collect(), words: 6, rows }
        .text(look, &["(best size)", "p50", "built-in"])
}

fn row(run: &[SizeChoice]) -> Vec<String> {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    let size = match (format_size(first.bytes), format_size(last.bytes)) {
        (only, end) if only == end => only,
        (start, end) => format!("{start}..{end}"),
    };
    let best = run.iter().min_by(|one, other| one.ratio.total_cmp(&other.ratio)).unwrap_or(first);
    let worst = run.iter().max_by(|one, other| one.ratio.total_cmp(&other.ratio)).unwrap_or(first);
    let ratio = match (three_digits(best.ratio), three_digits(worst.ratio)) {
        (only, end) if only == end => only,
        (least, most) => format!("{least}..{most}"),
    };
    let oversubscribed = if first.oversubscribed { ", oversubscribed" } else { "" };
    vec![
        first.operation.name().to_owned(),
        format!("{}{oversubscribed}", first.ranks),
        first.buffers.name().to_owned(),
        size,
        first.built_in.to_string(),
        first.chosen.to_string(),
        format_ns(best.p50_ns),
        ratio,
        format_size(best.bytes),
    ]
}

/// Says how much changes, and how far the figures can be trusted.
pub(super) fn notes(figures: &[TuneFigure], choices: &[SizeChoice]) -> Vec<String> {
    let kept = choices.iter().filter(|choice| !choice.is_change()).count();
    let mut shares: Vec<f64> = figures.iter().map(noise).collect();
    let (middle, high) =
        (quantile(&mut shares, 0.5).unwrap_or(0.0), quantile(&mut shares, 0.9).unwrap_or(0.0));
    let mut notes = vec![
        format!("the built-in choice stays at {kept} of {} sizes", choices.len()),
        format!(
            "noise, the built-in choice against itself: {} at half of the sizes or less, {} at nine of ten",
            percent(middle),
            percent(high)
        ),
    ];
    if choices.iter().any(|choice| matches!(choice.chosen, AlgorithmName::Plan(_))) {
        notes.push(format!("the table names plans: programs go by them where {PLANS_VARIABLE} names theirs"));
    }
    if high > NOISY {
        notes.push(
            "that is much: close other programs, or measure for longer (--time), for smaller gains to show"
                .to_owned(),
        );
    }
    notes
}

#[cfg(test)]
mod tests {
    use shmccl::collective::Algorithm;

    use super::*;

    fn result(algorithm: Algorithm, ratio: f64, spread: f64) -> AlgorithmTimes {
        AlgorithmTimes {
            algorithm: algorithm.name().to_owned(),
            p50_ns: 100.0 * ratio,
            ratio,
            ratio_p25: ratio - spread,
            ratio_p75: ratio + spread,
            rounds: 9,
        }
    }

    fn figure(bytes: u64, buffers: BufferKind, others: &[(Algorithm, f64)]) -> TuneFigure {
        let built_in = if bytes <= ONE_SHOT_LEN { Algorithm::OneShot } else { Algorithm::TwoShot };
        TuneFigure {
            operation: "all_reduce".to_owned(),
            ranks: 4,
            oversubscribed: true,
            buffers,
            bytes,
            built_in: result(built_in, 1.0, 0.0),
            control: result(built_in, 1.01, 0.02),
            others: others.iter().map(|&(algorithm, ratio)| result(algorithm, ratio, 0.02)).collect(),
            wrong: 0,
        }
    }

    fn chosen(figures: &[TuneFigure]) -> Vec<Algorithm> {
        let built_in = |choice: SizeChoice| choice.chosen.to_string().parse().unwrap();
        choose(figures).unwrap().into_iter().map(built_in).collect()
    }

    #[test]
    fn the_quickest_is_taken_where_it_is_quicker_by_more_than_noise() {
        use Algorithm::{Ring, Tree, TwoShot};
        let large = |others: &[_]| figure(1 << 20, BufferKind::Heap, others);
        assert_eq!(chosen(&[large(&[(Ring, 0.9), (Tree, 0.8)])]), [Tree]);
        assert_eq!(chosen(&[large(&[(Ring, 0.96)])]), [TwoShot], "less than 5 %");
        let mut unsure = large(&[(Ring, 0.9)]);
        unsure.others[0].ratio_p75 = 1.01;
        assert_eq!(chosen(&[unsure]), [TwoShot], "not in three of four rounds");
        let mut noisy = large(&[(Ring, 0.9)]);
        noisy.control.ratio = 0.85;
        assert_eq!(chosen(&[noisy]), [TwoShot], "no better than the built-in choice against itself");
    }

    #[test]
    fn a_plan_that_is_quicker_has_a_step_and_programs_are_told_what_they_need() {
        let mut figure = figure(1 << 20, BufferKind::Heap, &[(Algorithm::Ring, 0.9)]);
        figure.others.push(AlgorithmTimes { algorithm: "plan:mine".to_owned(), ..figure.others[0].clone() });
        figure.others[1].ratio = 0.8;
        let choices = choose(std::slice::from_ref(&figure)).unwrap();
        let steps = [Step { up_to: None, algorithm: AlgorithmName::Plan("mine".to_owned()) }];
        assert_eq!(cases(&choices)[0].steps, steps);
        assert!(table(TableLook::plain(), &choices).contains("plan:mine"));
        assert!(
            notes(&[figure], &choices).iter().any(|note| note.contains("where SHMCCL_PLANS names theirs"))
        );
    }

    #[test]
    fn small_sizes_have_one_choice_for_both_kinds_of_buffers() {
        use Algorithm::{OneShot, Ring};
        let pair = |bytes, ordinary| {
            [
                figure(bytes, BufferKind::Heap, &[(Ring, 0.8)]),
                figure(bytes, BufferKind::Ordinary, &[(Ring, ordinary)]),
            ]
        };
        assert_eq!(chosen(&pair(512, 0.9)), [Ring, Ring]);
        assert_eq!(chosen(&pair(512, 1.1)), [OneShot, OneShot]);
        assert_eq!(chosen(&pair(1 << 20, 1.1)), [Ring, Algorithm::TwoShot]);
    }

    #[test]
    fn a_case_has_a_step_for_each_run_of_sizes() {
        let none: &[(Algorithm, f64)] = &[];
        let ring: &[_] = &[(Algorithm::Ring, 0.5)];
        let sizes = [(2048, none), (8192, none), (32_768, none), (1 << 17, ring), (1 << 19, ring)];
        let figures = sizes.map(|(bytes, others)| figure(bytes, BufferKind::Heap, others));
        let cases = cases(&choose(&figures).unwrap());
        let step = |up_to, algorithm: Algorithm| Step { up_to, algorithm: algorithm.into() };
        assert_eq!(cases.len(), 1);
        assert_eq!(
            cases[0].steps,
            [
                step(Some(ONE_SHOT_LEN), Algorithm::OneShot),
                step(Some(1 << 16), Algorithm::TwoShot),
                step(None, Algorithm::Ring)
            ]
        );
        assert!(shmccl::collective::tuning::Table::new(&cases).is_ok());
    }
}
