//! The coordinator: which devices there are, which communicator each belongs to, and what becomes of it when one dies.
//!
//! It owns lifecycle and membership and nothing else. Data move between devices, and between a device and a client; what runs
//! is not disturbed when the coordinator dies, and the next one takes over from what the devices report.
//!
//! - [`CoordinatorMachine`] decides for the coordinator, [`Agent`] for a device. Both are pure: they are tested together, in simulated
//!   histories, against a model of what goes on between devices.
//! - [`DeviceOrder`] and [`DeviceReport`] go between the two, [`Request`] and [`Reply`] between a client and the coordinator.
//!   [`DeviceCall`] is a collective operation by device addresses.
//! - [`Coordinator`], [`Device`] and [`Client`] are the three as processes, which find each other in a private
//!   [`RuntimeDirectory`]. Payload goes between a client and a device directly.
//! - A [`Pool`] is a coordinator within a program, with devices of its own; `shmccl coordinator -n N` is one by itself. A [`Fleet`] is
//!   the devices of either.

mod agent;
mod call;
mod client;
mod device;
mod dial;
mod directory;
mod embedded;
mod fault;
mod fleet;
mod frame;
mod greeting;
mod hurried;
mod id;
mod link;
mod machine;
mod metrics;
mod order;
mod orphans;
mod refusal;
mod request;
mod sendoff;
mod service;
mod work;

pub use agent::{Agent, AgentStep, DeviceTask, GroupFailure, TaskOutcome};
pub use call::{AddressRange, Bytes, Collective, DeviceCall, DeviceReduceOp, MAX_CALLS, UnknownName};
pub use client::{CallProgress, Client};
pub use device::{Device, DeviceOptions};
pub use directory::{RuntimeDirectory, Swept};
pub use embedded::{Pool, PoolOptions};
pub use fault::CoordinatorError;
pub use fleet::{DeviceEnd, DeviceKind, Fleet, FleetOptions, MissingDevices};
pub use greeting::VERSION;
pub use id::{ClientId, CommId, DeviceId, GroupId, InvalidGroupId};
pub use machine::{
    CoordinatorAction, CoordinatorEvent, CoordinatorMachine, CoordinatorSettings, LogEntry, MAX_DEVICES,
};
pub use metrics::{CommMetrics, CoordinatorCounters, Metrics};
pub use order::{
    CommFormation, DeviceMembership, DeviceOrder, DevicePhase, DeviceReport, FailedGrowth, FailureKind,
};
pub use refusal::RequestError;
pub use request::{CommState, CommStatus, DeviceStatus, GroupOutcome, Location, Reply, Request};
pub use service::{Coordinator, HungDevice, RestartTally};
pub use work::GroupWork;
