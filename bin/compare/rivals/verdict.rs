//! What the numbers mean, in plain English: which algorithm from which size on, and whether a proxy ever pays.

use serde::Serialize;

use super::report::{BY_DEFAULT, RivalReport, time};
use crate::compare::crossing::{Cost, Crossing, LEVEL};
use crate::compare::verdict::{FEWEST_SAMPLES, between, more_of};
use crate::perf::report::PerfRow;
use crate::perf::test::TestChannel;
use crate::units::{format_about, format_size, percent, three_digits};

/// A change of the lead has to gain so much, over all sizes that it is for, multiplied up.
const CHANGE: f64 = 1.2;

/// An algorithm that is the quickest from some size on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Lead {
    /// Its name.
    pub(crate) algorithm: String,
    /// The smallest size measured at which it leads.
    pub(crate) from: u64,
    /// Where it meets the one before on logarithmic scales; null for the first.
    pub(crate) estimate: Option<f64>,
}

/// Who is ahead where.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Verdict {
    /// The algorithms that lead over memory channels, by size.
    pub(crate) direct: Vec<Lead>,
    /// The same over port channels.
    pub(crate) proxied: Vec<Lead>,
    /// Where the quickest proxied way is ahead of the quickest direct one.
    pub(crate) overtaking: Crossing,
    /// Where it is level, or ahead.
    pub(crate) level: Crossing,
    /// The smallest and the largest size at which the two can be compared.
    pub(crate) compared: Option<(u64, u64)>,
    /// Why nothing can be concluded from all this, if nothing can.
    pub(crate) too_few: Option<String>,
}

impl Verdict {
    /// The verdict on a report.
    pub(crate) fn of(report: &RivalReport) -> Self {
        let sizes = report.sizes();
        let thin = report.rows.iter().filter(|row| is_thin(row)).count();
        let too_few = more_of(sizes.len(), 2 * thin > report.rows.len());
        let pair = |&bytes: &u64| {
            report.factor(bytes)?;
            let best = |channel| report.quickest(bytes, channel).map(time);
            Some(Cost { bytes, holder: best(TestChannel::Memory)?, challenger: best(TestChannel::Port)? })
        };
        let costs: Vec<Cost> = sizes.iter().filter_map(pair).collect();
        Self {
            direct: leads(report, &sizes, TestChannel::Memory),
            proxied: leads(report, &sizes, TestChannel::Port),
            overtaking: Crossing::below(&costs, 1.0 - LEVEL),
            level: Crossing::below(&costs, 1.0 + LEVEL),
            compared: costs.first().zip(costs.last()).map(|(first, last)| (first.bytes, last.bytes)),
            too_few,
        }
    }

    /// What it means: who leads directly, who by proxy, whether the proxy overtakes, and how far the machine's limit is.
    pub(crate) fn sentences(&self, report: &RivalReport) -> Vec<String> {
        let sizes = report.sizes();
        if sizes.is_empty() {
            return vec!["Nothing was measured.".to_owned()];
        }
        if let Some(reason) = &self.too_few {
            return vec![reason.clone()];
        }
        let mut sentences = Vec::new();
        for (leads, channel) in [(&self.direct, TestChannel::Memory), (&self.proxied, TestChannel::Port)] {
            // Where nobody leads there is nothing to hold the default against.
            let Some(led) = lead_sentence(report, &sizes, channel, leads) else { continue };
            let told = [Some(led), default_sentence(report, &sizes, channel)];
            sentences.push(told.into_iter().flatten().collect::<Vec<_>>().join(" "));
        }
        sentences.extend(self.compared.map(|(first, last)| self.overtaking_sentence(report, first, last)));
        sentences.extend(uneven_sentence(report, &sizes));
        sentences.extend(limit_sentence(report, &sizes));
        sentences
    }

    fn overtaking_sentence(&self, report: &RivalReport, first: u64, last: u64) -> String {
        let times = |bytes| {
            let factor = report.factor(bytes).unwrap_or(f64::NAN);
            format!("{} x as long at {}", three_digits(factor), format_size(bytes))
        };
        let level = match self.level {
            Crossing::Always => "; the two are level at every size".to_owned(),
            Crossing::Between { first_ahead, .. } => {
                format!(
                    "; from {} on the two are level (within {})",
                    format_size(first_ahead),
                    percent(LEVEL)
                )
            }
            Crossing::Passing { first_ahead, last_ahead } => {
                format!("; the two are level at some sizes {}", between(first_ahead, last_ahead))
            }
            Crossing::Never => String::new(),
        };
        match self.overtaking {
            Crossing::Always => "Proxied is ahead of direct at every size measured.".to_owned(),
            Crossing::Between { estimate, .. } => format!(
                "Proxied overtakes direct at about {}; it takes {} and {}.",
                format_about(estimate),
                times(first),
                times(last)
            ),
            Crossing::Passing { first_ahead, last_ahead } => format!(
                "Proxied is ahead of direct at some sizes {}, but not at the largest; it takes {} and {}.",
                between(first_ahead, last_ahead),
                times(first),
                times(last)
            ),
            Crossing::Never => format!(
                "Proxied never overtakes direct: {}it takes {} and {}{level}.",
                if report.has_choice() { "each at its quickest, " } else { "" },
                times(first),
                times(last)
            ),
        }
    }
}

