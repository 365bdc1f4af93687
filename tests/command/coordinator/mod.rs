//! A coordinator, its devices and clients as real processes, each with a directory of sockets of its own. Everything is asked by
//! `shmccl ctl`, but for what no client of this version would say, and for groups that follow each other closely. `SHMCCL_LONG=1` kills
//! coordinators until 200 were in the middle of a group, and sends garbage for a minute; `SHMCCL_SEED` replays either.
#![expect(clippy::print_stdout, reason = "long tests say what they have done")]

mod checkpoints;
mod command;
mod device_restarts;
mod embedded;
mod fleet;
mod garbage;
mod growth;
mod hangs;
mod metrics;
mod orphans;
mod pool;
mod restarts;
mod strangers;
mod walk;
