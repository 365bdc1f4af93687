//! Shared memory: mapping it, finding one's way in it, moving bytes through it. The only unsafe
//! code of the engine.
//!
//! # Trust model
//! Peers run this program and follow its protocols, but may die at any instruction. So the
//! following holds for everything in this directory:
//! - **Nothing read from shared memory is believed.** Whatever is used as an index, a length or an
//!   id is checked when it is used, in release builds too. A wrong value costs an error, never an
//!   access out of bounds.
//! - **Control words are atomics.** They are reached through [`CellRef`] and [`CellSlice`] and only
//!   for types that are [`SharedLayout`]: plain layout, valid when all zero, nothing but atomics
//!   inside.
//! - **Payload is bytes.** No reference into payload leaves through a safe function: [`Span`]
//!   copies in and out. Both ends are typed by `bytemuck::Pod`, so a payload that was overwritten
//!   while it was copied is wrong data, never an invalid value. Whether it can be overwritten is
//!   the business of the signals around it (`src/sync`). The copies themselves are single moves,
//!   machine code, or `memcpy`, on raw pointers that alias no Rust reference.
//! - **Memory stays where it was mapped.** A segment cannot be resized by anybody (sealed memfd); a
//!   mapping lives as long as the last cell or span that points into it. A *file-backed* or *named*
//!   segment cannot be sealed: a process that truncates the file under a running job (which takes
//!   the same user's rights) kills it by SIGBUS.
//! - **Committed before use.** A store to a page that the system cannot supply is a SIGBUS. Callers
//!   touch only what [`Segment::commit`] has returned `Ok` for; the header page is committed by
//!   `create`. Static objects of programs are the exception: see [`statics`].
//!
//! # Map
//! [`Segment`] (what there is: a descriptor with pages behind it) -> [`Mapping`] (where it is in
//! this process), alone or at its place in a [`Window`] -> [`CellRef`] (control words) and [`Span`]
//! (payload), which keep the mapping alive. `copy` holds the copy kernels and the rule that picks
//! one, `reduce` the kernels that combine elements, `packet` data that carry their own flag;
//! `janitor` removes names when nobody else can; `statics` shares what programs have in `.data`
//! and `.bss`. What the first bytes of a segment say about it is
//! `sync::header`, as it is handed over.
//!
//! Tried by its unit tests, `environments forks:: memory:: crashes::` and `scenarios large_copies::
//! packets::`.
#![allow(unsafe_code, reason = "this directory is where the engine's unsafe code is confined")]

pub mod cells;
pub mod copy;
pub mod forks;
mod janitor;
pub mod kernel;
pub mod life;
pub mod limits;
pub mod mapping;
mod named;
pub mod packet;
pub mod probe;
mod ranges;
pub mod reduce;
pub mod segment;
pub mod statics;
pub(crate) mod system;
pub mod ticks;
pub mod undivided;
pub(crate) mod unforked;
pub mod view;
pub mod window;

pub use self::{
    cells::{CellRef, CellSlice, SharedLayout},
    copy::{CacheHint, CopyKernel},
    kernel::HostKernel,
    life::{LifeLock, LifeObserver},
    mapping::Mapping,
    segment::{Backing, Segment},
    view::Span,
    window::Window,
};
pub use crate::sync::header::{Expected, Identity, SegmentHeader};
pub(crate) use cells::prefetch_for_write;
#[cfg(feature = "coordinator")]
pub(crate) use janitor::socket::{SocketFileId, SocketJanitor};
pub(crate) use janitor::{Janitor, Sweep};
pub(crate) use named::check_name;
pub(crate) use system::state_of_process;
pub(crate) use view::{GivenBytes, TakenBytes};

/// Returns whether `len` units at `offset` lie within `limit`; no sum can overflow on the way.
///
/// The one bounds check of this directory. A length of zero is in bounds anywhere in `0..=limit`.
#[inline]
#[must_use]
const fn in_bounds(offset: u64, len: u64, limit: u64) -> bool {
    len <= limit && offset <= limit - len
}

/// Lengths of segments, and offsets within a window, are multiples of this many bytes.
pub const PAGE: u64 = 4096;

/// Narrows a number that was checked against a length in `usize` before.
#[inline]
fn to_usize(value: u64) -> usize {
    const { assert!(size_of::<usize>() == 8, "shmccl needs a 64-bit machine") };
    #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, asserted above")]
    {
        value as usize
    }
}

#[cfg(test)]
mod tests {
    use super::in_bounds;

    #[test]
    fn bounds_hold_at_both_ends_and_at_the_end_of_the_integers() {
        assert!(in_bounds(0, 0, 0));
        assert!(in_bounds(10, 0, 10));
        assert!(!in_bounds(11, 0, 10));
        assert!(in_bounds(9, 1, 10));
        assert!(!in_bounds(10, 1, 10));
        assert!(in_bounds(0, 10, 10));
        assert!(!in_bounds(1, 10, 10));
        assert!(!in_bounds(u64::MAX, 1, 10));
        assert!(!in_bounds(1, u64::MAX, 10));
        assert!(!in_bounds(u64::MAX, u64::MAX, 10));
        assert!(in_bounds(0, u64::MAX, u64::MAX));
        assert!(!in_bounds(1, u64::MAX, u64::MAX));
    }
}
