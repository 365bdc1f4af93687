//! Files of execution plans as commands read them.

use std::path::Path;

use anyhow::Result;
use shmccl_plan::read::{Reading, read_file};
use shmccl_plan::{ExecutionPlan, RefusedPlan};

use crate::failure::UsageError;
use crate::output;

/// Reads a plan, and notes what its reader should know.
///
/// # Errors
/// The first problem of the file; the others are noted.
pub(crate) fn read(path: &Path) -> Result<ExecutionPlan> {
    Ok(try_read(path).map_err(|refusal| refused(&refusal))?)
}

/// Reads a plan as [`read`] does, and returns its problems where that cannot be.
///
/// # Errors
/// All problems of the file.
pub(crate) fn try_read(path: &Path) -> Result<ExecutionPlan, RefusedPlan> {
    let Reading { plan, warnings } = read_file(path)?;
    warnings.iter().for_each(|warning| output::note(&format!("{}: {warning}", path.display())));
    Ok(plan)
}

/// Notes all problems but the first, which is the error of the command.
pub(crate) fn refused(refusal: &RefusedPlan) -> UsageError {
    for problem in refusal.problems.iter().skip(1) {
        output::note(&format!("{}: {problem}", refusal.file));
    }
    UsageError::new(refusal.to_string())
}
