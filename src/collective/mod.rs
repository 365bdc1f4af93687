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
//! What goes from one rank to one other are *messages* (`message`, `delivery`), which use the same pipes. Calls that were put
//! together in a group are run by `group`; small ones among them are done as one (`fused`).
//!
//! Ranks meet on the board, where each posts what it is about to do; those that disagree find out there.
//!
//! # Order of reduction
//! The result is the same bit for bit on every rank, whatever comes first. Unless the caller, or a tuning table from a file, asks for an
//! algorithm, elements are combined in the order of the ranks, ((r0 op r1) op r2) and so on, by one rank for all or by all alike, and so
//! the bits are the same in every run. [`Algorithm`] says in which order each of them does it, what that depends on, and what no
//! tuning table does otherwise.

mod call;
mod engine;
mod execute;
mod message;
mod plan;
mod region;
mod rendezvous;
pub mod semantics;
mod transport;

pub use call::{
    Algorithm, Call, CallMismatch, CallSignature, ChannelKind, Operation, Request, UnknownAlgorithm,
    UnknownChannelKind,
};
pub(crate) use call::{BlockLayout, CallBlock, Choice, Input, Output};
pub(crate) use engine::{CALL_NAMES, Engine, group};
pub use execute::custom::{AlgorithmMismatch, CustomAlgorithm, Place, Registration, Steps};
pub(crate) use execute::zero_copy::share as share_of;
pub use plan::tuning;
pub(crate) use region::lease::{GONE, LEFT, RegionOwner};
pub(crate) use region::{CommLayout, LAP, TURNS};
pub(crate) use rendezvous::at_barrier::{call_met, call_proposed, can_agree, proposed};
pub(crate) use rendezvous::board::posted_signature;
pub(crate) use rendezvous::members::{PerMember, fill};
pub(crate) use transport::OpenPorts;
