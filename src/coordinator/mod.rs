//! The coordinator: which devices there are, which communicator each belongs to, and what happens
//! when one dies.
//!
//! It owns the lifecycle of communicators and their membership, and nothing else. Data move between
//! devices, and between a device and a client, without it. What runs goes on when the coordinator
//! dies, and the next coordinator takes over from what the devices report.
//!
//! ```text
//! client --Request--> coordinator --DeviceOrder---> device
//!        <--Reply----             <--DeviceReport--
//!        <----------- bytes of the memory -------->
//! ```
//!
//! Where to read what:
//!
//! - `machine/` decides for the coordinator (`CoordinatorMachine`), and `agent.rs` for a device
//!   (`Agent`). Neither has a clock, a thread or a socket; both are tried in simulated histories.
//!   A client may ask for a group that is executed again after a loss (`machine/repeat.rs`).
//! - `request.rs`, `order.rs` and `call.rs` have the messages: `ClientRequest` and `Reply` for
//!   clients, `DeviceOrder` and `DeviceReport` for devices, and [`DeviceCall`], a collective
//!   operation.
//! - `handshake.rs`, `wire.rs` and `deadline_stream.rs` are the connections, from the greeting down
//!   to bytes.
//! - `service.rs`, `device.rs` and `client.rs` are the three processes: [`Coordinator`], [`Device`]
//!   and [`Client`]. They find each other in a private [`RuntimeDirectory`] (`directory.rs`).
//! - `fleet.rs` and `assignment.rs` start devices: a [`Fleet`], and what each device is told.
//!   `embedded.rs` is a coordinator with devices within a program: a [`Pool`].
//! - `adoption/` is about devices that outlive a killed coordinator. The rest is read without it.
//!
//! Functions fail with a [`CoordinatorError`], which has the error of the engine as a variant.
//!
//! Tried by its unit tests, simulated histories among them, `command coordinator::` and
//! `whole_group`.

mod adoption;
mod agent;
mod assignment;
mod call;
mod client;
mod deadline_stream;
mod device;
mod directory;
mod embedded;
mod error;
mod fleet;
mod handshake;
mod id;
mod machine;
mod metrics;
mod order;
mod request;
mod service;
mod wire;

pub use adoption::directory::Swept;
pub use adoption::fleet::MissingDevices;
pub use call::{AddressRange, Bytes, DeviceCall, MAX_CALLS};
pub use client::{Client, Sent};
pub use device::{Device, DeviceOptions};
pub use directory::RuntimeDirectory;
pub use embedded::{Pool, PoolOptions};
pub use error::{CoordinatorError, RequestError, Result};
pub use fleet::{DeviceEnd, DeviceKind, Fleet, FleetOptions};
pub use handshake::VERSION;
pub use id::{CommId, DeviceId, GroupId, InvalidGroupId};
pub use machine::{CoordinatorSettings, MAX_DEVICES};
pub use metrics::{CommMetrics, CoordinatorCounters, Metrics};
pub use request::{CallProgress, Changes, CommState, CommStatus, DeviceStatus, GroupOutcome, StartedGroup};
pub use service::{Coordinator, HungDevice, RestartTally};
