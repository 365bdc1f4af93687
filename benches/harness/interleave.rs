//! Tests and their limits take turns, in slices of about a millisecond, until there are enough.
//!
//! Whatever the machine does to one contender, it then does to all of them.

use std::time::Duration;

use shmccl::Result;

use crate::clock::now_ns;
use crate::slices::{SliceComparison, Slices, UNPROBED};
use crate::stats::{ENOUGH_FOR_P99, median};
use crate::sync::{AllSync, PairSync};

/// How long a slice of one contender is to take, in nanoseconds.
const SLICE_NS: u64 = 800_000;

/// Operations after which a test has settled. The library tries two routes out, and up to three
/// ways to store results on one of them: 21 calls at most. Then it goes on with the best.
const SETTLED_AFTER: u64 = 24;

/// Nanoseconds after which a test has settled, too: long operations take one route from the start.
const SETTLING_NS: u64 = 100_000_000;

/// Slices of all rounds are never fewer, however long an operation takes.
pub const FEWEST_SLICES: u64 = 15;

/// Work that all its ranks do together and that can be timed in slices.
pub trait Contender {
    /// Does `ops` operations. The rank that keeps the time appends one sample per timing, in
    /// nanoseconds per operation.
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> Result<()>;

    /// Returns the number of operations of which every slice is a multiple: those of one sample, or
    /// more.
    fn batch(&self) -> u64 {
        1
    }

    /// Takes the approximate time of an operation in nanoseconds, before the first slice that
    /// counts.
    fn settle(&mut self, _op_ns: f64) {}

    /// Returns the number of operations that one sample is the mean of.
    fn per_sample(&self) -> u64 {
        1
    }

    /// Returns the CPU time of this thread for one operation of the last slice, where measured.
    fn cpu_ns(&self) -> Option<f64> {
        None
    }

    /// Returns the number of words that this rank has found wrong, in all slices so far.
    fn wrong(&self) -> u64 {
        0
    }
}

/// The ranks that measure, and how they agree on what to do next.
#[derive(Debug)]
pub enum Participants<'c> {
    /// A pair of ranks; the others sleep meanwhile.
    Two(&'c mut PairSync),
    /// Every rank of the communicator.
    All(&'c mut AllSync),
}

impl<'c> Participants<'c> {
    /// Returns the pair where two ranks are all there are, and otherwise all ranks.
    pub fn of(pair: Option<&'c mut PairSync>, all: &'c mut AllSync) -> Self {
        match pair {
            Some(pair) if all.n_ranks() == 2 => Self::Two(pair),
            _ => Self::All(all),
        }
    }

    /// Returns whether this rank keeps the time and decides.
    fn leads(&self) -> bool {
        match self {
            Self::Two(pair) => pair.leads(),
            Self::All(all) => all.leads(),
        }
    }

    /// Returns the leader's `value` on every rank, after all have come here.
    fn share(&mut self, value: u64) -> Result<u64> {
        match self {
            Self::Two(pair) => Ok(pair.share(value)),
            Self::All(all) => all.share(value),
        }
    }

    /// Probes how near the two cores are to each other: the time of a bare flag, one way. All ranks
    /// together are not probed.
    fn probe(&mut self) -> f64 {
        match self {
            Self::Two(pair) => pair.probe(),
            Self::All(_) => UNPROBED,
        }
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    /// Operations to time, where the user said how many.
    pub iters: Option<u64>,
    /// Operations before the clock starts, at least; by default until the library has settled.
    pub warmup: Option<u64>,
    /// How long to go on otherwise.
    pub time: Duration,
    /// How much longer to go on at most, while there are too few samples for a 99th percentile.
    pub patience: Duration,
    /// Slices of each contender, however long they take.
    pub fewest_slices: u64,
    /// How long to leave the cores alone before each limit, so that idle proxies are asleep.
    pub rest: Duration,
}

impl Effort {
    /// Returns the effort for a limit, which has nothing to settle.
    fn of_limit(self) -> Self {
        Self { warmup: self.warmup.or(Some(0)), ..self }
    }

    /// Returns whether `ops` operations of `took_ns` in all were enough before the clock starts.
    fn is_warm(&self, ops: u64, took_ns: u64) -> bool {
        match self.warmup {
            Some(wanted) => ops >= wanted,
            None => ops >= SETTLED_AFTER || took_ns >= SETTLING_NS,
        }
    }
}

/// The figures of a test, on the rank that leads.
#[derive(Debug)]
pub struct Measured {
    /// The test against each limit.
    pub comparisons: Vec<SliceComparison>,
    /// Operations of the test that were timed.
    pub operations: u64,
    /// Words that did not arrive as sent, of all contenders, as seen by this rank.
    pub wrong: u64,
}

impl Measured {
    /// Keeps only the comparison with the lowest limit; returns its index (0 on ranks that do not
    /// lead).
    pub fn with_lowest_limit(self) -> (usize, Self) {
        let p50 = |found: &SliceComparison| found.limit.map_or(f64::INFINITY, |limit| limit.p50_ns);
        let all = self.comparisons.iter().enumerate();
        let Some((best, lowest)) = all.min_by(|a, b| p50(a.1).total_cmp(&p50(b.1))) else {
            return (0, self);
        };
        (best, Self { comparisons: vec![lowest.clone()], ..self })
    }
}

/// How the samples of one limit are made of those of all contenders in a round.
#[derive(Clone, Copy, Debug)]
pub enum LimitRule {
    /// The samples of this contender.
    Of(usize),
    /// The median of this contender, and two hand-offs, which the last contender times.
    WithHandoffs(usize),
    /// Two hand-offs and nothing else.
    Handoffs,
}

impl LimitRule {
    /// Returns rules for `limits` contenders behind the test, each by itself.
    pub fn each(limits: usize) -> Vec<Self> {
        (1..=limits).map(Self::Of).collect()
    }

    /// Returns rules like [`LimitRule::each`], but each with two hand-offs.
    pub fn each_with_handoffs(limits: usize) -> Vec<Self> {
        (1..=limits).map(Self::WithHandoffs).collect()
    }

    /// Returns the samples of the limit. Ranks that do not keep the time have none.
    fn samples(self, all: &[Vec<f64>]) -> Vec<f64> {
        let middle = |samples: Option<&Vec<f64>>| median(&mut samples?.clone());
        let handoffs = || middle(all.last()).map(|handoff| 2.0 * handoff);
        match self {
            Self::Of(contender) => all[contender].clone(),
            Self::WithHandoffs(contender) => {
                let parts = middle(all.get(contender)).zip(handoffs());
                parts.map(|(one, handoffs)| one + handoffs).into_iter().collect()
            }
            Self::Handoffs => handoffs().into_iter().collect(),
        }
    }
}

/// Lets `contenders` take turns. The first is the test; each rule makes one limit of a round.
///
/// # Errors
/// Whatever a contender fails with.
pub fn interleave(
    participants: Participants<'_>,
    contenders: &mut [&mut dyn Contender],
    limits: &[LimitRule],
    effort: Effort,
) -> Result<Measured> {
    let run = take_turns(participants, contenders, 1, effort)?;
    let wrong = contenders.iter().map(|contender| contender.wrong()).sum();
    Ok(run.measured(0, limits, wrong))
}

/// A limit and its name.
pub type NamedLimit<'l> = (String, Box<dyn Contender + 'l>);

/// Lets `contenders`, which are tests up to number `tests`, and then `limits` take turns.
///
/// # Errors
/// Whatever a contender fails with; a limit that gets elements wrong.
pub fn interleave_with_limits<'l>(
    participants: Participants<'_>,
    mut contenders: Vec<&'l mut dyn Contender>,
    limits: &'l mut [NamedLimit<'_>],
    tests: usize,
    effort: Effort,
) -> anyhow::Result<Interleaved> {
    let first = contenders.len();
    contenders.extend(limits.iter_mut().map(|(_, limit)| &mut **limit as &mut dyn Contender));
    let run = take_turns(participants, &mut contenders, tests, effort)?;
    let wrong: u64 = contenders[first..].iter().map(|limit| limit.wrong()).sum();
    anyhow::ensure!(wrong == 0, "the limit got {wrong} elements wrong");
    Ok(run)
}

