//! Which bytes of a heap a view has.

use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PySlice, PyTuple};
use shmccl::heap::HeapOffset;

/// Elements of a heap at equal distances in each dimension.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The place of the first element.
    start: u64,
    axes: Vec<ViewAxis>,
    itemsize: usize,
}

/// A dimension.
#[derive(Clone, Copy, Debug)]
struct ViewAxis {
    extent: usize,
    /// The bytes from one element to the next.
    stride: isize,
}

/// Equal blocks of bytes at equal distances, from each of several places on.
#[derive(Debug)]
pub struct ViewBlocks {
    /// The bytes of a block.
    pub len: usize,
    /// How many follow each other.
    pub count: usize,
    /// The bytes from one to the next.
    pub stride: usize,
    start: u64,
    outer: Vec<ViewAxis>,
}

impl Layout {
    /// Describes elements from `start` on that lie in C's order without gaps.
    pub fn in_order(start: u64, shape: &[usize], itemsize: usize) -> Self {
        let mut stride = itemsize.cast_signed();
        let mut axes: Vec<_> = shape
            .iter()
            .rev()
            .map(|&extent| {
                let axis = ViewAxis { extent, stride };
                stride *= extent.max(1).cast_signed();
                axis
            })
            .collect();
        axes.reverse();
        Self { start, axes, itemsize }
    }

    /// Returns the elements by dimension.
    pub fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.extent).collect()
    }

    /// Returns how many elements there are.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// Returns the place of the first element.
    pub fn start(&self) -> HeapOffset {
        HeapOffset::new(self.start)
    }

    /// Returns whether the elements lie in C's order without gaps.
    pub fn is_in_order(&self) -> bool {
        let blocks = self.blocks();
        self.count() == 0
            || blocks.count * blocks.outer.iter().map(|axis| axis.extent).product::<usize>() == 1
    }

    /// Returns the place of each element, in C's order.
    pub fn elements(&self) -> impl Iterator<Item = HeapOffset> {
        offsets(self.start, &self.axes)
    }

    /// Returns the blocks of bytes that the elements are, in C's order.
    pub fn blocks(&self) -> ViewBlocks {
        let mut outer: Vec<_> = self.axes.iter().copied().filter(|axis| axis.extent != 1).collect();
        let mut len = self.itemsize;
        while let Some(axis) = outer.pop_if(|axis| axis.stride == len.cast_signed()) {
            len *= axis.extent;
        }
        let apart = outer.pop_if(|axis| axis.stride >= len.cast_signed());
        let ViewAxis { extent: count, stride } =
            apart.unwrap_or(ViewAxis { extent: 1, stride: len.cast_signed() });
        ViewBlocks { len, count, stride: stride.cast_unsigned(), start: self.start, outer }
    }

    /// Returns the part that `key` names: a whole number, a slice or `...`, or a tuple of these.
    ///
    /// # Errors
    /// `IndexError` for what lies outside, `TypeError` for other keys.
    pub fn part(&self, key: &Bound<'_, PyAny>) -> PyResult<Self> {
        let keys: Vec<_> = match key.cast::<PyTuple>() {
            Ok(keys) => keys.iter().collect(),
            Err(_) => vec![key.clone()],
        };
        let ellipsis = key.py().Ellipsis();
        let n_named = keys.iter().filter(|key| !key.is(&ellipsis)).count();
        let n_axes = self.axes.len();
        if n_named > n_axes || keys.len() > n_named + 1 {
            let text = format!("{} indices are too many for a view of {n_axes} dimensions", keys.len());
            return Err(PyIndexError::new_err(text));
        }
        let (mut part, mut axes) = (Self { axes: Vec::new(), ..*self }, self.axes.iter().copied());
        for key in &keys {
            if key.is(&ellipsis) {
                part.axes.extend(axes.by_ref().take(n_axes - n_named));
            } else if let Some(axis) = axes.next() {
                part.narrow(axis, key)?;
            }
        }
        part.axes.extend(axes);
        Ok(part)
    }

    /// Adds the part of a dimension that `key` names.
    fn narrow(&mut self, axis: ViewAxis, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let first = if let Ok(slice) = key.cast::<PySlice>() {
            let found = slice.indices(axis.extent.cast_signed())?;
            self.axes.push(ViewAxis { extent: found.slicelength, stride: axis.stride * found.step });
            if found.slicelength == 0 { 0 } else { found.start }
        } else {
            index_of(key, axis.extent)?
        };
        self.start = self.start.wrapping_add_signed((first * axis.stride) as i64);
        Ok(())
    }
}

impl ViewBlocks {
    /// Returns the bytes of all blocks that follow each other.
    pub fn run_len(&self) -> usize {
        self.len * self.count
    }

    /// Returns where each run of blocks begins, in C's order.
    pub fn starts(&self) -> impl Iterator<Item = HeapOffset> {
        offsets(self.start, &self.outer).take(if self.run_len() == 0 { 0 } else { usize::MAX })
    }
}

/// Returns the places of what lies at equal distances in each dimension, in C's order.
fn offsets(start: u64, axes: &[ViewAxis]) -> impl Iterator<Item = HeapOffset> {
    let count: usize = axes.iter().map(|axis| axis.extent).product();
    (0..count).map(move |mut number| {
        let within = |axis: &ViewAxis| {
            let index = number % axis.extent;
            number /= axis.extent;
            index.cast_signed() * axis.stride
        };
        let within: isize = axes.iter().rev().map(within).sum();
        HeapOffset::new(start.wrapping_add_signed(within as i64))
    })
}

/// Takes the number of an element, which counts from the end where it is negative.
fn index_of(key: &Bound<'_, PyAny>, extent: usize) -> PyResult<isize> {
    let outside = || PyIndexError::new_err(format!("index {key} is out of bounds for {extent} elements"));
    let number = if key.is_instance_of::<PyBool>() { Err(PyTypeError::new_err(())) } else { key.extract() };
    let number: isize = number.map_err(|error| match error.is_instance_of::<PyOverflowError>(key.py()) {
        true => outside(),
        false => PyTypeError::new_err(format!(
            "a view takes whole numbers, slices and ..., not a {}",
            key.get_type()
        )),
    })?;
    let extent = extent.cast_signed();
    let index = if number < 0 { number.saturating_add(extent) } else { number };
    if (0..extent).contains(&index) { Ok(index) } else { Err(outside()) }
}
