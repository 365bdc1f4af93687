//! Who is in what call: how members announce what they are about to do, compare it and wait for
//! each other.
//!
//! Tried by its unit tests and `scenarios mismatches:: abandoned_calls:: rank_sets::`.

pub(crate) mod any_member;
pub(crate) mod at_barrier;
pub(crate) mod board;
pub(crate) mod buffers;
pub(crate) mod deadlock;
pub(crate) mod members;
pub(crate) mod mismatch;
pub(crate) mod mismatch_report;
pub(crate) mod post;
pub(crate) mod progress;
pub(crate) mod waiting;
