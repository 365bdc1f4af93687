//! How it is decided how a call is done: by the caller, by a table, and by what was measured.

pub(crate) mod measured;
pub(crate) mod short;
pub(crate) mod trials;
pub mod tuning;
