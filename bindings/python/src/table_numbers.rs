//! The numbers of the header: results, operations, operators and types of the function table.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use shmccl_c::shmcclRedOp_t::*;
use shmccl_c::shmcclResult_t::*;
use shmccl_c::{OPERATIONS, SHMCCL_ANY_SOURCE, shmcclDataType_t};

use crate::dtype;

/// Pairs names of the header with their numbers.
macro_rules! numbers {
    ($($name:ident)*) => {
        [$((stringify!($name), $name as u32)),*]
    };
}

/// Adds the numbers to `module`, and `TYPES`, the numbers of all types by their names in torch.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let results = numbers![
        shmcclSuccess shmcclInternalError shmcclInvalidArgument shmcclInProgress shmcclTimeout
        shmcclInterrupted
    ];
    let operations = OPERATIONS.iter().map(|(name, code, _)| (*name, *code as u32));
    let operators = numbers![
        shmcclSum shmcclProd shmcclMin shmcclMax shmcclAvg shmcclBitAnd shmcclBitOr shmcclBitXor
    ];
    for (name, number) in results.into_iter().chain(operations).chain(operators) {
        module.add(name.trim_start_matches("shmccl"), number)?;
    }
    module.add("Uint8", shmcclDataType_t::shmcclUint8 as u32)?;
    module.add("ANY_SOURCE", SHMCCL_ANY_SOURCE)?;
    let types = PyDict::new(module.py());
    for dtype in &dtype::ALL {
        types.set_item(dtype.name, dtype.data_type().code())?;
    }
    module.add("TYPES", types)
}
