//! The engine's errors as exceptions of Python: a class for each variant, in `shmccl._errors`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use shmccl::error::HEAP_OPTION;
use shmccl::plan::build::BuildError;
use shmccl::{Error, Rank};

/// Returns the exception for `error`, with its values as attributes.
#[cold]
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    made(py, error).unwrap_or_else(|failed| failed)
}

fn made(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let values = PyDict::new(py);
    if let Some(rank) = rank_of(error.origin()) {
        values.set_item("rank", rank)?;
    }
    if let Error::Timeout { straggler, report, .. } = error.origin() {
        values.set_item("straggler", straggler.map(Rank::get))?;
        values.set_item("report", report.as_ref().map(ToString::to_string))?;
    }
    let named = if let Error::WorkFailed { source, .. } = error { source.origin() } else { error };
    let exception = instance(py, name_of(named), text_of(error), Some(&values))?;
    if let Error::StreamFailed { source, .. } = error {
        exception.set_cause(py, Some(made(py, source)?));
    }
    Ok(exception)
}

/// Returns the text, whose remedies name what Python has.
fn text_of(error: &Error) -> String {
    let text = format!("{error:?}");
    match error.origin() {
        Error::OutOfMemory { .. } => text.replace(HEAP_OPTION, "heap=\"1G\" of launch or init"),
        Error::UnsupportedOperator { .. } => text.replace("mulsum", "PreMulSum(factor)"),
        _ => text,
    }
}

/// Returns the exception for a program that is no plan.
#[cold]
pub fn plan_refused(py: Python<'_>, error: &BuildError) -> PyErr {
    refused(py, "PlanError", error.to_string())
}

/// Returns the exception of the class called `name` for an argument that the engine never sees.
#[cold]
pub fn refused(py: Python<'_>, name: &str, text: String) -> PyErr {
    instance(py, name, text, None).unwrap_or_else(|failed| failed)
}

/// Returns the exception of the class called `name` for what concerns a rank, or what is none.
#[cold]
pub fn refused_of_rank(py: Python<'_>, name: &str, text: String, rank: i64) -> PyErr {
    let values = PyDict::new(py);
    let made = values.set_item("rank", rank).and_then(|()| instance(py, name, text, Some(&values)));
    made.unwrap_or_else(|failed| failed)
}

/// Returns an exception of the class called `name`.
fn instance(py: Python<'_>, name: &str, text: String, values: Option<&Bound<'_, PyDict>>) -> PyResult<PyErr> {
    let class = py.import("shmccl._errors")?.getattr(name)?;
    Ok(PyErr::from_value(class.call((text,), values)?))
}

/// Returns the exception of a communicator, channel or stream that was closed.
#[cold]
pub fn closed(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("the {what} is closed: it was finalized, or left with its block"))
}

/// The rank that an error is about.
fn rank_of(error: &Error) -> Option<u32> {
    match error {
        Error::Timeout { awaited, .. } => awaited.map(Rank::get),
        Error::Revoked { by, awaited } => awaited.or(*by).map(Rank::get),
        Error::PeerLost { rank }
        | Error::Mismatch { rank, .. }
        | Error::FailedElsewhere { rank, .. }
        | Error::TuningMismatch { rank, .. }
        | Error::RankTaken { rank }
        | Error::Corrupted { rank, .. }
        | Error::PutCorrupted { rank } => Some(rank.get()),
        Error::InvalidRank { rank, .. } => Some(*rank),
        _ => None,
    }
}

/// Names the class of each variant: the variant with `Error` at its end, or the name after `=>`.
macro_rules! names {
    ($($variant:ident)*; $($taken:ident => $class:literal)*) => {
        fn name_of(error: &Error) -> &'static str {
            match error {
                $(Error::$variant { .. } => concat!(stringify!($variant), "Error"),)*
                $(Error::$taken { .. } => $class,)*
                _ => "Error",
            }
        }

        /// The names of the classes of exceptions, for the test that Python has them all.
        pub const NAMES: &[&str] = &[$(concat!(stringify!($variant), "Error"),)* $($class,)*];
    };
}

names! {
    InvalidArgument UnsupportedAlgorithm UnsupportedOperator WrongCount InvalidRank OutOfRange Misaligned OutOfMemory Exhausted
    Unavailable NameInUse ResourceLimit Refused Layout Mismatch CallMismatch AlgorithmMismatch FailedElsewhere
    StreamFailed Panicked PeerLost Excluded ProxyLost Revoked Setting Tuning TuningMismatch Trace
    NoMeeting RankTaken NoPlace FaultSpec FaultInjected Checkpoint Corrupted PutCorrupted DeviceFailed Cancelled Plan;
    Environment => "LaunchEnvironmentError"
    Interrupted => "LaunchInterruptedError"
    Os => "SystemCallError"
    Timeout => "WaitTimeoutError"
}
