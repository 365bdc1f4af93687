//! Numbers that atomics, signals and waits take.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyFloat, PyInt};
use shmccl::heap::HeapOffset;
use shmccl::symmetric::Atom;
use shmccl::{Rank, Result, Symmetric};

use crate::dtype::Dtype;
use crate::error::refused;
use crate::operand::{Access, Operand};

/// A number of Python, or an array of them.
pub type ElementValue<'py> = Bound<'py, PyAny>;

/// An operation on one element that returns what the element was before.
pub type FetchingVerb<T> = fn(&Symmetric, Rank, HeapOffset, T) -> Result<T>;

/// One that compares first: with the former value, and writes the latter.
pub type ComparingVerb<T> = fn(&Symmetric, Rank, HeapOffset, T, T) -> Result<T>;

/// What an atomic does with an element and a number.
#[derive(Clone, Copy, Debug)]
pub enum AtomicChange {
    /// Replaces it.
    Swap,
    /// Adds.
    Add,
    /// Keeps its bits that the number has.
    And,
    /// Sets the number's bits.
    Or,
    /// Turns the number's bits over.
    Xor,
}

/// A type of elements that are changed atomically.
pub trait AtomicNumber: Atom + Send + Sync {
    /// Takes a number of Python.
    ///
    /// # Errors
    /// `TypeError` for another kind of number, `OverflowError` for one out of range.
    fn taken(object: &Bound<'_, PyAny>) -> PyResult<Self>;

    /// Returns the number whose bytes these are.
    fn of_bytes(bytes: &[u8]) -> Self;

    /// Adds its bytes to `bytes`.
    fn append_to(self, bytes: &mut Vec<u8>);

    /// Returns it as a number of Python.
    ///
    /// # Errors
    /// `MemoryError`.
    fn given(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>>;

    /// Returns the verb for `change`, if there is one for the type.
    fn changing(change: AtomicChange) -> Option<FetchingVerb<Self>>;

    /// Returns the verb that compares and swaps, if there is one for the type.
    fn comparing() -> Option<ComparingVerb<Self>>;
}

macro_rules! numbers {
    ($($number:ident as $wide:ident: $bits:expr, $comparing:expr;)*) => {$(
        impl AtomicNumber for $number {
            #[allow(clippy::unnecessary_cast, reason = "only f32 is taken as another type")]
            fn taken(object: &Bound<'_, PyAny>) -> PyResult<Self> {
                Ok(object.extract::<$wide>()? as $number)
            }

            fn of_bytes(bytes: &[u8]) -> Self {
                bytes.try_into().map_or_else(|_| Self::default(), Self::from_ne_bytes)
            }

            fn append_to(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }

            fn given(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
                self.into_bound_py_any(py)
            }

            fn changing(change: AtomicChange) -> Option<FetchingVerb<Self>> {
                match change {
                    AtomicChange::Swap => Some(Symmetric::swap::<Self>),
                    AtomicChange::Add => Some(Symmetric::fetch_add::<Self>),
                    _ => {
                        let bits: Option<[FetchingVerb<Self>; 3]> = $bits;
                        bits.map(|verbs| verbs[change as usize - AtomicChange::And as usize])
                    }
                }
            }

            fn comparing() -> Option<ComparingVerb<Self>> {
                $comparing
            }
        }
    )*};
}

macro_rules! integers {
    ($($number:ident)*) => {
        numbers! {$(
            $number as $number:
                Some([
                    Symmetric::fetch_and::<$number>,
                    Symmetric::fetch_or::<$number>,
                    Symmetric::fetch_xor::<$number>,
                ]),
                Some(Symmetric::compare_swap::<$number>);
        )*}
    };
}

integers! { u32 i32 u64 i64 }
numbers! {
    f32 as f64: None, None;
    f64 as f64: None, None;
}

/// Does what stands behind `=>` for the type of numbers that elements of a type are, by its name
/// there.
macro_rules! with_number {
    ($dtype:expr, $number:ident => $run:expr) => {
        match $dtype.name {
            "int32" => {
                type $number = i32;
                $run
            }
            "uint32" => {
                type $number = u32;
                $run
            }
            "int64" => {
                type $number = i64;
                $run
            }
            "uint64" => {
                type $number = u64;
                $run
            }
            "float32" => {
                type $number = f32;
                $run
            }
            "float64" => {
                type $number = f64;
                $run
            }
            _ => Err($crate::symmetric::number::no_atomic($dtype)),
        }
    };
}
pub(super) use with_number;

/// Returns the error for elements that are not changed atomically.
#[cold]
pub fn no_atomic(dtype: &Dtype) -> PyErr {
    let name = dtype.name;
    PyTypeError::new_err(format!(
        "atomics and waits take int32, uint32, int64, uint64, float32 and float64, not {name}"
    ))
}

/// Returns the error for elements whose type has not this atomic.
#[cold]
pub fn no_bits(dtype: &Dtype) -> PyErr {
    PyTypeError::new_err(format!("this atomic takes whole numbers, not {}", dtype.name))
}

/// One number for all elements of a view, or one for each.
#[derive(Debug)]
pub enum GivenNumbers<T> {
    /// For all of them.
    Same(T),
    /// For each.
    Each(Vec<T>),
}

impl<T: AtomicNumber> GivenNumbers<T> {
    /// Takes what was given for `count` elements of `dtype`.
    ///
    /// # Errors
    /// Fails as [`AtomicNumber::taken`] does for a number, and as [`check_elements`] and
    /// [`Operand::of`] for an array.
    pub fn of(object: &Bound<'_, PyAny>, dtype: &'static Dtype, count: usize) -> PyResult<Self> {
        if is_number(object)? {
            return T::taken(object).map(Self::Same);
        }
        let operand = Operand::of(object, Access::Read, None)?;
        check_elements(&operand, dtype, count, object.py())?;
        Ok(Self::Each(operand.read().chunks_exact(size_of::<T>()).map(T::of_bytes).collect()))
    }

    /// Returns the number for one of the elements.
    pub fn at(&self, index: usize) -> T {
        match self {
            Self::Same(number) => *number,
            Self::Each(numbers) => numbers[index],
        }
    }
}

/// Returns whether `object` is a number, and no array of them.
///
/// # Errors
/// Returns those of its attributes.
pub fn is_number(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if object.is_instance_of::<PyInt>() || object.is_instance_of::<PyFloat>() {
        return Ok(true);
    }
    // Scalars of NumPy, and arrays and tensors without dimensions.
    let shape = object.getattr_opt("shape")?;
    Ok(object.is_instance_of::<PyComplex>()
        || shape.is_some_and(|shape| shape.len().is_ok_and(|n_axes| n_axes == 0)))
}

/// Refuses an operand that is not `count` elements of `dtype`.
///
/// # Errors
/// `ValueError` for another type, `WrongCountError` for another count.
pub fn check_elements(operand: &Operand<'_>, dtype: &Dtype, count: usize, py: Python<'_>) -> PyResult<()> {
    let (has, name) = (operand.dtype.name, dtype.name);
    if has != name {
        let text = format!("the array is of {has}, and the view of {name}; convert it with astype");
        return Err(PyValueError::new_err(text));
    }
    let found = operand.bytes().len / dtype.size;
    if found == count {
        return Ok(());
    }
    let text = format!("the array has {found} elements, and the view {count}");
    Err(refused(py, "WrongCountError", text))
}
