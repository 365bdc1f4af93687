//! Puts, gets and signals of views.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shmccl::heap::{HeapOffset, HeapPlace};
use shmccl::symmetric::{SignalOp, StridedBlocks, WordSignal};

use super::layout::ViewBlocks;
use super::number::{AtomicNumber, check_elements, is_number};
use super::remote_view::RemoteView;
use crate::interrupt::detached;
use crate::operand::{Access, Operand};

impl RemoteView {
    /// Finds what is put into the view: elements of an array, or one number for all of them.
    fn source<'py>(&self, x: &Bound<'py, PyAny>) -> PyResult<Operand<'py>> {
        let py = x.py();
        let operand = if let Ok(view) = x.cast_exact::<Self>() {
            view.get().operand()?
        } else if is_number(x)? {
            let shape = PyTuple::new(py, self.layout.shape())?;
            let numpy = py.import(intern!(py, "numpy"))?;
            let full = numpy.call_method1(intern!(py, "full"), (shape, x, self.dtype.for_numpy(py)?))?;
            Operand::of(&full, Access::Read, None)?
        } else {
            Operand::of(x, Access::Read, None)?
        };
        check_elements(&operand, self.dtype, self.layout.count(), py)?;
        Ok(operand)
    }

    /// Copies `source` to the view, and raises a word behind it.
    fn write(&self, py: Python<'_>, source: &Operand<'_>, signal: Option<WordSignal>) -> PyResult<()> {
        let (all, to, blocks) = (&self.places.symmetric, self.owner, self.layout.blocks());
        let place = self.places.place_of(source.bytes());
        let bytes = source.read();
        detached(py, || {
            match place {
                Some(from) => for_each_block(&blocks, |start, at| {
                    all.copy(at.of(from), HeapPlace { rank: to, offset: start }, at.len)
                }),
                None => for_each_run(&blocks, |start, run| {
                    let (source, source_stride) = (&bytes[run], blocks.len);
                    all.put_strided(to, start, source, StridedBlocks { source_stride, ..strided(&blocks) })
                }),
            }?;
            signal.map_or(Ok(()), |signal| all.signal(to, signal))
        })
    }

    /// Copies the view to `target`.
    fn read(&self, py: Python<'_>, mut target: Operand<'_>) -> PyResult<()> {
        let (all, from, blocks) = (&self.places.symmetric, self.owner, self.layout.blocks());
        let place = self.places.place_of(target.bytes());
        let bytes = target.written();
        detached(py, || match place {
            Some(to) => for_each_block(&blocks, |start, at| {
                all.copy(HeapPlace { rank: from, offset: start }, at.of(to), at.len)
            }),
            None => for_each_run(&blocks, |start, run| {
                let (target, target_stride) = (&mut bytes[run], blocks.len);
                all.get_strided(from, start, target, StridedBlocks { target_stride, ..strided(&blocks) })
            }),
        })
    }

    /// Names this view as a word that is raised.
    fn signal(&self, value: &Bound<'_, PyAny>, op: &str) -> PyResult<WordSignal> {
        if self.layout.count() != 1 || !matches!(self.dtype.name, "uint64" | "int64") {
            let (name, count) = (self.dtype.name, self.layout.count());
            let text = format!("a signal is one element of uint64 or int64, not {count} of {name}");
            return Err(PyTypeError::new_err(text));
        }
        let value = match self.dtype.name {
            "int64" => i64::taken(value)?.cast_unsigned(),
            _ => u64::taken(value)?,
        };
        let op = match op {
            "set" => SignalOp::Set,
            "add" => SignalOp::Add,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "a signal is raised by \"set\" or \"add\", not {op:?}"
                )));
            }
        };
        Ok(WordSignal { word: self.layout.start(), op, value })
    }
}

#[pymethods]
impl RemoteView {
    /// Copies `x` there: as many elements of the same type, from an array, a tensor or a view, or
    /// one number for all.
    pub(super) fn put(&self, py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write(py, &self.source(x)?, None)
    }

    /// Copies what is there to `out`, or to a new array of NumPy, and returns that. A view without
    /// dimensions is returned as a number.
    #[pyo3(signature = (out=None))]
    fn get<'py>(&self, py: Python<'py>, out: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let is_number = out.is_none() && self.layout.shape().is_empty();
        let out = out.map_or_else(|| self.new_array(py), Ok)?;
        let target = Operand::of(&out, Access::Write, None)?;
        check_elements(&target, self.dtype, self.layout.count(), py)?;
        self.read(py, target)?;
        if is_number { out.call_method0(intern!(py, "item")) } else { Ok(out) }
    }

    /// Does a `put`, then sets `signal` to `value`, or adds it. `signal` is a view of one element
    /// of 8 bytes, in the heap of the same rank. Whoever sees it raised finds the data.
    #[pyo3(signature = (x, signal, value, op="set"))]
    fn put_signal(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        signal: &Bound<'_, Self>,
        value: &Bound<'_, PyAny>,
        op: &str,
    ) -> PyResult<()> {
        let word = signal.get();
        if word.places.start_of(word.owner) != self.places.start_of(self.owner) {
            let (to, elsewhere) = (self.owner, word.owner);
            let text = format!("the data go to rank {to}, and the signal to rank {elsewhere}: name one rank");
            return Err(PyValueError::new_err(text));
        }
        self.write(py, &self.source(x)?, Some(word.signal(value, op)?))
    }

    /// Sets the element, of 8 bytes, to `value`, or adds it. Whoever sees it raised finds all that
    /// this rank did before.
    #[pyo3(signature = (value, op="set"))]
    fn signal_op(&self, py: Python<'_>, value: &Bound<'_, PyAny>, op: &str) -> PyResult<()> {
        let signal = self.signal(value, op)?;
        detached(py, || self.places.symmetric.signal(self.owner, signal))
    }
}

/// A block, by its place among all bytes that are moved.
struct MovedBlock {
    first: u64,
    len: u64,
}

impl MovedBlock {
    /// Returns its place where all bytes begin at `place`.
    fn of(&self, place: HeapPlace) -> HeapPlace {
        HeapPlace { offset: HeapOffset::new(place.offset.get() + self.first), ..place }
    }
}

/// Returns the blocks of a run, with the stride that they have in the heap on both sides.
fn strided(blocks: &ViewBlocks) -> StridedBlocks {
    let &ViewBlocks { len, count, stride, .. } = blocks;
    StridedBlocks { count, len, target_stride: stride, source_stride: stride }
}

/// Calls `run` with the begin of each run of blocks, and with its place among all bytes.
fn for_each_run(
    blocks: &ViewBlocks,
    mut run: impl FnMut(HeapOffset, std::ops::Range<usize>) -> shmccl::Result<()>,
) -> shmccl::Result<()> {
    let len = blocks.run_len();
    blocks.starts().enumerate().try_for_each(|(index, start)| run(start, index * len..(index + 1) * len))
}

/// Calls `run` with the begin of each block, and with its place among all bytes.
fn for_each_block(
    blocks: &ViewBlocks,
    mut run: impl FnMut(HeapOffset, MovedBlock) -> shmccl::Result<()>,
) -> shmccl::Result<()> {
    for_each_run(blocks, |start, bytes| {
        (0..blocks.count).try_for_each(|number| {
            let offset = HeapOffset::new(start.get() + (number * blocks.stride) as u64);
            run(
                offset,
                MovedBlock { first: (bytes.start + number * blocks.len) as u64, len: blocks.len as u64 },
            )
        })
    })
}
