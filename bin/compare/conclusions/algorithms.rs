//! What a comparison of algorithms shows: which one is best from which size on, and whether a proxy
//! ever pays.

use serde::Serialize;
use shmccl_harness::report::LEVEL;
use shmccl_harness::test::TestChannel;

use super::{between, level_in_words};
use crate::compare::crossover::{Cost, Crossover};
use crate::compare::series::{BY_DEFAULT, BesidePuts, Series, time};
use crate::units::{format_about, format_size, percent, three_digits};

/// The least gain of a change of the lead, multiplied up over its sizes.
const CHANGE: f64 = 1.2;

/// An algorithm that is the quickest from some size on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Lead {
    /// Its name.
    pub(crate) algorithm: String,
    /// The smallest size measured at which it leads.
    pub(crate) from: u64,
    /// Where it meets the previous leader on logarithmic scales; null for the first.
    pub(crate) estimate: Option<f64>,
}

/// The algorithms that are ahead, by size and channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AlgorithmCrossovers {
    /// The algorithms that lead over memory channels, by size.
    pub(crate) memory: Vec<Lead>,
    /// The algorithms that lead over port channels.
    pub(crate) port: Vec<Lead>,
    /// Where the quickest proxied algorithm overtakes the quickest direct one; null where no size
    /// can tell.
    pub(crate) proxied: Option<Crossover>,
    /// Where the collective, as the library does it, overtakes puts of a program's own; missing
    /// where no size can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) puts: Option<Crossover>,
    /// Where the quickest proxied algorithm is level with the quickest direct one, or ahead.
    #[serde(skip)]
    level: Crossover,
}

impl AlgorithmCrossovers {
    pub(super) fn of(series: &Series) -> Self {
        let sizes = series.sizes();
        let costs = costs(series);
        Self {
            memory: leads(series, &sizes, TestChannel::Memory),
            port: leads(series, &sizes, TestChannel::Port),
            proxied: (!costs.is_empty()).then(|| Crossover::below(&costs, 1.0 - LEVEL)),
            puts: overtakes_puts(series, 1.0 - LEVEL),
            level: Crossover::below(&costs, 1.0 + LEVEL),
        }
    }

    /// Says which algorithms lead on each channel, whether the proxy overtakes, and how far the
    /// machine's limit is.
    pub(super) fn summary(&self, series: &Series) -> Vec<String> {
        let sizes = series.sizes();
        let mut sentences = Vec::new();
        for (leads, channel) in [(&self.memory, TestChannel::Memory), (&self.port, TestChannel::Port)] {
            // Without a leader the default has nothing to be compared with.
            let Some(led) = lead_sentence(series, &sizes, channel, leads) else { continue };
            let told = [led].into_iter().chain(default_sentence(series, &sizes, channel));
            sentences.push(told.collect::<Vec<_>>().join(" "));
        }
        sentences.extend(self.overtaking_sentence(series));
        sentences.extend(self.puts_sentence(series));
        sentences.extend(uneven_sentence(series, &sizes));
        sentences.extend(limit_sentence(series, &sizes));
        sentences
    }

    /// Says from which size on the collective is ahead of puts of a program's own.
    fn puts_sentence(&self, series: &Series) -> Option<String> {
        let beside = telling_puts(series);
        let times = |beside: &BesidePuts<'_>| {
            format!("{} as long at {}", beside.told_factor(), format_size(beside.bytes))
        };
        let times = format!("puts take {} and {}", times(beside.first()?), times(beside.last()?));
        let level = overtakes_puts(series, 1.0 + LEVEL).and_then(level_in_words);
        Some(match self.puts? {
            Crossover::Always => format!("The collective is ahead of puts at every size measured; {times}."),
            Crossover::Between { estimate, .. } => format!(
                "The collective overtakes puts of a program's own at about {}; {times}.",
                format_about(estimate)
            ),
            Crossover::Passing { first_ahead, last_ahead } => format!(
                "The collective is ahead of puts at some sizes {}, but not at the largest; {times}.",
                between(first_ahead, last_ahead)
            ),
            Crossover::Never => format!(
                "The collective never overtakes puts of a program's own; {times}{}.",
                level.map(|level| format!("; {level}")).unwrap_or_default()
            ),
        })
    }

    fn overtaking_sentence(&self, series: &Series) -> Option<String> {
        let costs = costs(series);
        let times = |cost: &Cost| {
            let factor = series.even_point(cost.bytes).map(|point| point.told_factor()).unwrap_or_default();
            format!("{factor} as long at {}", format_size(cost.bytes))
        };
        let times = format!("it takes {} and {}", times(costs.first()?), times(costs.last()?));
        Some(match self.proxied? {
            Crossover::Always => "Proxied is ahead of direct at every size measured.".to_owned(),
            Crossover::Between { estimate, .. } => {
                format!("Proxied overtakes direct at about {}; {times}.", format_about(estimate))
            }
            Crossover::Passing { first_ahead, last_ahead } => format!(
                "Proxied is ahead of direct at some sizes {}, but not at the largest; {times}.",
                between(first_ahead, last_ahead)
            ),
            Crossover::Never => format!(
                "Proxied never overtakes direct: {}{times}{}.",
                if series.has_choice() { "each at its quickest, " } else { "" },
                level_in_words(self.level).map(|level| format!("; {level}")).unwrap_or_default()
            ),
        })
    }
}

