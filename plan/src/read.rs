//! From a file to an [`ExecutionPlan`] that keeps every rule of the format.
//!
//! A file is parsed level by level, so that each error names its rank, block and operation, and so
//! that no list is longer than its limit before it is looked into. All errors are reported.
//!
//! Tried by `plans broken::`.

mod fields;
mod operation;
mod program;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::escape::escaped;
use crate::plan::{ExecutionPlan, MAX_RANKS, Protocol};
use crate::problem::{Place, Problem, RefusedPlan};
use crate::rules;
use fields::{Fields, PlanReader};

/// The largest file, in bytes.
pub const MAX_FILE: u64 = 100 << 20;
/// The most thread blocks of a rank.
pub const MAX_BLOCKS: usize = 256;
/// The most operations of a block, or of a pipeline.
pub const MAX_OPERATIONS: usize = 65_536;
/// The most operations of a plan.
pub const MAX_ALL_OPERATIONS: usize = 1 << 20;
/// The most channels, remote buffers or semaphores of a rank, or of a block.
pub const MAX_ENTRIES: usize = 16_384;
/// The most references or channels of an operation.
pub const MAX_OPERANDS: usize = 1024;
/// The most problems that are kept of one file.
const MAX_PROBLEMS: usize = 1000;

/// A plan that was read, and what its reader should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The plan.
    pub plan: ExecutionPlan,
    /// What was ignored or looks unintended, one line each.
    pub warnings: Vec<String>,
}

/// Reads a plan from a file.
///
/// # Errors
/// All that is wrong with the file, or why it cannot be read.
pub fn read_file(path: &Path) -> Result<Reading, RefusedPlan> {
    let name = path.display().to_string();
    let text = load(path).map_err(|what| RefusedPlan {
        file: name.clone(),
        problems: vec![Problem::new(Place::PLAN, what)],
    })?;
    read(&name, &text)
}

/// Returns the files in `directory` that may be plans, those that end in `.json`, by their names.
///
/// # Errors
/// Returns the errors of the system.
pub fn files_in(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    Ok(files)
}

/// Loads a file that is not larger than a plan may be.
pub(crate) fn load(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let loaded = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut text));
    match loaded {
        Err(error) => Err(format!("cannot be read: {error}; name a file that this user may read")),
        Ok(read) if read as u64 > MAX_FILE => {
            Err(format!("the file is larger than {} MiB; name a plan", MAX_FILE >> 20))
        }
        Ok(_) => Ok(text),
    }
}

/// Reads a plan from the text of the file called `file`.
///
/// # Errors
/// All that is wrong with the text.
pub fn read(file: &str, text: &[u8]) -> Result<Reading, RefusedPlan> {
    let mut reader = PlanReader::new(MAX_ALL_OPERATIONS, MAX_PROBLEMS);
    let plan = plan(&mut reader, text);
    let (mut problems, mut warnings) = reader.finish();
    let Some(plan) = plan.filter(|_| problems.is_empty()) else {
        return Err(RefusedPlan { file: file.to_owned(), problems });
    };
    rules::check(&plan, &mut problems, &mut warnings);
    if problems.is_empty() {
        let warnings = warnings.iter().map(|warning| escaped(warning)).collect();
        return Ok(Reading { plan, warnings });
    }
    problems.truncate(MAX_PROBLEMS);
    Err(RefusedPlan { file: file.to_owned(), problems })
}

/// Reads the top level and all below. Returns nothing where a problem hides the rest.
fn plan(reader: &mut PlanReader, text: &[u8]) -> Option<ExecutionPlan> {
    let at = Place::PLAN;
    let text = match std::str::from_utf8(text) {
        Ok(text) => text.trim_start_matches('\u{feff}'),
        Err(error) => {
            reader.problem(at, format!("no UTF-8 from byte {} on; save it as UTF-8", error.valid_up_to()));
            return None;
        }
    };
    if text.trim_start().starts_with('<') {
        reader.problem(at, "the file is MSCCL's XML, not a plan in JSON; import it first");
        return None;
    }
    let mut fields =
        Fields::of(text).map_err(|error| reader.problem(at, format!("no plan: {error}"))).ok()?;
    if let Some(old) = fields.any(&["inputChunks", "outputChunks", "chunkGroups"]) {
        reader.old_layout(at, old);
        return None;
    }
    let ranks = match fields.take("gpus") {
        Some(raw) => reader.list(raw, at, "gpus", MAX_RANKS),
        None => {
            reader.problem(at, "`gpus` is missing; give one entry per rank");
            Vec::new()
        }
    };
    let mut plan = ExecutionPlan {
        name: reader.need(&mut fields, at, "name"),
        collective: reader.need(&mut fields, at, "collective"),
        protocol: reader
            .named(&mut fields, at, "protocol", Protocol::of_name, None)
            .unwrap_or(Protocol::Simple),
        in_place: reader.need(&mut fields, at, "inplace"),
        reuse_resources: reader.or(&mut fields, at, "reuse_resources", false),
        double_scratch: reader.or(&mut fields, at, "use_double_scratch_buffer", false),
        alignment: reader.or(&mut fields, at, "buffer_alignment", 16),
        threads_per_block: reader.or(&mut fields, at, "num_threads_per_block", 1024),
        min_message: reader.or(&mut fields, at, "min_message_size", 0),
        max_message: reader.or(&mut fields, at, "max_message_size", u64::MAX),
        ranks: Vec::new(),
    };
    reader.unknown(fields, "the plan");
    plan.ranks = program::ranks(reader, &ranks)?;
    Some(plan)
}
