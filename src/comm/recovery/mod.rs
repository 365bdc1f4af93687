//! How a job goes on in a new epoch: without its lost ranks, with restarted ones, or with more.
//!
//! Survivors agree in [rounds](survivor) on who they are. Then they [shrink], or [recover] and
//! [tell](exchange) restarted ranks how far they have come. Members of an epoch that has not ended
//! [grow]. [`failure`] is the account of it for programs.
//!
//! Tried by its unit tests and `scenarios survivors:: growth:: kill::`.

pub(super) mod exchange;
pub mod failure;
pub(super) mod grow;
pub(super) mod recover;
pub(super) mod shrink;
pub(super) mod survivor;
