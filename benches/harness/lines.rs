//! The lines that the device processes of a collective test print for their launcher, as JSON.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use shmccl::{Communicator, Error};

use crate::cores::allowed_cpus;
use crate::report::PerfRow;

/// A line that a device process prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DeviceLine {
    /// Where a rank runs.
    Placement(RankPlacement),
    /// A figure, from rank 0.
    Figure(Box<PerfRow>),
    /// What a rank tells of an execution plan that has not ended.
    Stalled(StalledPlan),
}

/// An execution plan that has not ended, as one rank tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StalledPlan {
    /// The plan.
    pub plan: String,
    /// Which blocks of the rank wait for what.
    pub blocks: String,
    /// Whether the plan can end at all.
    pub cause: String,
}

/// A rank, its process and its core.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankPlacement {
    /// The rank.
    pub rank: u32,
    /// The process.
    pub pid: u32,
    /// The first core that the process may run on.
    pub core: usize,
}

impl RankPlacement {
    /// Says where this rank of `comm` runs.
    pub fn of(comm: &Communicator) -> Self {
        let core = allowed_cpus().first().copied().unwrap_or(0);
        Self { rank: comm.rank().get(), pid: std::process::id(), core }
    }
}

impl DeviceLine {
    /// Returns what a rank tells of the execution plan that `error` has stopped, if one has.
    pub fn of_stalled(error: &anyhow::Error) -> Option<Self> {
        let Some(Error::PlanStalled { plan, blocks, cause, .. }) = error.downcast_ref() else { return None };
        let (plan, blocks, cause) = (plan.clone(), blocks.clone(), cause.clone());
        Some(Self::Stalled(StalledPlan { plan, blocks, cause }))
    }

    /// Reads a line.
    ///
    /// # Errors
    /// A line that is none.
    pub fn read(line: &str) -> Result<Self> {
        Ok(serde_json::from_str(line)?)
    }
}
