//! Calls by execution plans of MSCCL++'s format.
//!
//! A plan is lowered to flat records for each size (the package `shmccl-plan`). Here each rank
//! steps through its own: all its thread blocks take turns in its one thread, and a block gives way
//! where it would wait. Only when none can go on does the rank wait, as any member does.
//!
//! | module | does |
//! |---|---|
//! | [`compiled`] | a plan as it was lowered for a size, with what launches need to know of it |
//! | [`inputs`] | which inputs of a plan in place are read where the caller has them |
//! | [`instances`] | neighbouring blocks that are run as one |
//! | [`runner`] | what a plan keeps from launch to launch; one launch |
//! | [`memory`] | scratch and stages in each rank's arena, and where the buffers of a launch lie |
//! | [`signals`] | the counters of channels, direct and over the proxy |
//! | [`launch`] | thread blocks: which step is next, and whether it can be taken |
//! | [`transfer`] | the bytes of a step: copies, reductions, packets |
//! | [`stalled`] | what is told of a launch that does not end |
//!
//! # Order
//! A member begins its launch once it has posted the call, with what needs no post of another one:
//! signals, and data that go to scratch. Where the buffers of others lie it learns from their
//! posts (C1), for which it waits when nothing else is left to do, and before its launch ends. Each
//! posts once its last launch is over. So when a launch ends here, the one before has ended
//! everywhere, and what it had in scratch can be overwritten: launches take turns in two halves.
//! Where scratch is not halved, or halved for another size, a launch begins after all posts.
//! Counters go on: a signal of the next launch comes after all of this one from the same rank.
//!
//! Within a launch only the plan orders: signals by S1, packets by their flags, proxied puts by F1
//! and S1. A relaxed signal is full.
//!
//! A launch ends when all blocks of the rank have ended and all that it pushed is done.
//!
//! Tried by its unit tests and `plan_runs`.

mod compiled;
mod inputs;
mod instances;
mod launch;
mod memory;
mod runner;
mod signals;
mod stalled;
mod transfer;

pub(crate) use compiled::CompiledPlan;
pub(crate) use runner::PlanRunner;
