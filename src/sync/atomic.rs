//! The atomics of this crate: the processor's, or loom's while a model runs.

#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "this is the shim")]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
