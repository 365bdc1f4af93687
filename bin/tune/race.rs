//! A race: algorithms do the same operation in turns, round by round, so that whatever the machine does to one it does to all.
//!
//! A round gives each a slice of about a millisecond. What counts is its time over that of the built-in choice in the same
//! round. The built-in choice runs twice: by how much it differs from itself, the machine is noisy. Who is far behind after a few
//! rounds is left out of those to come.

use std::time::Duration;

use shmccl::collective::Algorithm;
use shmccl::{Communicator, Result};

use super::plan::Entrant;
use crate::perf::clock::now_ns;
use crate::perf::collective::timed_case::{ByLibrary, TimedCase};
use crate::perf::interleave::{Contender, Effort, Participants, calibrate};
use crate::perf::stats::{median, quantile};
use crate::perf::sync::AllSync;

/// Rounds of a race, however long one takes.
const FEWEST_ROUNDS: usize = 5;

/// From so many rounds on an algorithm can be hopeless.
const TRIED: usize = 3;

/// An algorithm that takes so many times as long as the built-in choice is hopeless.
const HOPELESS: f64 = 1.25;

/// The operation that is done again and again.
pub(super) type Work<'c> = TimedCase<f32, ByLibrary<'c>>;

/// One who races.
struct Runner {
    algorithm: Algorithm,
    /// Operations of a slice.
    ops: u64,
    /// The median time of each round, on the rank that leads.
    times: Vec<f64>,
    out: bool,
}

/// Lets `algorithms` race for `time`: the first is the built-in choice, the second the same once more. Called by all ranks;
/// what is returned is for the one that leads.
///
/// # Errors
/// Whatever the operation fails with.
pub(super) fn race(
    work: &mut Work<'_>,
    all_sync: &mut AllSync,
    algorithms: &[Algorithm],
    time: Duration,
) -> Result<Vec<Entrant>> {
    let mut runners = Vec::new();
    for &algorithm in algorithms {
        comm_of(work).set_algorithm(Some(algorithm));
        let effort =
            Effort { iters: None, warmup: None, time, patience: Duration::ZERO, rest: Duration::ZERO };
        let ops = calibrate(&mut Participants::All(all_sync), work, effort, 1)?;
        runners.push(Runner { algorithm, ops, times: Vec::new(), out: false });
    }
    let started = now_ns();
    loop {
        for runner in runners.iter_mut().filter(|runner| !runner.out) {
            comm_of(work).set_algorithm(Some(runner.algorithm));
            all_sync.share(0)?;
            let mut samples = Vec::new();
            work.slice(runner.ops, &mut samples)?;
            runner.times.extend(median(&mut samples));
        }
        let spent = Duration::from_nanos(now_ns() - started);
        let in_race = all_sync.share(still_in(&runners, spent >= time))?;
        for (index, runner) in runners.iter_mut().enumerate() {
            runner.out = in_race >> index & 1 == 0;
        }
        if in_race == 0 {
            break;
        }
    }
    Ok(runners.iter().filter_map(|runner| runner.entrant(&runners[0].times)).collect())
}

fn comm_of<'w>(work: &'w mut Work<'_>) -> &'w mut Communicator {
    work.runner().0
}

/// Who runs the next round, a bit for each; none when the race is over.
fn still_in(runners: &[Runner], time_is_up: bool) -> u64 {
    let base = &runners[0].times;
    if time_is_up && base.len() >= FEWEST_ROUNDS {
        return 0;
    }
    let is_in = |(index, runner): (usize, &Runner)| {
        let hopeless = |ratio| runner.times.len() >= TRIED && ratio > HOPELESS;
        let ratio = median(&mut runner.ratios(base)).unwrap_or(1.0);
        // The built-in choice and its double are the measure of all others.
        index < 2 || !runner.out && !hopeless(ratio)
    };
    let bits = runners.iter().enumerate().map(|each| u64::from(is_in(each)) << each.0);
    let bits = bits.fold(0, |all, bit| all | bit);
    // Alone it need not run on.
    if bits.count_ones() <= 2 && base.len() >= FEWEST_ROUNDS { 0 } else { bits }
}

impl Runner {
    /// Its time over that of the built-in choice, in each round.
    fn ratios(&self, base: &[f64]) -> Vec<f64> {
        self.times.iter().zip(base).map(|(time, base)| time / base).collect()
    }

    /// `None` on ranks that do not keep the time.
    fn entrant(&self, base: &[f64]) -> Option<Entrant> {
        let mut ratios = self.ratios(base);
        Some(Entrant {
            algorithm: self.algorithm.name().to_owned(),
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
    use super::*;

    fn runner(times: &[f64]) -> Runner {
        Runner { algorithm: Algorithm::Ring, ops: 1, times: times.to_vec(), out: false }
    }

    #[test]
    fn who_is_hopeless_is_left_out_and_the_measure_never_is() {
        let two = [1.0, 1.0];
        let three = [1.0, 1.0, 1.0];
        let all = [runner(&two), runner(&[9.0, 9.0]), runner(&[9.0, 9.0])];
        assert_eq!(still_in(&all, false), 0b111, "too early to tell");
        let all = [runner(&three), runner(&[9.0; 3]), runner(&[1.2; 3]), runner(&[1.3, 0.9, 1.3])];
        assert_eq!(still_in(&all, false), 0b0111);
        assert_eq!(still_in(&all, true), 0b0111, "too few rounds");
    }

    #[test]
    fn a_race_ends_when_its_time_is_up_or_nobody_is_left() {
        let enough = [1.0; FEWEST_ROUNDS];
        let all = [runner(&enough), runner(&enough), runner(&enough)];
        assert_eq!((still_in(&all, false), still_in(&all, true)), (0b111, 0));
        let all = [runner(&enough), runner(&enough), runner(&[2.0; 3])];
        assert_eq!(still_in(&all, false), 0);
    }

    #[test]
    fn times_are_held_against_the_built_in_choice_in_the_same_round() {
        let entrant = runner(&[1.0, 20.0, 300.0]).entrant(&[2.0, 20.0, 200.0]).unwrap();
        assert_eq!((entrant.p50_ns, entrant.ratio), (20.0, 1.0));
        assert_eq!((entrant.ratio_p25, entrant.ratio_p75), (0.75, 1.25));
    }
}
