//! How shmccl is measured: what `shmccl perf`, `compare`, `tune` and `plan run` have in common.
//!
//! A test and the machine's own limits take turns of about a millisecond, so that what the machine
//! does to one it does to all. Only like slices are compared.
//!
//! | module | what |
//! |---|---|
//! | [`clock`], [`cores`] | clocks, delays, and where threads run |
//! | [`stats`], [`slices`], [`figures`] | from samples to figures |
//! | [`sync`], [`interleave`] | ranks in step, and contenders in turns |
//! | [`mod@test`], [`report`], [`rounds`] | what is measured, its rows, and the medians of rounds |
//! | [`layout`], [`pattern`], [`case`] | one operation at one size: its data and their check |
//! | [`timed_case`], [`bare_case`] | such an operation as a contender, and its bare loops |
//! | [`puts`] | such an operation by puts of a program's own |
//! | [`jobs`], [`lines`], [`mod@format`] | device processes, their lines, and nccl-tests' table |
//!
//! Tried by its unit tests and `command nccl_tests:: compare_op::`.

pub mod bare_case;
pub mod case;
pub mod clock;
pub mod cores;
pub mod figures;
pub mod format;
pub mod interleave;
pub mod jobs;
pub mod layout;
pub mod lines;
pub mod pattern;
pub mod puts;
pub mod report;
pub mod rounds;
pub mod slices;
pub mod stats;
pub mod sync;
pub mod test;
pub mod timed_case;
