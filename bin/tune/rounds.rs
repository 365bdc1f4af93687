//! Algorithms take turns at the same operation, round by round, so that all see the same noise of
//! the machine.
//!
//! A round gives each algorithm a slice of about a millisecond. Its time counts relative to that of
//! the built-in choice in the same round. The built-in choice runs twice: how much it differs from
//! itself is the noise of the machine. An algorithm that is far behind after a few rounds is left
//! out of the later ones.

use std::time::Duration;

use shmccl::collective::AlgorithmName;
use shmccl::collective::tuning::{Case, Step, Table};
use shmccl::{Communicator, Result};
use shmccl_harness::clock::now_ns;
use shmccl_harness::interleave::{Contender, Effort, Participants, calibrate};
use shmccl_harness::stats::{median, quantile};
use shmccl_harness::sync::AllSync;
use shmccl_harness::timed_case::{ByLibrary, TimedCase};

use super::spec::AlgorithmTimes;

/// Rounds of every measurement, however long one takes.
const FEWEST_ROUNDS: usize = 5;

/// Rounds after which an algorithm can be given up.
const TRIED: usize = 3;

/// An algorithm that takes this many times as long as the built-in choice is given up.
const HOPELESS: f64 = 1.25;

/// The operation that all algorithms do.
pub(super) type TunedTrial<'c> = TimedCase<f32, ByLibrary<'c>>;

/// An algorithm, and how it did so far.
struct Candidate {
    algorithm: AlgorithmName,
    /// Operations in a slice.
    ops: u64,
    /// The median time of each round, on the rank that leads.
    times: Vec<f64>,
    out: bool,
}

/// Measures `algorithms` for `case` in turns for `time`. The first is the built-in choice, the
/// second is the built-in choice once more.
///
/// All ranks call this; only the leading one gets results.
///
/// # Errors
/// Returns the errors of the operation.
pub(super) fn measure(
    trial: &mut TunedTrial<'_>,
    all_sync: &mut AllSync,
    case: &Case,
    algorithms: Vec<AlgorithmName>,
    time: Duration,
) -> Result<Vec<AlgorithmTimes>> {
    let mut candidates = Vec::new();
    for algorithm in algorithms {
        choose(comm_of(trial), case, &algorithm)?;
        let zero = Duration::ZERO;
        let effort = Effort { iters: None, warmup: None, time, patience: zero, fewest_slices: 1, rest: zero };
        let ops = calibrate(&mut Participants::All(all_sync), trial, effort, 1)?;
        candidates.push(Candidate { algorithm, ops, times: Vec::new(), out: false });
    }
    let started = now_ns();
    loop {
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.out) {
            choose(comm_of(trial), case, &candidate.algorithm)?;
            all_sync.share(0)?;
            let mut samples = Vec::new();
            trial.slice(candidate.ops, &mut samples)?;
            candidate.times.extend(median(&mut samples));
        }
        let spent = Duration::from_nanos(now_ns() - started);
        let still_in = all_sync.share(next_round(&candidates, spent >= time))?;
        for (index, candidate) in candidates.iter_mut().enumerate() {
            candidate.out = still_in >> index & 1 == 0;
        }
        if still_in == 0 {
            break;
        }
    }
    Ok(candidates.iter().filter_map(|candidate| candidate.result(&candidates[0].times)).collect())
}

/// Has operations of `case` done by `algorithm` from now on. Collective.
///
/// # Errors
/// Fails as [`Communicator::set_tuning`] does.
pub(super) fn choose(comm: &mut Communicator, case: &Case, algorithm: &AlgorithmName) -> Result<()> {
    if let AlgorithmName::BuiltIn(algorithm) = algorithm {
        comm.set_algorithm(Some(*algorithm));
        return Ok(());
    }
    comm.set_algorithm(None);
    let steps = vec![Step { up_to: None, algorithm: algorithm.clone() }];
    let table = Table::new(&[Case { steps, ..case.clone() }]).expect("the algorithm supports the operation");
    comm.set_tuning(table)
}

