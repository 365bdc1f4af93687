//! The directory of execution plans that a job brings along.

use std::io;
use std::path::Path;
use std::sync::Arc;

use shmccl_plan::ExecutionPlan;
use shmccl_plan::read::{files_in, read_file};

use crate::error::{Error, Result};
use crate::variables;

/// The environment variable that names a directory of execution plans, files that end in `.json`.
/// The first communicator of a job registers those of as many ranks as it has, in the order of
/// their names. Empty, it names none.
pub const PLANS_VARIABLE: &str = "SHMCCL_PLANS";

/// Returns the plans in the directory that the environment names, if it names one.
pub(crate) fn from_environment() -> Option<Result<Vec<Arc<ExecutionPlan>>>> {
    let named = variables::get(PLANS_VARIABLE).filter(|named| !named.is_empty())?;
    Some(read(Path::new(&named)))
}

fn read(directory: &Path) -> Result<Vec<Arc<ExecutionPlan>>> {
    let files = files_in(directory).map_err(|error| {
        let named = io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
        Error::os("reading the directory SHMCCL_PLANS", named)
    })?;
    files.iter().map(|file| Ok(Arc::new(read_file(file)?.plan))).collect()
}
