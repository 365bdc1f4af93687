//! The messages and services on the wire, as the `.proto` files have them.

#![allow(
    missing_debug_implementations,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]

/// The course's messages and services.
pub mod gpu_sim {
    tonic::include_proto!("gpu_sim");
}

/// The pool's own.
pub mod pool {
    tonic::include_proto!("shmccl.v1");
}

/// The descriptors of both, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
