//! Which process of a job has ended, and how.

use std::time::Duration;

use super::fault_hit::FaultHit;
use super::words::SignalName;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCause {
    /// With an exit code other than zero, or with zero before it had left the job.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Not at all: it closed its control socket without leaving the job, and had to be killed.
    HungUp,
    /// Not at all: it said something on its control socket that the protocol does not allow, and
    /// had to be killed.
    Protocol,
    /// It was refused, since it was built from another version of this library than the launcher.
    Version {
        /// Of what there are two versions.
        what: &'static str,
        /// The launcher's.
        launcher: u64,
        /// Its own.
        device: u64,
    },
    /// Not at all, as far as is known: it had not beaten for so long, and was taken for hung.
    Hung(Duration),
    /// By a panic, where the device is a thread.
    Panicked,
    /// By a fault that was injected, which killed it.
    Injected(FaultHit),
}

impl std::fmt::Display for ExitCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", SignalName(signal)),
            Self::HungUp => f.write_str("closed its control socket without leaving the job"),
            Self::Protocol => f.write_str("broke the protocol of the control socket"),
            Self::Version { what, launcher, device } => {
                write!(
                    f,
                    "has {what} {device}, the launcher {launcher}; build both from the same version of shmccl"
                )
            }
            Self::Hung(silent) => write!(f, "hung: no heartbeat for {} ms", silent.as_millis()),
            Self::Panicked => f.write_str("panicked"),
            Self::Injected(hit) => write!(f, "was killed by an injected fault: {hit}"),
        }
    }
}
