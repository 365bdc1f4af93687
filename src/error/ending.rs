//! Which process of a job has ended, and how.

use std::time::Duration;

use super::fault_hit::FaultHit;
use super::words::{limit_passed, signal_name};
use crate::rank::Rank;

/// A process of a job, as error messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// A device process.
    Rank(Rank),
    /// The proxy service process.
    Proxy,
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Proxy => write!(f, "the proxy service"),
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ExitCause {
    /// The process exited with a code other than zero, or with zero before it had left the job.
    #[error("exited with code {0}")]
    Code(i32),
    /// A signal killed it.
    #[error("was killed by {}{}", signal_name(*.0), limit_passed(*.0))]
    Signal(i32),
    /// The system has told nobody how it ended: another part of the launching program waits for all
    /// of its children, and Linux is older than 6.15.
    #[error("has ended, and it is unknown how: the launcher's program waits for all of its children itself")]
    Unknown,
    /// It closed its control socket without leaving the job, and had to be killed.
    #[error("closed its control socket without leaving the job")]
    HungUp,
    /// It said something on its control socket that the protocol does not allow, and had to be
    /// killed.
    #[error("broke the protocol of the control socket")]
    Protocol,
    /// It was refused, since it was built from another version of this library than the launcher.
    #[error("has {what} {device}, the launcher {launcher}; build both from the same version of shmccl")]
    Version {
        /// The thing of which there are two versions.
        what: &'static str,
        /// The version of the launcher.
        launcher: u64,
        /// The version of the process.
        device: u64,
    },
    /// It had sent no heartbeat for so long, and was taken for hung.
    #[error("hung: no heartbeat for {} ms", .0.as_millis())]
    Hung(Duration),
    /// It panicked, where the device is a thread.
    #[error("panicked")]
    Panicked,
    /// A fault that was injected killed it.
    #[error("was killed by an injected fault: {0}")]
    Injected(FaultHit),
}
