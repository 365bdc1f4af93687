//! Collective operations: what all ranks of a communicator do together.
//!
//! A [`Call`] says what one rank has been called to do and where its data are. The [`Engine`] of a communicator picks the way it
//! is done, by operation, length and number of ranks, which are the same everywhere:
//!
//! | way | for | hand-overs |
//! |---|---|---|
//! | `small` | inputs of up to 8 KiB | one: data travel with the post |
//! | `direct` | buffers in the symmetric heap | two: where the buffers are, and that they were used |
//! | `staged` | ordinary memory | two per piece |
//!
//! Ranks meet on the [`board`](Board), where each posts what it is about to do; those that disagree find out there.
//!
//! # Order of reduction
//! The result is the same bit for bit on every rank and in every run: elements are combined in the order of the
//! ranks, ((r0 op r1) op r2) and so on, by one rank for all or by all alike, whatever comes first.

mod board;
mod call;
mod direct;
mod engine;
mod operation;
mod region;
mod small;
mod staged;
mod team;

pub(crate) use call::{Call, Input, Output};
pub(crate) use engine::Engine;
pub use operation::{Operation, Summary};
pub(crate) use region::RegionLayout;
