//! The gRPC front of a pool: `gpu_sim.GPUCoordinator` and `gpu_sim.GPUDevice` for clients of the
//! course, `shmccl.v1.Pool` for everybody else.
//!
//! ```text
//! client --gRPC--> front --Request--> coordinator
//!                    \----- bytes ----> device
//! ```
//!
//! A front keeps nothing that matters: when it is killed, the next one serves the same
//! communicators. Payload of operations never passes through it, and copies pass by the
//! coordinator.
//!
//! - `listen` and `peer`: where it listens, and whose connections it takes; `serve`: HTTP/2,
//!   limits, deadlines, of bodies that are `arriving` and `leaving`.
//! - `coordinator`, `device` and `typed`: the three services; `dialect`: what a listener speaks.
//! - `connections`: the way to the coordinator; `groups`, `removal`, `copies`, `streams`: what
//!   takes more than one request of it; `memcpy`: copies in one message; `comms`: what is kept of
//!   communicators.
//! - `refusal`: codes and sentences. `page`: the pool in a browser.
//!
//! Tried by its unit tests and `.ci/run bindings_grpc`.

mod arriving;
mod comms;
mod connections;
mod coordinator;
mod copies;
mod device;
pub mod dialect;
mod front;
mod groups;
mod leaving;
pub mod listen;
mod memcpy;
mod page;
mod peer;
mod refusal;
mod removal;
mod serve;
pub mod start;
mod streams;
mod typed;
pub mod wire;
