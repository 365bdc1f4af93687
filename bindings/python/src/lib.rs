//! The extension module `shmccl._core`: communicators, arrays, channels and streams for Python.
//!
//! | module | what |
//! |---|---|
//! | `comm`, `collectives` | the class `Communicator` |
//! | `call` | a call on bytes: at once, in a group, on a stream |
//! | `operand`, `dtype` | bytes of Python objects, and their types |
//! | `array`, `allocations`, `dlpack_export`, `heap_places` | arrays of the heap |
//! | `symmetric` | verbs by rank on arrays of the heap |
//! | `shared`, `turns`, `interrupt` | the engine without the interpreter's lock, until Ctrl-C |
//! | `group`, `work`, `stream`, `channel` | a class or two each |
//! | `messages` | messages of `shmccl.mpi`: matched by source and tag |
//! | `proxy`, `reduce_op`, `unique_id` | handlers of Python, operators, ids of meetings |
//! | `whole_number` | ranks, tags and counts |
//! | `plan`, `plan_check` | execution plans: built, read, checked |
//! | `table`, `table_call`, `table_comm`, `table_numbers` | functions of the C ABI, calls of them |
//! | `error`, `parent` | exceptions; the end of a launched rank |
//!
//! `unsafe` stands where bytes of Python objects become operands, in the two protocols that lend
//! them, and in calls of the C ABI.
//!
//! Tried by its unit tests and `.ci/run bindings_python`.

mod allocations;
mod array;
mod call;
mod channel;
mod collectives;
mod comm;
mod dlpack_export;
mod dlpack_layout;
mod dtype;
mod error;
mod gate;
mod group;
mod heap_places;
mod interrupt;
mod lock;
mod messages;
mod operand;
mod parent;
mod plan;
mod plan_check;
mod proxy;
mod reduce_op;
mod shared;
mod stream;
mod symmetric;
mod table;
mod table_call;
mod table_comm;
mod table_numbers;
mod turns;
mod unique_id;
mod whole_number;
mod work;

use pyo3::prelude::*;

/// The compiled part of the package `shmccl`.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("_MAX_RANKS", shmccl::rank::MAX_RANKS)?;
    module.add("_ERRORS", error::NAMES.to_vec())?;
    module.add_class::<array::Array>()?;
    module.add_class::<channel::PyChannel>()?;
    module.add_class::<comm::Communicator>()?;
    module.add_class::<group::PyGroup>()?;
    module.add_class::<operand::part::Part>()?;
    module.add_class::<plan_check::PyFinding>()?;
    module.add_class::<proxy::Trigger>()?;
    module.add_class::<reduce_op::PreMulSum>()?;
    module.add_class::<stream::Event>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<unique_id::UniqueId>()?;
    module.add_class::<work::Work>()?;
    gate::add_to(module)?;
    plan::add_to(module)?;
    symmetric::add_to(module)?;
    messages::add_to(module)?;
    module.add_function(wrap_pyfunction!(comm::group, module)?)?;
    module.add_function(wrap_pyfunction!(interrupt::raise_interrupt, module)?)?;
    module.add_function(wrap_pyfunction!(parent::end_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(plan_check::check_plan, module)?)?;
    module.add_function(wrap_pyfunction!(table::table, module)?)?;
    module.add_submodule(&table::module(module.py())?)?;
    module.add_function(wrap_pyfunction!(unique_id::_has_ended, module)?)?;
    module.add_function(wrap_pyfunction!(unique_id::_process_mark, module)?)?;
    module.add_function(wrap_pyfunction!(shared::leave_all, module)?)
}
