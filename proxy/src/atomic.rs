//! The atomics of this crate: the real ones, or loom's under `--cfg loom`.
//!
//! The only file that names a raw atomic type. Everything else imports from here, so that every
//! step of a protocol is visible to the model checker. The real one is wrapped, because a re-export
//! would not hide its name from the lint that bans it; it offers what the protocols use and no
//! more.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use real::{AtomicU64, Ordering};

#[cfg(not(loom))]
#[allow(clippy::disallowed_types, reason = "this is the shim")]
mod real {
    use core::sync::atomic;
    pub(crate) use core::sync::atomic::Ordering;

    /// [`core::sync::atomic::AtomicU64`], same size, same rules.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub(crate) struct AtomicU64(atomic::AtomicU64);

    impl AtomicU64 {
        #[inline]
        pub(crate) fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        #[inline]
        pub(crate) fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }

        #[inline]
        pub(crate) fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange(current, new, success, failure)
        }

        #[inline]
        pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_add(value, order)
        }

        #[inline]
        pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_and(value, order)
        }
    }
}
