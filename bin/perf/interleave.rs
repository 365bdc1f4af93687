//! A test and its limits, taking turns in slices of about a millisecond until there are enough.
//!
//! MERGED:
//! The library and what it is held against, taking turns.

use std::time::Duration;
use shmccl::Result;
use super::barrier::AllSync;
use super::clock::now_ns;
use super::pair_sync::PairSync;
use super::contender::Contender;
use super::slices::{Slices, UNPROBED, SliceComparison};
use super::stats::ENOUGH_FOR_P99;
use anyhow::Result;
use super::Limit;
use crate::perf::barrier::AllSync;
use crate::perf::interleave::{Participants, Effort, Field, Measured, Turns, take_turns};
use crate::perf::pair_sync::PairSync;
use crate::perf::contender::Contender;

/// How long a slice of one contender is to take, in nanoseconds.
const SLICE_NS: u64 = 800_000;

/// A test has settled after so many operations: the library tries out two routes, and up to three ways to store results on one of them, in
/// 21 calls at most, and goes on with the best,
const SETTLED_AFTER: u64 = 24;

/// or after so many nanoseconds: what takes so long goes one way from the start.
const SETTLING_NS: u64 = 100_000_000;

/// Slices are never fewer, however long an operation takes.
pub(crate) const FEWEST_SLICES: u64 = 15;

/// How ranks tell each other how much to do next.
pub(crate) enum Participants<'c> {
    /// Ranks 0 and 1; the others sleep meanwhile.
    Two(&'c mut PairSync),
    /// Every rank of the communicator.
    All(&'c mut AllSync),
}

impl Participants<'_> {
    /// Whether this rank keeps the time and decides.
    fn leads(&self) -> bool {
        match self {
            Self::Two(pair_sync) => pair_sync.leads(),
            Self::All(all_sync) => all_sync.leads(),
        }
    }

    /// Returns the leader's `value` on every rank, after all have come here.
    fn share(&mut self, value: u64) -> Result<u64> {
        match self {
            Self::Two(pair_sync) => Ok(pair_sync.share(value)),
            Self::All(all_sync) => all_sync.share(value),
        }
    }

    /// What the two cores are to each other right now: a bare flag ping-pong, one way. Not asked where all cores are shared.
    fn probe(&mut self) -> f64 {
        match self {
            Self::Two(pair_sync) => pair_sync.probe(),
            Self::All(_) => UNPROBED,
        }
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Operations to time, where the user said how many.
    pub(crate) iters: Option<u64>,
    /// Operations before the clock starts, at least; where nobody said how many, until the library has settled.
    pub(crate) warmup: Option<u64>,
    /// For how long to go on otherwise.
    pub(crate) time: Duration,
    /// For how much longer to go on at most, where there are not enough samples for a 99th percentile.
    pub(crate) patience: Duration,
    /// How long to leave the cores alone before each limit, so that idle proxies are asleep.
    pub(crate) rest: Duration,
}

impl Effort {
    /// The same for a limit, which has nothing to settle.
    fn of_limit(self) -> Self {
        Self { warmup: self.warmup.or(Some(0)), ..self }
    }

    /// Whether `ops` operations, which took so long together, were enough before the clock starts.
    fn is_warm(&self, ops: u64, took_ns: u64) -> bool {
        match self.warmup {
            Some(wanted) => ops >= wanted,
            None => ops >= SETTLED_AFTER || took_ns >= SETTLING_NS,
        }
    }
}

/// What came out, on the rank that leads.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The test against each yardstick.
    pub(crate) verdicts: Vec<SliceComparison>,
    /// Operations of the test that were timed.
    pub(crate) operations: u64,
    /// Words that did not arrive as sent, of all contenders, as seen by this rank.
    pub(crate) wrong: u64,
}

/// What a slice of every contender yields, made into the samples of one limit.
pub(crate) type LimitRule = fn(&[Vec<f64>]) -> Vec<f64>;

/// Lets `contenders` take turns. The first is the test; each yardstick makes one limit out of all contenders' samples of a slice.
///
/// # Errors
/// Whatever a contender fails with.
pub(crate) fn interleave(
    company: Participants<'_>,
    contenders: &mut [&mut dyn Contender],
    rules: &[LimitRule],
    effort: Effort,
) -> Result<Measured> {
    let field = Field { tests: 1, fewest_slices: FEWEST_SLICES };
    let turns = take_turns(company, contenders, field, effort)?;
    let mut verdicts: Vec<_> =
        rules.iter().filter_map(|rule| turns.verdict(0, rule)).collect();
    if rules.is_empty() {
        verdicts.extend(turns.verdict(0, |_| Vec::new()));
    }
    let wrong = contenders.iter().map(|contender| contender.wrong()).sum();
    Ok(Measured { verdicts, operations: turns.operations, wrong })
}

