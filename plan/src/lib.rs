//! MSCCL++ execution plans without an engine: what a plan says, and what its bytes come out as.
//!
//! An *execution plan* is a JSON file that says, for each rank and each of its thread blocks, which
//! operations make up a collective. MSCCL++'s DSL writes such files (this crate follows commit
//! `1f5f065d`). The steps:
//!
//! | step | from, to | place |
//! |---|---|---|
//! | read | JSON to a [`Plan`] that keeps every rule of the format | [`read`] |
//! | lower | a plan and a message size to [`Lowered`] records | [`mod@lower`] |
//! | interpret | records to bytes, slowly, in a drawn order | [`interpret`] |
//!
//! The interpreter is slow and simple: the oracle for whatever steps through the same records.
#![forbid(unsafe_code)]

pub mod collective;
pub mod interpret;
pub mod lower;
pub mod plan;
mod problem;
pub mod read;
mod rules;

pub use lower::{Lowered, lower};
pub use plan::Plan;
pub use problem::{Place, Problem, Refusal};
