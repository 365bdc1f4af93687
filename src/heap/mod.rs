//! The symmetric heap and its kin: which bytes of a segment belong to whom, and how a rank names them.

pub mod allocator;
mod ledger;
pub mod offset;
pub mod windows;

pub use allocator::Allocator;
pub use offset::{HeapOffset, Region};
pub use windows::{HeapWindows, Pieces, Place};
