//! The id under which processes meet.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyType;
use shmccl::bootstrap::ProcessMark;

use crate::error::exception;

/// The id of one meeting: `UniqueId()` in one process, handed to the others in any way.
///
/// It can be pickled, and `str(id)` is its text. The process that makes it hosts the meeting, and
/// must not end before all have met. It is good for one meeting on this machine.
#[pyclass(frozen, eq, hash, module = "shmccl", name = "UniqueId")]
#[derive(PartialEq, Eq, Hash)]
pub struct UniqueId(pub shmccl::UniqueId);

#[pymethods]
impl UniqueId {
    /// Makes an id, or reads the text of one. A new one is used up when no rank has come within
    /// `good_for` seconds.
    #[new]
    #[pyo3(signature = (text=None, *, good_for=3600.0))]
    fn new(py: Python<'_>, text: Option<&str>, good_for: f64) -> PyResult<Self> {
        let id = match text {
            Some(text) => text.parse(),
            None => shmccl::UniqueId::new_within(seconds(good_for)?),
        };
        id.map(Self).map_err(|error| exception(py, &error))
    }

    /// Makes an id whose meeting ends as it fails: who comes later finds nobody.
    #[staticmethod]
    fn _brief(py: Python<'_>, good_for: f64) -> PyResult<Self> {
        let id = shmccl::UniqueId::brief_within(seconds(good_for)?);
        id.map(Self).map_err(|error| exception(py, &error))
    }

    /// Whether somebody receives under this id now.
    fn _is_hosted(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.is_hosted())
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("UniqueId({:?})", self.0.to_string())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (String,)) {
        (slf.get_type(), (slf.get().__str__(),))
    }
}

/// Returns a time given in seconds. One that is longer than any is the longest.
///
/// # Errors
/// `ValueError` for one that is negative, or no number.
pub fn seconds(time: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(time)
        .or(if time > 1.0 { Ok(Duration::MAX) } else { Err(()) })
        .map_err(|()| PyValueError::new_err(format!("{time} is no time in seconds")))
}

/// Returns a text by which other processes of this machine tell whether this one has ended.
#[pyfunction]
pub fn _process_mark() -> String {
    ProcessMark::own().to_string()
}

/// Returns whether the process of a mark is known to have ended. A text that is no mark is of no
/// such process.
#[pyfunction]
pub fn _has_ended(mark: &str) -> bool {
    mark.parse::<ProcessMark>().is_ok_and(|mark| mark.has_ended())
}
