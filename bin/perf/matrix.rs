//! `perf p2p`: every rank to every other, one pair at a time, and then all at once.
//!
//! | module | what |
//! |---|---|
//! | [`settings`] | what device processes are told |
//! | [`figure`] | what is measured between two ranks, and where they are |
//! | [`exchange`] | all ranks at once, and their limit |
//! | [`cells`] | rows put in order of ranks |
//! | [`view`], [`heat`] | the tables, the heat map |

mod cells;
pub(crate) mod exchange;
pub(crate) mod figure;
mod heat;
pub(crate) mod settings;
mod view;

use anyhow::Result;
use indicatif::ProgressBar;

use super::jobs;
use super::plan::Plan;
use crate::host::HostFiles;
use crate::perf::flags::PerfArgs;
use crate::perf::report::PerfRow;
use crate::perf::test::{Test, TestChannel};
use settings::Settings;

pub(crate) use heat::text as svg;
pub(crate) use view::text;

/// Ranks where the user does not say how many: one for each core, but no more than a narrow table has room for.
const MOST_RANKS: usize = 8;

/// Measures all pairs over `channel`, and tells `progress` which.
///
/// # Errors
/// Bad sizes, a job that fails.
pub(crate) fn run(
    args: &PerfArgs,
    channel: TestChannel,
    plan: Plan,
    progress: &ProgressBar,
) -> Result<Vec<PerfRow>> {
    let cores = HostFiles::new().allowed_cpus().len();
    let n_ranks = match args.ranks {
        Some(n_ranks) => n_ranks,
        None => u32::try_from(cores.clamp(2, MOST_RANKS))?,
    };
    let settings = Settings {
        bandwidth_bytes: args.matrix.bandwidth_bytes,
        latency_bytes: args.matrix.latency_bytes,
        cores: jobs::cores(n_ranks, &args.job)?,
        oversubscribed: n_ranks as usize > cores,
    };
    let plan = Plan {
        tests: vec![(Test::P2p, Some(channel))],
        sizes: vec![settings.bandwidth_bytes, settings.latency_bytes],
        matrix: Some(settings),
        ..plan
    };
    let mut tell = |row: &PerfRow| {
        if let Some(place) = &row.place {
            progress.set_message(format!("p2p {}: {} to {}", channel.name(), place.from, place.to));
        }
    };
    Ok(jobs::run(&plan, n_ranks, &args.job, &mut tell)?.rows)
}

#[cfg(test)]
mod tests;
