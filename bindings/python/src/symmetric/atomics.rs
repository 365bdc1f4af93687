//! Atomics of views: each element is changed by itself.

use pyo3::prelude::*;
use shmccl::heap::HeapOffset;

use super::number::{AtomicChange, AtomicNumber, ElementValue, GivenNumbers, no_bits, with_number};
use super::remote_view::RemoteView;
use crate::error::exception;
use crate::interrupt::detached;
use crate::operand::{Access, Operand};

impl RemoteView {
    /// Calls `run` for each element, and returns what it returns.
    fn for_each<T: Send>(
        &self,
        py: Python<'_>,
        run: impl Fn(usize, HeapOffset) -> shmccl::Result<T> + Sync,
    ) -> PyResult<Vec<T>> {
        let all = || self.layout.elements().enumerate().map(|(index, at)| run(index, at)).collect();
        // One atomic is over before another thread has the interpreter.
        let done: shmccl::Result<Vec<T>> =
            if self.layout.count() == 1 { all() } else { return detached(py, all) };
        done.map_err(|error| exception(py, &error))
    }

    /// Changes each element, and returns what they were before.
    fn change(&self, py: Python<'_>, value: &ElementValue<'_>, change: AtomicChange) -> PyResult<Former> {
        with_number!(self.dtype, T => {
            let given = GivenNumbers::<T>::of(value, self.dtype, self.layout.count())?;
            let verb = T::changing(change).ok_or_else(|| no_bits(self.dtype))?;
            let all = &self.places.symmetric;
            let found = self.for_each(py, |index, at| verb(all, self.owner, at, given.at(index)))?;
            Ok(Former::of(&found))
        })
    }

    /// Returns what elements were, as a number for a view without dimensions.
    fn told<'py>(&self, py: Python<'py>, former: &Former) -> PyResult<ElementValue<'py>> {
        if self.layout.shape().is_empty() {
            return with_number!(self.dtype, T => T::of_bytes(&former.0).given(py));
        }
        let array = self.new_array(py)?;
        Operand::of(&array, Access::Write, None)?.written().copy_from_slice(&former.0);
        Ok(array)
    }
}

/// The bytes of what elements were.
struct Former(Vec<u8>);

impl Former {
    fn of<T: AtomicNumber>(numbers: &[T]) -> Self {
        let mut bytes = Vec::with_capacity(size_of_val(numbers));
        numbers.iter().for_each(|number| number.append_to(&mut bytes));
        Self(bytes)
    }
}

#[pymethods]
impl RemoteView {
    /// Returns each element: a number for a view without dimensions, or else an array.
    fn atomic_fetch<'py>(&self, py: Python<'py>) -> PyResult<ElementValue<'py>> {
        let former = with_number!(self.dtype, T => {
            let all = &self.places.symmetric;
            self.for_each(py, |_, at| all.fetch::<T>(self.owner, at)).map(|found| Former::of(&found))
        })?;
        self.told(py, &former)
    }

    /// Writes each element: one value for all, or an array of as many.
    fn atomic_set(&self, py: Python<'_>, value: &ElementValue<'_>) -> PyResult<()> {
        self.change(py, value, AtomicChange::Swap).map(drop)
    }

    /// Writes each element, and returns what it was before, as `atomic_fetch` does.
    fn atomic_swap<'py>(&self, py: Python<'py>, value: &ElementValue<'py>) -> PyResult<ElementValue<'py>> {
        self.told(py, &self.change(py, value, AtomicChange::Swap)?)
    }

    /// Writes each element that is `cond`, and returns what it was before. Only for whole numbers.
    fn atomic_compare_swap<'py>(
        &self,
        py: Python<'py>,
        cond: &ElementValue<'py>,
        value: &ElementValue<'py>,
    ) -> PyResult<ElementValue<'py>> {
        let former = with_number!(self.dtype, T => {
            let count = self.layout.count();
            let expected = GivenNumbers::<T>::of(cond, self.dtype, count)?;
            let given = GivenNumbers::<T>::of(value, self.dtype, count)?;
            let verb = T::comparing().ok_or_else(|| no_bits(self.dtype))?;
            let all = &self.places.symmetric;
            let run = |index, at| verb(all, self.owner, at, expected.at(index), given.at(index));
            self.for_each(py, run).map(|found| Former::of(&found))
        })?;
        self.told(py, &former)
    }

    /// Adds 1 to each element.
    fn atomic_inc(&self, py: Python<'_>) -> PyResult<()> {
        self.atomic_add(py, 1_u8.into_pyobject(py)?.as_any())
    }

    /// Adds 1 to each element, and returns what it was before.
    fn atomic_fetch_inc<'py>(&self, py: Python<'py>) -> PyResult<ElementValue<'py>> {
        self.atomic_fetch_add(py, 1_u8.into_pyobject(py)?.as_any())
    }

    /// Adds to each element. Sums of whole numbers wrap around.
    fn atomic_add(&self, py: Python<'_>, value: &ElementValue<'_>) -> PyResult<()> {
        self.change(py, value, AtomicChange::Add).map(drop)
    }

    /// Adds to each element, and returns what it was before.
    fn atomic_fetch_add<'py>(
        &self,
        py: Python<'py>,
        value: &ElementValue<'py>,
    ) -> PyResult<ElementValue<'py>> {
        self.told(py, &self.change(py, value, AtomicChange::Add)?)
    }

    /// Keeps those bits of each element that the value has.
    fn atomic_and(&self, py: Python<'_>, value: &ElementValue<'_>) -> PyResult<()> {
        self.change(py, value, AtomicChange::And).map(drop)
    }

    /// Does an `atomic_and`, and returns what each element was before.
    fn atomic_fetch_and<'py>(
        &self,
        py: Python<'py>,
        value: &ElementValue<'py>,
    ) -> PyResult<ElementValue<'py>> {
        self.told(py, &self.change(py, value, AtomicChange::And)?)
    }

    /// Sets those bits of each element that the value has.
    fn atomic_or(&self, py: Python<'_>, value: &ElementValue<'_>) -> PyResult<()> {
        self.change(py, value, AtomicChange::Or).map(drop)
    }

    /// Does an `atomic_or`, and returns what each element was before.
    fn atomic_fetch_or<'py>(
        &self,
        py: Python<'py>,
        value: &ElementValue<'py>,
    ) -> PyResult<ElementValue<'py>> {
        self.told(py, &self.change(py, value, AtomicChange::Or)?)
    }

    /// Turns those bits of each element over that the value has.
    fn atomic_xor(&self, py: Python<'_>, value: &ElementValue<'_>) -> PyResult<()> {
        self.change(py, value, AtomicChange::Xor).map(drop)
    }

    /// Does an `atomic_xor`, and returns what each element was before.
    fn atomic_fetch_xor<'py>(
        &self,
        py: Python<'py>,
        value: &ElementValue<'py>,
    ) -> PyResult<ElementValue<'py>> {
        self.told(py, &self.change(py, value, AtomicChange::Xor)?)
    }
}
