//! Logs turns in the life of jobs, never the data path.
//!
//! Events are those of the crate `tracing`, for any subscriber that a program installs. Without one
//! they cost one read. The command `shmccl` installs one where `SHMCCL_LOG` says what to print,
//! such as `launch=debug,info`.
//!
//! | target | events |
//! |---|---|
//! | `shmccl::launch` | processes that start, join, fail, hang, are restarted; interrupts |
//! | `shmccl::meeting` | meetings without a launcher; at level trace, each step into an epoch |
//! | `shmccl::epoch` | epochs that are joined, end, and are followed by another; unusable tables |
//! | `shmccl::proxy` | proxies that start and stop, and triggers that are refused |
//! | `shmccl::coordinator` | messages and decisions of a coordinator |
//!
//! Tried by `command run::logging::`.

/// See the table.
pub const LAUNCH: &str = "shmccl::launch";
/// See the table.
pub const MEETING: &str = "shmccl::meeting";
/// See the table.
pub const EPOCH: &str = "shmccl::epoch";
/// See the table.
pub const PROXY: &str = "shmccl::proxy";
/// See the table.
pub const COORDINATOR: &str = "shmccl::coordinator";

/// Logs a step of this process into an epoch, or as the host of others. Between two steps,
/// something may have changed that others see. Tests kill processes at each.
pub(crate) fn step(what: &'static str) {
    tracing::trace!(target: MEETING, what, "a step");
}

/// All targets.
pub const TARGETS: [&str; 5] = [LAUNCH, MEETING, EPOCH, PROXY, COORDINATOR];
