//! Channels: put, signal, wait and flush between two ranks.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shmccl::channel::{Channel, MemoryChannel, PortChannel};
use shmccl::heap::Region;

use crate::error::closed;
use crate::heap_places::HeapPlaces;
use crate::interrupt::detached;
use crate::operand::{Access, Operand};
use crate::shared::drop_detached;
use crate::turns::Turns;

/// Moves bytes to one peer and tells it so. Made by `comm.channel(peer)`.
///
/// The k-th channel that this rank opens to a peer pairs with the k-th that the peer opens to it.
/// Sources and targets are arrays of the heap, or NumPy arrays and tensors that are parts of them.
#[pyclass(frozen, module = "shmccl", name = "Channel")]
pub struct PyChannel {
    kind: Turns<Option<Kind>>,
    places: Arc<HeapPlaces>,
    rank: u32,
    /// The rank at the other end.
    #[pyo3(get)]
    peer: u32,
    /// Whether a proxy moves the bytes.
    #[pyo3(get)]
    proxied: bool,
}

/// Who moves the bytes.
pub enum Kind {
    /// The caller's core.
    Direct(MemoryChannel),
    /// A proxy.
    Proxied(PortChannel),
}

impl Kind {
    fn verbs(&mut self) -> &mut dyn Channel {
        match self {
            Self::Direct(channel) => channel,
            Self::Proxied(channel) => channel,
        }
    }
}

impl PyChannel {
    /// Wraps a channel of `rank` to `peer`.
    pub fn new(kind: Kind, places: &Arc<HeapPlaces>, rank: u32, peer: u32) -> Self {
        let proxied = matches!(kind, Kind::Proxied(_));
        Self { kind: Turns::new(Some(kind)), places: Arc::clone(places), rank, peer, proxied }
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut Kind) -> shmccl::Result<R> + Send,
    ) -> PyResult<R> {
        detached(py, || self.kind.take()?.as_mut().map(run).transpose())?.ok_or_else(|| closed("channel"))
    }

    /// Returns the regions of `target` in the peer's heap and of `source` in this rank's.
    fn ends(
        &self,
        target: &Bound<'_, PyAny>,
        source: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Region, Region)> {
        let written = Operand::of_any(target, Access::Write)?;
        let bytes = written.bytes();
        // The peer's own place, or the same place of this rank.
        let here = self.places.own_region(bytes);
        let target = match here.or_else(|| self.places.region_of(self.peer, bytes)) {
            Some(region) => region,
            None => self.places.region(bytes, self.rank, "the target")?,
        };
        let source = match (source, here) {
            (Some(source), _) => {
                let read = Operand::of_any(source, Access::Read)?;
                let (from, to) = (read.dtype.name, written.dtype.name);
                if from != to {
                    let text = format!("the source is of {from}, and the target of {to}");
                    return Err(PyValueError::new_err(text));
                }
                self.places.region(read.bytes(), self.rank, "the source")?
            }
            (None, Some(here)) => here,
            (None, None) => return Err(PyValueError::new_err("a target in the peer's heap needs a source")),
        };
        if source.len != target.len {
            let (from, to) = (source.len, target.len);
            return Err(PyValueError::new_err(format!("the source has {from} bytes, and the target {to}")));
        }
        Ok((target, source))
    }
}

impl Drop for PyChannel {
    /// Waits for its proxy, whose handler may need the interpreter's lock.
    fn drop(&mut self) {
        drop_detached(self.kind.get_mut().take());
    }
}

#[pymethods]
impl PyChannel {
    /// Copies `source` to where `target` lies in the peer's heap, or `target` itself without a
    /// source. `signal` tells the peer, and `flush` returns when the source may be written again.
    ///
    /// `target` is this rank's array: the peer's is at the same place. It may be a peer's.
    #[pyo3(signature = (target, source=None, *, signal=false, flush=false))]
    fn put(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        source: Option<&Bound<'_, PyAny>>,
        signal: bool,
        flush: bool,
    ) -> PyResult<()> {
        let (target, source) = self.ends(target, source)?;
        let (to, from, len) = (target.offset, source.offset, source.len);
        self.with(py, |kind| {
            let channel = kind.verbs();
            match (signal, flush) {
                (false, false) => channel.put(to, from, len),
                (true, false) => channel.put_with_signal(to, from, len),
                (true, true) => channel.put_with_signal_and_flush(to, from, len),
                (false, true) => channel.put(to, from, len).and_then(|()| channel.flush()),
            }
        })
    }

    /// Copies what lies in the peer's heap where `source` is to `target` in this rank's. Direct
    /// channels only.
    #[pyo3(signature = (target, source=None))]
    fn get(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        source: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (source, target) = self.ends(source.unwrap_or(target), Some(target))?;
        let done = self.with(py, |kind| match kind {
            Kind::Direct(channel) => channel.get(target.offset, source.offset, target.len).map(Some),
            Kind::Proxied(_) => Ok(None),
        })?;
        done.ok_or_else(|| PyValueError::new_err("get takes a direct channel: comm.channel(peer)"))
    }

    /// Tells the peer that every earlier put of this channel has arrived.
    fn signal(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |kind| kind.verbs().signal())
    }

    /// Returns after one signal of the peer, with everything that it put before.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |kind| kind.verbs().wait())
    }

    /// Takes a signal of the peer if there is one, and says whether there was.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |kind| Ok(kind.verbs().poll()))
    }

    /// Returns when the sources of all earlier puts may be written again.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |kind| kind.verbs().flush())
    }

    /// Gives the channel back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            drop(self.kind.take_out()?);
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}
