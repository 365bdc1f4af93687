//! Flags of the commands that look at running jobs.

use std::path::PathBuf;

use clap::Args;

/// Flags of `shmccl ps`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PsArgs {
    /// Write the list to a file as well
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Flags of `shmccl report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// The job: the beginning of its number, or one of its processes
    #[arg(value_name = "JOB|PID")]
    pub(crate) job: String,
}
