//! A proxy with a handler in Python.

use std::cell::Cell;
use std::num::NonZeroU32;

use pyo3::prelude::*;
use shmccl::Error;
use shmccl::channel::Executor;
use shmccl::proxy::{Handler, TriggerKind, TriggerRefusal};

use crate::gate;

/// What a channel asked of a proxy: 16 bytes of a fifo, decoded.
#[pyclass(frozen, get_all, module = "shmccl", name = "Trigger")]
pub struct Trigger {
    /// Whether bytes are to be copied.
    data: bool,
    /// Whether the peer is to be signalled.
    signal: bool,
    /// Whether a flush waits for it.
    flush: bool,
    /// How many bytes.
    length: u32,
    /// The id of the memory that they come from.
    source: u16,
    /// Where in it.
    source_offset: u32,
    /// The id of the memory that they go to.
    target: u16,
    /// Where in it.
    target_offset: u32,
}

#[pymethods]
impl Trigger {
    fn __repr__(&self) -> String {
        let Self { data, signal, flush, length, .. } = self;
        format!("<shmccl.Trigger data={data} signal={signal} flush={flush} length={length}>")
    }
}

/// Shows each trigger to a function of Python before it executes it.
pub struct PythonHandler {
    executor: Executor,
    function: Py<PyAny>,
}

thread_local! {
    /// Whether this thread is a proxy's, in a function of the program.
    static IS_WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// # Errors
/// [`Error::Unavailable`] on the thread of a proxy: peers wait for what that is to do.
pub fn refuse_within_handler() -> shmccl::Result<()> {
    let needs = "a thread other than a proxy's: hand it over to one, and return from the handler";
    let operation = "a call of a communicator";
    if IS_WITHIN.get() { Err(Error::Unavailable { operation, needs }) } else { Ok(()) }
}

/// The reasons of refusals: the function said no, or raised.
const SAID_NO: TriggerRefusal = TriggerRefusal::new(NonZeroU32::MIN);
const RAISED: TriggerRefusal = TriggerRefusal::new(NonZeroU32::MIN.saturating_add(1));

impl PythonHandler {
    /// Executes by `executor` what `function` lets pass.
    pub fn new(executor: Executor, function: Py<PyAny>) -> Self {
        Self { executor, function }
    }

    fn ask(&self, fifo: usize, trigger: &shmccl::proxy::Trigger) -> Result<(), TriggerRefusal> {
        let (kind, transfer) = (trigger.kind(), trigger.transfer());
        let seen = Trigger {
            data: kind.contains(TriggerKind::DATA),
            signal: kind.contains(TriggerKind::SIGNAL),
            flush: kind.contains(TriggerKind::FLUSH),
            length: transfer.len.get(),
            source: transfer.source.get(),
            source_offset: transfer.source_offset,
            target: transfer.target.get(),
            target_offset: transfer.target_offset,
        };
        let answer = gate::attached(|py| match self.function.call1(py, (fifo, seen)) {
            Ok(answer) if answer.bind(py).is(pyo3::types::PyBool::new(py, false)) => Err(SAID_NO),
            Ok(_) => Ok(()),
            Err(error) => {
                error.write_unraisable(py, Some(self.function.bind(py)));
                Err(RAISED)
            }
        });
        // Without an interpreter nobody asks; what was pushed is executed.
        answer.unwrap_or(Ok(()))
    }
}

impl Handler for PythonHandler {
    fn handle(&mut self, fifo: usize, trigger: &shmccl::proxy::Trigger) -> Result<(), TriggerRefusal> {
        IS_WITHIN.set(true);
        let asked = self.ask(fifo, trigger);
        IS_WITHIN.set(false);
        asked?;
        self.executor.handle(fifo, trigger)
    }
}
