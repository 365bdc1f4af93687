//! A communicator of the function table, for the backend of torch that is written in Python.

use std::ffi::{c_char, c_int};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmccl_c::{shmcclComm_t, shmcclConfig_t, shmcclProcess_t, shmcclResult_t, shmcclUniqueId};

use crate::gate::{detached, remember_environment};

/// `shmcclComm_t` as a number. Who makes one destroys it: a child of a fork must not.
#[pyclass(name = "Comm", module = "shmccl._core._table", frozen)]
pub struct TableComm {
    #[pyo3(get)]
    number: usize,
}

#[pymethods]
impl TableComm {
    /// Meets the other ranks under `id`. Returns the code of `shmcclCommInitRankConfig`, and the
    /// communicator.
    #[staticmethod]
    fn meet(
        py: Python<'_>,
        id: &str,
        rank: c_int,
        timeout_ms: u64,
        processes: Vec<String>,
    ) -> PyResult<(c_int, Option<Self>)> {
        let size =
            c_int::try_from(processes.len()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let id = shmcclUniqueId { internal: text(id) };
        let processes: Vec<_> =
            processes.iter().map(|process| shmcclProcess_t { internal: text(process) }).collect();
        remember_environment();
        Ok(detached(py, || {
            let config = shmcclConfig_t {
                size: size_of::<shmcclConfig_t>(),
                heapBytes: 0,
                timeoutMs: timeout_ms,
                processes: processes.as_ptr(),
            };
            let mut comm = null_mut();
            // SAFETY: there is room for the handle while it runs, as nobody groups calls here, and
            // there are `size` processes.
            let code =
                unsafe { shmccl_c::shmcclCommInitRankConfig(&raw mut comm, size, id, rank, Some(&config)) };
            Self::made(code, comm)
        }))
    }

    /// Makes another one of the same ranks. Returns the code of `shmcclCommDuplicate`, and it.
    fn duplicate(&self, py: Python<'_>) -> (c_int, Option<Self>) {
        detached(py, || {
            let mut comm = null_mut();
            let code = shmccl_c::shmcclCommDuplicate(self.handle(), Some(&mut comm));
            Self::made(code, comm)
        })
    }

    fn destroy(&self, py: Python<'_>) {
        detached(py, || shmccl_c::shmcclCommDestroy(self.handle()));
    }

    fn revoke(&self, py: Python<'_>) {
        detached(py, || shmccl_c::shmcclCommRevoke(self.handle()));
    }

    /// Ends every operation on all ranks, which are told that `rank` was awaited, or none with -1.
    fn revoke_awaiting(&self, py: Python<'_>, rank: c_int) {
        detached(py, || shmccl_c::shmcclCommRevokeAwaiting(self.handle(), rank));
    }

    fn set_timeout(&self, py: Python<'_>, timeout_ms: u64) {
        detached(py, || shmccl_c::shmcclCommSetTimeout(self.handle(), timeout_ms));
    }

    /// Returns the ranks that hold the others up.
    fn stragglers(&self, py: Python<'_>) -> Vec<c_int> {
        detached(py, || {
            let (mut size, mut count) = (0, 0);
            shmccl_c::shmcclCommCount(self.handle(), Some(&mut size));
            let mut ranks = vec![0; usize::try_from(size).unwrap_or(0)];
            // SAFETY: there is room for all ranks.
            unsafe { shmccl_c::shmcclCommGetStragglers(self.handle(), ranks.as_mut_ptr(), Some(&mut count)) };
            ranks.truncate(usize::try_from(count).unwrap_or(0));
            ranks
        })
    }

    /// Returns the address of so many bytes in this rank's heap, where that has room. Who gets them
    /// frees them with `free`.
    fn allocate(&self, py: Python<'_>, bytes: usize) -> Option<usize> {
        detached(py, || {
            let mut memory = null_mut();
            let code = shmccl_c::shmcclMemAlloc(self.handle(), Some(&mut memory), bytes);
            (code == shmcclResult_t::shmcclSuccess).then(|| memory.expose_provenance())
        })
    }

    /// Returns the rank in whose heap so many bytes at `address` lie, or -1.
    fn owner(&self, py: Python<'_>, address: usize, bytes: usize) -> c_int {
        detached(py, || {
            let (mut rank, mut offset) = (-1, 0);
            let start = with_exposed_provenance(address);
            shmccl_c::shmcclMemLocate(self.handle(), start, bytes, Some(&mut rank), Some(&mut offset));
            rank
        })
    }
}

impl TableComm {
    fn handle(&self) -> shmcclComm_t {
        with_exposed_provenance_mut(self.number)
    }

    fn made(code: shmcclResult_t, comm: shmcclComm_t) -> (c_int, Option<Self>) {
        let is_made = code == shmcclResult_t::shmcclSuccess;
        (code as c_int, is_made.then(|| Self { number: comm.expose_provenance() }))
    }
}

/// Frees memory that `Comm.allocate` has given.
#[pyfunction]
pub fn free(py: Python<'_>, address: usize) {
    detached(py, || shmccl_c::shmcclMemFree(with_exposed_provenance_mut(address)));
}

/// Returns a text as the table has it: its bytes, then zeros, of which one at least.
fn text<const LEN: usize>(text: &str) -> [c_char; LEN] {
    let mut bytes = [0; LEN];
    for (target, byte) in bytes[..LEN - 1].iter_mut().zip(text.bytes()) {
        *target = byte.cast_signed();
    }
    bytes
}
