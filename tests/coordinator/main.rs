//! A coordinator, its devices and clients as real processes, each with a directory of sockets of its own. Everything is asked by
//! `shmccl ctl`, but for what no client of this version would say. `SHMCCL_LONG=1` kills 200 coordinators, and sends garbage for a minute.
#![expect(clippy::print_stdout, reason = "long tests say what they have done")]

mod checkpoints;
mod command;
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
