//! Flags of the commands that look at running jobs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::units::parse_timeout;

/// Flags of `shmccl ps`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PsArgs {
    /// Write the list to a file as well; with - to standard output, and the table to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Flags of `shmccl report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// The job: the beginning of its number, four digits at least, or one of its processes
    #[arg(value_name = "JOB|PID")]
    pub(crate) job: String,
    /// Write the report to a file as well; with - to standard output, and the text to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Flags of `shmccl top`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// One job only: the beginning of its number, four digits at least, or one of its processes
    #[arg(value_name = "JOB|PID")]
    pub(crate) job: Option<String>,
    /// The time between two looks, such as 500ms or 2s
    #[arg(short, long, value_name = "TIME", value_parser = parse_timeout, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print one picture, and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// Flags of `shmccl clean`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CleanArgs {
    /// Only names that were claimed by this prefix (of --segment named:PREFIX)
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}