/// The measurements of contenders that took turns.
#[derive(Debug)]
pub struct Interleaved {
    /// Rounds, on the rank that leads.
    rounds: Vec<SliceRound>,
    /// Operations that a sample of each contender is the mean of.
    per_sample: Vec<u64>,
    /// Operations that were timed, of the test that did fewest.
    pub operations: u64,
}

/// One slice of every contender.
#[derive(Debug)]
struct SliceRound {
    probe_ns: f64,
    samples: Vec<Vec<f64>>,
    cpu_ns: Vec<Option<f64>>,
}

impl Interleaved {
    /// Compares test number `test` with `limit`, on the rank that leads.
    pub fn compare(&self, test: usize, limit: impl Fn(&[Vec<f64>]) -> Vec<f64>) -> Option<SliceComparison> {
        let mut slices = Slices::of_means(self.per_sample[test]);
        for SliceRound { probe_ns, samples, cpu_ns } in &self.rounds {
            slices.push_charged(*probe_ns, &samples[test], &limit(samples), cpu_ns[test]);
        }
        slices.compare()
    }

    /// Compares test number `test`, which found `wrong` elements wrong, with each contender from
    /// `first_limit` on.
    pub fn against_limits(&self, test: usize, first_limit: usize, wrong: u64) -> Measured {
        let limits: Vec<_> = (first_limit..self.per_sample.len()).map(LimitRule::Of).collect();
        self.measured(test, &limits, wrong)
    }

    /// Compares test number `test`, which found `wrong` elements wrong, with each of `limits`.
    fn measured(&self, test: usize, limits: &[LimitRule], wrong: u64) -> Measured {
        let comparisons = match limits {
            [] => self.compare(test, |_| Vec::new()).into_iter().collect(),
            limits => {
                limits.iter().filter_map(|limit| self.compare(test, |all| limit.samples(all))).collect()
            }
        };
        Measured { comparisons, operations: self.operations, wrong }
    }

