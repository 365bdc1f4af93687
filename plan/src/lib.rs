//! MSCCL++ execution plans without an engine: what a plan says, and what its bytes come out as.
//!
//! An *execution plan* is a JSON file that says, for each rank and each of its thread blocks, which
//! operations make up a collective. MSCCL++'s DSL writes such files (this crate follows commit
//! `1f5f065d`). The steps:
//!
//! | step | from, to | place |
//! |---|---|---|
//! | read | JSON to an [`ExecutionPlan`] that keeps every rule of the format | [`read`] |
//! | lower | a plan and a message size to [`Lowered`] records | [`mod@lower`] |
//! | interpret | records to bytes, slowly, in a drawn order | [`interpret`] |
//! | check | records to a proof, or to what is wrong | [`mod@check`] |
//! | ask | a sendrecv whose input goes to whom | [`senders()`] |
//! | show, draw, compare | a plan to words or a picture | [`show`], [`draw`], [`mod@diff`] |
//! | import, build | MSCCL's XML, or a program, to a plan | [`import`], [`build`] |
//! | write | a plan to JSON | [`mod@write`] |
//!
//! The interpreter is slow and simple: the oracle for whatever steps through the same records.
//!
//! Tried by its unit tests, `plans` and `plan_runs`.
#![forbid(unsafe_code)]

pub mod build;
pub mod check;
pub mod collective;
pub mod diff;
pub mod draw;
mod escape;
pub mod import;
pub mod interpret;
pub mod lower;
pub mod plan;
mod problem;
pub mod read;
mod rules;
mod senders;
pub mod show;
mod trace;
pub mod write;

pub use check::check;
pub use escape::escaped;
pub use lower::{Lowered, lower};
pub use plan::ExecutionPlan;
pub use problem::{Place, Problem, RefusedPlan};
pub use senders::senders;
