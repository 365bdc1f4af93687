//! What the machine can do at best: the limits beside which measurements of shmccl stand.
//!
//! A measurement takes its limit in the same run, between the same cores. So each limit is the
//! plainest code that does the work: it checks nothing, chooses nothing and knows no failure. The
//! engine uses none of it.
//!
//! | module | limit of |
//! |---|---|
//! | [`flags`] | signals, fifos and barriers |
//! | [`words`] | verbs on single words |
//! | [`sum`] | reductions |
//! | [`staged`] | reductions of memory that no other rank reaches |
//! | [`heap`], [`eager`], [`staged_sum`] | operations of all ranks, on their [`rank_buffers`] |
//! | [`stopwatch`] | nothing: a clock for very short operations |
//!
//! Unsafe code is confined to `sum`, `staged` and the layouts of `flags` and `words`, under the
//! trust model of [`shmccl::shm`].
//!
//! Tried by its unit tests.
#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod eager;
pub mod flags;
#[cfg(not(loom))]
pub mod heap;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
pub mod rank_buffers;
#[cfg(not(loom))]
pub mod staged;
#[cfg(not(loom))]
pub mod staged_sum;
#[cfg(not(loom))]
pub mod stopwatch;
#[cfg(not(loom))]
pub mod sum;
#[cfg(not(loom))]
pub mod words;
