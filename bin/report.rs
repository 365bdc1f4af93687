//! `shmccl report`: what every rank of a job is doing, and who holds the others up.

use anyhow::Result;

use crate::args::ReportArgs;
use crate::{failure, jobs, output};

/// Runs the command.
///
/// # Errors
/// When there is no such job.
pub(crate) fn run(args: &ReportArgs) -> Result<u8> {
    output::print(&format!("{}\n", jobs::named(&args.job)?.report))?;
    Ok(failure::DONE)
}
