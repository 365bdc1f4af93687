//! Collective operations: what all ranks of a communicator do together.
//!
//! A `Call` says what one rank has been called to do and where its data are. The `Engine` of a communicator picks the way it
//! is done: as the caller has said, or as a table says ([`tuning`]), by what is the same everywhere:
//!
//! | way | for | hand-overs |
//! |---|---|---|
//! | `small` | `one_shot` of up to 8 KiB | one: data travel with the post |
//! | `direct` | `two_shot` in the symmetric heap | two: where the buffers are, and that they were used |
//! | `pipeline` | ordinary memory, through each member's scratch; an all-reduce out of place where that is quicker (`detour`) | the post, with the first pieces as a rule; then one per piece |
//! | `algorithms` | all others, and everything over proxied channels | depends |
//! | `staged` | the same on ordinary memory, of scaled sums, and as `f32`, through the heap | as many as the algorithm, per piece |
//!
//! What is in `algorithms` is written once, over *pipes* of either kind of channel (`pipe`, `pipework`). The first three ways are for
//! direct channels only: there, `one_shot` and `two_shot` are not the loops that a proxy's triggers do.
//!
//! What goes from one rank to one other are *parcels* (`parcel`, `delivery`), which use the same pipes. Calls that were put
//! together in a group are run by `group`; small ones among them are done as one (`fused`).
//!
//! Ranks meet on the board, where each posts what it is about to do; those that disagree find out there.
//!
//! # Order of reduction
//! The result is the same bit for bit on every rank, whatever comes first. Unless the caller, or a tuning table from a file, asks for an
//! algorithm, elements are combined in the order of the ranks, ((r0 op r1) op r2) and so on, by one rank for all or by all alike, and so
//! the bits are the same in every run. [`Algorithm`] says in which order each of them does it, what that depends on, and what no
//! tuning table does otherwise.

mod again;
mod algorithm;
mod algorithms;
mod awaits;
mod blocks;
mod board;
mod call;
mod checks;
mod complaint;
mod custom;
mod delivery;
mod detour;
mod direct;
mod elsewhere;
mod engine;
mod fused;
pub(crate) mod group;
mod lease;
mod noting;
mod operation;
mod parcel;
mod per_member;
mod pipe;
mod pipeline;
mod pipework;
mod region;
mod scalars;
mod seating;
pub mod semantics;
mod small;
mod staged;
mod standoff;
mod team;
pub mod tuning;
mod widened;

pub use again::{Arguments, Repeat};
pub(crate) use algorithm::Manner;
pub use algorithm::{Algorithm, ChannelKind, UnknownAlgorithm, UnknownChannelKind};
pub(crate) use board::post_summary;
pub use call::Call;
pub(crate) use call::{Block, Input, Layout, Output};
pub use custom::{CustomAlgorithm, Place, Registration, Steps};
pub(crate) use direct::share as share_of;
pub(crate) use elsewhere::{call_met, call_proposed, can_agree, proposed};
pub(crate) use engine::Engine;
pub(crate) use lease::{GONE, LEFT, Landlord};
pub use operation::{Operation, Summary};
pub(crate) use per_member::{PerMember, fill};
pub(crate) use pipework::OpenPorts;
pub(crate) use region::{LAP, RegionLayout, TURNS};
