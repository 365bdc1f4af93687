//! What is logged: turns in the life of jobs, never what goes over the data path.
//!
//! Events are those of the crate `tracing`, for whatever subscriber a program installs; without one they cost a look at a word. The
//! command `shmccl` installs one where `SHMCCL_LOG` says what it is to print, such as `launch=debug,info`.
//!
//! | target | tells of |
//! |---|---|
//! | `shmccl::launch` | processes that are started, join, fail, hang, are started again; interrupts |
//! | `shmccl::meeting` | ranks that meet without a launcher, and meetings that fail; at level trace each step on the way into an epoch |
//! | `shmccl::epoch` | epochs that are joined, end, and are gone on from |
//! | `shmccl::proxy` | proxies that start and stop, and triggers that are refused |
//! | `shmccl::coordinator` | what a coordinator hears and decides |

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

/// Notes a step of this process on its way into an epoch, or as the host of others: between any two of them something may have
/// changed that others see. Tests kill processes at each.
pub(crate) fn step(what: &'static str) {
    tracing::trace!(target: MEETING, what, "a step");
}

/// All targets.
pub const TARGETS: [&str; 5] = [LAUNCH, MEETING, EPOCH, PROXY, COORDINATOR];
