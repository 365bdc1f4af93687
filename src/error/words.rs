//! Parts of messages that depend on a value.

use crate::rank::Rank;

/// The process that a name belongs to, and the remedy.
pub(super) struct NameHolder(pub(super) Option<u64>);

impl std::fmt::Display for NameHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "belongs to process {pid}, which is running; choose another name"),
            None => {
                f.write_str("does not tell whose it is; choose another name, or remove it if nobody needs it")
            }
        }
    }
}

/// `SIGKILL`, or the number of a signal that has no name.
pub(super) struct SignalName(pub(super) i32);

impl std::fmt::Display for SignalName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match nix::sys::signal::Signal::try_from(self.0) {
            Ok(name) => write!(f, "{name}"),
            Err(_) => write!(f, "signal {}", self.0),
        }
    }
}

/// The rank that was awaited, if that is known.
pub(super) struct AwaitedRank(pub(super) Option<Rank>);

impl std::fmt::Display for AwaitedRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => write!(f, ", awaiting rank {rank}"),
            None => Ok(()),
        }
    }
}

/// The rank that holds all up, if that is known.
pub(super) struct HeldUp(pub(super) Option<Rank>);

impl std::fmt::Display for HeldUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => write!(
                f,
                "; all is held up by rank {rank}, which waits for nobody: see what it does, or allow more time"
            ),
            None => Ok(()),
        }
    }
}

/// The number of a line, if that is known.
pub(super) struct InLine(pub(super) Option<usize>);

impl std::fmt::Display for InLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(line) => write!(f, ", line {line}"),
            None => Ok(()),
        }
    }
}

/// The rank or the launcher that has revoked.
pub(super) struct RevokedBy(pub(super) Option<Rank>);

impl std::fmt::Display for RevokedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => write!(f, "rank {rank}"),
            None => write!(f, "the launcher"),
        }
    }
}
