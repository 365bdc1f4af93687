//! Copies as operations of a stream: between host and device, and between devices.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;

use super::Stream;
use crate::comm::calls::submit::same;
use crate::error::{Error, Result};
use crate::heap::{DeviceBuffer, HeapPlace, Region};
use crate::shm::CacheHint;

/// Copies check sizes and places at once. They order nothing between ranks: the operations around
/// them do. A write to a heap is refused with [`Error::Unavailable`] once this rank has left the
/// job, as channels refuse it.
impl Stream {
    /// Enqueues a copy of all of `source` to `target`, which has as many elements.
    ///
    /// # Errors
    /// - [`Error::WrongCount`] for different counts.
    /// - [`Error::StreamFailed`]; [`Error::Exhausted`] when too many operations are enqueued.
    /// - [`Error::Unavailable`] when this rank has left the job.
    pub fn copy_host_to_device<T: Pod + Send + Sync>(
        &self,
        source: impl Into<HostSource<T>>,
        target: &DeviceBuffer<T>,
    ) -> Result<()> {
        let (source, target) = (source.into(), target.clone());
        same(HOST, source.len() as u64, target.len() as u64)?;
        self.enqueue_write("copy_host_to_device", move || {
            source.with(|elements| target.copy_from_slice(0, elements))
        })
    }

    /// Enqueues a copy of all of `source` to `target`, which has as many elements.
    ///
    /// # Errors
    /// Fails as [`Stream::copy_host_to_device`] does, but still reads the heap when this rank has
    /// left the job.
    pub fn copy_device_to_host<T: Pod + Send + Sync>(
        &self,
        source: &DeviceBuffer<T>,
        target: &HostBuffer<T>,
    ) -> Result<()> {
        let (source, target) = (source.clone(), target.clone());
        same(HOST, target.len() as u64, source.len() as u64)?;
        self.enqueue("copy_device_to_host", move || target.with(|elements| source.copy_to_slice(0, elements)))
    }

    /// Enqueues a copy of `len` bytes between two places in the heaps of any ranks, by their
    /// numbers in the communicator of the stream. The two may overlap.
    ///
    /// # Errors
    /// [`Error::InvalidRank`]; [`Error::OutOfRange`] for bytes that are not allocated;
    /// [`Error::StreamFailed`]; [`Error::Exhausted`]; [`Error::Unavailable`].
    pub fn copy_device_to_device(&self, source: HeapPlace, target: HeapPlace, len: u64) -> Result<()> {
        let (source, target) = (self.locate(source, len)?, self.locate(target, len)?);
        let view = self.context.heap().view().clone();
        self.enqueue_write("copy_device_to_device", move || view.copy(source, target, len, CacheHint::Keep))
    }

    /// Enqueues the writing of `element` to every place of `target`.
    ///
    /// # Errors
    /// [`Error::StreamFailed`]; [`Error::Exhausted`]; [`Error::Unavailable`].
    pub fn fill<T: Pod + Send + Sync>(&self, target: &DeviceBuffer<T>, element: T) -> Result<()> {
        let target = target.clone();
        self.enqueue_write("fill", move || {
            target.fill(element);
            Ok(())
        })
    }

    /// Enqueues `work`, which writes to a heap.
    fn enqueue_write(
        &self,
        operation: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.context.present(operation)?;
        self.enqueue(operation, work)
    }

    /// Checks `len` bytes at a place of the communicator, and returns the same place of the job.
    fn locate(&self, place: HeapPlace, len: u64) -> Result<HeapPlace> {
        let n_ranks = u32::try_from(self.members.len()).expect("at most 256 members");
        let missing = Error::InvalidRank { rank: place.rank.get(), n_ranks };
        let rank = self.members.get(place.rank.index()).copied().ok_or(missing)?;
        self.context.heap().view().check(rank, Region::new(place.offset, len))?;
        Ok(HeapPlace { rank, ..place })
    }
}

/// What has to be as many as on the device's side.
const HOST: &str = "elements on the host's side";

/// A fixed number of `T` elements of ordinary memory, shared between the program and streams.
///
/// Clones are handles of the same memory. An operation of a stream locks it while it copies, and so
/// does each method. Read it after the operation was seen to be done: before, it has the old or the
/// new elements.
#[derive(Debug)]
pub struct HostBuffer<T> {
    elements: Arc<Mutex<Box<[T]>>>,
    len: usize,
}

impl<T> Clone for HostBuffer<T> {
    fn clone(&self) -> Self {
        Self { elements: Arc::clone(&self.elements), len: self.len }
    }
}

impl<T> HostBuffer<T> {
    /// Takes `elements`.
    pub fn new(elements: impl Into<Box<[T]>>) -> Self {
        let elements = elements.into();
        let len = elements.len();
        Self { elements: Arc::new(Mutex::new(elements)), len }
    }

    /// Returns the number of its elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `visit` read and write the elements alone. A stream waits for its end without a
    /// deadline, so `visit` must not wait for a stream that still has to copy this buffer.
    pub fn with<R>(&self, visit: impl FnOnce(&mut [T]) -> R) -> R {
        visit(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Box<[T]>> {
        // Elements are data of the user's: what a visitor that panicked has left is as good as any.
        self.elements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> HostBuffer<T> {
    /// Copies all elements.
    #[must_use]
    pub fn to_vec(&self) -> Vec<T> {
        self.lock().to_vec()
    }
}

impl<T: Pod> HostBuffer<T> {
    /// Makes `len` elements whose bytes are zero.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::new(vec![T::zeroed(); len])
    }
}

/// The source of a copy to a device. It is made from a `Vec`, an `Arc<[T]>`, a `&'static [T]` or a
/// `&HostBuffer`. A `HostBuffer` is read when the copy is executed.
#[derive(Debug)]
pub struct HostSource<T: 'static>(HostMemory<T>);

#[derive(Debug)]
enum HostMemory<T: 'static> {
    Owned(Vec<T>),
    Shared(Arc<[T]>),
    Static(&'static [T]),
    Buffer(HostBuffer<T>),
}

impl<T> HostSource<T> {
    pub(super) fn len(&self) -> usize {
        match &self.0 {
            HostMemory::Owned(elements) => elements.len(),
            HostMemory::Shared(elements) => elements.len(),
            HostMemory::Static(elements) => elements.len(),
            HostMemory::Buffer(buffer) => buffer.len(),
        }
    }

    /// Lets `visit` read the elements.
    pub(super) fn with<R>(&self, visit: impl FnOnce(&[T]) -> R) -> R {
        match &self.0 {
            HostMemory::Owned(elements) => visit(elements),
            HostMemory::Shared(elements) => visit(elements),
            HostMemory::Static(elements) => visit(elements),
            HostMemory::Buffer(buffer) => visit(&buffer.lock()),
        }
    }
}

impl<T> From<Vec<T>> for HostSource<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(HostMemory::Owned(elements))
    }
}

impl<T> From<Arc<[T]>> for HostSource<T> {
    fn from(elements: Arc<[T]>) -> Self {
        Self(HostMemory::Shared(elements))
    }
}

impl<T> From<&'static [T]> for HostSource<T> {
    fn from(elements: &'static [T]) -> Self {
        Self(HostMemory::Static(elements))
    }
}

impl<T> From<&HostBuffer<T>> for HostSource<T> {
    fn from(buffer: &HostBuffer<T>) -> Self {
        Self(HostMemory::Buffer(buffer.clone()))
    }
}
