//! `shmccl clean`: removes what dead jobs have left in `/dev/shm`, and the socket of a dead coordinator.

use anyhow::Result;
use shmccl::coordinator::RuntimeDirectory;
use shmccl::launch::{Leftover, clean};

use crate::args::CleanArgs;
use crate::{failure, output};

/// What `shmccl clean --help` ends with.
pub(crate) const HELP: &str = "\
Normal operation never needs it: names are left only when the ranks, the launcher and its janitor were all killed. A name goes when \
nobody has its prefix locked, no process has it open, and the process that has made it is dead, told from a later one of the same \
number by its start time. Segments in files (--segment file:DIRECTORY) are kept on purpose and not touched. Without PREFIX, the \
socket of a coordinator that was killed goes as well, which the next one would replace, and so do those of pools within programs.";

/// Runs the command.
///
/// # Errors
/// When `/dev/shm` cannot be read, or a name in it not be removed.
pub(crate) fn run(args: &CleanArgs) -> Result<u8> {
    let mut lines = Vec::new();
    let cleaned =
        clean(args.prefix.as_deref(), args.dry_run, &mut |leftover| lines.push(line(leftover, args.dry_run)));
    let swept = if args.prefix.is_none() && cleaned.is_ok() {
        RuntimeDirectory::clean(args.dry_run)
    } else {
        Ok(Vec::new())
    };
    for left in swept.iter().flatten() {
        let verb = verb(args.dry_run);
        lines.push(format!("{verb} {}, left by a coordinator that is dead\n", left.display()));
    }
    if lines.is_empty() && swept.is_ok() && cleaned.is_ok() {
        output::note("dead jobs have left nothing");
    }
    output::print(&lines.concat())?;
    cleaned?;
    swept?;
    Ok(failure::DONE)
}

fn line(leftover: &Leftover, dry_run: bool) -> String {
    let verb = verb(dry_run);
    let creator = leftover.creator.map(|pid| format!(", left by process {pid}")).unwrap_or_default();
    let job = leftover.job.map(|job| format!(" of job {job:016x}")).unwrap_or_default();
    format!("{verb} /dev/shm/{}{creator}{job}\n", leftover.name)
}

fn verb(dry_run: bool) -> &'static str {
    if dry_run { "would remove" } else { "removed" }
}