/// Which of the contenders is what, and how often they take turns at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// So many, from the first on, are tests; the others are limits, before which proxies get time to fall asleep.
    pub(crate) tests: usize,
    /// Slices of each, however long they take.
    pub(crate) fewest_slices: u64,
}

/// What contenders that took turns have measured.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Slices, on the rank that leads.
    slices: Vec<Taken>,
    /// Operations that a sample of each contender is the mean of.
    per_sample: Vec<u64>,
    /// Operations that were timed, of the test that did fewest.
    pub(crate) operations: u64,
}

/// One slice of every contender.
#[derive(Debug)]
struct Taken {
    probe_ns: f64,
    samples: Vec<Vec<f64>>,
    cpu_ns: Vec<Option<f64>>,
}

impl Turns {
    /// The test with this index against `yardstick`, on the rank that leads.
    pub(crate) fn verdict(
        &self,
        test: usize,
        rule: impl Fn(&[Vec<f64>]) -> Vec<f64>,
    ) -> Option<SliceComparison> {
        let mut slices = Slices::of_means(self.per_sample[test]);
        for Taken { probe_ns, samples, cpu_ns } in &self.slices {
            slices.push_charged(*probe_ns, &samples[test], &rule(samples), cpu_ns[test]);
        }
        slices.verdict()
    }

    /// Whether the slices that count have samples enough for a 99th percentile of the first test.
    fn shows_p99(&self) -> bool {
        self.verdict(0, |_| Vec::new()).is_some_and(|verdict| verdict.test.p99_ns.is_some())
    }
}

/// Lets `contenders` take turns, a slice each, until there are enough.
///
/// # Errors
/// Whatever a contender fails with.
pub(crate) fn take_turns(
    mut company: Participants<'_>,
    contenders: &mut [&mut dyn Contender],
    field: Field,
    effort: Effort,
) -> Result<Turns> {
    // Limits, too: where ranks share cores, the operations at the start of a slice are not as quick as those at its end.
    let fewest = ENOUGH_FOR_P99.div_ceil(field.fewest_slices.max(1));
    let ops = contenders.iter_mut().enumerate().map(|(index, contender)| {
        let effort = if index < field.tests { effort } else { effort.of_limit() };
        calibrate(&mut company, *contender, effort, fewest)
    });
    let ops = ops.collect::<Result<Vec<_>>>()?;
    let fewest_ops = ops[..field.tests].iter().copied().min().unwrap_or(0);
    let per_sample = contenders.iter().map(|contender| contender.per_sample()).collect();
    let mut turns = Turns { slices: Vec::new(), per_sample, operations: 0 };
    let (started, mut done, mut proxied_before) = (now_ns(), 0, true);
    loop {
        let enough = match effort.iters {
            Some(iters) => turns.operations >= iters,
            None => {
                let spent = Duration::from_nanos(now_ns() - started);
                done >= field.fewest_slices
                    && spent >= effort.time
                    && (spent >= effort.time + effort.patience || turns.shows_p99())
            }
        };
        if company.share(u64::from(enough))? == 1 {
            return Ok(turns);
        }
        let probe_ns = company.probe();
        let mut samples = vec![Vec::new(); contenders.len()];
        for index in order(done, contenders.len()) {
            if index >= field.tests && proxied_before {
                rest(effort.rest);
            }
            proxied_before = index < field.tests;
            company.share(0)?;
            contenders[index].slice(ops[index], &mut samples[index])?;
        }
        turns.operations += fewest_ops;
        done += 1;
        if company.leads() {
            let cpu_ns = contenders.iter().map(|contender| contender.cpu_ns()).collect();
            turns.slices.push(Taken { probe_ns, samples, cpu_ns });
        }
    }
}

/// In which order `n` contenders take their turns in a round: forward and backward in turns, each time from another one on. What a contender
/// leaves behind in the caches then meets all others alike.
fn order(round: u64, n: usize) -> impl Iterator<Item = usize> {
    let (first, forward) = (usize::try_from(round / 2).unwrap_or(0) % n, round.is_multiple_of(2));
    (0..n).map(move |step| (first + if forward { step } else { n - step }) % n)
}

