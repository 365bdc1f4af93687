//! Placeholder of the synchronisation layer: only the atomic shim.

pub mod atomic;
