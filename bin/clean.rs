//! `shmccl clean`: removes what dead jobs have left in `/dev/shm`, and the sockets of dead
//! coordinators.

use anyhow::Result;
use clap::Args;
use shmccl::coordinator::{DeviceId, RuntimeDirectory, Swept};
use shmccl::launch::{Leftover, clean};

use crate::failure::{self, UsageError};
use crate::output;

/// Ends the help.
pub(crate) const HELP: &str = "\
Normal operation never needs it: names stay only if the ranks, the launcher and its janitor were all \
killed. A name is removed if nobody has locked its prefix, no process has it open, and its creator \
is dead; the start time tells the creator from a later process of the same number. Segments in files \
(--segment file:DIRECTORY) are kept on purpose.

Without PREFIX, sockets of coordinators that were killed with their janitor are removed as well, \
those of pools within programs too. A socket stays while a living device waits there for the next \
coordinator: without it the device would end, and its memory would be lost.";

/// Flags of `shmccl clean`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CleanArgs {
    /// Only names with this prefix, as --segment named:PREFIX gives them
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Runs the command.
///
/// # Errors
/// Returns the errors of reading `/dev/shm` and of removing names, and a prefix that no name can
/// have.
pub(crate) fn run(args: &CleanArgs) -> Result<u8> {
    let mut lines = Vec::new();
    let cleaned =
        clean(args.prefix.as_deref(), args.dry_run, &mut |leftover| lines.push(line(leftover, args.dry_run)));
    if let (Err(shmccl::Error::InvalidArgument { expected, .. }), Some(prefix)) = (&cleaned, &args.prefix) {
        return Err(UsageError::new(format!("{prefix:?} is no prefix of names: expected {expected}")).into());
    }
    let swept = if args.prefix.is_none() && cleaned.is_ok() {
        RuntimeDirectory::clean(args.dry_run)
    } else {
        Ok(Swept::default())
    };
    for left in swept.iter().flat_map(|swept| &swept.removed) {
        let (verb, left) = (verb(args.dry_run), left.display());
        lines.push(format!("{verb} {left}, left by a coordinator that is dead\n"));
    }
    let waiting = swept.as_ref().map_or(&[][..], |swept| &swept.waiting);
    if !waiting.is_empty() {
        output::note(&kept(waiting));
    } else if lines.is_empty() && swept.is_ok() && cleaned.is_ok() {
        output::note("dead jobs have left nothing");
    }
    output::print(&lines.concat())?;
    cleaned?;
    swept?;
    Ok(failure::DONE)
}

fn line(leftover: &Leftover, dry_run: bool) -> String {
    let creator = leftover.creator.map(|pid| format!(", left by process {pid}")).unwrap_or_default();
    let job = leftover.job.map(|job| format!(" of job {job:016x}")).unwrap_or_default();
    format!("{} /dev/shm/{}{creator}{job}\n", verb(dry_run), leftover.name)
}

/// Says why the socket of a dead coordinator stays.
fn kept(waiting: &[DeviceId]) -> String {
    let numbers = waiting.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let (who, wait, them) = match waiting.len() {
        1 => ("device", "waits", "it"),
        _ => ("devices", "wait", "them"),
    };
    format!(
        "the socket of a coordinator that is dead stays, since {who} {numbers} {wait} there for the next one; start that with \
         `shmccl coordinator`, or end {them} with `kill {numbers}`"
    )
}

fn verb(dry_run: bool) -> &'static str {
    if dry_run { "would remove" } else { "removed" }
}
