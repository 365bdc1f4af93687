//! Calls by execution plans of MSCCL++'s format.
//!
//! A plan is lowered to flat records for each size (the package `shmccl-plan`). Here each rank
//! steps through its own: all its thread blocks take turns in its one thread, and a block gives way
//! where it would wait. Only when none can go on does the rank wait, as any member does.
//!
//! | module | does |
//! |---|---|
//! | [`runner`] | what a plan keeps from launch to launch; one launch |
//! | [`memory`] | scratch and stages in each rank's arena, and where the buffers of a launch lie |
//! | [`signals`] | the counters of channels, direct and over the proxy |
//! | [`launch`] | thread blocks: which step is next, and whether it can be taken |
//! | [`transfer`] | the bytes of a step: copies, reductions, packets |
//!
//! # Order
//! All members have posted a call before any begins its launch, and each posts once its last launch
//! is over. So nothing of launch k is left when k + 1 begins. Within a launch only the plan orders:
//! signals by S1, packets by their flags, proxied puts by F1 and S1. A relaxed signal is full.
//!
//! A launch ends when all blocks of the rank have ended and all that it pushed is done.

mod launch;
mod memory;
mod runner;
mod signals;
mod transfer;

pub(crate) use runner::PlanRunner;