fn rest(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "not a wait for anything: the point is to do nothing")]
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

/// Finds how many operations fill a slice, and warms up on the way. They are enough for `fewest` samples where patience lasts for as
/// many in each of the fewest slices.
///
/// # Errors
/// Whatever the contender fails with.
pub(crate) fn calibrate(
    company: &mut Participants<'_>,
    contender: &mut dyn Contender,
    effort: Effort,
    fewest: u64,
) -> Result<u64> {
    let (began, mut ops, mut warmed) = (now_ns(), contender.batch(), 0);
    let op_ns = loop {
        company.share(0)?;
        let start = now_ns();
        contender.slice(ops, &mut Vec::new())?;
        let took = (now_ns() - start).max(1);
        warmed += ops;
        let next = if took < SLICE_NS / 2 {
            (ops * SLICE_NS / took).clamp(ops * 2, ops * 16).next_multiple_of(contender.batch())
        } else if effort.is_warm(warmed, now_ns() - began) {
            0
        } else {
            ops
        };
        match company.share(next)? {
            0 => break took as f64 / ops as f64,
            more => ops = more,
        }
    };
    contender.settle(op_ns);
    let raised = fewest * contender.batch();
    let lasts = raised as f64 * op_ns * FEWEST_SLICES as f64 <= effort.patience.as_nanos() as f64;
    if company.share(u64::from(effort.iters.is_none() && ops < raised && lasts))? == 1 {
        ops = raised;
    }
    let most = effort.iters.map_or(u64::MAX, |iters| iters.next_multiple_of(contender.batch()));
    Ok(ops.min(most))
}

/// The samples of the second contender: the usual limit.
pub(crate) fn second(samples: &[Vec<f64>]) -> Vec<f64> {
    samples[1].clone()
}

/// What came of all turns.
pub(crate) struct LimitedRun {
    turns: Turns,
    /// The contenders that are limits.
    limits: std::ops::Range<usize>,
}

impl LimitedRun {
    /// What the test with this index has to show against each limit, with so many `wrong` elements; on the rank that leads.
    pub(crate) fn outcome(&self, test: usize, wrong: u64) -> Measured {
        let against = |contender: usize| self.turns.verdict(test, move |samples| samples[contender].clone());
        let alone = || self.turns.verdict(test, |_| Vec::new());
        let verdicts = match self.limits.len() {
            0 => alone().into_iter().collect(),
            _ => self.limits.clone().filter_map(against).collect(),
        };
        Measured { verdicts, operations: self.turns.operations, wrong }
    }

    /// What was measured.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }
}

/// Lets `contenders` and then `limits` take turns as `field` says: two ranks as a pair_sync, where there is one, and otherwise all.
///
/// # Errors
/// Whatever a contender fails with; a limit that gets elements wrong.
pub(crate) fn race<'l>(
    (pair_sync, all_sync): (&mut Option<&mut PairSync>, &mut AllSync),
    mut contenders: Vec<&'l mut dyn Contender>,
    limits: &'l mut [Limit<'_>],
    field: Field,
    effort: Effort,
) -> Result<LimitedRun> {
    let company = match pair_sync {
        Some(pair_sync) if all_sync.n_ranks() == 2 => Participants::Two(pair_sync),
        _ => Participants::All(all_sync),
    };
    let first = contenders.len();
    contenders.extend(limits.iter_mut().map(|(_, contender)| &mut **contender as &mut dyn Contender));
    let turns = take_turns(company, &mut contenders, field, effort)?;
    let wrong: u64 = contenders[first..].iter().map(|contender| contender.wrong()).sum();
    anyhow::ensure!(wrong == 0, "the limit got {wrong} elements wrong");
    Ok(LimitedRun { turns, limits: first..contenders.len() })
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn every_lane_comes_first_as_often_and_behind_each_neighbour() {
        let rounds: Vec<Vec<_>> = (0..8).map(|round| order(round, 3).collect()).collect();
        assert_eq!(rounds[..6], [[0, 1, 2], [0, 2, 1], [1, 2, 0], [1, 0, 2], [2, 0, 1], [2, 1, 0]]);
        assert_eq!(rounds[6..], rounds[..2]);
        assert_eq!(order(5, 1).collect::<Vec<_>>(), [0]);
    }
}
