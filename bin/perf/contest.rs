//! A test and its limits, taking turns in slices of about a millisecond until there are enough.

use std::time::Duration;

use shmccl::Result;

use super::barrier::Ensemble;
use super::clock::now_ns;
use super::duet::Duet;
use super::lane::Lane;
use super::slices::{Slices, UNPROBED, Verdict};
use super::stats::median;

/// How long a slice of one lane is to take, in nanoseconds.
const SLICE_NS: u64 = 800_000;

/// Slices are never fewer, however long an operation takes.
const FEWEST_SLICES: u64 = 15;

/// How ranks tell each other how much to do next.
pub(crate) enum Company<'c> {
    /// Ranks 0 and 1; the others sleep meanwhile.
    Two(&'c mut Duet),
    /// Every rank of the communicator.
    All(&'c mut Ensemble),
}

impl Company<'_> {
    /// Whether this rank keeps the time and decides.
    fn leads(&self) -> bool {
        match self {
            Self::Two(duet) => duet.leads(),
            Self::All(ensemble) => ensemble.leads(),
        }
    }

    /// Returns the leader's `value` on every rank, after all have come here.
    fn share(&mut self, value: u64) -> Result<u64> {
        match self {
            Self::Two(duet) => Ok(duet.share(value)),
            Self::All(ensemble) => ensemble.share(value),
        }
    }

    /// What the two cores are to each other right now: a bare flag ping-pong, one way. Not asked where all cores are shared.
    fn probe(&mut self) -> f64 {
        match self {
            Self::Two(duet) => duet.probe(),
            Self::All(_) => UNPROBED,
        }
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Operations to time, where the user said how many.
    pub(crate) iters: Option<u64>,
    /// Operations before the clock starts, where the user said how many.
    pub(crate) warmup: Option<u64>,
    /// For how long to go on otherwise.
    pub(crate) time: Duration,
    /// How long to leave the cores alone before each limit, so that idle proxies are asleep.
    pub(crate) rest: Duration,
}

/// What came out, on the rank that leads.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The test against each yardstick.
    pub(crate) verdicts: Vec<Verdict>,
    /// Operations of the test that were timed.
    pub(crate) operations: u64,
    /// Words that did not arrive as sent, of all lanes, as seen by this rank.
    pub(crate) wrong: u64,
}

/// What a slice of every lane yields, made into the samples of one limit.
pub(crate) type Yardstick = fn(&[Vec<f64>]) -> Vec<f64>;

/// Lets `lanes` take turns. The first is the test; each yardstick makes one limit out of all lanes' samples of a slice.
///
/// # Errors
/// Whatever a lane fails with.
pub(crate) fn contest(
    mut company: Company<'_>,
    lanes: &mut [&mut dyn Lane],
    yardsticks: &[Yardstick],
    effort: Effort,
) -> Result<Outcome> {
    let ops =
        lanes.iter_mut().map(|lane| calibrate(&mut company, *lane, effort)).collect::<Result<Vec<_>>>()?;
    let mut all: Vec<Slices> = vec![Slices::new(); yardsticks.len().max(1)];
    let started = now_ns();
    let mut done = 0;
    let mut slices = 0;
    loop {
        let enough = match effort.iters {
            Some(iters) => done >= iters,
            None => slices >= FEWEST_SLICES && Duration::from_nanos(now_ns() - started) >= effort.time,
        };
        if company.share(u64::from(enough))? == 1 {
            break;
        }
        let probe = company.probe();
        let mut samples = vec![Vec::new(); lanes.len()];
        for (index, lane) in lanes.iter_mut().enumerate() {
            if index > 0 {
                rest(effort.rest);
            }
            company.share(0)?;
            lane.slice(ops[index], &mut samples[index])?;
        }
        done += ops[0];
        slices += 1;
        if company.leads() {
            for (slices, yardstick) in all.iter_mut().zip(yardsticks) {
                slices.push(probe, &samples[0], &yardstick(&samples));
            }
            if yardsticks.is_empty() {
                all[0].push(probe, &samples[0], &[]);
            }
        }
    }
    Ok(Outcome {
        verdicts: all.iter().filter_map(Slices::verdict).collect(),
        operations: done,
        wrong: lanes.iter().map(|lane| lane.wrong()).sum(),
    })
}

fn rest(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "not a wait for anything: the point is to do nothing")]
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

/// Finds how many operations fill a slice, and warms up on the way.
///
/// # Errors
/// Whatever the lane fails with.
pub(crate) fn calibrate(company: &mut Company<'_>, lane: &mut dyn Lane, effort: Effort) -> Result<u64> {
    let (mut ops, mut warmed) = (lane.batch(), 0);
    loop {
        company.share(0)?;
        let start = now_ns();
        lane.slice(ops, &mut Vec::new())?;
        let took = (now_ns() - start).max(1);
        warmed += ops;
        let next = if took < SLICE_NS / 2 {
            (ops * SLICE_NS / took).clamp(ops * 2, ops * 16).next_multiple_of(lane.batch())
        } else if warmed < effort.warmup.unwrap_or(0) {
            ops
        } else {
            0
        };
        match company.share(next)? {
            0 => break,
            more => ops = more,
        }
    }
    let most = effort.iters.map_or(u64::MAX, |iters| iters.next_multiple_of(lane.batch()));
    Ok(ops.min(most))
}

/// The samples of the second lane: the usual limit.
pub(crate) fn second(samples: &[Vec<f64>]) -> Vec<f64> {
    samples[1].clone()
}

/// The median of the second lane plus twice that of the third: a copy and two hand-offs.
pub(crate) fn second_and_twice_third(samples: &[Vec<f64>]) -> Vec<f64> {
    let middle = |index: usize| median(&mut samples[index].clone());
    middle(1).zip(middle(2)).map(|(one, other)| one + 2.0 * other).into_iter().collect()
}
