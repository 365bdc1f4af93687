//! The tuning table that the processes of a command find.

use anyhow::Result;
use shmccl::collective::tuning::Table;

use crate::output;

/// Refuses a table that was named and that programs would refuse, before any process starts.
///
/// # Errors
/// [`shmccl::Error::Tuning`].
pub(crate) fn check() -> Result<()> {
    Table::load()?;
    Ok(())
}

/// Does as [`check`], and notes why a table that nobody has named is passed over.
///
/// # Errors
/// Fails as [`check`] does.
pub(crate) fn check_and_note() -> Result<()> {
    check()?;
    let why = Table::passed_over();
    why.iter().for_each(|why| output::note(&format!("warning: the built-in tuning table is taken: {why}")));
    Ok(())
}
