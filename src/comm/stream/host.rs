//! Ordinary memory that operations of a stream read and write.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;

/// `T` elements of ordinary memory, of a number that stays, shared between the program and streams.
///
/// Clones are handles of the same memory. An operation of a stream locks it while it copies, and so does each method. What
/// an operation leaves there is to be read when that was seen to be done: before, it is the old or the new.
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

    /// How many elements it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `visit` read and write the elements, and nobody else meanwhile: a stream waits for its end, without a deadline. So `visit` must
    /// not wait for a stream that has a copy of this buffer before it.
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

/// What a stream copies to a device. Made from a `Vec`, which it takes, an `Arc<[T]>` or `&'static [T]`, which stay as they
/// are, or a `&HostBuffer`, which is read when the copy is executed.
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