    /// Returns whether the slices that count suffice for a 99th percentile of the first test.
    fn shows_p99(&self) -> bool {
        self.compare(0, |_| Vec::new()).is_some_and(|found| found.test.p99_ns.is_some())
    }
}

/// Lets `contenders` take turns, a slice each, until there are enough. From number `tests` on they
/// are limits, before which proxies get time to fall asleep.
///
/// # Errors
/// Whatever a contender fails with.
pub fn take_turns(
    mut participants: Participants<'_>,
    contenders: &mut [&mut dyn Contender],
    tests: usize,
    effort: Effort,
) -> Result<Interleaved> {
    // Limits, too: where ranks share cores, the operations at the start of a slice are slower than
    // those at its end.
    let fewest = ENOUGH_FOR_P99.div_ceil(effort.fewest_slices.max(1));
    let ops = contenders.iter_mut().enumerate().map(|(index, contender)| {
        let effort = if index < tests { effort } else { effort.of_limit() };
        calibrate(&mut participants, *contender, effort, fewest)
    });
    let ops = ops.collect::<Result<Vec<_>>>()?;
    let fewest_ops = ops[..tests].iter().copied().min().unwrap_or(0);
    let per_sample = contenders.iter().map(|contender| contender.per_sample()).collect();
    let mut run = Interleaved { rounds: Vec::new(), per_sample, operations: 0 };
    let (started, mut done, mut proxied_before) = (now_ns(), 0, true);
    loop {
        let enough = match effort.iters {
            Some(iters) => run.operations >= iters,
            None => {
                let spent = Duration::from_nanos(now_ns() - started);
                done >= effort.fewest_slices
                    && spent >= effort.time
                    && (spent >= effort.time + effort.patience || run.shows_p99())
            }
        };
        if participants.share(u64::from(enough))? == 1 {
            return Ok(run);
        }
        let probe_ns = participants.probe();
        let mut samples = vec![Vec::new(); contenders.len()];
        for index in order(done, contenders.len()) {
            if index >= tests && proxied_before {
                rest(effort.rest);
            }
            proxied_before = index < tests;
            participants.share(0)?;
            contenders[index].slice(ops[index], &mut samples[index])?;
        }
        run.operations += fewest_ops;
        done += 1;
        if participants.leads() {
            let cpu_ns = contenders.iter().map(|contender| contender.cpu_ns()).collect();
            run.rounds.push(SliceRound { probe_ns, samples, cpu_ns });
        }
    }
}

/// Returns the order in which `n` contenders take their turns in a round: forward and backward by
/// turns, each time from another one on. What a contender leaves in the caches then meets all
/// others alike.
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

/// Finds how many operations fill a slice, and warms up on the way. They are enough for `fewest`
/// samples, where patience lasts for as many in each of the fewest slices.
///
/// # Errors
/// Whatever the contender fails with.
pub fn calibrate(
    participants: &mut Participants<'_>,
    contender: &mut dyn Contender,
    effort: Effort,
    fewest: u64,
) -> Result<u64> {
    let (began, mut ops, mut warmed) = (now_ns(), contender.batch(), 0);
    let op_ns = loop {
        participants.share(0)?;
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
        match participants.share(next)? {
            0 => break took as f64 / ops as f64,
            more => ops = more,
        }
    };
    contender.settle(op_ns);
    let raised = fewest * contender.batch();
    let lasts = raised as f64 * op_ns * effort.fewest_slices as f64 <= effort.patience.as_nanos() as f64;
    if participants.share(u64::from(effort.iters.is_none() && ops < raised && lasts))? == 1 {
        ops = raised;
    }
    let most = effort.iters.map_or(u64::MAX, |iters| iters.next_multiple_of(contender.batch()));
    Ok(ops.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_comes_first_as_often_and_behind_each_neighbour() {
        let rounds: Vec<Vec<_>> = (0..8).map(|round| order(round, 3).collect()).collect();
        assert_eq!(rounds[..6], [[0, 1, 2], [0, 2, 1], [1, 2, 0], [1, 0, 2], [2, 0, 1], [2, 1, 0]]);
        assert_eq!(rounds[6..], rounds[..2]);
        assert_eq!(order(5, 1).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn the_limit_of_what_is_handed_to_a_proxy_and_back_has_two_handoffs_in_it() {
        let samples = [vec![9000.0], vec![50.0, 70.0, 60.0], vec![40.0], vec![1000.0]];
        let of = |rule: LimitRule| rule.samples(&samples);
        assert_eq!(
            LimitRule::each_with_handoffs(2).into_iter().map(of).collect::<Vec<_>>(),
            [[2060.0], [2040.0]]
        );
        assert_eq!(LimitRule::each(1)[0].samples(&samples), [50.0, 70.0, 60.0]);
        assert_eq!(LimitRule::Handoffs.samples(&samples), [2000.0]);
        // The rank that does not keep the time has no samples.
        let none = vec![Vec::new(); 3];
        for rule in [LimitRule::Of(1), LimitRule::WithHandoffs(1), LimitRule::Handoffs] {
            assert!(rule.samples(&none).is_empty(), "{rule:?}");
        }
    }
}
