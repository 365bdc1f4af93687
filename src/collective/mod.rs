//! Collective operations: what all ranks of a communicator do together.
//!
//! The folders stand in the order of a call's journey:
//!
//! | folder | holds |
//! |---|---|
//! | `call` | what is asked: [`Call`], [`Operation`], [`CallSignature`], [`Algorithm`], buffers |
//! | `engine` | one call after the other: propose, announce, execute, or end the epoch |
//! | `strategy` | how a call is done: decided here alone, by [tables](tuning) and measurement |
//! | `rendezvous` | who is in what call: posts, waits, and what members disagree on |
//! | `execute` | doing it: each of the ways below |
//! | `transport` | bytes from one member to another: pipes over either kind of channel |
//! | `message` | sends, receives and `all_to_all_v`, over the same pipes |
//! | `region` | where members keep all that, in the symmetric heap |
//!
//! A call is done in one of these ways:
//!
//! | way | for | hand-overs |
//! |---|---|---|
//! | `eager`, `fused` | `one_shot` of up to 8 KiB | one: data travel with the post |
//! | `zero_copy` | `two_shot` in the heap | two: where buffers lie, and that they were used |
//! | `staged` | `two_shot` of ordinary memory, or where that is quicker | the post, one a piece |
//! | `algorithms`, `custom` | all others, and all over proxied channels | depends |
//! | `planned` | what an execution plan fits that was registered | the post, and the plan's own |
//! | `chunked` | algorithms on ordinary memory, scaled, or as `f32` | as many, for each chunk |
//!
//! The first three are for direct channels only. There, `one_shot` and `two_shot` are not the loops
//! that a proxy's triggers do.
//!
//! # Order of reduction
//! A result is the same bit for bit on every rank, whatever comes first. Elements are combined in
//! the order of the ranks, ((r0 op r1) op r2) and so on, by one rank for all or by all alike. So
//! the bits are the same in every run, unless the caller, or a tuning table from a file, asks for
//! an algorithm. [`Algorithm`] says in which order each of them combines.
//!
//! Tried by its unit tests and `scenarios oracle:: collectives:: algorithms:: groups::`.

mod call;
mod engine;
mod execute;
mod message;
mod region;
mod rendezvous;
pub mod semantics;
mod strategy;
mod transport;

pub(crate) use call::footprint::MemberMemory;
pub use call::{
    Algorithm, AlgorithmName, Call, CallMismatch, CallSignature, ChannelKind, MessageSelector, MessageStatus,
    Operation, Request, StatusHandle, UnknownAlgorithm, UnknownOperation,
};
pub(crate) use call::{BlockLayout, CallBlock, Choice, Input, Output, Receipt, Side};
pub(crate) use engine::{CALL_NAMES, Engine, group, open::OpenMessages};
pub use execute::custom::{AlgorithmMismatch, CustomAlgorithm, Place, Registration, Steps};
pub(crate) use execute::zero_copy::share as share_of;
pub(crate) use region::lease::{GONE, LEFT, RegionOwner};
pub(crate) use region::{CommLayout, LAP, TURNS};
pub(crate) use rendezvous::at_barrier::{call_met, call_proposed, can_agree, proposed};
pub(crate) use rendezvous::board::posted_signature;
pub(crate) use rendezvous::members::{PerMember, fill};
pub(crate) use strategy::Selector;
pub use strategy::library::PLANS_VARIABLE;
pub(crate) use strategy::library::from_environment as plans_from_environment;
pub use strategy::tuning;
pub(crate) use transport::OpenPorts;