fn comm_of<'t>(trial: &'t mut TunedTrial<'_>) -> &'t mut Communicator {
    trial.runner().0
}

/// Returns which candidates run the next round, a bit for each; none when all is measured.
fn next_round(candidates: &[Candidate], time_is_up: bool) -> u64 {
    let base = &candidates[0].times;
    if time_is_up && base.len() >= FEWEST_ROUNDS {
        return 0;
    }
    let is_in = |(index, candidate): (usize, &Candidate)| {
        let is_hopeless = |ratio| candidate.times.len() >= TRIED && ratio > HOPELESS;
        let ratio = median(&mut candidate.ratios(base)).unwrap_or(1.0);
        // The built-in choice and its double are the measure of all others.
        index < 2 || !candidate.out && !is_hopeless(ratio)
    };
    let bits = candidates.iter().enumerate().map(|each| u64::from(is_in(each)) << each.0);
    let bits = bits.fold(0, |all, bit| all | bit);
    // Alone the built-in choice need not go on.
    if bits.count_ones() <= 2 && base.len() >= FEWEST_ROUNDS { 0 } else { bits }
}

impl Candidate {
    /// Returns the ratio of its time to that of the built-in choice, in each round.
    fn ratios(&self, base: &[f64]) -> Vec<f64> {
        self.times.iter().zip(base).map(|(time, base)| time / base).collect()
    }

    /// Sums up its rounds; `None` on ranks that do not keep the time.
    fn result(&self, base: &[f64]) -> Option<AlgorithmTimes> {
        let mut ratios = self.ratios(base);
        Some(AlgorithmTimes {
            algorithm: self.algorithm.to_string(),
            p50_ns: median(&mut self.times.clone())?,
            ratio: median(&mut ratios)?,
            ratio_p25: quantile(&mut ratios, 0.25)?,
            ratio_p75: quantile(&mut ratios, 0.75)?,
            rounds: ratios.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use shmccl::collective::Algorithm;

    use super::*;

    fn candidate(times: &[f64]) -> Candidate {
        Candidate { algorithm: Algorithm::Ring.into(), ops: 1, times: times.to_vec(), out: false }
    }

    #[test]
    fn a_hopeless_algorithm_is_left_out_and_the_built_in_choice_never_is() {
        let two = [1.0, 1.0];
        let three = [1.0, 1.0, 1.0];
        let all = [candidate(&two), candidate(&[9.0, 9.0]), candidate(&[9.0, 9.0])];
        assert_eq!(next_round(&all, false), 0b111, "too early to tell");
        let all =
            [candidate(&three), candidate(&[9.0; 3]), candidate(&[1.2; 3]), candidate(&[1.3, 0.9, 1.3])];
        assert_eq!(next_round(&all, false), 0b0111);
        assert_eq!(next_round(&all, true), 0b0111, "too few rounds");
    }

    #[test]
    fn rounds_end_when_the_time_is_up_or_nothing_is_left_to_compare() {
        let enough = [1.0; FEWEST_ROUNDS];
        let all = [candidate(&enough), candidate(&enough), candidate(&enough)];
        assert_eq!((next_round(&all, false), next_round(&all, true)), (0b111, 0));
        let all = [candidate(&enough), candidate(&enough), candidate(&[2.0; 3])];
        assert_eq!(next_round(&all, false), 0);
    }

    #[test]
    fn times_are_held_against_the_built_in_choice_in_the_same_round() {
        let result = candidate(&[1.0, 20.0, 300.0]).result(&[2.0, 20.0, 200.0]).unwrap();
        assert_eq!((result.p50_ns, result.ratio), (20.0, 1.0));
        assert_eq!((result.ratio_p25, result.ratio_p75), (0.75, 1.25));
    }
}
