//! Which fifos a service has to look at: a count of the producers that have come and gone.
//!
//! A service may be responsible for many fifos of which few have producers. Looking at each of them in every turn would
//! cost those that are in use. So whoever takes a place in a fifo, or has given one back, adds one to a word that all
//! fifos of the service share; and only when a turn finds another number there, the service goes through the headers.
//!
//! | edge | release | acquire | carries |
//! |---|---|---|---|
//! | F6 come and go | `count_change`: count | `Service::attend` | the place that was taken, or given back, and `head` as it was then |
//!
//! Who takes a place tells it before its first push: who finds the trigger's doorbell rung finds the count changed. A
//! forged count makes the service go through the headers in vain.

use crate::atomic::{AtomicU64, Ordering};

/// How often producers have come to the fifos of one service, or gone.
///
/// | field | bytes | written by | read by |
/// |---|---|---|---|
/// | `changes` | 0..8 | whoever takes a place in one of the fifos or gives it back, afterwards | the service, every turn |
#[derive(Debug, Default)]
#[repr(C)]
pub struct Roster {
    changes: AtomicU64,
}

impl Roster {
    /// Tells the service that a producer was made, before its first push, or dropped.
    ///
    /// # Ordering
    /// Edge F6.
    pub fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Release); // F6 come and go
    }

    /// The count, which tells whether anything has changed since another look.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire) // F6 come and go
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Roster>() == 8);
