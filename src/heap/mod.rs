//! The symmetric heap and its kin: which bytes of a segment belong to whom, and how a rank names
//! them.
//!
//! | module | what |
//! |---|---|
//! | [`layout`] | where things are in a rank's segment |
//! | [`offset`] | heap offsets and regions: the same on every rank |
//! | [`allocator`] | deterministic first fit over numbers |
//! | [`symmetric`] | the heap of one rank: allocation in steps |
//! | [`arena`] | allocation by one rank alone, from the end of its heap |
//! | [`view`] | the way from an offset to memory on any rank, for devices and proxies |
//! | [`buffer`] | typed view of a region on its own rank |
//! | [`device`] | a flat device address range of its own |
//! | [`registered`] | memory ids and the table that a proxy looks them up in |
//! | [`windows`] | memory ids for heaps past 4 GiB, and how transfers are cut to fit a trigger |
//!
//! Nothing here waits or talks to a peer: that the ranks agree is brought about one layer up.
//!
//! Tried by its unit tests, `scenarios agreements:: arenas:: refused_triggers::` and `environments
//! memory::`.

pub mod allocator;
pub mod arena;
pub mod buffer;
pub mod device;
pub mod layout;
pub mod offset;
pub mod registered;
pub mod symmetric;
#[cfg(test)]
mod testing;
pub mod view;
pub mod windows;

pub use allocator::Allocator;
pub use arena::{Arena, ArenaBuffer};
pub use buffer::DeviceBuffer;
pub use device::{DeviceAddress, DeviceMemory, MIN_ADDRESS};
pub use layout::{FifoCells, HeapShape, SegmentCells};
pub use offset::{HeapOffset, Region};
pub use registered::{MemoryRegistrar, MemoryTable};
pub use symmetric::{HeapUsage, SymmetricHeap};
pub use view::HeapView;
pub use windows::{HeapPlace, HeapWindows, TransferPieces};
