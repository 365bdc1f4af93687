//! Which algorithm does a collective operation when the caller has not chosen one.
//!
//! | module | what |
//! |---|---|
//! | `table` | the table as plain data, and what is built in |
//! | `place` | where a table is looked for |
//! | `text`, `fault` | the table as TOML, and what can be wrong with it |
//! | `choices` | the part of a table that matters to one communicator, made for quick lookup |
//!
//! A table has a *case* for each operation, number of ranks, kind of buffers, and oversubscribed or
//! not: sizes and algorithms. `shmccl tune` measures one and writes it. As a program starts, it is
//! read from the file that `SHMCCL_TUNING` names, or else from
//! `$XDG_CONFIG_HOME/shmccl/tuning.toml` or `~/.config/shmccl/tuning.toml`; where there is no such
//! file, and where `SHMCCL_TUNING` is empty, the built-in table is taken. The file is a regular one
//! of at most 1 MiB. A table serves direct channels; over proxied ones there is one choice by
//! operation and size.
//!
//! Tables are measured out of place, in buffers of up to 8 MiB, and serve in place and above as
//! well. There the choice was hardly ever another one (AMD EPYC, Zen 5, two cores; all operations,
//! 8 B to 16 MiB, both kinds of buffers): of 128 pairs of races between two ranks two differed by
//! where the output was, of 122 among four that shared cores one, by 6 %.
//!
//! Where a table has no case for it, an all-reduce of 4 to 8 KiB between two ranks with a core each
//! is tried out in both of its ways (`detour/short.rs`).
//!
//! They are measured with `f32` sums. Reductions for which it matters that partial results are
//! passed on (by custom operators, and of floats of 16 and 8 bits, which are widened for it) are
//! done by `two_shot` where a table says an algorithm that does so: see
//! [`Algorithm`](crate::collective::Algorithm).
//!
//! # The same bits
//! Another algorithm may add floats in another order. With the built-in table results are the same
//! bits in every run; with one from a file, in all runs with that table in which ranks share cores
//! or do not alike. Who needs the same bits whatever is in a user's directory sets `SHMCCL_TUNING`
//! to nothing, or has the program choose: `Communicator::set_tuning`,
//! `Communicator::set_algorithm`.
//!
//! # All ranks have the same table
//! Ranks that chose differently would wait for each other in different algorithms. So the ranks of
//! a job compare checksums of their tables in front of the first collective operation, and derived
//! communicators inherit what was agreed upon.

pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod table;

#[cfg(test)]
mod tests;

pub use file::{VARIABLE, usual_file};
pub(crate) use table::CommTable;
pub use table::{BufferKind, Case, ONE_SHOT_LEN, Step, Table, TuningFault};

/// What the ranks of a job have agreed upon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuning {
    pub(crate) table: Table,
    /// Whether some rank shares its core.
    pub(crate) oversubscribed: bool,
}
