//! The file that a trace goes to: made before anything is started, written when all is over.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::claim::{claim, has_claimed};
use super::{CallNames, DEFAULT_RECORDS, Recorder, Rings, json};
use crate::epoch_id::{EpochId, FIRST_EPOCH, fresh_job_id};
use crate::error::{Error, Result};
use crate::logs::LAUNCH;
use crate::shm::Segment;
use crate::shm::system::within_file_size;
use crate::variables;

/// The variable that names the file.
pub(crate) const VARIABLE: &str = "SHMCCL_TRACE";

/// A file, and the rings that go there.
#[derive(Debug)]
pub(crate) struct TraceFile {
    path: PathBuf,
    file: File,
    rings: Rings,
    segment: Arc<Segment>,
}

impl TraceFile {
    /// Makes the file, and rings of `records` records for each of `ranks`.
    ///
    /// # Errors
    /// [`Error::Trace`] when it cannot be made; those of [`Rings::create`].
    pub(crate) fn create(path: &Path, epoch_id: EpochId, ranks: Range<u32>, records: u64) -> Result<Self> {
        let file = File::create(path).map_err(|source| Error::Trace { file: path.to_owned(), source })?;
        let (rings, segment) = Rings::create(epoch_id, ranks, records)?;
        Ok(Self { path: path.to_owned(), file, rings, segment })
    }

    /// Returns the descriptor that ranks need to record there.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }

    /// Writes what was noted, with collective calls named by `calls`.
    ///
    /// # Errors
    /// [`Error::Trace`].
    pub(crate) fn write(&self, calls: CallNames) -> Result<()> {
        let written = || {
            let mut to = BufWriter::with_capacity(1 << 16, &self.file);
            json::write(&self.rings, calls, &mut to)?;
            to.flush()
        };
        within_file_size(written).map_err(|source| Error::Trace { file: self.path.clone(), source })
    }
}

/// Returns the file that the environment names, where it names one.
pub(crate) fn from_environment() -> Option<PathBuf> {
    variables::get(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// A file that is written when nobody notes any more. That it could not be is logged: nobody is
/// left to be told.
#[derive(Debug)]
struct AtEnd(TraceFile, CallNames);

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Err(error) = self.0.write(self.1) {
            tracing::warn!(target: LAUNCH, %error, "a trace is lost");
        }
    }
}

/// Returns where `ranks` note that are all in this process, if the environment says so; the first
/// of them goes into the name of the file, where there are others elsewhere, and a number, where it
/// is not the first of that name.
///
/// A name that is wrong is found out by the first who comes with it. A process that runs out of
/// something later, with many files, goes on and does not note: that is logged.
///
/// # Errors
/// Fails as [`TraceFile::create`] does for the first file of that name.
pub(crate) fn recorders(ranks: Range<u32>, alone: bool, calls: CallNames) -> Result<Vec<Recorder>> {
    let Some(mut path) = from_environment() else { return Ok(Vec::new()) };
    if !alone {
        let extension =
            path.extension().map_or("json".into(), |extension| extension.to_string_lossy().into_owned());
        path.set_extension(format!("{}.{extension}", ranks.start));
    }
    let was_right = has_claimed(&path);
    match recorders_in(&path, ranks, calls) {
        Err(error) if was_right => {
            tracing::warn!(target: LAUNCH, %error, "not traced");
            Ok(Vec::new())
        }
        made => made,
    }
}

/// Returns where `ranks` note. The last of them that is gone lets go of the file, which has that
/// name where nobody else has it.
fn recorders_in(path: &Path, ranks: Range<u32>, calls: CallNames) -> Result<Vec<Recorder>> {
    let (file, path) = claim(path).map_err(|source| Error::Trace { file: path.to_owned(), source })?;
    let epoch_id = EpochId { job: fresh_job_id(), epoch: FIRST_EPOCH };
    let (rings, segment) = Rings::create(epoch_id, ranks, DEFAULT_RECORDS)?;
    let file = Arc::new(AtEnd(TraceFile { path, file, rings: rings.clone(), segment }, calls));
    let recorder = |rank| Some(Recorder::new(&rings, rank, FIRST_EPOCH)?.keeping(file.clone()));
    Ok(rings.ranks().filter_map(recorder).collect())
}

mod claim;
