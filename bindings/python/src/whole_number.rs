//! Ranks, tags, counts, shapes and lengths as Python passes them: of any sign and length.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::error::refused;

/// Takes the number of a rank. Whether the communicator has it is for the call to say.
///
/// # Errors
/// `InvalidRank` for a number that no communicator has, `TypeError` for what is no whole number.
#[inline]
pub fn rank(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    taken(object, "InvalidRankError", "rank", "does not exist: ranks count from 0")
}

/// Takes the tag of a message.
///
/// # Errors
/// `InvalidArgument` for a number that is none, `TypeError` for what is no whole number.
#[inline]
pub fn tag(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    taken(object, "InvalidArgumentError", "tag", "is none: tags go from 0 to 4294967295")
}

/// Takes how many there are of something.
///
/// # Errors
/// As for [`tag`].
#[inline]
pub fn count(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    taken(object, "InvalidArgumentError", "a count of", "is out of range")
}

/// Takes a color, or None for none.
///
/// # Errors
/// As for [`tag`].
pub fn color(object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    let fault = "is none: colors go from 0 to 4294967295, and None takes no part";
    if object.is_none() { Ok(None) } else { taken(object, "InvalidArgumentError", "color", fault).map(Some) }
}

/// Takes the number of a step.
///
/// # Errors
/// As for [`tag`].
pub fn step(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    taken(object, "InvalidArgumentError", "step", "is none: steps count from 0")
}

/// Takes numbers of elements, or where blocks begin.
///
/// # Errors
/// As for [`tag`].
pub fn counts(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    taken_all(object, "a list of", "of elements has a number that is none: they count from 0")
}

/// Takes such numbers, or None.
///
/// # Errors
/// As for [`tag`].
pub fn some_counts(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<usize>>> {
    if object.is_none() { Ok(None) } else { counts(object).map(Some) }
}

/// Takes a shape: a number of elements, or one for each dimension.
///
/// # Errors
/// As for [`tag`].
pub fn shape(object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let fault = "is none: extents count from 0";
    match taken(object, "InvalidArgumentError", "shape", fault) {
        Ok(count) => Ok(vec![count]),
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => taken_all(object, "shape", fault),
        Err(error) => Err(error),
    }
}

/// Takes the length of a heap: a number of bytes, or a text such as "1G".
///
/// # Errors
/// `ValueError` for what is none.
pub fn heap_len(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = object.py();
    let len = py.import("shmccl._options")?.call_method1("byte_count", (object,))?;
    taken(&len, "InvalidArgumentError", "heap", "is longer than all memory")
}

fn taken_all(object: &Bound<'_, PyAny>, what: &str, fault: &str) -> PyResult<Vec<usize>> {
    let numbers = object.try_iter()?.map(|number| number?.extract());
    numbers.collect::<PyResult<_>>().map_err(|error| told(object, error, "InvalidArgumentError", what, fault))
}

#[inline]
fn taken<'py, T: FromPyObjectOwned<'py, Error = PyErr>>(
    object: &Bound<'py, PyAny>,
    class: &str,
    what: &str,
    fault: &str,
) -> PyResult<T> {
    object.extract().map_err(|error| told(object, error, class, what, fault))
}

/// Returns the error for a number that is out of range; others stay what they are.
#[cold]
fn told(object: &Bound<'_, PyAny>, error: PyErr, class: &str, what: &str, fault: &str) -> PyErr {
    let py = object.py();
    match error.is_instance_of::<PyOverflowError>(py) {
        true => refused(py, class, format!("{what} {object} {fault}")),
        false => error,
    }
}
