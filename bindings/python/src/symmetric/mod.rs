//! Verbs by rank on arrays of the heap: `heap.at(rank)[...]`, waits for words, locks.
//!
//! | file | what |
//! |---|---|
//! | `layout.rs` | which bytes of a heap a view has: indices, blocks, elements |
//! | `number.rs` | numbers that atomics and waits take |
//! | `remote_view.rs` | the class `RemoteView`, made by `Array.at` |
//! | `range.rs` | its puts, gets and signals |
//! | `atomics.rs` | its atomics |
//! | `waits.rs` | waits and tests of `Communicator`, `fence` and `quiet` |
//! | `heap_lock.rs` | the class `Lock` |
//!
//! No verb takes the turn of the communicator, and only waits look at signals. Views are never
//! past what is allocated: they are parts of arrays, which they keep.
//!
//! Tried by `test_symmetric.py`.

mod atomics;
mod heap_lock;
mod layout;
mod number;
mod range;
mod remote_view;
mod waits;

use pyo3::prelude::*;

/// Adds the classes of this module.
///
/// # Errors
/// `MemoryError`.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<heap_lock::PyLock>()?;
    module.add_class::<remote_view::RemoteView>()
}
