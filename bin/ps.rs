//! `shmccl ps`: the jobs of this user on this host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use shmccl::coordinator::{Client, DeviceId, DeviceStatus, RuntimeDirectory};

use crate::jobs::{self, ObservedJob};
use crate::output::{self, TableLook};
use crate::units::format_runs;
use crate::{failure, file, table};

/// The description of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct JobRow {
    /// The number, in hexadecimal.
    job: String,
    epoch: u64,
    ranks: usize,
    /// The processes of its ranks, in order; `None` where unknown.
    processes: Vec<Option<u32>>,
    /// The process that has made it: a launcher, the host of a rendezvous, or a rank.
    creator: u64,
    age_s: u64,
    state: String,
    /// The communicator of a pool, and the directory of its coordinator.
    communicator: Option<u64>,
    pool: Option<PathBuf>,
    command: String,
}

/// The longest time in which a coordinator lists its devices.
const PATIENCE: Duration = Duration::from_secs(1);

/// Flags of `shmccl ps`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PsArgs {
    /// Write the list to a file as well; - is standard output, and sends the table to standard
    /// error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Returns the errors of writing the report.
pub(crate) fn run(args: &PsArgs) -> Result<u8> {
    if let Some(path) = &args.json {
        file::check_writable(path)?;
    }
    let mut pools = Pools::default();
    let rows: Vec<_> = jobs::all().iter().map(|seen| JobRow::of(seen, &mut pools)).collect();
    if let Some(path) = &args.json {
        file::write_json(path, &rows)?;
    }
    if rows.is_empty() {
        output::note("no job of this user is running");
    } else {
        output::print(&present(TableLook::of_tables(), &rows))?;
    }
    Ok(failure::DONE)
}

impl JobRow {
    fn of(seen: &ObservedJob, pools: &mut Pools) -> Self {
        let report = &seen.report;
        let processes: Vec<_> = report.ranks.iter().map(|rank| rank.pid).collect();
        let creator = report.creator.pid_here().and_then(|pid| u32::try_from(pid).ok());
        let command = processes.iter().flatten().next().copied().or(creator).map(command).unwrap_or_default();
        let owner = pools.owner(processes.iter().flatten().copied());
        let (communicator, pool) =
            owner.map(|PoolCommunicator { communicator, pool }| (communicator, pool)).unzip();
        Self {
            job: format!("{:016x}", report.job),
            epoch: report.epoch,
            ranks: report.ranks.len(),
            processes,
            creator: report.creator.pid,
            age_s: report.age.as_secs(),
            state: jobs::state(report),
            communicator,
            pool,
            command,
        }
    }

    /// Writes the communicator of a pool: `1 of /run/user/1000/shmccl`.
    fn owner(&self) -> String {
        match (self.communicator, &self.pool) {
            (Some(communicator), Some(pool)) => format!("{communicator} of {}", pool.display()),
            _ => "-".to_owned(),
        }
    }
}

/// Lays out a row for each job, with a column for communicators if there are any.
fn present(look: TableLook, rows: &[JobRow]) -> String {
    let has_pools = rows.iter().any(|row| row.communicator.is_some());
    let (first, last) = (["job", "epoch", "ranks", "creator", "age", "state"], ["processes", "command"]);
    let pool = has_pools.then_some("communicator");
    let head: Vec<_> = first.into_iter().chain(pool).chain(last).collect();
    let cells = |row: &JobRow| {
        let age = age(Duration::from_secs(row.age_s));
        let (epoch, ranks) = (row.epoch.to_string(), row.ranks.to_string());
        let words = [&row.job, &epoch, &ranks, &row.creator.to_string(), &age, &row.state];
        let pool = has_pools.then(|| row.owner());
        let processes = row.processes.iter().map(|process| process.map(|process| process as usize));
        let rest = [&format_runs(processes), &row.command];
        words.into_iter().chain(pool.as_ref()).chain(rest).map(Cell::new).collect()
    };
    table::lay_out(look, &head, head.len(), rows.iter().map(cells))
}

/// Writes an age: `12 s`, `3 min`, `5 h`, `2 d`.
fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Returns the command line of a process, in one line.
fn command(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let line = words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
    line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(120).collect()
}

/// A communicator of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolCommunicator {
    pub(crate) communicator: u64,
    /// The coordinator's directory.
    pub(crate) pool: PathBuf,
}

/// The pools that were asked for their devices, by their directories. A pool whose coordinator does
/// not answer has none.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    asked: BTreeMap<PathBuf, Vec<DeviceStatus>>,
}

impl Pools {
    /// Returns the communicator to which one of these processes belongs, as a device. Each
    /// coordinator is asked once.
    pub(crate) fn owner(&mut self, processes: impl IntoIterator<Item = u32>) -> Option<PoolCommunicator> {
        processes.into_iter().find_map(|process| self.owner_of(process))
    }

    fn owner_of(&mut self, process: u32) -> Option<PoolCommunicator> {
        let pool = RuntimeDirectory::of(DeviceId::new(process))?;
        let devices = self.asked.entry(pool.clone()).or_insert_with(|| devices_of(&pool).unwrap_or_default());
        let device = devices.iter().find(|device| device.device.get() == process)?;
        Some(PoolCommunicator { communicator: device.comm?.get(), pool })
    }
}

fn devices_of(pool: &Path) -> Option<Vec<DeviceStatus>> {
    // Opening the directory would create it.
    let directory = pool.is_dir().then(|| RuntimeDirectory::at(pool).ok())??;
    Client::connect(&directory, PATIENCE).ok()?.devices().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_unit_that_suits_them() {
        let told = [0, 119, 120, 7300, 200_000].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(told, ["0 s", "119 s", "2 min", "2 h", "2 d"]);
    }
}
