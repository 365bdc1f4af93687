//! nccl-tests' table of a collective test, which grows as device processes print their lines.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Error, Result, anyhow};
use shmccl_harness::format::{self, Extras, MachineName, TableHead};
use shmccl_harness::lines::{DeviceLine, RankPlacement, StalledPlan};
use shmccl_harness::report::PerfRow;
use shmccl_harness::test::Test;

use crate::failure::{self, FAILED};
use crate::host::MachineInfo;
use crate::output;

/// Prints the table of the rows that `job` reports line by line, as it grows, and returns them.
///
/// # Errors
/// A job that fails, a table that cannot be printed.
pub(crate) fn print(
    head: TableHead,
    extras: Extras,
    job: impl FnOnce(&mut dyn FnMut(&str) -> Result<()>) -> Result<Option<Duration>>,
) -> Result<Vec<PerfRow>> {
    let host = nix::sys::utsname::uname()
        .map_or_else(|_| "this host".to_owned(), |it| it.nodename().to_string_lossy().into_owned());
    let mut table = NcclTable {
        head,
        machine: MachineName { host, processor: MachineInfo::detect().cpu },
        extras,
        placements: Vec::new(),
        rows: Vec::new(),
        stalled: Vec::new(),
        printed: 0,
        begun: false,
    };
    job(&mut |line| table.take(DeviceLine::read(line)?))
        .map_err(|error| explained(error, head.test, &table.stalled))?;
    table.finish()?;
    Ok(table.rows)
}

/// Returns what a job has failed of: blocks of an execution plan that wait, on whatever ranks, or
/// else `error`. A rank that learns of a stalled plan from another one may end before that one.
fn explained(error: Error, test: Test, stalled: &[StalledPlan]) -> Error {
    let Some(first) = stalled.first().filter(|_| failure::exit_code(&error) == FAILED) else { return error };
    let mut told = vec![format!("in {}: {} timed out", test.name(), first.plan)];
    let blocks: BTreeSet<_> = stalled.iter().map(|rank| rank.blocks.as_str()).collect();
    let causes: BTreeSet<_> = stalled.iter().map(|rank| rank.cause.as_str()).collect();
    told.push([blocks, causes].into_iter().flatten().collect::<Vec<_>>().join("; "));
    anyhow!(told.join(": "))
}

/// A table that grows.
struct NcclTable {
    head: TableHead,
    machine: MachineName,
    extras: Extras,
    placements: Vec<RankPlacement>,
    rows: Vec<PerfRow>,
    /// What ranks tell of a plan that has not ended.
    stalled: Vec<StalledPlan>,
    /// Rows of [`NcclTable::rows`] that stand in the table.
    printed: usize,
    begun: bool,
}

impl NcclTable {
    /// Takes a line of a device process, and prints what can be printed.
    fn take(&mut self, message: DeviceLine) -> Result<()> {
        match message {
            DeviceLine::Placement(placement) => self.placements.push(placement),
            DeviceLine::Figure(row) => self.rows.push(*row),
            DeviceLine::Stalled(rank) => self.stalled.push(rank),
        }
        if !self.begun && self.placements.len() == self.head.n_ranks as usize {
            self.begun = true;
            self.placements.sort_unstable();
            output::print(&self.head.text(&self.placements, &self.machine, self.extras))?;
        }
        if self.begun { self.print() } else { Ok(()) }
    }

    /// Prints the sizes that are complete: out of place, and then in place.
    fn print(&mut self) -> Result<()> {
        while let Some([apart, in_place]) = self.rows.get(self.printed..self.printed + 2) {
            output::print(&format::row(apart, in_place, self.extras))?;
            self.printed += 2;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.print()?;
        output::print(&format::foot(self.head.test.nccl_tests_name(), &self.rows))
    }
}

#[cfg(test)]
mod tests {
    use shmccl::collective::Operation;
    use shmccl::error::{DeviceName, ExitCause};
    use shmccl::{Error as JobError, Rank};

    use super::*;

    fn stalled(rank: u32) -> StalledPlan {
        StalledPlan {
            plan: "plan:credits".to_owned(),
            blocks: format!("rank {rank} block 0 operation 1 (wait) waits"),
            cause: "no launch of the plan ends".to_owned(),
        }
    }

    #[test]
    fn blocks_that_wait_are_told_whichever_rank_ends_first_and_all_of_them() {
        let revoked = || anyhow!("rank 0: in all_gather: the communicator was revoked by rank 1");
        let told = explained(revoked(), Test::Operation(Operation::AllGather), &[stalled(1)]).to_string();
        assert_eq!(
            told,
            "in all_gather: plan:credits timed out: rank 1 block 0 operation 1 (wait) waits; \
             no launch of the plan ends"
        );
        let both = explained(revoked(), Test::Operation(Operation::AllGather), &[stalled(1), stalled(0)])
            .to_string();
        assert!(both.contains(": rank 0 block 0 operation 1 (wait) waits; rank 1 block 0 "), "{both}");
        assert_eq!(both.matches("no launch of the plan ends").count(), 1, "{both}");
    }

    #[test]
    fn a_job_without_a_stalled_plan_and_one_that_was_interrupted_keep_their_errors() {
        let device = DeviceName::Rank(Rank::new(1, 2).unwrap());
        let failed = JobError::DeviceFailed { device, cause: ExitCause::Code(1) };
        assert_eq!(
            explained(failed.into(), Test::Operation(Operation::AllGather), &[]).to_string(),
            "rank 1 exited with code 1"
        );
        let interrupted = JobError::Interrupted { signal: 2 };
        let told = explained(interrupted.into(), Test::Operation(Operation::AllGather), &[stalled(0)]);
        assert_eq!(told.to_string(), "interrupted by SIGINT");
    }
}
