//! A coordinator, its devices and clients as real processes, each pool with a directory of sockets
//! of its own. Requests are made by `shmccl ctl`, except for messages that no client of this
//! version would send, and for groups in quick succession.
//!
//! `SHMCCL_LONG=1` kills coordinators until 200 were in the middle of a group, and sends garbage
//! for a minute. `SHMCCL_SEED` replays either.
#![expect(clippy::print_stdout, reason = "long tests say what they have done")]

mod checkpoints;
mod command;
mod device_restarts;
mod embedded;
mod event_loop;
mod fleet;
mod garbage;
mod growth;
mod hangs;
mod metrics;
mod operations;
mod orphans;
mod pool;
mod restarts;
mod strangers;
mod walk;
