//! Reports of what the ranks of a job are doing, from inside or from outside of it.
//!
//! Whoever looks reads what lies in the shared segments anyway: what ranks tell of themselves
//! ([`activity`](crate::sync::activity)), the posts of their communicators, the counters of their
//! fifos. So nothing is registered anywhere, nothing is left behind, and whoever is looked at
//! neither waits nor answers. From outside, [`Job`] finds the segments.
//!
//! Everything is read through a descriptor into memory of the observer's own, and looked at there:
//! it cannot change what it looks at, takes no memory for pages that nobody has touched, and is not
//! killed where a file is truncated. Each part is read at another moment, so a picture has a little
//! motion blur. **Nothing that was read is believed**: numbers that make no sense are shown as
//! such.
//!
//! Tried by its unit tests, `scenarios reports::` and `command seeing::`.

mod copy;
mod jobs;
mod rank;
mod report;
mod straggler;
mod text;

pub use jobs::Job;
pub use rank::{FifoView, ObservedCall, RankReport, RankWork};
pub use report::Report;
pub(crate) use report::report_of;

#[cfg(test)]
mod tests;
