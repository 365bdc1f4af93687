//! Ranks, tags and counts as Python passes them: of any sign and length.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::error::refused;

/// Takes the number of a rank. Whether the communicator has it is for the call to say.
///
/// # Errors
/// `InvalidRank` for a number that no communicator has, `TypeError` for what is no whole number.
#[inline]
pub fn rank(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    taken(object, "InvalidRank", "rank", "does not exist: ranks count from 0")
}

/// Takes the tag of a message.
///
/// # Errors
/// `InvalidArgument` for a number that is none, `TypeError` for what is no whole number.
#[inline]
pub fn tag(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    taken(object, "InvalidArgument", "tag", "is none: tags go from 0 to 4294967295")
}

/// Takes how many there are of something.
///
/// # Errors
/// As for [`tag`].
#[inline]
pub fn count(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    taken(object, "InvalidArgument", "a count of", "is out of range")
}

#[inline]
fn taken(object: &Bound<'_, PyAny>, class: &str, what: &str, fault: &str) -> PyResult<u32> {
    object.extract().map_err(|error: PyErr| {
        let py = object.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            refused(py, class, format!("{what} {object} {fault}"))
        } else {
            error
        }
    })
}