/// Whether there are too few samples for the median of a row to tell anything.
pub(super) fn is_thin(row: &PerfRow) -> bool {
    row.samples.is_some_and(|samples| samples < FEWEST_SAMPLES)
}

/// Who leads over `channel`: of all ways to change the lead from size to size, the one that loses least to the quickest, where
/// a change costs as much as [`CHANGE`] at one size. So noise changes no lead.
fn leads(report: &RivalReport, sizes: &[u64], channel: TestChannel) -> Vec<Lead> {
    let names = report.algorithms_over(channel);
    let names: Vec<&str> = names.into_iter().filter(|name| *name != BY_DEFAULT).collect();
    let lost = |bytes: u64, name: &str| {
        let own = report.row(bytes, channel, name).map_or(f64::INFINITY, time);
        (own / report.quickest(bytes, channel).map_or(own, time)).ln()
    };
    // What each name has lost so far as the leader, and all leaders on the way.
    let mut ways: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new()); names.len()];
    for &bytes in sizes {
        let best = ways.iter().min_by(|a, b| a.0.total_cmp(&b.0)).cloned().unwrap_or_default();
        for (index, way) in ways.iter_mut().enumerate() {
            if !best.1.is_empty() && best.0 + CHANGE.ln() < way.0 {
                *way = (best.0 + CHANGE.ln(), best.1.clone());
            }
            way.0 += lost(bytes, names[index]);
            way.1.push(index);
        }
    }
    let best = ways.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(Vec::new, |way| way.1);
    let mut leads: Vec<Lead> = Vec::new();
    for (place, leader) in best.into_iter().enumerate() {
        let before = leads.last().map(|lead| lead.algorithm.as_str());
        if before != Some(names[leader]) {
            let estimate = before.and_then(|before| {
                let cost = |bytes| {
                    let time = |algorithm| report.row(bytes, channel, algorithm).map(time);
                    Some(Cost { bytes, holder: time(before)?, challenger: time(names[leader])? })
                };
                Some(Crossing::meeting(&cost(sizes[place - 1])?, &cost(sizes[place])?))
            });
            leads.push(Lead { algorithm: names[leader].to_owned(), from: sizes[place], estimate });
        }
    }
    leads
}

/// Who leads, and how far it is behind the quickest at most.
fn lead_sentence(
    report: &RivalReport,
    sizes: &[u64],
    channel: TestChannel,
    leads: &[Lead],
) -> Option<String> {
    let word = match channel {
        TestChannel::Memory => "Direct",
        TestChannel::Port => "Proxied",
    };
    let (first, others) = leads.split_first()?;
    let lost = |&bytes: &u64| {
        let leader = leads.iter().rev().find(|lead| lead.from <= bytes)?;
        let own = report.row(bytes, channel, &leader.algorithm).map(time)?;
        Some(own / time(report.quickest(bytes, channel)?) - 1.0)
    };
    let most = sizes.iter().filter_map(lost).fold(0.0, f64::max);
    let others = others.iter().map(|lead| {
        let from = lead.estimate.map_or_else(|| format_size(lead.from), format_about);
        format!(", {} from about {from} on", lead.algorithm)
    });
    let (others, most) = (others.collect::<String>(), percent(most));
    let start = if others.is_empty() { "at every size" } else { "at first" };
    Some(format!("{word}: {} {start}{others}: within {most} of the quickest.", first.algorithm))
}

/// How far what the library does by itself is behind the quickest.
fn default_sentence(report: &RivalReport, sizes: &[u64], channel: TestChannel) -> Option<String> {
    let lost = |&bytes: &u64| {
        let ratio = time(report.row(bytes, channel, BY_DEFAULT)?) / time(report.quickest(bytes, channel)?);
        Some((bytes, ratio))
    };
    let (bytes, most) = sizes.iter().filter_map(lost).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let told = if most <= 1.0 + LEVEL {
        format!("is level with the quickest at every size (within {})", percent(LEVEL))
    } else {
        format!("takes up to {} x as long as the quickest (at {})", three_digits(most), format_size(bytes))
    };
    Some(format!("What the library chooses by itself {told}."))
}

/// At which sizes direct and proxied were not measured on alike cores, if there are any.
fn uneven_sentence(report: &RivalReport, sizes: &[u64]) -> Option<String> {
    let uneven: Vec<_> =
        sizes.iter().filter(|&&bytes| !report.is_even(bytes)).map(|&bytes| format_size(bytes)).collect();
    let told = uneven.join(", ");
    (!uneven.is_empty()).then(|| {
        format!(
            "Direct is not held against proxied at {told}: between the two the cores turned into hyper-thread siblings or back."
        )
    })
}

fn limit_sentence(report: &RivalReport, sizes: &[u64]) -> Option<String> {
    let ratio = |&bytes: &u64| Some((bytes, report.quickest(bytes, TestChannel::Memory)?.ratio?));
    let ratios: Vec<(u64, f64)> = sizes.iter().filter_map(ratio).collect();
    let least = ratios.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let most = ratios.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let told = |(bytes, ratio): (u64, f64)| format!("{} x (at {})", three_digits(ratio), format_size(bytes));
    Some(format!(
        "Against the machine's limit {} takes from {} to {}.",
        if report.has_choice() { "the quickest direct way" } else { "direct" },
        told(least),
        told(most)
    ))
}
