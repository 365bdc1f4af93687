//! A call of the function table and its request, for the backend of torch that is written in
//! Python: both are made and used in a fraction of the time that ctypes takes.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};

use pyo3::prelude::*;
use shmccl_c::{shmcclCall_t, shmcclDone_t, shmcclRequest_t, shmcclResult_t};

use crate::gate::{self, detached};

/// `shmcclCall_t` with addresses as numbers. Whoever makes one answers for its buffers, as for
/// those of `shmcclSubmit`.
#[pyclass(name = "Call", module = "shmccl._core._table", get_all, set_all)]
pub struct TableCall {
    operation: u32,
    datatype: u32,
    op: u32,
    peer: c_int,
    tag: c_int,
    sendbuff: usize,
    recvbuff: usize,
    count: usize,
    sendcounts: Vec<usize>,
    sdispls: Vec<usize>,
    recvcounts: Vec<usize>,
    rdispls: Vec<usize>,
    scalar: usize,
    /// Holds the tensor in which `scalar` lies.
    factor: Option<Py<PyAny>>,
}

#[pymethods]
impl TableCall {
    #[new]
    fn new(
        operation: u32,
        datatype: u32,
        op: u32,
        peer: c_int,
        sendbuff: usize,
        recvbuff: usize,
        count: usize,
    ) -> Self {
        Self {
            operation,
            datatype,
            op,
            peer,
            tag: 0,
            sendbuff,
            recvbuff,
            count,
            sendcounts: Vec::new(),
            sdispls: Vec::new(),
            recvcounts: Vec::new(),
            rdispls: Vec::new(),
            scalar: 0,
            factor: None,
        }
    }

    /// Executes it on `comm`, the number of a communicator. Returns the code of `shmcclSubmit`.
    fn execute(&self, py: Python<'_>, comm: usize) -> c_int {
        detached(py, || self.submit(comm, None, 0, None))
    }

    /// Starts it on `comm`. `done` is called with a code, a text and a rank when it has ended, by
    /// any thread, unless the interpreter has ended before. Returns the code of `shmcclSubmit`, and
    /// the request.
    fn start(&self, py: Python<'_>, comm: usize, done: Py<PyAny>) -> (c_int, Option<TableRequest>) {
        detached(py, || {
            let arg = Box::into_raw(Box::new(done));
            let mut request = null_mut();
            let code = self.submit(comm, Some(tell), arg.expose_provenance(), Some(&mut request));
            let is_started = code == shmcclResult_t::shmcclSuccess as c_int;
            if !is_started {
                drop(taken_back(arg.cast()));
            }
            (code, is_started.then(|| TableRequest { number: request.expose_provenance() }))
        })
    }
}

/// `shmcclRequest_t` as a number. Who has started it frees it: a child of a fork must not.
#[pyclass(name = "Request", module = "shmccl._core._table", frozen)]
pub struct TableRequest {
    number: usize,
}

#[pymethods]
impl TableRequest {
    /// Has the worker begin it, where nobody has.
    fn advance(&self, py: Python<'_>) {
        let mut is_done = 0;
        detached(py, || shmccl_c::shmcclRequestTest(self.handle(), Some(&mut is_done)));
    }

    /// Waits for it, or until so much time has passed, where that is not 0. Returns the code of
    /// `shmcclRequestWait`.
    fn wait(&self, py: Python<'_>, timeout_ms: u64) -> c_int {
        detached(py, || shmccl_c::shmcclRequestWait(self.handle(), timeout_ms) as c_int)
    }

    fn free(&self, py: Python<'_>) {
        detached(py, || shmccl_c::shmcclRequestFree(self.handle()));
    }
}

impl TableRequest {
    fn handle(&self) -> shmcclRequest_t {
        with_exposed_provenance_mut(self.number)
    }
}

/// Returns what the engine says of the failure that this thread got last: its text, and the rank
/// that it names, or -1.
#[pyfunction]
pub fn last_failure() -> (String, c_int) {
    let mut rank = -1;
    shmccl_c::shmcclGetLastErrorRank(null_mut(), Some(&mut rank));
    (text_of(shmccl_c::shmcclGetLastError(null_mut())), rank)
}

/// Reads a text that the engine has just given.
fn text_of(text: *const c_char) -> String {
    // SAFETY: the engine gives texts that end with a zero, and keeps each until the next failure.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Takes back the function that `TableCall::start` has given away.
fn taken_back(function: *mut c_void) -> Box<Py<PyAny>> {
    // SAFETY: `start` has made it. It comes back once: from the engine, or where that has refused.
    unsafe { Box::from_raw(function.cast()) }
}

/// Tells a function of Python, at `function`, how an operation has ended.
unsafe extern "C" fn tell(function: *mut c_void, code: shmcclResult_t, text: *const c_char, rank: c_int) {
    let (function, text) = (taken_back(function), text_of(text));
    // Past the end of the interpreter it stays.
    let function = std::mem::ManuallyDrop::new(function);
    gate::attached(|py| {
        let function = std::mem::ManuallyDrop::into_inner(function);
        if let Err(error) = function.call1(py, (code as c_int, text, rank)) {
            error.write_unraisable(py, Some(function.bind(py)));
        }
    });
}

impl TableCall {
    fn submit(
        &self,
        comm: usize,
        done: shmcclDone_t,
        arg: usize,
        request: Option<&mut shmcclRequest_t>,
    ) -> c_int {
        let call = self.in_c();
        let (comm, arg) = (with_exposed_provenance_mut(comm), with_exposed_provenance_mut(arg));
        // SAFETY: who has made the call answers for its buffers.
        let code = unsafe { shmccl_c::shmcclSubmit(comm, &raw const call, 1, done, arg, request) };
        code as c_int
    }

    fn in_c(&self) -> shmcclCall_t {
        let lengths = |list: &Vec<usize>| if list.is_empty() { null() } else { list.as_ptr() };
        shmcclCall_t {
            size: size_of::<shmcclCall_t>(),
            operation: self.operation,
            datatype: self.datatype,
            op: self.op,
            peer: self.peer,
            tag: self.tag,
            sendbuff: with_exposed_provenance(self.sendbuff),
            recvbuff: with_exposed_provenance_mut(self.recvbuff),
            count: self.count,
            sendcounts: lengths(&self.sendcounts),
            sdispls: lengths(&self.sdispls),
            recvcounts: lengths(&self.recvcounts),
            rdispls: lengths(&self.rdispls),
            scalar: with_exposed_provenance(self.scalar),
        }
    }
}
