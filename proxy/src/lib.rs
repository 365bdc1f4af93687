//! The trigger, the multi-producer fifo and the loop that serves it.
//!
//! A device describes a transfer in a 16-byte [`Trigger`] and pushes it into a [`Fifo`]; a proxy (a
//! thread of the same process, or a process of its own) pops it and hands it to a [`Handler`]. This
//! crate knows no memory, no rank and no channel: a trigger's ids are numbers, and what they mean
//! is the handler's business. It never waits either. Every operation returns at once, and the
//! caller's waiting loop polls it.
//!
//! The state of a fifo is a [`FifoHeader`] and a slice of [`Slot`]s: atomic integers only, valid
//! when all zero, laid out for sharing between processes. The protocol objects borrow them through
//! any handle that derefs to them. So production code, tests and loom models run the same lines
//! over a segment, a `Box` or an `Arc`.
//!
//! | module | what |
//! |---|---|
//! | [`trigger`] | the 128 bits of a trigger |
//! | [`header`] | what lies in shared memory, field by field |
//! | [`fifo`] | the protocol and its edges |
//! | [`producer`] | push: one exclusive producer, or several that share |
//! | [`consumer`] | peek, pop, complete, skip |
//! | [`service`] | the serving loop and its counters |
//! | [`snapshot`] | the counters as plain numbers |
//!
//! Tried by its unit tests and models and `scenarios fifos:: proxies::`.
#![forbid(unsafe_code)]

mod atomic;

pub mod consumer;
pub mod fifo;
pub mod header;
pub mod producer;
pub mod service;
pub mod snapshot;
pub mod trigger;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

pub use consumer::Consumer;
pub use fifo::{Fifo, FifoError, Full, Position};
pub use header::{FifoHeader, MAX_PRODUCERS, Roster, Slot};
pub use producer::{Producer, Push, Reservation, SharedProducer};
pub use service::{BATCH, DrainGoal, Handler, Service, TriggerRefusal};
pub use snapshot::{Histogram, RefusedTrigger, Snapshot};
pub use trigger::{
    MemoryId, SemaphoreId, Transfer, TransferLen, Trigger, TriggerError, TriggerKind, WordLen, WordOp,
    WordUpdate,
};
