//! The engine's one door to atomics: the processor's, or loom's when a protocol is being
//! model-checked.

#![allow(clippy::disallowed_types, reason = "this is the shim that the ban points to")]

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(not(loom))]
pub use core::{
    hint::spin_loop,
    sync::atomic::{Ordering, compiler_fence, fence},
};

/// A `u8` that several processes may access at once.
#[cfg(not(loom))]
pub type AtomicU8 = core::sync::atomic::AtomicU8;

/// A `u16` that several processes may access at once.
#[cfg(not(loom))]
pub type AtomicU16 = core::sync::atomic::AtomicU16;

/// A `u32` that several processes may access at once.
#[cfg(not(loom))]
pub type AtomicU32 = core::sync::atomic::AtomicU32;

/// A `u64` that several processes may access at once.
#[cfg(not(loom))]
pub type AtomicU64 = core::sync::atomic::AtomicU64;

/// Unused bytes of a shared layout. They are atomics, so that a stray write of another process, or
/// through a view of the same bytes, is wrong and not undefined. `N` counts words of 4 bytes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Reserved<const N: usize>(#[cfg(not(loom))] [AtomicU32; N]);

impl<const N: usize> Default for Reserved<N> {
    fn default() -> Self {
        Self(
            #[cfg(not(loom))]
            [const { AtomicU32::new(0) }; N],
        )
    }
}
