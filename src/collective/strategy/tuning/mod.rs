//! Which algorithm does a collective operation when the caller has not chosen one.
//!
//! | module | holds |
//! |---|---|
//! | `table` | the table as plain data, what is built in, and a quick form for one communicator |
//! | `file` | where a table is looked for |
//! | `format` | the table as TOML |
//!
//! A table has a *case* for each operation, number of ranks, kind of buffers, and oversubscribed or
//! not: sizes and algorithms. `shmccl tune` measures one and writes it. As a program starts, it
//! reads the table from the file that `SHMCCL_TUNING` names, or else from
//! `$XDG_CONFIG_HOME/shmccl/tuning.toml` or `~/.config/shmccl/tuning.toml`. The file is a regular
//! one of at most 1 MiB. Where `SHMCCL_TUNING` is empty, and where the file at the usual place
//! cannot be used, the built-in table is taken. The logs, `shmccl run` and `shmccl doctor` tell why
//! ([`Table::passed_over`]). A table serves direct channels. Over proxied ones, operation and size
//! decide.
//!
//! The built-in table has `one_shot` up to 8 KiB and `two_shot` above. An all-reduce among 8 ranks
//! and more with a core each leaves `one_shot` at 1 KiB.
//!
//! Tables are measured out of place, in buffers of up to 8 MiB and with `f32` sums, and serve in
//! place and above as well.
//!
//! For some reductions it matters that partial results are passed on: by custom operators, and of
//! floats of 16 and 8 bits, which would be widened. `two_shot` does these where a table names an
//! algorithm that passes partial results on: see [`Algorithm`](crate::collective::Algorithm).
//!
//! # Execution plans
//! `plan:NAME` has the registered plan of that name do the calls that it fits. Others, and all
//! where no such plan is registered, are done by [`built_in`]. Where a case of an operation names a
//! plan that is registered, plans do that operation as the table says and not otherwise.
//!
//! # The same bits
//! Another algorithm may add floats in another order. With the built-in table results are the same
//! bits in every run; with one from a file, in all runs with that table in which ranks share cores
//! or do not alike. To get the same bits whatever is in a user's directory, set `SHMCCL_TUNING` to
//! nothing, or have the program choose: `Communicator::set_tuning`, `Communicator::set_algorithm`.
//!
//! # All ranks have the same table
//! Ranks that chose differently would wait for each other in different algorithms. So the ranks of
//! a job compare checksums of their tables before the first collective operation. Derived
//! communicators inherit the agreed table.
//!
//! Tried by its unit tests, `scenarios tuning::`, `command tune:: run::tables::` and `plan_runs
//! tuned::`.

pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod table;

#[cfg(test)]
mod tests;

pub use file::{VARIABLE, usual_file};
pub(crate) use table::CommTable;
pub use table::{BufferKind, Case, ONE_SHOT_LEN, Step, Table, TuningFault, built_in};

/// What the ranks of a job have agreed upon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuning {
    pub(crate) table: Table,
    /// Whether some rank shares its core.
    pub(crate) oversubscribed: bool,
}