/// Returns the sizes at which puts of a program's own tell anything beside the collective.
fn telling_puts(series: &Series) -> Vec<BesidePuts<'_>> {
    series.beside_puts().into_iter().filter(BesidePuts::is_telling).collect()
}

/// Returns where the time of the collective falls below `share` of that of puts for good, where
/// any size can tell.
fn overtakes_puts(series: &Series, share: f64) -> Option<Crossover> {
    let costs: Vec<Cost> = telling_puts(series).iter().map(BesidePuts::cost).collect();
    (!costs.is_empty()).then(|| Crossover::below(&costs, share))
}

/// Returns what both channels cost, each at its quickest, at the sizes at which the two can be
/// compared.
fn costs(series: &Series) -> Vec<Cost> {
    let even = series.points().into_iter().filter(|point| series.is_even(point.bytes));
    let cost = |row: &_| Some(time(row));
    even.filter_map(|point| point.cost(cost, cost)).collect()
}

/// Returns the algorithms that lead over `channel`. Of all ways to change the lead from size to
/// size, it takes the one that loses least to the quickest. A change costs as much as [`CHANGE`] at
/// one size, so that noise changes no lead.
fn leads(series: &Series, sizes: &[u64], channel: TestChannel) -> Vec<Lead> {
    let names = series.algorithms_over(channel);
    let names: Vec<&str> = names.into_iter().filter(|name| *name != BY_DEFAULT).collect();
    let lost = |bytes: u64, name: &str| {
        let own = series.row(bytes, channel, name).map_or(f64::INFINITY, time);
        (own / series.quickest(bytes, channel).map_or(own, time)).ln()
    };
    // The loss of each name as the current leader, and all leaders before it.
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
                    let time = |algorithm| series.row(bytes, channel, algorithm).map(time);
                    Some(Cost { bytes, holder: time(before)?, challenger: time(names[leader])? })
                };
                Some(Crossover::meeting(&cost(sizes[place - 1])?, &cost(sizes[place])?))
            });
            leads.push(Lead { algorithm: names[leader].to_owned(), from: sizes[place], estimate });
        }
    }
    leads
}

/// Says which algorithms lead, and how far behind the quickest they are at most.
fn lead_sentence(series: &Series, sizes: &[u64], channel: TestChannel, leads: &[Lead]) -> Option<String> {
    let word = match channel {
        TestChannel::Memory => "Direct",
        TestChannel::Port => "Proxied",
    };
    let (first, others) = leads.split_first()?;
    let lost = |&bytes: &u64| {
        let leader = leads.iter().rev().find(|lead| lead.from <= bytes)?;
        let own = series.row(bytes, channel, &leader.algorithm).map(time)?;
        Some(own / time(series.quickest(bytes, channel)?) - 1.0)
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

/// Says how far the choice of the library is behind the quickest.
fn default_sentence(series: &Series, sizes: &[u64], channel: TestChannel) -> Option<String> {
    let lost = |&bytes: &u64| {
        let ratio = time(series.row(bytes, channel, BY_DEFAULT)?) / time(series.quickest(bytes, channel)?);
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

/// Says at which sizes direct and proxied were not measured on alike cores, if there are any.
fn uneven_sentence(series: &Series, sizes: &[u64]) -> Option<String> {
    let uneven: Vec<_> =
        sizes.iter().filter(|&&bytes| !series.is_even(bytes)).map(|&bytes| format_size(bytes)).collect();
    let told = uneven.join(", ");
    (!uneven.is_empty()).then(|| {
        format!(
            "Direct is not held against proxied at {told}: between the two the cores turned into hyper-thread siblings or back."
        )
    })
}

fn limit_sentence(series: &Series, sizes: &[u64]) -> Option<String> {
    let ratio = |&bytes: &u64| Some((bytes, series.quickest(bytes, TestChannel::Memory)?.limit.ratio?));
    let ratios: Vec<(u64, f64)> = sizes.iter().filter_map(ratio).collect();
    let least = ratios.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let most = ratios.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let told = |(bytes, ratio): (u64, f64)| format!("{} x (at {})", three_digits(ratio), format_size(bytes));
    Some(format!(
        "Against the machine's limit {} takes from {} to {}.",
        if series.has_choice() { "the quickest direct way" } else { "direct" },
        told(least),
        told(most)
    ))
}
